"""The bytes of BlipMQ frames: every documented example, and properties over all frames."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import Columns
from gateway.errors import FrameTooLarge, Status, WireError
from gateway.protocols.blipmq.wire import codec, frames, mapping
from gateway.protocols.blipmq.wire.frames import Ack, Auth, Frame, Hello, Nack, Ping, Poll, Pong, Publish, Subscribe
from tests.protocols.blipmq.vectors import LENGTHS_THAT_CLOSE, REFUSED, VECTORS, Refused, Vector
from tests.protocols.script import hexed


def encode(frame: Frame) -> bytes:
    """The frame's bytes, by the function a session would use."""
    match frame:
        case Hello():
            return codec.hello(frame.cid, frame.version)
        case Auth():
            return codec.auth(frame.cid, frame.key)
        case Publish():
            return codec.publish(frame.cid, frame.qos, frame.topic, frame.message)
        case Subscribe():
            return codec.subscribe(frame.cid, frame.topic, frame.qos)
        case Ack():
            return codec.ack(frame.cid, frame.subscription)
        case Nack():
            return codec.nack(frame.cid, mapping.NackText(frame.code, frame.text))
        case Ping():
            return codec.ping(frame.cid)
        case Pong():
            return codec.pong(frame.cid)
        case Poll():
            return codec.poll(frame.cid, frame.subscription)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.origin)
def test_examples_read_and_written(vector: Vector) -> None:
    assert codec.decode(vector.data) == vector.frame
    assert encode(vector.frame) == vector.data


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.origin)
def test_examples_that_are_refused(case: Refused) -> None:
    with pytest.raises(codec.RefusedFrame) as caught:
        codec.decode(case.data)
    assert codec.nack(codec.frame_cid(case.data, 0), caught.value.refusal) == case.nack


@pytest.mark.parametrize("length", LENGTHS_THAT_CLOSE)
def test_impossible_lengths_are_known_from_four_bytes(length: int) -> None:
    with pytest.raises(FrameTooLarge if length > frames.MAX_LENGTH else WireError):
        codec.frame_end(length.to_bytes(4), 0)


@pytest.mark.parametrize("length", [frames.MIN_LENGTH, frames.MAX_LENGTH])
def test_the_borders_are_legal(length: int) -> None:
    assert codec.frame_end(length.to_bytes(4), 0) == 4 + length


def test_unknown_types() -> None:
    for kind in [0, *range(0x0A, 0x100)]:
        with pytest.raises(WireError):
            codec.decode(hexed("00000009") + bytes((kind,)) + bytes(8))


@pytest.mark.parametrize(
    ("frame", "refusal"),
    [
        # wire 1.1: the key must fill the payload; text is UTF-8
        ("0000000d 02 0000000000000001 0001 6161", mapping.AUTH_INVALID),
        ("0000000c 02 0000000000000001 0001 ff", mapping.AUTH_INVALID),
        ("0000000a 02 0000000000000001 00", mapping.AUTH_INVALID),
        ("0000000c 01 0000000000000001 000100", mapping.HELLO_INVALID),
        ("0000000e 03 0000000000000001 00 0003 6161", mapping.PUBLISH_INVALID),
        ("0000000d 03 0000000000000001 00 0001 ff", mapping.PUBLISH_INVALID),
        ("0000000d 04 0000000000000001 0001 ff 01", mapping.SUBSCRIBE_INVALID),
        ("0000000c 04 0000000000000001 0001 61", mapping.SUBSCRIBE_INVALID),
        ("00000009 04 0000000000000001", mapping.SUBSCRIBE_INVALID),
        # wire 1.3: an empty topic wins over a bad qos
        ("0000000c 03 0000000000000001 02 0000", mapping.EMPTY_TOPIC),
        ("0000000c 04 0000000000000001 0000 02", mapping.EMPTY_TOPIC),
        ("0000000d 03 0000000000000001 02 0001 61", mapping.INVALID_QOS),
        ("00000012 09 0000000000000001 000000000000000200", mapping.POLL_INVALID),
    ],
)
def test_strictness(frame: str, refusal: mapping.NackText) -> None:
    with pytest.raises(codec.RefusedFrame) as caught:
        codec.decode(hexed(frame))
    assert caught.value.refusal == refusal


def test_subscribe_ignores_what_follows() -> None:
    """Wire 1.1."""
    assert codec.decode(hexed("0000000f 04 0000000000000001 0001 61 01 ffff")) == Subscribe(1, "a", 1)


def test_a_ping_may_carry_anything() -> None:
    """Wire 1.1."""
    assert codec.decode(hexed("0000000b 07 0000000000000007 ffff")) == Ping(7)


u64 = st.integers(0, 2**64 - 1)
topics = st.text(min_size=1, max_size=40)
qos = st.integers(0, 1)
published = st.builds(Publish, u64, qos, topics, st.binary(max_size=200))
any_frame: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, u64, st.integers(0, 0xFFFF)),
    st.builds(Auth, u64, st.text(max_size=40)),
    published,
    st.builds(Subscribe, u64, topics, qos),
    st.builds(Ack, u64, u64),
    st.builds(Nack, u64, st.integers(0, 0xFFFF), st.text(max_size=40)),
    st.builds(Ping, u64),
    st.builds(Pong, u64),
    st.builds(Poll, u64, st.integers(1, 2**64 - 1)),
)


@given(any_frame)
def test_what_is_written_is_read(frame: Frame) -> None:
    assert codec.decode(encode(frame)) == frame


@given(any_frame, st.data())
def test_a_cut_frame_is_never_read(frame: Frame, data: st.DataObject) -> None:
    whole = encode(frame)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(WireError):
        codec.decode(cut)


