"""The plain way of packets against aioquic's own, datagram for datagram.

Two servers are in the same state, with the same keys: one goes the plain way wherever it can be gone, the other never. Both
are told the same by a client and by their owner, at the same time; after each step they must have made the same bytes and
events, want to be called at the same time, and know the same.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from aioquic import tls
from aioquic.quic import connection as engine
from aioquic.quic import events
from aioquic.quic.crypto import CryptoPair
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.transport.quic import aioquic_established
from gateway.transport.quic.aioquic_credit import CreditedConnection
from gateway.transport.quic.aioquic_established import EstablishedConnection
from gateway.transport.quic.aioquic_private import Core, stop_pacing, use_datagrams_of
from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.configuration import client_configuration, server_configuration
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.tls import ClientTls
from tests.quic.support import forge

SERVER, CLIENT, ELSEWHERE = ("192.0.2.1", 443), ("192.0.2.2", 555), ("192.0.2.3", 556)


def acknowledge_now(core: Core, now: float) -> None:
    """An acknowledgement that is owed leaves with the next datagrams."""
    space = core._spaces[ONE_RTT]
    if space.ack_at is not None and space.ack_at > now:
        space.ack_at = now


LIMITS = QuicLimits(stream_window=40_000, connection_window=60_000)
NARROW = QuicLimits(stream_window=4_000, connection_window=9_000)
ONE_RTT = tls.Epoch.ONE_RTT


class GeneralCore(Core):
    """Goes aioquic's way, always."""

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        CreditedConnection.receive_datagram(self, data, addr, now)

    def _says_nothing_special(self, now: float) -> bool:
        return False

    def write(self, stream_id: int, data: bytes, end: bool = False) -> bool:
        if not end and super().write(stream_id, b""):
            self._streams[stream_id].sender.write(data)
            return True
        return super().write(stream_id, data, end)

    def get_timer(self) -> float | None:
        return CreditedConnection.get_timer(self)

    def _idle_timeout(self) -> float:
        return CreditedConnection._idle_timeout(self)


class InOrder(dict[Any, None]):
    """A set whose order is not chance: aioquic sorts the streams that were served by where they lie in memory."""

    def add(self, one: object) -> None:
        self[one] = None


def in_order(*of: Any) -> Any:
    return set(*of) if of else InOrder()


def twin(core: Core, made: type[Core]) -> Core:
    """Another of a connection, with the same keys."""
    memo: dict[int, object] = {id(None): None, id(core.tls): core.tls, id(core._configuration): core._configuration}
    for pair in {id(one): one for one in (*core._cryptos.values(), *core._cryptos_initial.values())}.values():
        memo[id(pair)] = other = CryptoPair()
        for mine, its in ((pair.send, other.send), (pair.recv, other.recv)):
            if mine.is_valid():
                its.setup(cipher_suite=mine.cipher_suite, secret=mine.secret, version=mine.version)
                its.key_phase = mine.key_phase
    for left in (core._logger, core._loss._logger, core._crypto_buffers):
        memo[id(left)] = left
    for keys in (core._receiving, core._writing):
        memo[id(keys)] = None
    other_core = copy.deepcopy(core, memo)
    other_core.__class__ = made
    if made is GeneralCore:  # and keeps what it sends in aioquic's own array
        other_core._table.buffer = bytearray
        for stream in other_core._streams.values():
            stream.sender._buffer = bytearray(stream.sender._buffer[0 : len(stream.sender._buffer)])
    return other_core


