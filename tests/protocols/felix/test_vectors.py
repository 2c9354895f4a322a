"""The vector files: what is valid is read and written back to the byte, what is not is refused."""

from __future__ import annotations

import struct

import pytest

from gateway.errors import WireError
from gateway.protocols.felix.client.streams import FrameReader
from gateway.protocols.felix.wire import binary, codec, frames
from gateway.wire.session import Finish, StopSending
from tests.protocols.felix.values import VECTORS, framed, serving, split_frames, vectors

VALID = {vector["name"]: vector for vector in vectors("frame_valid.json")}
INVALID = {vector["name"]: vector for vector in vectors("frame_invalid.json")}
MESSAGES = {vector["name"]: vector for vector in vectors("message_valid.json")}
BAD_MESSAGES = {vector["name"]: vector for vector in vectors("message_invalid.json")}
CLIENT_TYPES = {"publish", "publish_batch", "subscribe", "cache_put", "cache_get", "auth"}


@pytest.mark.parametrize("name", VALID)
def test_valid_frame(name):
    vector = VALID[name]
    data = bytes.fromhex(vector["hex"])
    ((flags, payload),) = FrameReader().feed(data)
    assert flags == vector["flags"]
    if vector["json"] is not None:
        assert payload == vector["json"].encode()
    assert frames.frame(payload, flags) == data


REWRITTEN = [n for n, v in VALID.items() if v["json"] and v["flags"] == 0 and n != "broken_acked_batch"]


@pytest.mark.parametrize("name", REWRITTEN)
def test_message_is_written_back_to_the_byte(name):
    """Field order and compactness (wire 3.1)."""
    data = bytes.fromhex(VALID[name]["hex"])
    payload = data[12:]
    if any(f'"type":"{kind}"'.encode() in payload for kind in CLIENT_TYPES):
        message = codec.decode_client(payload)
        if isinstance(message, codec.CachePut):
            fields = (message.tenant_id, message.namespace, message.cache, message.key, message.value)
            known_as = codec.UNSET if message.request_id is None else message.request_id
            again = codec.encode(codec.CachePutOut(*fields, known_as, message.ttl_ms))
        elif isinstance(message, codec.CacheGet):
            known_as = codec.UNSET if message.request_id is None else message.request_id
            again = codec.encode(
                codec.CacheGetOut(message.tenant_id, message.namespace, message.cache, message.key, known_as)
            )
        else:
            again = codec.encode(message)
    else:
        again = codec.encode(codec.decode_server(payload))
    assert again == data


@pytest.mark.parametrize("name", INVALID)
def test_invalid_frame(name):
    """Refused on its header, or never whole; either way the stream ends with an error and a FIN."""
    data = bytes.fromhex(INVALID[name]["hex"])
    script = serving().feed(data)
    if not name.endswith("cut_off"):
        with pytest.raises(WireError):
            list(FrameReader().feed(data))
    else:
        assert list(FrameReader().feed(data)) == []
        script.quiet().eof()
    ((flags, payload),) = split_frames(script.sent())
    assert flags == 0
    assert payload.startswith(b'{"type":"error","message":"malformed frame')
    script.output(Finish, channel=0)
    if not name.endswith("cut_off"):
        script.output(StopSending, channel=0)
    script.quiet()


@pytest.mark.parametrize("name", MESSAGES)
def test_valid_message(name):
    payload = MESSAGES[name]["json"].encode()
    if MESSAGES[name]["from"] == "server":
        assert codec.encode(codec.decode_server(payload))[12:] == payload
    else:
        message = codec.decode_client(payload)
        assert isinstance(message, codec.Message)


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_invalid_message(name):
    payload = BAD_MESSAGES[name]["json"].encode()
    with pytest.raises(codec.BadMessage):
        codec.decode_client(payload, repair=True)
    script = serving().feed(framed(payload))
    ((_, said),) = split_frames(script.sent())
    assert said.startswith(b'{"type":"error","message":"')
    script.output(Finish, channel=0)
    script.output(StopSending, channel=0)
    script.quiet()


def test_error_from_a_client_is_told_nothing():
    """Wire 2.10."""
    script = serving().feed(framed(b'{"type":"error","message":"x"}'))
    script.output(Finish)
    script.output(StopSending)
    script.quiet()


def test_valid_batches():
    wanted = [
        (("t1", "default", "demo"), [b"a", b"b"]),
        (("t1", "default", "demo"), []),
        (("t1", "default", "demo"), [b""]),
        (("tënant", "", "a/b"), [bytes(300), b"x", b"yy"]),
        (("t" * 65535, "n", "s"), [bytes([i]) for i in range(64)]),
        (("t1", "default", "demo"), [b"hello"]),
        (("t1", "default", "demo"), [b"a"]),
    ]
    read = split_frames((VECTORS / "binary_batch_valid.bin").read_bytes())
    assert len(read) == len(wanted)
    for (flags, payload), (names, values) in zip(read, wanted, strict=True):
        start = 0
        if flags & frames.ACKED:
            assert binary.decode_request(payload, 0, len(payload)) == (7, 2)
            start = binary.REQUEST_SIZE
        end = binary.names_end(payload, start, len(payload))
        decoded = binary.decode_names(payload[start:end])
        assert (decoded.tenant, decoded.namespace, decoded.stream) == names
        assert binary.decode_values(payload, end, len(payload)).values() == values


def test_invalid_batches():
    read = split_frames((VECTORS / "binary_batch_invalid.bin").read_bytes())
    assert len(read) == 10
    for flags, payload in read:
        with pytest.raises(binary.MalformedBatch):
            _decode(payload)
        script = serving().feed(framed(payload, flags))
        assert b"malformed publish batch" in script.sent()
        script.output(Finish)
        script.output(StopSending)
        acked = serving().feed(framed(struct.pack(">QB", 5, 1) + payload, frames.BATCH | frames.ACKED))
        ((flags, said),) = split_frames(acked.sent())
        assert flags == frames.ACK  # the stream goes on (wire 1.2)
        assert binary.decode_ack(said)[0] == 5
        acked.quiet()


def _decode(payload: bytes) -> None:
    end = binary.names_end(payload, 0, len(payload))
    binary.decode_names(payload[:end])
    binary.decode_values(payload, end, len(payload))


def test_captured_binary_frames():
    """Wire 2.11 and 3.1."""
    frame = {name: bytes.fromhex(vector["hex"]) for name, vector in VALID.items()}
    assert binary.encode_ack(7) == frame["binary_ack"] == frame["binary_publish_ack_ok"]
    assert binary.encode_ack(9, "stream not found") == frame["binary_publish_ack_error"]
    names = binary.encode_names(binary.Names("t1", "default", "demo"))
    columns = binary.decode_values(struct.pack(">II", 1, 5) + b"hello", 0, 13)
    assert binary.encode_batch(names, columns, 7) == frame["binary_publish_acked"]
    two = binary.decode_values(struct.pack(">II", 2, 1) + b"a\x00\x00\x00\x01b", 0, 14)
    assert binary.encode_batch(names, two) == frame["binary_batch"]
    assert binary.decode_events(frame["events_one"][12:], 2)[0] == 7
    assert binary.decode_events(frame["events_three"][12:], 2)[2].values() == [b"one", b"two", b""]
    assert binary.decode_events(frame["shared_events"][12:], 4)[2].values() == [b"one", b"two"]
