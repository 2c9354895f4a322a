"""What `aioquic_private` assumes of aioquic, name by name, against aioquic itself. A new version fails here first."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from aioquic import tls
from aioquic.quic import connection as core_module
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import END_STATES, QuicConnection, QuicConnectionState
from aioquic.quic.packet import pull_quic_transport_parameters
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder, QuicPacketBuilderStop
from aioquic.quic.stream import QuicStreamSender

from gateway.transport.quic import aioquic_credit, aioquic_established, aioquic_private
from gateway.transport.quic.certificates import CertificateFiles

QUARANTINE = [Path(inspect.getfile(module)) for module in (aioquic_credit, aioquic_private, aioquic_established)]
COMPARED = QUARANTINE[-1]
"""What it assumes, `test_established.py` holds against aioquic itself, state and all."""
SERVER, CLIENT = ("192.0.2.1", 443), ("192.0.2.2", 555)


@attrs.define(eq=False)
class Pair:
    """Two plain aioquic connections, none of our code."""

    client: QuicConnection
    server: QuicConnection
    now: float = 0.0

    @classmethod
    def shake(cls, certificate: CertificateFiles, **client_options: object) -> Pair:
        identity = certificate.current()
        serving = QuicConfiguration(is_client=False)
        serving.certificate, serving.private_key = identity.certificate, identity.key
        dialling = QuicConfiguration(server_name="localhost", **client_options)  # type: ignore[arg-type]
        dialling.load_verify_locations(cafile=str(certificate.path))
        client = QuicConnection(configuration=dialling)
        server = QuicConnection(
            configuration=serving, original_destination_connection_id=client.original_destination_connection_id
        )
        pair = cls(client, server)
        client.connect(SERVER, now=0.0)
        pair.exchange(4)
        return pair

    def exchange(self, rounds: int = 2) -> None:
        for _ in range(rounds):
            for data, _address in self.client.datagrams_to_send(self.now):
                self.server.receive_datagram(data, CLIENT, self.now)
            for data, _address in self.server.datagrams_to_send(self.now):
                self.client.receive_datagram(data, SERVER, self.now)
            self.now += 0.01


@pytest.fixture
def pair(certificate: CertificateFiles) -> Pair:
    return Pair.shake(certificate)


def check_sender_offsets(pair: Pair) -> None:
    pair.client.send_stream_data(0, b"x" * 100)
    sender = pair.client._streams[0].sender
    assert (sender._buffer_start, sender._buffer_stop) == (0, 100)
    pair.exchange()
    assert (sender._buffer_start, sender._buffer_stop) == (100, 100)


def check_sender_buffer(pair: Pair) -> None:
    """More at its end, a slice, less at its beginning: nothing else is asked of it."""
    source = inspect.getsource(QuicStreamSender)
    asked = ("self._buffer += data", "self._buffer[start - self._buffer_start :", "del self._buffer[:size]")
    assert all(source.count(use) == 1 for use in asked)
    assert len(re.findall(r"self\._buffer\b", source)) == len(asked) + 1  # and where it is made


def check_sender_end(pair: Pair) -> None:
    pair.client.send_stream_data(0, b"abc")
    sender = pair.client._streams[0].sender
    assert sender._buffer_fin is None
    pair.client.send_stream_data(0, b"", end_stream=True)
    assert sender._buffer_fin == 3
    assert not sender.is_finished
    pair.exchange()
    assert sender.is_finished


def check_sender_reset(pair: Pair) -> None:
    pair.client.send_stream_data(0, b"abc")
    sender = pair.client._streams[0].sender
    assert sender._reset_error_code is None
    sender.reset(7)
    assert sender._reset_error_code == 7
    assert sender.reset_pending
    with pytest.raises(RuntimeError):
        sender.write(b"more")
    pair.exchange()
    assert not sender.reset_pending


def check_streams(pair: Pair) -> None:
    assert pair.client._streams == {}
    pair.client.send_stream_data(0, b"hello", end_stream=True)
    pair.exchange()
    assert list(pair.server._streams) == [0]
    pair.server.send_stream_data(0, b"", end_stream=True)
    pair.exchange(4)
    assert 0 not in pair.server._streams
    # the only caller of values() is the walk that announces limits
    assert inspect.getsource(core_module).count("_streams.values()") == 1


def check_streams_queue(pair: Pair) -> None:
    pair.client.send_stream_data(0, b"")
    (stream,) = pair.client._streams_queue
    assert stream is pair.client._streams[0]
    pair.client.send_stream_data(0, b"data")
    pair.client._streams_queue = []
    pair.exchange()
    assert pair.server._streams == {}  # a stream that is not queued is not looked at
    pair.client._streams_queue = [stream]
    pair.exchange()
    assert 0 in pair.server._streams


def check_write_stream_frame(pair: Pair) -> None:
    assert list(inspect.signature(QuicConnection._write_stream_frame).parameters) == [
        "self",
        "builder",
        "space",
        "stream",
        "max_offset",
    ]
    # the first walk over the queue per packet is the one that writes, the second the one that sorts
    source = inspect.getsource(QuicConnection._write_application)
    assert source.count("in self._streams_queue") == 2
    assert source.index("for stream in self._streams_queue:\n") < source.index("self._streams_queue = [")
    assert source.index("self._write_stream_frame(") < source.index("self._streams_queue = [")


def check_credit_frame(pair: Pair) -> None:
    # the table of handlers is made of bound methods, so an override is used
    calls: list[int] = []

    class Spy(QuicConnection):
        def _handle_max_stream_data_frame(self, context: object, frame_type: int, buf: aioquic_private.Buffer) -> None:
            calls.append(buf.pull_uint_var())
            buf.pull_uint_var()

    rebuilt = Spy(configuration=pair.client.configuration)
    handler, _epochs = rebuilt._QuicConnection__frame_handlers[0x11]  # type: ignore[attr-defined]
    handler(None, 0x11, aioquic_private.Buffer(data=b"\x04\x09"))
    assert calls == [4]


def check_stream_can_send(pair: Pair) -> None:
    assert [pair.client._stream_can_send(n) for n in range(4)] == [True, True, True, False]
    assert [pair.server._stream_can_send(n) for n in range(4)] == [True, True, False, True]


def check_local_max_data(pair: Pair) -> None:
    limit = pair.server._local_max_data
    assert limit.value == limit.sent == pair.client._remote_max_data
    pair.client.send_stream_data(0, bytes(1000))
    pair.exchange()
    assert limit.used == 1000
    limit.value += 5
    pair.exchange()
    assert pair.client._remote_max_data == limit.value


def check_local_max_streams(pair: Pair) -> None:
    for ours, theirs in (
        (pair.server._local_max_streams_bidi, pair.client._remote_max_streams_bidi),
        (pair.server._local_max_streams_uni, pair.client._remote_max_streams_uni),
    ):
        assert ours.value == ours.sent == theirs == 128


def check_remote_max_streams(pair: Pair) -> None:
    pair.server._local_max_streams_bidi.value = 600
    pair.exchange()
    assert pair.client._remote_max_streams_bidi == 600
    assert pair.client._remote_max_streams_uni == 128


def check_write_connection_limits(pair: Pair) -> None:
    # the doubling looks at `used`; without received bytes it does nothing
    limit = pair.server._local_max_data
    before = limit.value
    limit.used = limit.value
    pair.server.send_ping(1)
    pair.exchange()
    assert limit.value == 2 * before


def check_write_stream_limits(pair: Pair) -> None:
    pair.client.send_stream_data(0, b"x")
    pair.exchange()
    stream = pair.server._streams[0]
    before = stream.max_stream_data_local
    stream.receiver.highest_offset = before
    pair.server.send_ping(1)
    pair.exchange()
    assert stream.max_stream_data_local == stream.max_stream_data_local_sent == 2 * before
    assert pair.client._streams[0].max_stream_data_remote == 2 * before


def check_max_stream_data_delivery(pair: Pair) -> None:
    pair.client.send_stream_data(0, b"x")
    pair.exchange()
    stream = pair.server._streams[0]
    pair.server._on_max_stream_data_delivery(QuicDeliveryState.LOST, stream)
    assert stream.max_stream_data_local_sent == 0


def check_packets_lost(pair: Pair) -> None:
    told: list[int] = []
    lost = pair.client._loss._on_packets_lost

    def spy(*, packets: object, **rest: object) -> None:
        told.append(len(list(packets)))  # type: ignore[call-overload]
        lost(packets=packets, **rest)  # type: ignore[arg-type]

    pair.client._loss._on_packets_lost = spy  # type: ignore[method-assign, assignment]
    pair.client.send_stream_data(0, b"lost")
    pair.client.datagrams_to_send(pair.now)
    stream = pair.client._streams[0]
    assert stream.sender.buffer_is_empty
    due = pair.client.get_timer()
    assert due is not None
    pair.client.handle_timer(due + 0.001)
    assert any(told)
    assert not stream.sender.buffer_is_empty


def check_initialize_and_hello(pair: Pair) -> None:
    assert "peer_cid" in inspect.signature(QuicConnection._initialize).parameters
    names = list(inspect.signature(tls.Context._server_handle_hello).parameters)
    assert names == ["self", "input_buf", "initial_buf", "handshake_buf"]
    assert "self._server_handle_hello(" in inspect.getsource(tls.Context._handle_reassembled_message)
    assert pair.server.tls.state is tls.State.SERVER_POST_HANDSHAKE


def check_crypto_buffers(pair: Pair) -> None:
    """Once the handshake is done they are walked, and nothing is asked of them by name."""
    uses = ("_crypto_buffers: dict", "_crypto_buffers = {", ", self._crypto_buffers)", "_crypto_buffers.items()")
    source = inspect.getsource(core_module)
    assert [source.count(use) for use in uses] == [1, 1, 2, 1]
    assert source.count("_crypto_buffers") == 5
    for side in (pair.client, pair.server):
        side._crypto_buffers = {}
        with pytest.raises(tls.AlertUnexpectedMessage):  # a Finished, again
            side.tls.handle_message(b"\x14\x00\x00\x00", side._crypto_buffers)
        side._push_crypto_data()
    pair.client.send_stream_data(0, b"hello")
    pair.client.request_key_update()
    pair.exchange()
    assert 0 in pair.server._streams


def check_alpn_protocols(pair: Pair) -> None:
    assert pair.server.tls._alpn_protocols is None
    assert "self._alpn_protocols is not None" in inspect.getsource(tls.Context._server_handle_hello)


def check_peer_certificate(pair: Pair) -> None:
    shown = pair.client.tls._peer_certificate
    assert shown == pair.server.configuration.certificate
    assert pair.server.tls._peer_certificate is None


def check_client_certificates(pair: Pair) -> None:
    context = pair.server.tls
    assert context._request_client_certificate is False
    source = inspect.getsource(tls.Context)
    assert source.count("if self._request_client_certificate:") == 2
    assert context._peer_certificate_chain == []
    assert pair.client.tls._peer_certificate_chain == []


def check_configuration(pair: Pair) -> None:
    assert pair.client._configuration is pair.client.configuration


def check_is_client(pair: Pair) -> None:
    assert (pair.client._is_client, pair.server._is_client) == (True, False)


def check_close(pair: Pair) -> None:
    assert pair.client._close_event is None
    pair.client.close(error_code=5, reason_phrase="why")
    event = pair.client._close_event
    assert event is not None
    assert (event.error_code, event.frame_type, event.reason_phrase) == (5, None, "why")
    assert pair.client._state not in END_STATES
    pair.exchange(1)
    assert pair.client._state is QuicConnectionState.CLOSING
    assert pair.server._state is QuicConnectionState.DRAINING
    assert pair.server._close_event is not None
    due = pair.client.get_timer()
    assert due is not None
    pair.client.handle_timer(due)
    assert pair.client._state is QuicConnectionState.TERMINATED


def check_long_reasons_raise(pair: Pair) -> None:
    pair.client.close(error_code=5, reason_phrase="x" * 2000)
    with pytest.raises(QuicPacketBuilderStop):
        pair.client.datagrams_to_send(pair.now)


def check_network_paths(pair: Pair) -> None:
    fresh = QuicConnection(configuration=QuicConfiguration(server_name="localhost"))
    assert fresh._network_paths == []
    assert pair.server._network_paths[0].addr == CLIENT
    assert pair.server._network_paths[0].is_validated


def check_spaces(pair: Pair) -> None:
    space = pair.server._spaces[tls.Epoch.ONE_RTT]
    pair.client.send_stream_data(0, b"x")
    for data, _address in pair.client.datagrams_to_send(pair.now):
        pair.server.receive_datagram(data, CLIENT, pair.now)
    assert space.ack_at is not None
    assert space.ack_at == pair.now + pair.server._ack_delay
    assert not pair.server.datagrams_to_send(pair.now)
    space.ack_at = pair.now
    assert pair.server.datagrams_to_send(pair.now)


def check_events(pair: Pair) -> None:
    happened = pair.server._events
    pair.client.send_stream_data(0, b"something")
    pair.exchange()
    assert happened[-1].data == b"something"  # type: ignore[attr-defined]
    first = happened[0]
    assert pair.server.next_event() is first
    assert pair.server._events is happened


def check_remote_idle(pair: Pair) -> None:
    assert pair.client._remote_max_idle_timeout == pair.server.configuration.idle_timeout


def check_transport_parameters(pair: Pair) -> None:
    assert list(inspect.signature(QuicConnection._parse_transport_parameters).parameters) == [
        "self",
        "data",
        "from_session_ticket",
    ]
    sent = pull_quic_transport_parameters(aioquic_private.Buffer(data=pair.server._serialize_transport_parameters()))
    assert sent.max_udp_payload_size is None
    assert sent.initial_max_streams_bidi == 128


def check_datagram_size(pair: Pair) -> None:
    client = pair.client
    assert client._max_datagram_size == client._loss._cc._max_datagram_size == 1200  # type: ignore[attr-defined]
    assert client._loss._pacer._max_datagram_size == 1200
    client._max_datagram_size = 5000
    client.send_stream_data(0, bytes(4500))
    assert max(len(data) for data, _ in client.datagrams_to_send(pair.now)) > 4500


def check_pacer(pair: Pair) -> None:
    pacer = pair.client._loss._pacer
    assert pacer.packet_time is not None
    pacer.packet_time = None
    assert pacer.next_send_time(now=1e9) is None
    assert "self._pacer.update_rate(" in inspect.getsource(type(pair.client._loss))


def check_congestion_window(pair: Pair) -> None:
    assert pair.client._loss._cc.congestion_window == pair.client._loss.congestion_window


def check_initial_source_cid(pair: Pair) -> None:
    """The peer checks that the id which the first packets come from is the one in the transport parameters."""
    for core in (pair.client, pair.server):
        assert core._local_initial_source_connection_id == core.host_cid == core._host_cids[0].cid
    assert pair.client._remote_initial_source_connection_id == pair.server._local_initial_source_connection_id


def check_host_cids(pair: Pair) -> None:
    fresh = QuicConnection(configuration=pair.server.configuration, original_destination_connection_id=b"01234567")
    (only,) = fresh._host_cids
    assert only.cid == fresh.host_cid
    assert only.stateless_reset_token is not None
    # what the transport parameters will say, once there is a client to say it to
    assert "self._host_cids[0].stateless_reset_token" in inspect.getsource(
        QuicConnection._serialize_transport_parameters
    )


def check_replenish(pair: Pair) -> None:
    server = pair.server
    del server._host_cids[3:]
    server._replenish_connection_ids()
    assert len(server._host_cids) == 8
    for cid in server._host_cids[3:]:
        assert not cid.was_sent
        cid.stateless_reset_token = b"n" * 16
    pair.exchange(2)
    told = {cid.stateless_reset_token for cid in pair.client._peer_cid_available}
    assert b"n" * 16 in told


def check_peer_cids(pair: Pair) -> None:
    client, server = pair.client, pair.server
    tokens = {cid.cid: cid.stateless_reset_token for cid in server._host_cids}
    assert client._peer_cid.stateless_reset_token == tokens[client._peer_cid.cid]
    assert client._peer_cid_available
    for cid in client._peer_cid_available:
        assert cid.stateless_reset_token == tokens[cid.cid]
    assert not server._peer_cid.stateless_reset_token  # a client has none to give before NEW_CONNECTION_ID


def check_probe_timeout(pair: Pair) -> None:
    began = pair.now
    probe = pair.client._loss.get_probe_timeout()
    pair.client.close()
    pair.client.datagrams_to_send(began)
    assert pair.client.get_timer() == pytest.approx(began + 3 * probe)


def check_initial_builder(pair: Pair) -> None:
    assert {"host_cid", "peer_cid", "is_client", "max_datagram_size", "version"} <= set(
        inspect.signature(QuicPacketBuilder).parameters
    )


CHECKS: dict[str, Callable[[Pair], None]] = {
    "_buffer": check_sender_buffer,
    "_ack_delay": check_spaces,
    "_alpn_protocols": check_alpn_protocols,
    "_buffer_fin": check_sender_end,
    "_crypto_buffers": check_crypto_buffers,
    "_buffer_start": check_sender_offsets,
    "_buffer_stop": check_sender_offsets,
    "_cc": check_congestion_window,
    "_close_event": check_close,
    "_configuration": check_configuration,
    "_events": check_events,
    "_host_cids": check_host_cids,
    "_initialize": check_initialize_and_hello,
    "_is_client": check_is_client,
    "_local_initial_source_connection_id": check_initial_source_cid,
    "_local_max_data": check_local_max_data,
    "_local_max_streams_bidi": check_local_max_streams,
    "_local_max_streams_uni": check_local_max_streams,
    "_loss": check_packets_lost,
    "_max_datagram_size": check_datagram_size,
    "_network_paths": check_network_paths,
    "_on_max_stream_data_delivery": check_max_stream_data_delivery,
    "_on_packets_lost": check_packets_lost,
    "_pacer": check_pacer,
    "_peer_cid": check_peer_cids,
    "_peer_cid_available": check_peer_cids,
    "_parse_transport_parameters": check_transport_parameters,
    "_peer_certificate": check_peer_certificate,
    "_peer_certificate_chain": check_client_certificates,
    "_replenish_connection_ids": check_replenish,
    "_request_client_certificate": check_client_certificates,
    "_remote_max_idle_timeout": check_remote_idle,
    "_remote_max_streams_bidi": check_remote_max_streams,
    "_remote_max_streams_uni": check_remote_max_streams,
    "_reset_error_code": check_sender_reset,
    "_server_handle_hello": check_initialize_and_hello,
    "_spaces": check_spaces,
    "_state": check_close,
    "_stream_can_send": check_stream_can_send,
    "_streams": check_streams,
    "_streams_queue": check_streams_queue,
    "_write_connection_limits": check_write_connection_limits,
    "_write_stream_frame": check_write_stream_frame,
    "_write_stream_limits": check_write_stream_limits,
    "_handle_max_stream_data_frame": check_credit_frame,
    "get_probe_timeout": check_probe_timeout,
    "close": check_long_reasons_raise,
    "QuicPacketBuilder": check_initial_builder,
}

OURS = {
    "_alpns",
    "_ask_certificate",
    "_core",
    "_ending",
    "_fresh",
    "_general_datagrams",
    "_ours",
    "_packet_full",
    "_packets_lost",
    "_peer_payload_limit",
    "_queue",
    "_reset_token",
    "_sending",
    "_sweep",
    "_table",
    "_until_full",
    "_worker",
}


@pytest.mark.parametrize("name", CHECKS)
def test_aioquic_behaves_as_assumed(pair: Pair, name: str) -> None:
    CHECKS[name](pair)


def test_every_private_name_has_its_check() -> None:
    used = {
        node.attr
        for path in QUARANTINE
        if path != COMPARED
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    }
    assert used - OURS == {name for name in CHECKS if name.startswith("_")}


def test_nobody_else_touches_aioquics_private_names() -> None:
    for path in QUARANTINE[0].parent.parent.parent.rglob("*.py"):
        if path in QUARANTINE:
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aioquic"):
                assert not any(part.startswith("_") for part in (node.module or "").split(".")), path
                assert "quic" in path.parts, path
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and isinstance(node.value, ast.Attribute):
                assert node.value.attr not in {"core", "_core"}, f"{path}:{node.lineno}"


def test_nothing_was_filed_under_an_epoch_before_its_hash_changed() -> None:
    assert len({hash(epoch) for epoch in tls.Epoch}) == len(tls.Epoch)
    for name, module in sys.modules.items():
        if name.startswith("aioquic"):
            for filed in vars(module).values():
                if isinstance(filed, dict | set | frozenset) and filed is not sys.modules:
                    assert not any(isinstance(key, tls.Epoch) for key in filed), name


def test_sets_of_epochs_are_shared(pair: Pair) -> None:
    assert core_module.EPOCHS("01") is core_module.EPOCHS("01")
    handlers = pair.client._QuicConnection__frame_handlers  # type: ignore[attr-defined]
    assert {type(epochs) for _handler, epochs in handlers.values()} == {frozenset}, "what nobody can change"
    assert len({id(epochs) for _handler, epochs in handlers.values()}) == 4


def test_the_version_is_the_one_that_was_read() -> None:
    assert importlib.metadata.version("aioquic") == "1.7.1"
