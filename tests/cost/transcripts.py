"""What clients say in one turn, protocol by protocol: whatever they do between two moments at which the gateway is at rest.

Over TCP they are plain sockets and ready-made bytes; over QUIC our own client, whose half of the connection costs the
gateway nothing but the packets. No clock decides what it sends: it acknowledges what it has read with whatever it says next,
and has told the gateway that it may be so long about that that nothing is asked for again meanwhile.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import attrs
import pytest

from gateway.envelope import Batch, Columns
from gateway.protocols.registry import protocol
from gateway.requests import Delivered, Publish, Settle, Subscribe, Subscribed, Take, Taken
from gateway.settings import Dialect
from gateway.transport.client import Connection, connect
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext
from tests.bench import loads, loads_flymq
from tests.cost.patience import be_patient

VALUE = b"x" * 1024
WAITING = 100
"""Messages that lie ready where a turn takes one: more than there are turns."""

Turn = Callable[[], Awaitable[None]]


@attrs.frozen
class Side:
    """Where the gateway that is measured listens, and the one it forwards to."""

    ports: Mapping[str, int]
    far: Mapping[str, int]
    rest: Callable[[], None]
    """Waits until it has nothing left to do, so that what follows meets it always in the same state."""


Transcript = Callable[[Side], AbstractAsyncContextManager[Turn]]


# --- FlyMQ ---


def _flymq(sock: socket.socket, frame: bytes) -> bytes:
    sock.sendall(frame)
    head = loads.receive(sock, 8)
    assert head[2] == frame[2], "an error"
    return loads.receive(sock, int.from_bytes(head[4:8], "big"))


def flymq_produce(topic: str) -> Transcript:
    @asynccontextmanager
    async def transcript(side: Side) -> AsyncIterator[Turn]:
        frame = loads_flymq.produce_frame(topic.encode(), len(VALUE))
        with loads.connect(side.ports["flymq"]) as sock:

            async def turn() -> None:
                _flymq(sock, frame)

            yield turn

    return transcript


@asynccontextmanager
async def flymq_in_turns(side: Side) -> AsyncIterator[Turn]:
    """Two who ask by turns: nobody is alone, and each has what he sent committed when it is read."""
    frame = loads_flymq.produce_frame(b"lazy.turns", len(VALUE))
    with loads.connect(side.ports["flymq"]) as one, loads.connect(side.ports["flymq"]) as other:

        async def turn() -> None:
            _flymq(one, frame)
            side.rest()
            _flymq(other, frame)

        yield turn


@asynccontextmanager
async def flymq_fetch(side: Side) -> AsyncIterator[Turn]:
    topic = b"memory.fetched"
    with loads.connect(side.ports["flymq"]) as sock:
        _flymq(sock, loads_flymq.produce_frame(topic, len(VALUE)))
        frame = loads_flymq.frame(7, struct.pack(">H", len(topic)) + topic + struct.pack(">iQi", 0, 0, 1))

        async def turn() -> None:
            assert len(_flymq(sock, frame)) > len(VALUE)

        yield turn


@asynccontextmanager
async def flymq_beside(side: Side) -> AsyncIterator[Turn]:
    """Who has a neighbour is not alone: the commit is the thread's."""
    frame = loads_flymq.produce_frame(b"durable.beside", len(VALUE))
    async with flymq_fetch(side) as fetch:
        with loads.connect(side.ports["flymq"]) as sock:

            async def turn() -> None:
                await fetch()
                side.rest()
                _flymq(sock, frame)

            yield turn


# --- RustLog ---


def _rustlog(sock: socket.socket, frame: bytes) -> bytes:
    sock.sendall(frame)
    return loads.receive(sock, int.from_bytes(loads.receive(sock, 4), "big"))


def rustlog_produce(topic: bytes) -> Transcript:
    @asynccontextmanager
    async def transcript(side: Side) -> AsyncIterator[Turn]:
        frame = loads.produce_frame(topic, [VALUE])
        with loads.rustlog(side.ports["rustlog"], topic) as sock:

            async def turn() -> None:
                assert _rustlog(sock, frame)[0] == 1

            yield turn

    return transcript


@asynccontextmanager
async def rustlog_fetch(side: Side) -> AsyncIterator[Turn]:
    topic = b"memory.polled"
    with loads.rustlog(side.ports["rustlog"], topic) as sock:
        _rustlog(sock, loads.produce_frame(topic, [VALUE]))

        async def turn() -> None:
            count, _following, _answer = loads.fetch(sock, topic, 0, 1 << 20)
            assert count == 1

        yield turn


# --- BlipMQ ---


def _subscribed(sock: socket.socket, topic: bytes, qos: int) -> int:
    """The subscription's id, out of the ACK that answers (BlipMQ wire 1.1)."""
    sock.sendall(loads.frame(struct.pack(">BQH", 4, 9, len(topic)) + topic + bytes((qos,))))
    return int.from_bytes(loads.receive(sock, 21)[13:], "big")


