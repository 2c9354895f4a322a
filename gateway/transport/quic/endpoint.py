"""Two tasks per UDP socket own the connections on it: one waits for the socket and the timers, the other for whoever in this
thread has something to send. Neither awaits anybody but the socket.

A pass: read what has arrived, feed it, fire the timers that are due, let every connection that was fed hand on what it
heard, commit what follows from that together, let every touched connection answer, send what each of them has to send in
one go. Whoever wants a pass from outside marks a
connection, which reschedules the second task: to wake the first one, its wait would have to be cancelled and begun again,
and that costs more than many a pass. A dialled connection is told things in turns of the broker's: what is marked in one has its
pass at the end of it (`soon`), before those who only wait for news get theirs, and without a task that is woken.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, MutableMapping, Sequence

import trio
from aioquic.quic.packet import QuicHeader, QuicPacketType, pull_quic_header

from gateway.transport.quic.admission import CID_LENGTH, Admission, Admitted
from gateway.transport.quic.aioquic_private import Buffer
from gateway.transport.quic.connection import GONE, Phase, QuicLink
from gateway.transport.quic.resets import SMALLEST, ResetTokens
from gateway.transport.quic.udp import Address, Datagram, DatagramSocket
from gateway.transport.shared import TOGETHER

DATAGRAMS = 128
"""Taken in one pass, and up to 63 more that came with the last: as much as is read from a TCP connection at once. A pass
takes 0.1 ms for each.
"""
PASS_BYTES = 512 << 10
"""Of those that are large, as peers on this machine send them: there would be three megabytes of small requests, on a thousand
streams, and to work on that takes a tenth of a second.
"""
REQUESTS = 128
"""After so many, no other connection is heard in this pass: to subscribe takes eighty microseconds."""
NEWCOMERS, LET_IN = 64, 8
"""First packets considered in one pass, of which one that is let in, for its handshake begins, counts as so many: that takes
1.7 ms, and what is refused a fifth of one.
"""
TIMERS = 32
"""Connections whose time has come, in one pass. Half-open ones, which a flood leaves by the hundred, send their answers again
together, and that takes a third of a millisecond for each.
"""
LONE = 8
"""After so many passes in a row with one datagram each, all of one peer, only one in so many looks whether there are more."""

HANDSHAKE = QuicPacketType.HANDSHAKE
REMEMBERED = 32
"""Ids a connection is found by, of which eight are in use. A packet that was overtaken may still name one that is not, and
"I know nothing of that" would be a lie that not every peer sees through.
"""

Elsewhere = Callable[[bytes, bytes, Address], bool]
"""Given an id that is not known here, a datagram and where it came from: whether another process has taken it."""
Soon = Callable[[object, Callable[[], None]], None]
"""Call back in this turn of whoever is at it, or in the next one, once per key."""
Accept = Callable[[Admitted, Address, float], QuicLink]
"""Makes the connection of an admitted client."""


class QuicEndpoint:
    def __init__(
        self,
        socket: DatagramSocket,
        *,
        admission: Admission | None = None,
        accept: Accept | None = None,
        resets: ResetTokens | None = None,
        by_cid: MutableMapping[bytes, QuicLink] | None = None,
        elsewhere: Elsewhere | None = None,
        until_idle: bool = False,
        hold: Callable[[], None] = lambda: None,
        release: Callable[[int], None] = lambda _by: None,
        soon: Soon | None = None,
    ) -> None:
        """`hold`: requests of several connections are coming that should be committed together, until `release`. `soon`: what is
        marked leaves by it, and not in a pass of its own.
        """
        self._socket = socket
        self._hold = hold
        self._release = release
        self._soon = soon
        self._admission = admission
        self._accept = accept
        self._resets = resets
        self._elsewhere = elsewhere
        self._later: list[Datagram] = []
        """What was read behind as much, or as many newcomers, as one pass may have."""
        self._considered = 0
        """Of those, in this pass."""
        self._handed: list[Datagram] = []
        """What came to another process and is for one of ours."""
        self.until_idle = until_idle
        """Stop once there is no connection left."""
        self._links: dict[QuicLink, None] = {}
        self._by_cid: MutableMapping[bytes, QuicLink] = {} if by_cid is None else by_cid
        """Perhaps shared by several sockets: what belongs to a connection on another one is not answered here."""
        self._dirty: dict[QuicLink, None] = {}
        self._timers: list[tuple[float, int, QuicLink]] = []
        self._order = itertools.count()
        self._waiting: trio.CancelScope | None = None
        self._due = math.inf
        """Until when that waits."""
        self._parked: trio.lowlevel.Task | None = None
        self._going = False
        """A pass is under way."""
        self._unsent: Sequence[Datagram] = ()
        """What the socket had no room for. While there is any, no pass makes more."""
        self._sent = trio.Event()
        self._lone = 0
        """How often in a row one datagram came, and no other, each from the same peer."""
        self._lone_peer: Address = None
        self.passes = 0

    @property
    def links(self) -> list[QuicLink]:
        return list(self._links)

    def mark(self, link: QuicLink, turn: bool = True) -> None:
        """Look at a connection in the next pass; for output alone (`turn` false) this one will do if it gets there yet."""
        if turn or not link.attended:
            self._dirty[link] = None
            if self._soon is not None and self._parked is not None and not self._going:
                self._soon(self, self._leave)
            else:
                self.interrupt()

    def interrupt(self) -> None:
        parked = self._parked
        if parked is not None:
            self._parked = None
            trio.lowlevel.reschedule(parked)

    def adopt(self, link: QuicLink, *cids: bytes) -> None:
        """Own a connection from now on, that is also found by these ids."""
        self._links[link] = None
        self._index(link, *cids)
        self.mark(link)

    async def run(self) -> None:
        """Serve until cancelled (or idle, if so asked). Connections that are left are told that they are lost."""
        self._clock = trio.lowlevel.current_clock()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wait)
                while self._links or not self.until_idle:
                    await self._marked()
                    self._go(read=False)  # whoever waits for datagrams is told of them by the loop
                nursery.cancel_scope.cancel()
        finally:
            self._abandon(self._clock.current_time())

    async def _wait(self) -> None:
        # until a datagram comes, a timer is due, or somebody wants a pass
        while True:
            if self._unsent:
                self._sent = trio.Event()
                await self._sent.wait()
            self._due = self._next_timer()
            with trio.CancelScope(deadline=self._due) as self._waiting:  # left when a timer is due
                while not self._unsent:
                    await self._socket.wait_readable()
                    self._go()
            self._waiting = None
            self._go()

    async def _marked(self) -> None:
        # until somebody has something to send, and the socket room for it
        while self._unsent:
            await self._socket.wait_writable()
            self._unsent = self._socket.send(self._unsent)
            if not self._unsent:
                self._sent.set()
                return
        if self._dirty or self._later:
            await trio.lowlevel.checkpoint()
        else:
            self._parked = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._unpark)

    def _leave(self) -> None:
        # in somebody else's turn, who may have been told something in a pass of ours
        if self._parked is None or self._going:
            self.interrupt()
        elif self._dirty:
            self._go(read=False)

    def _go(self, *, read: bool = True) -> None:
        if self._unsent:
            return
        self._going = True
        try:
            out = self._pass(self._clock.current_time(), read=read)
        finally:
            self._going = False
        if out:
            self._unsent = self._socket.send(out)
        if self._unsent or self._later or self._dirty or (self.until_idle and not self._links):
            self.interrupt()
        timers = self._timers
        due = timers[0][0] if timers else math.inf
        if due != self._due and self._waiting is not None:
            self._due = self._waiting.deadline = due

    def _unpark(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._parked = None  # it is woken already, and must not be so twice
        return trio.lowlevel.Abort.SUCCEEDED

    def _pass(self, now: float, *, read: bool) -> list[Datagram]:
        self.passes += 1
        out: list[Datagram] = []
        timers = self._timers
        late = bool(timers) and timers[0][0] <= now
        if self._later:
            later, self._later = self._later, []
            self._take(later, now, out)
        elif read or late:
            # where one peer sends a datagram at a time, no other is looked for: the loop tells of it
            lone = self._lone
            found = self._socket.receive(DATAGRAMS if late or lone < LONE or not lone % LONE else 1)
            if found:
                peer = found[0][1]
                self._lone = lone + 1 if len(found) == 1 and peer == self._lone_peer else 0
                self._lone_peer = peer
                self._take(found, now, out)
        if self._handed:
            handed, self._handed = self._handed, []
            for data, address in handed:
                self._feed(data, address, now, out, None)
        # timers after what has come: an acknowledgement that is here already must not count as lost
        if late:
            self._fire(now)
        touched, self._dirty = self._dirty, {}
        heard: list[QuicLink] = []
        for link in touched:
            link.attended = True
            if link.listen():
                heard.append(link)
        if heard:
            self._hold()
            try:
                room = REQUESTS
                for number, link in enumerate(heard, 1):
                    room -= link.gather(now)
                    if room <= 0:
                        for other in heard[number:]:  # their turn is the next
                            other.attended = False
                            del touched[other]
                            self._dirty[other] = None
                        break
            finally:
                self._release(heard[0].by if len(heard) == 1 else TOGETHER)
        for link in touched:
            link.dispatch(now)
        for link in touched:
            link.attended = False
        # all handlers have had their turn before anything is made: what one of them writes to another is in the same packets
        for link in touched:
            out += link.datagrams(now)
            self._settle(link)
        return out

    def _take(self, found: list[Datagram], now: float, out: list[Datagram]) -> None:
        self._considered, room = 0, PASS_BYTES
        for number, (data, address) in enumerate(found, 1):
            self._feed(data, address, now, out, self._elsewhere)
            room -= len(data)
            if self._considered >= NEWCOMERS or room <= 0:
                self._later = found[number:]
                return

    def hand(self, data: bytes, address: Address) -> None:
        """Take a datagram that came to another process."""
        if data:
            self._handed.append((data, address))
            self.interrupt()

    def _feed(
        self, data: bytes, address: Address, now: float, out: list[Datagram], elsewhere: Elsewhere | None
    ) -> None:
        if data[0] & 0x80:
            try:
                header = pull_quic_header(Buffer(data=data), host_cid_length=CID_LENGTH)
            except ValueError:
                return
            cid = header.destination_cid
            link = self._by_cid.get(cid)
            if link is None:
                # an Initial's id may be of the client's own choosing
                if elsewhere is not None and header.packet_type is HANDSHAKE and cid and elsewhere(cid, data, address):
                    return
                link = self._meet(header, len(data), address, now, out)
        else:
            cid = data[1 : 1 + CID_LENGTH]
            link = self._by_cid.get(cid)
            if link is None:
                if elsewhere is not None and len(cid) == CID_LENGTH and elsewhere(cid, data, address):
                    return
                self._unknown(data, address, out)
        if link in self._links:
            link.feed(data, address, now)
            self._dirty[link] = None

    def _unknown(self, data: bytes, address: Address, out: list[Datagram]) -> None:
        # a short header that belongs to no connection: one of an earlier process's, or the answer to one of ours
        if not data[0] & 0x40:
            return  # no QUIC at all (RFC 9000, 17.3)
        if self._resets is not None:
            answer = self._resets.answer(len(data), data[1 : 1 + CID_LENGTH])
            if answer is not None:
                out.append((answer, address))
        elif len(data) >= SMALLEST:  # a dialler's: a handful of connections at most
            for link in self.links:
                if link.vanished(data):
                    self._dirty[link] = None

    def _meet(
        self, header: QuicHeader, size: int, address: Address, now: float, out: list[Datagram]
    ) -> QuicLink | None:
        # a long header that belongs to no connection: perhaps a new client
        if self._admission is None or self._accept is None:
            return None
        answer = self._admission.consider(header, size, address, now)
        self._considered += 1
        if isinstance(answer, Admitted):
            self._considered += LET_IN - 1
            self._admission.enter(address)
            link = self._accept(answer, address, now)
            self.adopt(link, header.destination_cid)
            return link
        if answer is not None:
            out.append((answer, address))
        return None

    def _fire(self, now: float) -> None:
        timers, left = self._timers, TIMERS
        while left and timers and timers[0][0] <= now:
            when, _, link = heapq.heappop(timers)
            if link.armed != when:
                continue  # armed anew since, earlier
            link.armed = math.inf
            due = link.timer()
            if due is None:
                continue
            if due > now:
                self._arm(link, due)
                continue
            link.fire(now)
            left -= 1
            self._dirty[link] = None

    def _settle(self, link: QuicLink) -> None:
        # after a pass, and before what it made is sent: its ids, its place among the half-open, its next timer, or its end
        if link.handshaking and link.phase is not Phase.HANDSHAKE:
            link.handshaking = False
            if self._admission is not None:
                self._admission.handshaken(link.first_address)
        if link.phase is GONE:
            self._forget(link)
            return
        if link.core.ids_changed:
            self._index(link)
        due = link.timer()
        if due is not None and due < link.armed:
            self._arm(link, due)

    def _arm(self, link: QuicLink, due: float) -> None:
        # A timer that moved later stays where it is: when it fires, the connection says what it is waiting for now.
        if due < link.armed:
            link.armed = due
            heapq.heappush(self._timers, (due, next(self._order), link))
            # what was armed anew stays in the heap until its time: not more of it than a few for each connection
            if len(self._timers) > 4 * len(self._links) + 64:
                self._timers = [timer for timer in self._timers if timer[2].armed == timer[0]]
                heapq.heapify(self._timers)

    def _next_timer(self) -> float:
        return self._timers[0][0] if self._timers else math.inf

    def _index(self, link: QuicLink, *more: bytes) -> None:
        link.core.ids_changed = False
        current = [*more, *link.core.host_ids]
        for cid in current:
            link.cids[cid] = None
            self._by_cid[cid] = link
        # packets with an id that was retired may still be under way: the last of them are known for a while
        for cid in [cid for cid in link.cids if cid not in current][: max(0, len(link.cids) - REMEMBERED)]:
            del link.cids[cid]
            self._by_cid.pop(cid, None)

    def _forget(self, link: QuicLink) -> None:
        if link not in self._links:
            return
        del self._links[link]
        for cid in link.cids:
            self._by_cid.pop(cid, None)
        link.armed = math.inf
        if self._admission is not None:
            self._admission.leave(link.first_address)
            link.release()

    def _abandon(self, now: float) -> None:
        # going down without notice: each peer gets one close packet, each handler is told
        out: list[Datagram] = []
        for link in self.links:
            link.abort()
            link.listen()
            link.dispatch(now)
            out += link.datagrams(now)
            link.abandon()
            self._forget(link)
        self._socket.send(out)
        self._socket.close()
