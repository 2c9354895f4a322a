"""One QUIC connection as the driver's link: aioquic's core, its channels, its clocks. No socket, no task, no await.

The endpoint feeds it datagrams and time, asks it to `dispatch`, and sends what `datagrams` returns. In between, anybody
in the same trio thread may queue output: that only marks the connection, the endpoint does the rest in its next pass.

    HANDSHAKE --completed--> OPEN --close()--> CLOSING --all acknowledged, or the deadline--> OVER --3 PTO--> GONE
        |                      |-- abort(), the peer's close, idle time-out, a fault --------->|
        |-- failed, timed out, a first packet that cannot be read ---------------------------------------------> GONE
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import structlog
import trio
from aioquic.quic import events
from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilderStop
from aioquic.tls import Alert
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from gateway.transport.link import LinkHandler
from gateway.transport.quic.aioquic_private import (
    GRANULARITY,
    Core,
    acknowledge_within,
    flight,
    forget_handshake,
    happenings,
    is_reset,
    probe_timeout,
    release,
    stop_pacing,
    use_datagrams_of,
)
from gateway.transport.quic.limits import QuicLimits, is_loopback
from gateway.transport.quic.surface import ChannelLink
from gateway.transport.quic.udp import Address, Datagram

ROUNDS = 8
"""How often one dispatch lets the handler react to what its own output caused."""
ACKNOWLEDGE_WITHIN = 0.005
"""Fewer wait so long for an answer that takes the acknowledgement along. A commit mostly takes longer than aioquic's own
millisecond, and then each request would cost both sides a datagram and a pass more.
"""
REPEATS = 2
"""How often a close is repeated unasked, a probe time-out apart, so within the closing period. A peer that is silent itself
and misses the only copy would hold a dead connection until its idle time is over."""
FAULTS: tuple[type[Exception], ...] = (
    Alert,
    ArithmeticError,
    AssertionError,
    AttributeError,
    InvalidSignature,
    LookupError,
    QuicConnectionError,
    QuicPacketBuilderStop,
    RuntimeError,
    TypeError,
    UnsupportedAlgorithm,
    ValueError,
)
"""What aioquic might raise over a peer's bytes that it did not foresee: costs that connection, nothing else."""

_NUMBERS = itertools.count(1 << 32)
"""Beyond the sockets, whose numbers below zero stand for connections over TCP."""

log = structlog.get_logger(__name__)


class Phase(enum.Enum):
    """Where a connection is in its life. Asked for each datagram: in a tuple, because a set of members is hashed in Python."""

    HANDSHAKE = enum.auto()
    OPEN = enum.auto()
    CLOSING = enum.auto()
    OVER = enum.auto()
    GONE = enum.auto()


HANDSHAKE, OPEN, CLOSING, OVER, GONE = Phase
"""Asked for some ten times a turn: by the class each would cost as much as a call."""


class Goodbye:
    """A close packet: sent once, repeated unasked a little, and to a peer that has not heard it ever more rarely."""

    __slots__ = ("_datagrams", "_echo_at", "_echoes", "_repeats", "said")

    def __init__(self) -> None:
        self.said = False
        self._datagrams: Sequence[Datagram] = ()
        self._repeats: Sequence[float] = ()
        self._echoes = 0
        self._echo_at = 1

    def say(self, datagrams: Sequence[Datagram], now: float, probe: float | None) -> None:
        """These are it. Without a `probe` time-out (an address that proved nothing) it is not repeated unasked."""
        self._datagrams = datagrams
        self.said = bool(datagrams)
        if self.said and probe is not None:
            self._repeats = [now + (count + 1) * probe for count in range(REPEATS)]

    def heard(self) -> None:
        self._echoes += 1

    def due(self) -> Sequence[float]:
        return self._repeats[:1]

    def again(self, now: float) -> Sequence[Datagram]:
        """What goes out again now: because its time has come, or because the peer has not heard it."""
        again = False
        while self._repeats and self._repeats[0] <= now:
            self._repeats = self._repeats[1:]
            again = True
        if self._echoes >= self._echo_at:
            # RFC 9000, 10.2.1: answer what still comes with the close, ever more rarely.
            self._echo_at = 2 * self._echoes
            again = True
        return self._datagrams if again else ()