def _poll(subscription: int) -> bytes:
    return loads.frame(struct.pack(">BQQ", 9, 5, subscription))


def _delivery(sock: socket.socket) -> int:
    """The tag of the PUBLISH that comes next."""
    frame = loads.receive(sock, int.from_bytes(loads.receive(sock, 4), "big"))
    assert frame[0] == 3
    return int.from_bytes(frame[1:9], "big")


def blipmq_publish(topic: bytes) -> Transcript:
    """QoS 1, and a PING that is answered once it is stored."""

    @asynccontextmanager
    async def transcript(side: Side) -> AsyncIterator[Turn]:
        frames = loads.publish(topic, 1, VALUE) + loads.PING
        with loads.blipmq(side.ports["blipmq"]) as sock:

            async def turn() -> None:
                sock.sendall(frames)
                assert loads.receive(sock, loads.PONG_SIZE)[4] == 8

            yield turn

    return transcript


@asynccontextmanager
async def blipmq_poll(side: Side) -> AsyncIterator[Turn]:
    """POLL, the delivery, its ACK: of what lies ready."""
    with loads.blipmq(side.ports["blipmq"]) as sock:
        subscription = _subscribed(sock, b"memory.inbox", 1)
        for _ in range(
            WAITING
        ):  # each by itself: how many come in one read is the machine's to say, and what lies ready is cut so
            sock.sendall(loads.publish(b"memory.inbox", 1, VALUE) + loads.PING)
            loads.receive(sock, loads.PONG_SIZE)
        side.rest()

        async def turn() -> None:
            sock.sendall(_poll(subscription))
            tag = _delivery(sock)
            side.rest()
            sock.sendall(loads.frame(struct.pack(">BQQ", 5, tag, subscription)))

        yield turn