@attrs.define(eq=False)
class Three:
    """A client, and two servers that it takes for one."""

    client: Core
    plain: Core
    general: Core
    now: float = 10.0
    seed: int = 0
    plain_sent: int = 0

    @property
    def servers(self) -> tuple[Core, Core]:
        return self.plain, self.general

    def both(self, what: Any) -> None:
        """Something done to both, with the same chance."""
        self.seed += 1
        results = []
        genuine = os.urandom
        for server in self.servers:
            os.urandom = random.Random(self.seed).randbytes  # type: ignore[assignment]
            try:
                results.append(what(server))
            finally:
                os.urandom = genuine
        assert results[0] == results[1]

    def arrive(self, data: bytes, source: tuple[str, int] = CLIENT) -> None:
        self.both(lambda server: server.receive_datagram(data, source, self.now))
        self.compare()

    def flush(self, lost: Sequence[bool]) -> None:
        """The servers send; some of it is lost."""
        self.seed += 1
        made = []
        for server in self.servers:
            chance, genuine = random.Random(self.seed), os.urandom
            os.urandom = chance.randbytes  # type: ignore[assignment]
            try:
                made.append(server.datagrams_to_send(self.now))
            finally:
                os.urandom = genuine
        assert made[0] == made[1]
        self.plain_sent += len(made[0])
        for (data, _address), gone in zip(made[0], itertools.cycle(lost), strict=False):
            if not gone:
                self.client.receive_datagram(data, SERVER, self.now)
        self.compare()

    def compare(self) -> None:
        plain, general = self.servers
        while True:
            first, second = plain.next_event(), general.next_event()
            assert first == second
            if first is None:
                break
        assert plain.get_timer() == general.get_timer()
        assert known(plain) == known(general)


def known(core: Core) -> dict[str, object]:
    """What a connection knows that decides what it will do."""
    space, loss = core._spaces[ONE_RTT], core._loss
    control: Any = loss._cc
    sent = [
        (
            packet.packet_number,
            packet.sent_bytes,
            packet.sent_time,
            packet.in_flight,
            packet.is_ack_eliciting,
            [handler.__name__ for handler, _ in packet.delivery_handlers],
        )
        for packet in space.sent_packets.values()
    ]
    streams = {
        number: (
            stream.receiver._buffer_start,
            stream.receiver.highest_offset,
            stream.receiver.is_finished,
            bytes(stream.receiver._buffer),
            stream.sender._buffer_start,
            stream.sender._buffer_stop,
            bytes(stream.sender._buffer[0 : len(stream.sender._buffer)]),
            list(stream.sender._pending),
            list(stream.sender._acked),
            stream.sender._pending_eof,
            stream.sender.buffer_is_empty,
            stream.sender.highest_offset,
            stream.sender.is_finished,
        )
        for number, stream in core._streams.items()
    }
    return {
        "streams": streams,
        "queue": [stream.stream_id for stream in core._streams_queue],
        "sent": sent,
        "acknowledgements": (space.ack_at, list(space.ack_queue), space.ack_eliciting_in_flight, space.loss_time),
        "numbers": (
            space.expected_packet_number,
            space.largest_acked_packet,
            space.largest_received_packet,
            space.largest_received_time,
            core._packet_number,
        ),
        "received": (space.received_packets._lower, space.received_packets._received),
        "times": (core._close_at, core._pacing_at, core._loss_at, loss._time_of_last_sent_ack_eliciting_packet),
        "round trips": (loss._rtt_latest, loss._rtt_min, loss._rtt_smoothed, loss._rtt_variance, loss._pto_count),
        "window": (control.congestion_window, control.bytes_in_flight, control.ssthresh, control._congestion_stash),
        "credit": (core._local_max_data.used, core._local_max_data.value, core._remote_max_data_used),
        "path": [(path.addr, path.is_validated, path.bytes_sent) for path in core._network_paths],
        "spin": (core._spin_bit, core._spin_highest_pn),
        "state": (core._state, core._close_pending, core._ack_eliciting_sent_since_receipt, core.end),
        "cids": (core.host_cid, core._peer_cid.cid, core._host_cids),
    }


@pytest.fixture(scope="module")
def shaken(certificate: CertificateFiles) -> tuple[Core, Core]:
    client = Core(client_configuration(LIMITS, ClientTls(insecure=True), "localhost", ()), streams=64)
    server = Core(
        server_configuration(NARROW, certificate.current()),
        streams=64,
        alpns=(None,),
        original_destination_connection_id=client.original_destination_connection_id,
    )
    client.connect(SERVER, now=9.0)
    for step in range(6):
        now = 9.0 + step / 100
        for data, _address in client.datagrams_to_send(now):
            server.receive_datagram(data, CLIENT, now)
        for data, _address in server.datagrams_to_send(now):
            client.receive_datagram(data, SERVER, now)
        for core in (client, server):
            due = core.get_timer()
            if due is not None and due <= now:
                core.handle_timer(now)
    for core in (client, server):
        while core.next_event() is not None:
            pass
    assert server._handshake_confirmed
    return client, server


