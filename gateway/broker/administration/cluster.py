"""The cluster: the gateways that know each other, by configuration or because somebody joined them, and their health.

Where each gateway has its own log, knowing each other replicates nothing; those that serve one log together are members by
that. A peer is healthy while it takes connections, which
is looked at every few seconds. With nobody else it is a cluster of one, and says so.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from gateway.broker.service import Caller, Handler
from gateway.errors import GatewayError, InvalidRequest, Throttled
from gateway.requests import Cluster, ClusterAnswer, ClusterJoin, ClusterLeave, ClusterStatus, Member, Request
from gateway.store.interface import Put, Require, Store, Ticket, Unit

TABLE = "cluster"
SERVING = "serving"
"""A table: who serves this log, by address."""
FORGET_AFTER = 60.0
"""Seconds without an answer until one that said it serves this log is taken for gone."""
MOST_PEERS = 64
"""JOIN is a client's: without a bound it could have the gateway dial anything, any number of times."""
PROBE_EVERY = 5.0
PROBE_TIMEOUT = 2.0
_JOINED, _LEFT = b"joined", b"left"

Probe = Callable[[str], Awaitable[bool]]
"""Whether the gateway at `host:port` is there."""


async def connects(address: str) -> bool:
    host, port = parse_address(address)
    try:
        stream = await trio.open_tcp_stream(host, port)
    except OSError:  # also: nobody knows the name
        return False
    await stream.aclose()
    return True


class ClusterService:
    def __init__(
        self,
        store: Store,
        *,
        id: str = "gateway",  # noqa: A002  (it is what the replies call it)
        address: str = "",
        peers: Sequence[str] = (),
        probe: Probe = connects,
    ) -> None:
        self._store = store
        self._id = id
        self._address = address
        self._configured = tuple(dict.fromkeys(peers))
        self._probe = probe
        self._shared = bool(address) and not store.capabilities.single_writer
        """Whether others serve the same log, and say so in it."""
        self._saying = self._left = False
        self._gone: dict[str, float] = {}
        """Who said so and does not answer: since when."""
        self._healthy: dict[str, bool] = {}
        store.on_rows(SERVING, lambda _rows: self._look.set())
        self._look = trio.Event()

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {ClusterJoin: self.join, ClusterLeave: self.leave, ClusterStatus: self.status}

    @property
    def peers(self) -> Sequence[str]:
        """The others: who is configured and was not left, who joined, and who serves the same log. Sorted."""
        rows = self._store.table(TABLE)
        known = {key.decode() for key, value in rows.items() if value == _JOINED}
        left = {key.decode() for key, value in rows.items() if value == _LEFT}
        here = {key.decode() for key in self._store.table(SERVING)} if self._shared else set()
        return sorted(known.union(self._configured, here) - left - {self._address})

    # --- requests ---

    def join(self, caller: Caller, request: ClusterJoin) -> None:
        host, port = parse_address(request.peer)
        peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if peer == self._address:
            caller.answer(request.id, ClusterAnswer(False, f"{peer} is this gateway"))
            return
        if peer in self.peers:
            caller.answer(request.id, ClusterAnswer(True, f"{peer} is a member already"))
            return
        if len(self.peers) >= MOST_PEERS:
            raise Throttled(f"a cluster has at most {MOST_PEERS} other members")
        self._write(caller, request, [peer], _JOINED, f"{peer} joined")

    def leave(self, caller: Caller, request: ClusterLeave) -> None:
        peers = self.peers
        if not peers:
            caller.answer(request.id, ClusterAnswer(False, "the last member cannot leave"))
            return
        self._write(caller, request, peers, _LEFT, "left the cluster")

    def status(self, caller: Caller, request: ClusterStatus) -> None:
        own = Member(self._id, self._address, healthy=True, is_self=True)
        others = [Member(f"{self._id}-{peer}", peer, self._healthy.get(peer, False), False) for peer in self.peers]
        caller.answer(request.id, Cluster(self._id, [own, *others]))

    def _write(self, caller: Caller, request: Request, peers: Sequence[str], state: bytes, message: str) -> None:
        # what is configured needs no row to be there, and what is not needs none to be gone
        rows = {peer: None if (peer in self._configured) is (state is _JOINED) else state for peer in peers}

        def done(ticket: Ticket) -> None:
            if ticket.error is None:
                self._look.set()
            caller.answer(request.id, ticket.error or ClusterAnswer(True, message))

        unit = Unit(puts=[Put(TABLE, peer.encode(), row) for peer, row in rows.items()])
        self._store.submit(unit).on_done(done)

    # --- health ---

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at every peer now and then, and when one joins, until cancelled."""
        if self._shared:
            self._say()
        task_status.started()
        while True:
            self._look = trio.Event()
            if not (self._said or self._saying):
                self._say()  # it could not be written, or somebody has taken this one for gone
            async with trio.open_nursery() as nursery:
                for peer in self.peers:
                    nursery.start_soon(self._examine, peer)
            for gone in self._healthy.keys() - set(self.peers):
                del self._healthy[gone]
            with trio.move_on_after(PROBE_EVERY if self.peers or not self._said else math.inf):
                await self._look.wait()

    @property
    def _said(self) -> bool:
        return self._left or not self._shared or self._address.encode() in self._store.table(SERVING)

    def _say(self) -> None:
        self._saying = True

        def done(_ticket: Ticket) -> None:
            self._saying = False

        self._store.submit(Unit(puts=[Put(SERVING, self._address.encode(), self._id.encode())]), done)

    async def _examine(self, peer: str) -> None:
        healthy = False
        with trio.move_on_after(PROBE_TIMEOUT):
            try:
                healthy = await self._probe(peer)
            except GatewayError:
                healthy = False
        self._healthy[peer] = healthy
        if healthy:
            self._gone.pop(peer, None)
        elif self._shared and trio.current_time() - self._gone.setdefault(peer, trio.current_time()) > FORGET_AFTER:
            self._forget(peer)

    def _forget(self, peer: str) -> None:
        # one that died said nothing: who else serves the log says it in its place
        row = self._store.table(SERVING).get(peer.encode())
        if row is not None:
            same = Require(SERVING, peer.encode(), row)
            self._store.submit(Unit(puts=[Put(SERVING, peer.encode(), None)], requires=[same]))

    async def leave_the_log(self) -> None:
        if self._shared:
            self._left = True
            with contextlib.suppress(GatewayError):
                await self._store.submit(Unit(puts=[Put(SERVING, self._address.encode(), None)])).wait()


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`; InvalidRequest if it is neither."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
    good = bool(host) and len(address) <= 255 and address.isascii() and address.isprintable()
    if not (good and colon and port.isdecimal() and len(port) <= 5 and 0 < int(port) <= 65_535):
        raise InvalidRequest(f"not an address of a gateway (host:port): {address[:64]!r}")
    try:
        host.encode("idna")
    except UnicodeError:  # a part of it is empty, or has 64 characters
        raise InvalidRequest(f"not an address of a gateway (host:port): {address[:64]!r}") from None
    if any(character in host for character in " /\\@[]") or (":" in host and not address.startswith("[")):
        raise InvalidRequest(f"not an address of a gateway (host:port): {address[:64]!r}")
    return host, int(port)