def scan_all(data: bytes) -> list[Publish]:
    """Read PUBLISH frames run by run."""
    found: list[Publish] = []
    position = 0
    while position < len(data):
        end = codec.frame_end(data, position)
        assert end is not None
        run = codec.scan_publishes(data, position, end)
        cids = [int.from_bytes(run.cids[at : at + 8]) for at in range(0, len(run.cids), 8)]
        found += [Publish(cid, run.qos, run.topic, value) for cid, value in zip(cids, run.messages, strict=True)]
        assert run.end > position
        position = run.end
    return found


few_topics = st.builds(Publish, u64, qos, st.sampled_from(["a", "b"]), st.sampled_from([b"", b"x", b"yy", b"zz" * 40]))


@given(st.lists(st.tuples(few_topics, st.integers(1, 40)), min_size=1, max_size=12))
def test_a_run_holds_what_single_frames_would(blocks: list[tuple[Publish, int]]) -> None:
    """Long stretches of equal frames take the fast way, everything else the slow one: both must see the same."""
    frames_sent = [frame for frame, times in blocks for _ in range(times)]
    assert scan_all(b"".join(map(encode, frames_sent))) == frames_sent


@pytest.mark.parametrize("spoiled", range(16 + 2))
def test_one_byte_that_differs_ends_a_run(spoiled: int) -> None:
    """Header, qos, topic length or topic of one frame in the middle of many equal ones. Its cid may differ."""
    equal = [codec.publish(7, 0, "ab", b"value")] * 1500
    odd = bytearray(equal[0])
    odd[spoiled] ^= 1
    run = codec.scan_publishes(b"".join([*equal[:300], odd, *equal]), 0, len(equal[0]))
    if 5 <= spoiled < 13:
        assert len(run.messages) == 1801
        assert run.cids[300 * 8 : 301 * 8] == odd[5:13]
    elif spoiled < 4:  # its length leads elsewhere
        assert len(run.messages) <= 301
    else:
        assert len(run.messages) == 300
        assert run.end == 300 * len(equal[0])


def test_a_run_stops_before_an_incomplete_frame() -> None:
    frame = codec.publish(7, 1, "ab", b"value")
    run = codec.scan_publishes((frame * 50)[:-1], 0, len(frame))
    assert (len(run.messages), run.end) == (49, 49 * len(frame))


def scan_polls(data: bytes) -> list[Poll]:
    """Read POLL frames run by run."""
    found: list[Poll] = []
    position = 0
    while position < len(data):
        run = codec.scan_polls(data, position, position + 21)
        found += [Poll(cid, run.subscription) for (cid,) in struct.iter_unpack(">Q", run.cids)]
        assert run.end > position
        position = run.end
    return found


@given(st.lists(st.tuples(st.builds(Poll, u64, st.integers(1, 3)), st.integers(1, 700)), min_size=1, max_size=4))
def test_a_run_of_polls_holds_what_single_frames_would(blocks: list[tuple[Poll, int]]) -> None:
    """With another cid in each of them."""
    polls = [Poll((poll.cid + number) % 2**64, poll.subscription) for poll, times in blocks for number in range(times)]
    data = b"".join(struct.pack(">IBQQ", 17, 9, poll.cid, poll.subscription) for poll in polls)
    assert scan_polls(data) == polls


@pytest.mark.parametrize("before", [1, 5, 300, 1100])
@pytest.mark.parametrize("spoiled", range(21))
def test_one_byte_that_differs_ends_a_run_of_polls(before: int, spoiled: int) -> None:
    """Header or subscription of one frame in the middle of many. Its cid may differ."""
    equal = hexed("00000011 09 0000000000000007 0000000000000002")
    odd = bytearray(equal)
    odd[spoiled] ^= 1
    run = codec.scan_polls(b"".join([equal * before, odd, equal * 1200]), 0, len(equal))
    assert run.subscription == 2
    if 5 <= spoiled < 13:
        assert len(run.cids) // 8 == before + 1201
        assert run.cids[before * 8 : before * 8 + 8] == odd[5:13]
    else:
        assert run.cids == (7).to_bytes(8) * before
        assert run.end == before * len(equal)


@pytest.mark.parametrize("missing", [1, 8, 20])
def test_a_run_of_polls_stops_before_an_incomplete_frame(missing: int) -> None:
    frame = hexed("00000011 09 0000000000000007 0000000000000002")
    run = codec.scan_polls((frame * 50)[:-missing], 0, len(frame))
    assert (len(run.cids), run.end) == (49 * 8, 49 * len(frame))


@given(
    st.one_of(
        st.lists(st.binary(max_size=40), min_size=1, max_size=40),
        st.integers(0, 1100).flatmap(
            lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=15, max_size=40)
        ),
    ),
    u64,
    qos,
    topics,
)
def test_deliveries_are_what_single_frames_would_be(values: list[bytes], first: int, quality: int, topic: str) -> None:
    """Of one size they are put together all at once, of several sizes one by one."""
    cids = [(first + 257 * index) % 2**64 for index in range(len(values))]
    name = topic.encode()
    expected = [
        struct.pack(">IBQBH", 12 + len(name) + len(value), 3, cid, quality, len(name)) + name + value
        for cid, value in zip(cids, values, strict=True)
    ]
    assert codec.publishes(codec.cids_of(cids), quality, topic, Columns.of(values)) == b"".join(expected)


@pytest.mark.parametrize("status", Status)
def test_every_status_can_be_said(status: Status) -> None:
    """Error Codes of the document: no others exist."""
    assert mapping.CODES[status] in {400, 401, 404, 426, 500}