@asynccontextmanager
async def blipmq_many(side: Side) -> AsyncIterator[Turn]:
    """Fifty POLLs in one read, and what answers them: what lies ready came in half as large pieces."""
    many, topic = 50, b"memory.crowd"
    with loads.blipmq(side.ports["blipmq"]) as sock:
        polls = _poll(_subscribed(sock, topic, 0)) * many
        some = loads.publish(topic, 0, b"x" * 20) * (many // 2) + loads.PING
        for _ in range(2 * WAITING):
            sock.sendall(some)
            loads.receive(sock, loads.PONG_SIZE)
        side.rest()

        async def turn() -> None:
            sock.sendall(polls)
            for _ in range(many):
                _delivery(sock)

        yield turn


@asynccontextmanager
async def blipmq_ten(side: Side) -> AsyncIterator[Turn]:
    """Ten connections wait with a POLL each; what is published goes to all of them."""
    async with AsyncExitStack() as stack:
        topic = b"memory.news"
        publisher = stack.enter_context(loads.connect(side.ports["flymq"]))
        frame = loads_flymq.produce_frame(topic, len(VALUE))
        _flymq(publisher, frame)
        readers = [stack.enter_context(loads.blipmq(side.ports["blipmq"])) for _ in range(10)]
        polls = [_poll(_subscribed(sock, topic, 0)) for sock in readers]

        async def turn() -> None:
            for sock, poll in zip(readers, polls, strict=True):
                sock.sendall(poll)
                side.rest()
            _flymq(publisher, frame)
            for sock in readers:
                _delivery(sock)

        yield turn


# --- QUIC ---


@asynccontextmanager
async def _quic(side: Side, name: str, dialect: Dialect = Dialect.AUTO) -> AsyncIterator[Connection]:
    tls, context = ClientTls(insecure=True), ClientContext(dialect=dialect)
    async with AsyncExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            be_patient(patch.setattr)
            connection = await stack.enter_async_context(
                connect(protocol(name), "127.0.0.1", side.ports[name], tls=tls, timeout=60, context=context)
            )
        yield connection


async def _subscription(connection: Connection, address: str, name: str = "") -> int:
    reply = await connection.request(Subscribe(0, address, name=name, acknowledge=bool(name)), timeout=60)
    assert isinstance(reply, Subscribed)
    return reply.subscription


async def _taken(connection: Connection, subscription: int) -> Delivered:
    reply = await connection.request(Take(0, subscription, 1, hold_until=math.inf), timeout=60)
    assert isinstance(reply, Taken)
    return reply.deliveries[0]


def quic_publish(name: str, topic: str, dialect: Dialect = Dialect.AUTO) -> Transcript:
    @asynccontextmanager
    async def transcript(side: Side) -> AsyncIterator[Turn]:
        async with _quic(side, name, dialect) as connection:
            publish = Publish(0, Batch(topic, Columns.of([VALUE])))

            async def turn() -> None:
                await connection.request(publish, timeout=60)

            yield turn

    return transcript


@asynccontextmanager
async def felix_ten(side: Side) -> AsyncIterator[Turn]:
    """Ten subscribers on a connection each; what is published over FlyMQ is pushed to all of them."""
    async with AsyncExitStack() as stack:
        topic = "memory.events"
        publisher = stack.enter_context(loads.connect(side.ports["flymq"]))
        frame = loads_flymq.produce_frame(topic.encode(), len(VALUE))
        _flymq(publisher, frame)
        readers = [await stack.enter_async_context(_quic(side, "felix")) for _ in range(10)]
        those = [(one, await _subscription(one, topic)) for one in readers]

        async def turn() -> None:
            _flymq(publisher, frame)
            side.rest()  # all of them have it before one of them says a word
            for connection, subscription in those:
                await _taken(connection, subscription)

        yield turn


def fujin_push(topic: str, dialect: Dialect) -> Transcript:
    """A message is published over FlyMQ, given to a reader, and acknowledged by it."""

    @asynccontextmanager
    async def transcript(side: Side) -> AsyncIterator[Turn]:
        async with _fujin_push(side, topic, dialect) as turn:
            yield turn

    return transcript


@asynccontextmanager
async def _fujin_push(side: Side, topic: str, dialect: Dialect) -> AsyncIterator[Turn]:
    async with AsyncExitStack() as stack:
        publisher = stack.enter_context(loads.connect(side.ports["flymq"]))
        frame = loads_flymq.produce_frame(topic.encode(), len(VALUE))
        _flymq(publisher, frame)
        reader = await stack.enter_async_context(_quic(side, "fujin", dialect))
        subscription = await _subscription(reader, topic, name=topic)

        async def turn() -> None:
            _flymq(publisher, frame)
            side.rest()  # it has it, or will be asked for it: not by chance the one or the other
            tag = (await _taken(reader, subscription)).first_tag
            await reader.request(Settle(0, subscription, [tag]), timeout=60)

        yield turn


# --- forwarding ---


def forwarded(topic: bytes) -> Transcript:
    """FlyMQ in, and on: until the other gateway has it."""

    @asynccontextmanager
    async def transcript(side: Side) -> AsyncIterator[Turn]:
        async with _forwarded(side, topic) as turn:
            yield turn

    return transcript


@asynccontextmanager
async def _forwarded(side: Side, topic: bytes) -> AsyncIterator[Turn]:
    with loads.connect(side.ports["flymq"]) as near, loads.connect(side.far["flymq"]) as far:
        frame = loads_flymq.produce_frame(topic, len(VALUE))
        _flymq(far, frame)
        following = 1

        async def turn() -> None:
            nonlocal following
            _flymq(near, frame)
            fetch = loads_flymq.frame(7, struct.pack(">H", len(topic)) + topic + struct.pack(">iQi", 0, following, 1))
            while not int.from_bytes(_flymq(far, fetch)[:4], "big"):
                pass
            following += 1

        yield turn


TRANSCRIPTS: Mapping[str, Transcript] = {
    "FlyMQ PRODUCE, memory": flymq_produce("memory.one"),
    "FlyMQ PRODUCE, none": flymq_produce("none.one"),
    "FlyMQ PRODUCE, interval": flymq_produce("lazy.one"),
    "FlyMQ PRODUCE, interval, two in turns": flymq_in_turns,
    "FlyMQ PRODUCE, fsync": flymq_produce("durable.one"),
    "FlyMQ PRODUCE, fsync, beside a FETCH": flymq_beside,
    "FlyMQ FETCH": flymq_fetch,
    "RustLog Produce, interval": rustlog_produce(b"lazy.two"),
    "RustLog Fetch": rustlog_fetch,
    "BlipMQ PUBLISH and PING, interval": blipmq_publish(b"lazy.three"),
    "BlipMQ POLL, delivery, ACK": blipmq_poll,
    "BlipMQ, 50 POLLs, deliveries": blipmq_many,
    "BlipMQ, one to ten": blipmq_ten,
    "Felix publish, memory": quic_publish("felix", "memory.four"),
    "Felix, one to ten": felix_ten,
    "Fujin WRITE, memory": quic_publish("fujin", "memory.five", Dialect.STOCK),
    "Fujin push, acknowledged": fujin_push("memory.work", Dialect.DOCUMENT),
    "Fujin 0.5 PRODUCE, memory": quic_publish("fujin", "memory.six", Dialect.SESSION),
    "Fujin 0.5 push, acknowledged": fujin_push("memory.pushed", Dialect.SESSION),
    "Forward, FlyMQ to FlyMQ": forwarded(b"forward.one"),
    "Forward, FlyMQ to Felix": forwarded(b"chained.one"),
}