Size = st.sampled_from((1, 3, 24, 200, 1100, 5000, 30_000))
Stream = st.integers(0, 4)
Lost = st.sampled_from(
    ((False,), (False,), (False,), (True, False), (False, False, True), (False, True, True), (True,))
)
NUMBERS = st.sampled_from((0, 1, 2, 5, 63, 64, 300, 16_383, 16_384, 40_000, 70_000, 1 << 30, (1 << 62) - 1))
WRITES = st.tuples(
    st.sampled_from(("client writes", "server writes")), Stream, Size, st.sampled_from((False, False, False, True))
)
DONE = st.one_of(
    WRITES,
    WRITES,
    WRITES,
    st.tuples(st.just("server writes to many"), Size),
    st.tuples(st.just("grant"), Stream, st.integers(0, 100_000)),
    st.tuples(
        st.sampled_from(("ping", "client pings", "new keys", "another id", "another place", "again", "reordered"))
    ),
    st.tuples(st.just("stream frame"), st.integers(8, 15), Stream, st.integers(-3, 3), NUMBERS, st.integers(0, 9)),
    st.tuples(st.just("acknowledgement"), st.integers(-3, 30), st.integers(0, 40), st.integers(0, 1)),
    st.tuples(st.just("frame"), st.integers(0, 31), st.lists(NUMBERS, max_size=5), st.binary(max_size=8)),
    st.tuples(st.just("garbage"), st.binary(min_size=1, max_size=60)),
    st.tuples(st.just("reset"), Stream, st.booleans()),
    st.tuples(st.just("frame"), st.just(0x1A), st.just(()), st.binary(min_size=8, max_size=8)),
)
STEPS = st.tuples(
    DONE,
    Lost,
    st.booleans(),
    Lost,
    st.booleans(),
    st.sampled_from((0.0, 0.0, 0.0004, 0.002, 0.03, 0.5)),
)
"""Something is done, then both sides send and some of it is lost or overtaken, and time passes."""


