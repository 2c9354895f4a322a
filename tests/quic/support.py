"""A simulated network on trio's clock, links on it, and a handler that writes down what it hears."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import trio
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Epoch

from gateway.transport.quic.aioquic_private import Core
from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.configuration import client_configuration
from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.endpoint import QuicEndpoint
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.server import AlpnHandlers, QuicServer
from gateway.transport.tls import ClientTls
from gateway.wire.session import Kind

SERVER = ("192.0.2.1", 4433)
Address = tuple[str, int]


class Heard:
    """A handler that records everything, and answers through functions a test may set."""

    def __init__(self, link: QuicLink | None = None) -> None:
        self.link = link
        self.events: list[tuple[object, ...]] = []
        self.data: dict[int, bytearray] = {}
        self.turns: list[float] = []
        self.ended: set[int] = set()
        self.gone = False
        self.on_opened: Callable[[int, Kind], None] = lambda channel, kind: None
        self.on_received: Callable[[int, bytes], None] = lambda channel, data: None
        self.on_eof: Callable[[int], None] = lambda channel: None
        self.on_room: Callable[[int], None] = lambda channel: None

    def opened(self, channel: int, kind: Kind) -> None:
        self.events.append(("opened", channel, kind))
        self.on_opened(channel, kind)

    def received(self, channel: int, data: bytes) -> None:
        self.data.setdefault(channel, bytearray()).extend(data)
        self.on_received(channel, data)

    def eof(self, channel: int) -> None:
        self.events.append(("eof", channel))
        self.ended.add(channel)
        self.on_eof(channel)

    def reset(self, channel: int, code: int) -> None:
        self.events.append(("reset", channel, code))

    def stopped(self, channel: int, code: int) -> None:
        self.events.append(("stopped", channel, code))

    def room(self, channel: int) -> None:
        self.events.append(("room", channel))
        self.on_room(channel)

    def turn(self, now: float) -> None:
        self.turns.append(now)

    def lost(self) -> None:
        self.events.append(("lost",))
        self.gone = True

    def size(self, channel: int) -> int:
        return len(self.data.get(channel, b""))


class Network:
    """Datagrams between simulated sockets: each is delayed, and may be lost, doubled or overtaken.

    The choices are seeded, but keys, connection ids and signatures differ from run to run, and with them the sizes and the
    number of datagrams: no two runs lose the same ones. So that no test depends on its luck, at most `BURST` datagrams
    are lost in a row on the way from one socket to another.
    """

    BURST = 2

    def __init__(
        self, *, delay: float = 0.01, jitter: float = 0.0, loss: float = 0.0, double: float = 0.0, seed: int = 1
    ) -> None:
        self.delay = delay
        self.jitter = jitter
        self.loss = loss
        self.double = double
        self._random = random.Random(seed)
        self._sockets: dict[Address, SimSocket] = {}
        self._heap: list[tuple[float, int, Address, bytes, Address]] = []
        self._order = itertools.count()
        self._waiting: trio.CancelScope | None = None
        self._lost: Counter[tuple[Address, Address]] = Counter()
        self.sent: list[tuple[Address, Address, bytes]] = []
        self.keep = False
        self.cut = False
        """Nothing gets through any more."""

    def socket(self, address: Address) -> SimSocket:
        self._sockets[address] = sock = SimSocket(self, address)
        return sock

    def put(self, source: Address, target: Address, data: bytes) -> None:
        if self.keep:
            self.sent.append((source, target, data))
        for _ in range(2 if self._random.random() < self.double else 1):
            way = (source, target)
            if self.cut or (self._random.random() < self.loss and self._lost[way] < self.BURST):
                self._lost[way] += 1
                continue
            self._lost[way] = 0
            when = trio.current_time() + self.delay + self._random.random() * self.jitter
            heapq.heappush(self._heap, (when, next(self._order), target, data, source))
        if self._waiting is not None:
            self._waiting.deadline = self._heap[0][0] if self._heap else math.inf

    async def run(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._heap[0][0] if self._heap else math.inf) as self._waiting:
                await trio.Event().wait()
            self._waiting = None
            while self._heap and self._heap[0][0] <= trio.current_time():
                _, _, target, data, source = heapq.heappop(self._heap)
                if target in self._sockets:
                    self._sockets[target].arrive(data, source)


class SimSocket:
    """A `DatagramSocket` on a `Network`."""

    def __init__(self, network: Network, address: Address) -> None:
        self._network = network
        self.address = address
        self._inbox: deque[tuple[bytes, Address]] = deque()
        self._arrived = trio.Event()
        self.closed = False

    def arrive(self, data: bytes, source: Address) -> None:
        self._inbox.append((data, source))
        self._arrived.set()

    def receive(self, limit: int) -> list[tuple[bytes, Address]]:
        return [self._inbox.popleft() for _ in range(min(limit, len(self._inbox)))]

    def send(self, datagrams: Sequence[tuple[bytes, Address]]) -> Sequence[tuple[bytes, Address]]:
        for data, target in datagrams:
            self._network.put(self.address, target, data)
        return ()

    async def wait_readable(self) -> None:
        if self._inbox:
            await trio.lowlevel.checkpoint()
            return
        self._arrived = trio.Event()
        await self._arrived.wait()

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        self.closed = True


@attrs.define(eq=False)
class World:
    """A server and any number of clients on one simulated network."""

    nursery: trio.Nursery
    network: Network
    certificate: CertificateFiles
    server: QuicServer
    accepted: list[Heard]
    trust: Path | None = None
    """What clients trust instead of the certificate itself."""
    _ports: itertools.count[int] = attrs.Factory(lambda: itertools.count(50_000))

    @classmethod
    def start(
        cls,
        nursery: trio.Nursery,
        certificate: CertificateFiles,
        *,
        network: Network | None = None,
        limits: QuicLimits | None = None,
        alpns: Sequence[str | None] = (None,),
        refusals: Callable[[str], None] = lambda reason: None,
        on_accept: Callable[[Heard], None] = lambda heard: None,
        handler: Callable[[QuicLink], Heard] = Heard,
        hold: Callable[[], None] = lambda: None,
        release: Callable[[int], None] = lambda by: None,
    ) -> World:
        network = network or Network()
        accepted: list[Heard] = []

        def accept(link: QuicLink) -> Heard:
            heard = handler(link)
            on_accept(heard)
            accepted.append(heard)
            return heard

        handlers: AlpnHandlers = dict.fromkeys(alpns, accept)
        server = QuicServer(
            [network.socket(SERVER)],
            handlers,
            certificate,
            limits=limits,
            on_refusal=refusals,
            hold=hold,
            release=release,
        )
        nursery.start_soon(network.run)
        nursery.start_soon(server.run)
        return cls(nursery, network, certificate, server, accepted)

    def dial(
        self,
        *,
        alpn: str | None = None,
        limits: QuicLimits | None = None,
        name: str = "localhost",
        host: str = "198.51.100.7",
        core: type[Core] = Core,
    ) -> Heard:
        """Start a handshake. The handler's `link` is set at once; `gone` or its link's phase says how it went."""
        limits = limits or QuicLimits()
        tls = ClientTls(ca=str(self.trust or self.certificate.path), server_name=name)
        configuration = client_configuration(limits, tls, name, ())
        configuration.alpn_protocols = [alpn] if isinstance(alpn, str) else None if alpn is None else list(alpn)
        made = core(configuration, streams=limits.streams)
        endpoint = QuicEndpoint(self.network.socket((host, next(self._ports))), until_idle=True)
        heard = Heard()
        link = QuicLink(
            made,
            limits,
            SERVER,
            trio.current_time(),
            accept=lambda _: heard,
            mark=endpoint.mark,
            clock=trio.current_time,
        )
        heard.link = link
        made.connect(SERVER, now=trio.current_time())
        endpoint.adopt(link)
        self.nursery.start_soon(endpoint.run)
        return heard

    async def pair(self, **options: object) -> tuple[Heard, Heard, QuicLink, QuicLink]:
        """A client's and the server's end of a connection that is up."""
        client = self.dial(**options)  # type: ignore[arg-type]
        before = len(self.accepted)
        await until(lambda: len(self.accepted) > before)
        server = self.accepted[-1]
        assert client.link is not None
        assert server.link is not None
        await until(lambda: client.link is not None and client.link.phase.name == "OPEN")
        return client, server, client.link, server.link


def client_hello(certificate: CertificateFiles, alpn: str | None = None) -> tuple[bytes, bytes]:
    """A ClientHello as aioquic makes it, and the source connection id that its transport parameters name."""
    tls = ClientTls(ca=str(certificate.path), server_name="localhost")
    core = Core(client_configuration(QuicLimits(), tls, "localhost", [alpn] if alpn else ()), streams=1)
    core.connect(SERVER, now=0.0)
    hello = bytes(core._crypto_streams[Epoch.INITIAL].sender._buffer)
    return hello, core.host_cid


def initial(hello: bytes, source: bytes, destination: bytes, *, token: bytes = b"", version: int = 1) -> bytes:
    """A client's first datagram, for any destination connection id."""
    crypto = CryptoPair()
    crypto.setup_initial(cid=destination, is_client=True, version=version)
    builder = QuicPacketBuilder(
        host_cid=source, peer_cid=destination, is_client=True, max_datagram_size=1200, version=version, peer_token=token
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    frame = builder.start_frame(QuicFrameType.CRYPTO, capacity=16 + len(hello))
    frame.push_uint_var(0)
    frame.push_uint_var(len(hello))
    frame.push_bytes(hello)
    (datagram,), _packets = builder.flush()
    return datagram


def forge(core: Core, payload: bytes) -> bytes:
    """A 1-RTT packet of a connection with any payload, properly encrypted: what only a malicious peer sends."""
    builder = QuicPacketBuilder(
        host_cid=core.host_cid,
        peer_cid=core._peer_cid.cid,
        is_client=core._is_client,
        max_datagram_size=1200,
        packet_number=core._packet_number,
        version=core._version or 1,
    )
    builder.start_packet(QuicPacketType.ONE_RTT, core._cryptos[Epoch.ONE_RTT])
    builder._buffer.push_bytes(payload)
    (datagram,), _packets = builder.flush()
    core._packet_number = builder.packet_number
    return datagram


async def until(condition: Callable[[], bool], limit: float = 60.0) -> None:
    """Let simulated time pass until something is so."""
    with trio.fail_after(limit):
        while not condition():  # noqa: ASYNC110 (anything may make it so, and the time is simulated)
            await trio.sleep(0.005)


async def settle(seconds: float = 2.0) -> None:
    """Let simulated time pass, so that whatever would happen has."""
    await trio.sleep(seconds)
