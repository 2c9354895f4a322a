"""Throughput of the link against a bare aioquic loop, same sockets, same run: `python -m tests.quic.bench_quic`.

Both ends of a connection run in one thread, so a figure is the cost of both; it counts CPU seconds, so that other work on
the machine disturbs it less. Prints ratios; asserts nothing about time.
"""

from __future__ import annotations

import select
import socket
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from gateway.transport.quic.certificates import CertificateFiles, self_signed
from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.dial import dial_quic
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.server import QuicServer, open_udp_sockets
from gateway.transport.tls import ClientTls
from gateway.wire.session import Kind
from tests.quic.support import Heard

TOTAL = 24 << 20
CHUNK = 64 << 10
EXCHANGES = 2000
STREAMS = 100


class Sink(Heard):
    """Counts bytes; answers the requests of the one-at-a-time load."""

    def __init__(self, link: QuicLink, *, echo: bool) -> None:
        super().__init__(link)
        self.total = 0
        self.everything = trio.Event()
        if echo:
            self.on_received = link.send

    def received(self, channel: int, data: bytes) -> None:
        self.total += len(data)
        if self.total >= TOTAL:
            self.everything.set()
        self.on_received(channel, data)


class Source(Heard):
    """Keeps a window of chunks going until everything is sent."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.left = TOTAL
        self.done = trio.Event()
        self.streams = streams

    def start(self) -> None:
        for n in range(self.streams):
            assert self.link is not None
            self.link.open(-1 - n, Kind.DUPLEX)
        for n in range(self.streams):
            self.room(-1 - n)

    def room(self, channel: int) -> None:
        assert self.link is not None
        if self.left > 0:
            count = max(1, (1 << 20) // CHUNK // self.streams)
            for n in range(count):
                self.link.send(channel, bytes(CHUNK), notify=n == count - 1)
                self.left -= CHUNK
        else:
            self.link.finish(channel)

    def eof(self, channel: int) -> None:
        del channel


async def bulk(certificate: CertificateFiles, limits: QuicLimits, streams: int = 1) -> float:
    sinks: list[Sink] = []
    met = trio.Event()

    def accept(link: QuicLink) -> Sink:
        sinks.append(Sink(link, echo=False))
        met.set()
        return sinks[-1]

    async with trio.open_nursery() as nursery:
        sockets = await open_udp_sockets("127.0.0.1", 0)
        server = QuicServer(sockets, {None: accept}, certificate, limits=limits)
        nursery.start_soon(server.run)
        source = Source(streams)
        async with dial_quic(
            "127.0.0.1", server.port, alpns=(), tls=ClientTls(insecure=True), handler=source, limits=limits
        ) as link:
            source.link = link
            await met.wait()
            began = time.process_time()
            source.start()
            await sinks[0].everything.wait()
            seconds = time.process_time() - began
        server.abort()
    return TOTAL / seconds / 1e6


async def exchanges(certificate: CertificateFiles, limits: QuicLimits) -> float:
    async with trio.open_nursery() as nursery:
        sockets = await open_udp_sockets("127.0.0.1", 0)
        server = QuicServer(sockets, {None: partial(Sink, echo=True)}, certificate, limits=limits)
        nursery.start_soon(server.run)
        heard = Heard()
        async with dial_quic(
            "127.0.0.1", server.port, alpns=(), tls=ClientTls(insecure=True), handler=heard, limits=limits
        ) as link:
            done = trio.Event()
            left = EXCHANGES

            def again(channel: int, data: bytes) -> None:
                nonlocal left
                left -= 1
                if left:
                    link.send(channel, bytes(100))
                else:
                    done.set()

            heard.on_received = again
            link.open(-1, Kind.DUPLEX)
            began = time.process_time()
            link.send(-1, bytes(100))
            await done.wait()
            seconds = time.process_time() - began
        server.abort()
    return EXCHANGES / seconds


def bare_pair(certificate: CertificateFiles, size: int) -> tuple[list[socket.socket], list[QuicConnection]]:
    identity = certificate.current()
    sizes = {"max_data": 64 << 20, "max_stream_data": 16 << 20, "max_datagram_size": size}
    serving = QuicConfiguration(is_client=False, **sizes)  # type: ignore[arg-type]
    serving.certificate, serving.private_key = identity.certificate, identity.key
    dialling = QuicConfiguration(server_name="localhost", verify_mode=0, **sizes)  # type: ignore[arg-type]
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    client = QuicConnection(configuration=dialling)
    server = QuicConnection(
        configuration=serving, original_destination_connection_id=client.original_destination_connection_id
    )
    client.connect(sockets[1].getsockname(), now=time.monotonic())
    return sockets, [client, server]


def bare_loop(
    sockets: list[socket.socket],
    cores: list[QuicConnection],
    on_event: Callable[[int, object], None],
    produce: Callable[[], None],
    done: Callable[[], bool],
) -> None:
    """The least an aioquic driver has to do, batched as ours is."""
    pairs = list(zip(sockets, cores, strict=True))
    while not done():
        now = time.monotonic()
        due = min(core.get_timer() or now + 1 for core in cores)
        select.select(sockets, [], [], max(0.0, due - now))
        now = time.monotonic()
        for index, (sock, core) in enumerate(pairs):
            try:
                for _ in range(32):
                    data, address = sock.recvfrom(65_535)
                    core.receive_datagram(data, address, now)
            except BlockingIOError:
                pass
            timer = core.get_timer()
            if timer is not None and timer <= now:
                core.handle_timer(now)
            while (event := core.next_event()) is not None:
                on_event(index, event)
        produce()
        for sock, core in pairs:
            if core._network_paths:  # the server has no path before its first packet
                for data, address in core.datagrams_to_send(now):
                    sock.sendto(data, address)


def bare_bulk(certificate: CertificateFiles, size: int) -> float:
    sockets, cores = bare_pair(certificate, size)
    received = sent = 0
    ready = False

    def on_event(index: int, event: object) -> None:
        nonlocal received, ready
        if index == 0 and isinstance(event, events.HandshakeCompleted):
            ready = True
        elif index == 1 and isinstance(event, events.StreamDataReceived):
            received += len(event.data)

    def produce() -> None:
        nonlocal sent
        while ready and sent < TOTAL and sent - received < 1 << 20:
            cores[0].send_stream_data(0, bytes(CHUNK))
            sent += CHUNK

    began = time.process_time()
    bare_loop(sockets, cores, on_event, produce, lambda: received >= TOTAL)
    seconds = time.process_time() - began
    for sock in sockets:
        sock.close()
    return TOTAL / seconds / 1e6


def bare_exchanges(certificate: CertificateFiles, size: int) -> float:
    sockets, cores = bare_pair(certificate, size)
    left = EXCHANGES

    def on_event(index: int, event: object) -> None:
        nonlocal left
        if index == 0 and isinstance(event, events.HandshakeCompleted):
            cores[0].send_stream_data(0, bytes(100))
        elif isinstance(event, events.StreamDataReceived):
            if index == 1:
                cores[1].send_stream_data(0, event.data)
            else:
                left -= 1
                cores[0].send_stream_data(0, bytes(100))

    began = time.process_time()
    bare_loop(sockets, cores, on_event, lambda: None, lambda: left <= 0)
    seconds = time.process_time() - began
    for sock in sockets:
        sock.close()
    return EXCHANGES / seconds


def main() -> None:
    certificate = self_signed(Path(tempfile.mkdtemp()))
    for size in (1200, 8192):
        limits = QuicLimits(datagram=1200, loopback_datagram=size)
        bare = bare_bulk(certificate, size)
        ours = trio.run(bulk, certificate, limits)
        print(f"{size} B datagrams, one stream:  bare {bare:6.1f} MB/s, link {ours:6.1f} MB/s, ratio {ours / bare:.2f}")
        many = trio.run(bulk, certificate, limits, STREAMS)
        print(f"{size} B datagrams, {STREAMS} streams: link {many:6.1f} MB/s, {many / ours:.2f} of one stream")
    bare = bare_exchanges(certificate, 1200)
    ours = trio.run(exchanges, certificate, QuicLimits())
    print(f"one request at a time:       bare {bare:6.0f} /s,   link {ours:6.0f} /s,   ratio {ours / bare:.2f}")


if __name__ == "__main__":
    main()