class Story:
    """Steps, told to three."""

    def __init__(self, shaken: tuple[Core, Core], loopback: bool) -> None:
        client, server = shaken
        self.three = Three(twin(client, Core), twin(server, Core), twin(server, GeneralCore))
        self.sent: list[bytes] = []
        if loopback:
            for core in (self.three.client, *self.three.servers):
                stop_pacing(core)
                use_datagrams_of(core, 8192)

    def tell(
        self,
        done: Sequence[Any],
        lost: Sequence[bool],
        backwards: bool,
        lost_by_servers: Sequence[bool],
        at_once: bool,
        seconds: float,
    ) -> None:
        getattr(self, done[0].replace(" ", "_"))(*done[1:])
        self.client_sends(lost, backwards)
        self.server_sends(lost_by_servers, at_once)
        self.time_passes(seconds)

    def client_writes(self, stream: int, size: int, end: bool) -> None:
        client = self.three.client
        number = min(4 * stream, client.get_next_available_stream_id())
        if number == client.get_next_available_stream_id():
            client.open(False)
        client.write(number, bytes(size), end)

    def server_writes(self, stream: int, size: int, end: bool) -> None:
        mine = stream < 2
        following = self.three.plain.get_next_available_stream_id()
        number = min(4 * stream + 1, following) if mine else 4 * (stream - 2)

        def write(server: Core) -> bool:
            if number == following:
                server.open(False)
            return server.write(number, random.Random(size).randbytes(size), end)

        self.three.both(write)
        self.three.compare()

    def client_sends(self, lost: Sequence[bool], backwards: bool) -> None:
        three = self.three
        if not backwards:
            acknowledge_now(three.client, three.now)
        made = three.client.datagrams_to_send(three.now)
        sent = [data for (data, _), gone in zip(made, itertools.cycle(lost), strict=False) if not gone]
        for data in reversed(sent) if backwards else sent:
            three.arrive(data)
            self.sent.append(data)

    def server_sends(self, lost: Sequence[bool], at_once: bool) -> None:
        if at_once:
            self.three.both(lambda server: acknowledge_now(server, self.three.now))
        self.three.flush(lost)

    def time_passes(self, seconds: float) -> None:
        three = self.three
        three.now += seconds
        for core in (three.client, *three.servers):
            due = core.get_timer()
            if due is not None and due <= three.now:
                core.handle_timer(three.now)
        three.compare()

    def server_writes_to_many(self, size: int) -> None:
        for stream in range(5):
            self.server_writes(stream, size, False)

    def grant(self, stream: int, more: int) -> None:
        self.three.both(lambda server: server.grant_stream(4 * stream, 4_000 + more))
        self.three.both(lambda server: server.grant_connection(9_000 + more))

    def ping(self) -> None:
        self.three.both(lambda server: server.send_ping(1))

    def client_pings(self) -> None:
        self.three.client.send_ping(1)

    def new_keys(self) -> None:
        self.three.client.request_key_update()

    def another_id(self) -> None:
        self.three.client.change_connection_id()

    def another_place(self) -> None:
        three = self.three
        three.client.send_ping(2)
        for data, _ in three.client.datagrams_to_send(three.now):
            three.arrive(data, ELSEWHERE)

    def again(self) -> None:
        """Something that came long ago comes again."""
        for data in self.sent[:1] + self.sent[-1:]:
            self.three.arrive(data)

    def reordered(self) -> None:
        """Many small packets, last first: more gaps than an acknowledgement names."""
        three = self.three
        made = []
        for _ in range(70):
            three.client.send_ping(3)
            made += [data for data, _ in three.client.datagrams_to_send(three.now)][:1]
            three.client.send_ping(4)
            three.client.datagrams_to_send(three.now)  # lost
        for data in reversed(made):
            three.arrive(data)

    def frame(self, kind: int, numbers: Sequence[int], rest: bytes) -> None:
        """A packet that is sealed as it should be, of anything."""
        payload = bytes([kind]) + b"".join(aioquic_established._number(number) for number in numbers) + rest
        if not self.three.client.is_over:
            self.three.arrive(forge(self.three.client, payload))

    def stream_frame(self, kind: int, stream: int, beside: int, count: int, size: int) -> None:
        """Where its bytes are the next, or nearly so."""
        known_ = self.three.plain._streams.get(4 * stream)
        offset = max(0, (known_.receiver._buffer_start if known_ is not None else 0) + beside)
        numbers = [4 * stream]
        if kind & 4:
            numbers.append(offset)
        if kind & 2:
            numbers.append(count if beside else size)
        self.frame(kind, numbers, bytes(size))

    def acknowledgement(self, beside: int, count: int, more: int) -> None:
        """Of packets of which some may not have been sent."""
        highest = max(0, self.three.plain._packet_number - beside)
        self.frame(2, [highest, 10, more, count, *([1, 1] * more)], b"")

    def garbage(self, data: bytes) -> None:
        cid = self.three.plain.host_cid
        self.three.arrive(data)
        self.three.arrive(bytes([0x40 | data[0] & 0x3F]) + cid + data)

    def reset(self, stream: int, ours: bool) -> None:
        if ours:
            self.three.both(lambda server: server.abandon(4 * stream, 7))
        else:
            self.three.client.abandon(4 * stream, 7)


@settings(deadline=None, max_examples=200)
@given(steps=st.lists(STEPS, min_size=8, max_size=40), loopback=st.booleans())
def test_both_ways_are_the_same(shaken: tuple[Core, Core], steps: list[tuple[Any, ...]], loopback: bool) -> None:
    story = Story(shaken, loopback)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "set", in_order, raising=False)
        for step in steps:
            story.tell(*step)
        for _ in range(3):  # and all that is left
            story.tell(("client pings",), (False,), False, (False,), True, 0.03)