class QuicLink(ChannelLink):
    """A connection. Implements `gateway.transport.link.Link`; tells a `LinkHandler` what happens."""

    __slots__ = (
        "_accept",
        "_acts",
        "_closing",
        "_gather",
        "_give_up",
        "_goodbye",
        "_handler",
        "_happened",
        "_heard",
        "_limits",
        "_mark",
        "_over",
        "_ping_at",
        "_proven",
        "_respond",
        "_settled",
        "alpn",
        "armed",
        "by",
        "cids",
        "first_address",
        "handshaking",
        "phase",
    )

    def __init__(
        self,
        core: Core,
        limits: QuicLimits,
        address: Address,
        now: float,
        *,
        accept: Callable[[QuicLink], LinkHandler | None],
        mark: Callable[[QuicLink, bool], None],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(core, limits, clock)
        self._limits = limits
        self._accept = accept
        self._mark = mark
        self._handler: LinkHandler | None = None
        self._gather: Callable[[int, bytes, float], None] | None = None
        self._respond: Callable[[float], None] | None = None
        """The handler's `turn`, or what is that behind `gather`."""
        self.phase = HANDSHAKE
        self._give_up = now + limits.handshake
        self._heard = now
        self._ping_at = now + limits.keep_alive
        self._closing = (0, "")
        self._happened = happenings(core)
        core.take = self._in.take
        self._goodbye = Goodbye()
        self._acts: dict[type, Callable[[Any], None]] = {
            events.StreamDataReceived: self._in.data,
            events.StreamReset: self._in.reset,
            events.StopSendingReceived: self._on_stop,
            events.HandshakeCompleted: self._on_handshake,
        }
        self.by = -next(_NUMBERS)
        """Who it is, for the store, which serves at once who is alone: below zero, where no client's own number is."""
        self.first_address = address
        """Where it came from at first: what the limits count it under, even if it migrates."""
        self.alpn: str | None = None
        self.armed = float("inf")
        """When the endpoint's heap will call `fire`."""
        self.cids: dict[bytes, None] = {}
        """The connection ids by which the endpoint finds it, oldest first: those in use, and some that were."""
        self._proven = False
        self._settled: trio.Event | None = None
        self._over: trio.Event | None = None
        self.handshaking = True
        """Counted as half-open by the endpoint; cleared by it."""

    # --- what a dialler waits for: events are made for who asks, and nobody asks for those of a listener's connections ---

    @property
    def settled(self) -> trio.Event:
        """Set when the handshake is done, or will not be."""
        if self._settled is None:
            self._settled = trio.Event()
            if self.phase is not HANDSHAKE:
                self._settled.set()
        return self._settled

    @property
    def over(self) -> trio.Event:
        """Set when nothing can be sent or received any more."""
        if self._over is None:
            self._over = trio.Event()
            if self.phase is OVER or self.phase is GONE:
                self._over.set()
        return self._over

    @staticmethod
    def _tell(*awaited: trio.Event | None) -> None:
        for event in awaited:
            if event is not None:
                event.set()

    # --- what the driver uses ---

    @property
    def peer(self) -> str:
        host, port = (self.core.get_peer_address() or self.first_address)[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def server_name(self) -> str:
        return self.core.server_name

    def close(self, code: int = 0, reason: str = "") -> None:
        if self.phase is OPEN:
            self.phase = CLOSING
            self._writable = False
            self._closing = (code, reason)
            self._give_up = self._clock() + self._limits.close
            self._mark(self, True)
        elif self.phase is HANDSHAKE:
            self.abort(code, reason)

    def abort(self, code: int = 0, reason: str = "") -> None:
        if self.phase not in (OVER, GONE):
            self.core.close(error_code=code, reason_phrase=reason)
            self._mark(self, True)

    def reject(self, code: int, reason: str) -> None:
        """Turn the other side away with a transport error, as a failed handshake does."""
        self.core.close(error_code=code, frame_type=QuicFrameType.CRYPTO, reason_phrase=reason)
        self._mark(self, True)

    def wake(self) -> None:
        """Have `turn` called in the endpoint's next pass."""
        self._mark(self, True)

    def touch(self) -> None:
        """There is output: have it sent in this pass, or the next."""
        self._mark(self, False)

    # --- what the endpoint uses ---

    def feed(self, data: bytes, address: Address, now: float) -> None:
        if self.phase is OVER and self._goodbye.said:
            self._goodbye.heard()
            return
        self._heard = now
        self.core.fed += 1
        try:
            self.core.receive_datagram(data, address, now)
        except FAULTS as fault:
            self._fail(fault)
        if self.phase is HANDSHAKE and not self.core.is_started:
            self.abandon()

    def vanished(self, data: bytes) -> bool:
        """Whether a datagram for nobody says that the peer does not know this connection any more. Then it is over."""
        if self.phase is GONE or not is_reset(self.core, data):
            return False
        if self.phase is not OVER:  # what was closed is forgotten sooner there than here: that is no news
            log.info("quic_connection_reset", peer=self.peer)
        self.abandon()
        return True

    def fire(self, now: float) -> None:
        """The time that `timer` named has come."""
        if self.phase is GONE:
            return
        if self.phase in (HANDSHAKE, CLOSING) and now >= self._give_up:
            if self.phase is HANDSHAKE:
                self.abandon()
                return
            self.core.close(error_code=self._closing[0], reason_phrase=self._closing[1])
        due = self.core.get_timer()
        if due is not None and due <= now:
            try:
                self.core.handle_timer(now + GRANULARITY)
            except FAULTS as fault:
                self._fail(fault)
        if now >= self._ping_at:
            keep_alive = self.core.idle_limit / 3
            if self._heard + keep_alive <= now and self.phase in (OPEN, CLOSING):
                self.core.send_ping(0)
                self._ping_at = now + keep_alive
            else:
                self._ping_at = self._heard + keep_alive

    def listen(self) -> bool:
        """Take in what happened. Whether there is something to hand on."""
        if self.phase is GONE:
            return False
        happened = self._happened
        while happened:
            event = happened.popleft()
            act = self._acts.get(type(event))
            if act is not None:
                act(event)
        return self.phase is OPEN and bool(self._in.fresh)

    def gather(self, now: float) -> int:
        """Hand it on. What follows from it may wait for `dispatch`: until then others are heard, too. Returns how many requests
        it was.
        """
        handler, gather = self._handler, self._gather
        if handler is None or gather is None:
            return 0
        asked: int = getattr(handler, "asked", 0)
        self._in.deliver(handler, now, gather)
        return getattr(handler, "asked", 0) - asked

    def dispatch(self, now: float) -> None:
        """Hand on what was heard and not gathered, let the handler answer, move on towards the end."""
        if self.phase is GONE:
            return
        if self.phase is OPEN:
            self._turn(now)
        if self.phase is CLOSING:
            self._in.discard()
            self._out.advance(now)
            if not self.core.is_over and self._out.delivered:
                self.core.close(error_code=self._closing[0], reason_phrase=self._closing[1])
        if self.core.is_over:
            if self.phase not in (OVER, GONE):
                self._end()
            if self.core.is_terminated:
                self.phase = GONE

    def datagrams(self, now: float) -> list[Datagram]:
        if self.phase is GONE:
            return []
        if self._goodbye.said:
            return list(self._goodbye.again(now))
        try:
            datagrams = flight(self.core, now, settled=self.phase is not HANDSHAKE)
        except FAULTS as fault:
            self._fail(fault)
            return []
        if self.phase is OVER:
            self._goodbye.say(datagrams, now, probe_timeout(self.core) if self._proven else None)
        if self._channels.leaving:
            for channel in list(self._channels.leaving.values()):
                if self.core.is_discarded(channel.stream_id):
                    self._channels.forget(channel)
        return datagrams

    def timer(self) -> float | None:
        """When `fire` or `dispatch` wants to be called next."""
        if self.phase is GONE:
            return None
        soonest = self.core.get_timer()
        if soonest is None:
            soonest = math.inf
        phase = self.phase
        if phase is OPEN or phase is CLOSING:
            soonest = min(soonest, self._ping_at)
            due = self._out.due() if self._out.watchful else None
            if due is not None and due < soonest:
                soonest = due
            if phase is OPEN:
                due = self._deadline
                return due if due is not None and due < soonest else soonest
        if phase is HANDSHAKE or phase is CLOSING:
            soonest = min(soonest, self._give_up)
        if self._goodbye.said:
            soonest = min(soonest, *self._goodbye.due(), math.inf)
        return soonest if soonest < math.inf else None

    def abandon(self) -> None:
        """The endpoint is going away: no more packets."""
        if self.phase is not GONE:
            self._end()
            self.phase = GONE

    def release(self) -> None:
        """Its endpoint has forgotten it: what it is made of lets go of each other, or the collector alone would find it."""
        self._acts.clear()
        release(self.core)

    # --- inside ---

    def _turn(self, now: float) -> None:
        handler, respond = self._handler, self._respond
        assert handler is not None
        assert respond is not None
        if self._deadline is not None and self._deadline <= now:
            self._deadline = None
        self._turning = True
        out = self._out
        for count in range(ROUNDS):
            if self._in.fresh:
                self._in.deliver(handler)
            if out.watchful:
                self._notices(handler, now)
            respond(now)
            if not out.watchful:
                break
            out.advance(now)
            if not out.opened and not out.refused:
                if not self._asked_for_room:
                    break
                self._asked_for_room = False
                if count:  # there was room for one thing already: others come before the next
                    self._mark(self, True)
                    break
        else:
            self._mark(self, True)
        self._turning = False

    def _notices(self, handler: LinkHandler, now: float) -> None:
        out = self._out
        out.advance(now)
        opened, out.opened = out.opened, []
        for channel in opened:
            handler.opened(channel.number, channel.kind)
        refused, out.refused = out.refused, []
        for token in refused:
            handler.reset(token, 0)
        for channel in out.rooms():
            handler.room(channel.number)

    def _end(self) -> None:
        # Tell the handler, once, that it is over. What had arrived before is handed on first.
        if self.phase is OPEN and self._handler is not None:
            self._in.resume(None)
            self._in.deliver(self._handler)
        self.phase = OVER
        self._tell(self._settled, self._over)
        self._writable = False
        handler, self._handler = self._handler, None
        self._gather = self._respond = None
        if handler is not None:
            handler.lost()

    def _fail(self, fault: Exception) -> None:
        log.warning("quic_connection_fault", peer=self.peer, fault=repr(fault))
        self.abandon()

    def _on_handshake(self, event: Any) -> None:
        if self.phase is not HANDSHAKE:
            return
        self.alpn = event.alpn_protocol
        self._ping_at = self._heard + self.core.idle_limit / 3
        if is_loopback(self.first_address[0]):
            stop_pacing(self.core)
            use_datagrams_of(self.core, self._limits.loopback_datagram)
        acknowledge_within(self.core, ACKNOWLEDGE_WITHIN)
        forget_handshake(self.core)
        self.phase = OPEN
        self._proven = True
        self._writable = True
        self._handler = self._accept(self)
        self._gather = getattr(self._handler, "gather", None)  # a dialler's has none: it has nobody beside it
        if self._handler is not None:
            self._respond = getattr(self._handler, "respond", self._handler.turn)
        if self._handler is None:  # turned away
            self.phase = HANDSHAKE
            self._writable = False
        else:
            self._tell(self._settled)

    def _on_stop(self, event: Any) -> None:
        channel = self._in.stopped(event.stream_id, event.error_code)
        self._out.stop(channel)
        # The core has reset the stream already, on its own account; this makes it send that.
        self.core.abandon(event.stream_id, event.error_code)