def test_the_plain_way_is_gone(shaken: tuple[Core, Core], monkeypatch: pytest.MonkeyPatch) -> None:
    """A request, its answer and what acknowledges them never come to aioquic's own way."""
    story = Story(shaken, True)
    three = story.three
    for _ in range(3):  # what is left of the handshake
        story.tell(("client pings",), (False,), False, (False,), True, 0.03)
    story.client_writes(0, 100, False)
    story.client_sends([False], False)
    story.server_writes(2, 100, False)
    story.server_sends([False], True)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("aioquic's own way")

    monkeypatch.setattr(CreditedConnection, "receive_datagram", never)
    monkeypatch.setattr(CreditedConnection, "datagrams_to_send", never)
    monkeypatch.setattr(CreditedConnection, "get_timer", never)
    for _ in range(100):
        three.now += 0.001
        for sender, receiver, source in ((three.client, three.plain, CLIENT), (three.plain, three.client, SERVER)):
            assert sender.write(0, bytes(30))
            acknowledge_now(sender, three.now)
            ((data, _address),) = sender.datagrams_to_send(three.now)
            receiver.receive_datagram(data, source, three.now)
            receiver.get_timer()
    assert three.plain._streams[0].receiver._buffer_start == 100 + 100 * 30


def test_an_id_that_was_lost_on_its_way_is_told_again(
    shaken: tuple[Core, Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    # which alone must be enough for it: the same packet names one that is not used any more
    monkeypatch.setattr(engine.QuicConnection, "_on_retire_connection_id_delivery", lambda *_: None)
    story = Story(shaken, True)
    three = story.three
    for _ in range(3):  # what is left of the handshake
        story.tell(("client pings",), (False,), False, (False,), True, 0.03)
    before = {cid.cid for cid in three.plain._host_cids}
    story.tell(
        ("another id",), (False,), False, (True,), True, 0.0
    )  # the server names one more, and that packet is lost
    (fresh,) = {cid.cid for cid in three.plain._host_cids} - before
    for _ in range(5):  # the plain way, until a later packet is acknowledged and shows that it is
        story.tell(("server writes", 2, 100, False), (False,), False, (False,), True, 0.001)
        story.tell(("client writes", 0, 100, False), (False,), False, (False,), True, 0.001)
    assert fresh in {cid.cid for cid in three.client._peer_cid_available}


def test_bytes_are_handed_on_as_they_are_read_but_not_past_what_happened_before(shaken: tuple[Core, Core]) -> None:
    story = Story(shaken, True)
    three = story.three
    for _ in range(3):  # what is left of the handshake
        story.tell(("client pings",), (False,), False, (False,), True, 0.03)
    taken: list[tuple[int, bytes]] = []
    server, client = three.plain, three.client
    server.take = lambda stream, data: taken.append((stream, data))

    def arrives(data: bytes) -> None:
        client.write(0, data)
        for datagram, _ in client.datagrams_to_send(three.now):
            server.receive_datagram(datagram, CLIENT, three.now)

    server._events.clear()
    client.open(False)
    arrives(b"a stream")  # that nobody knew: an event, which nobody looks at yet
    arrives(b"behind")
    assert not taken
    assert [(type(event), event.data) for event in server._events] == [
        (events.StreamDataReceived, b"a stream"),
        (events.StreamDataReceived, b"behind"),
    ]
    server._events.clear()
    arrives(b"at once")
    assert taken == [(0, b"at once")]
    assert not server._events


def test_numbers_of_packets_are_made_whole_as_aioquic_does() -> None:
    chance = random.Random(7)
    for _ in range(5000):
        bits = chance.choice((8, 16, 24, 32))
        truncated, expected = chance.randrange(1 << bits), chance.randrange(1 << chance.randrange(1, 62))
        assert aioquic_established._whole(truncated, bits, expected) == engine_number(truncated, bits, expected)


def engine_number(truncated: int, bits: int, expected: int) -> int:
    from aioquic.quic.packet import decode_packet_number

    return decode_packet_number(truncated, bits, expected)


def test_it_only_overrides_what_is_there() -> None:
    for name in (
        "receive_datagram",
        "datagrams_to_send",
        "get_timer",
        "_idle_timeout",
        "_replenish_connection_ids",
        "_on_new_connection_id_delivery",
    ):
        assert name in vars(EstablishedConnection)
        assert name in vars(engine.QuicConnection)
