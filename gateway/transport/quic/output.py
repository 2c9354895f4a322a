"""The sending half of a connection's channels: what waits for a stream, for room, or for being alone in its packet.

Apart from `input`: neither half of a channel knows the other, and each ends by itself.
"""

from __future__ import annotations

from collections import deque

from gateway.transport.quic.aioquic_private import Core
from gateway.transport.quic.channel import Channel, Channels
from gateway.transport.quic.limits import QuicLimits
from gateway.wire.session import Buffer, Kind

ALONE_SECONDS = 0.005
"""What follows an `alone` send stays back until that is acknowledged, and at least this long: a peer that throws away
the rest of a read must have had the time to read (Fujin wire, rule 2)."""


class Output:
    """Everything a connection has to send. Pure bookkeeping over the core; the link decides when to flush."""

    __slots__ = (
        "_alone",
        "_answered",
        "_channels",
        "_core",
        "_given",
        "_limits",
        "_pending",
        "_unsent",
        "_watched",
        "opened",
        "refused",
        "watchful",
    )

    def __init__(self, core: Core, channels: Channels, limits: QuicLimits) -> None:
        self._core = core
        self._channels = channels
        self._limits = limits
        self._watched: dict[int, Channel] = {}
        self._alone: dict[int, tuple[Channel, float]] = {}
        self._unsent: dict[int, Channel] = {}
        self._answered = 0
        """Bytes that were ever given to channels on which nobody waits for room."""
        self._given = 0
        """Bytes that were ever given to any channel."""
        self.watchful = False
        """Something waits for a stream, for room or for being alone: `advance` and `rooms` have to be asked."""
        self._pending: dict[Kind, deque[Channel]] = {}
        self.opened: list[Channel] = []
        self.refused: list[int] = []

    def send(self, channel: Channel, data: Buffer, now: float, notify: bool, alone: bool) -> None:
        """Queue bytes; silently nothing when this side of the channel is over."""
        if channel.send_over or channel.finished:
            return
        number = channel.number
        self._unsent[number] = channel
        self._given += len(data)
        if notify:
            self._watched[number] = channel
            channel.regulated = self.watchful = True
        elif not channel.regulated:
            self._answered += len(data)
        if channel.stream_id < 0 or number in self._alone:
            channel.queue.append((data, alone))
            channel.queued += len(data)
        elif alone:
            self._write(channel, data, now, alone)
        elif not self._core.write(channel.stream_id, data):
            self.stop(channel)

    def finish(self, channel: Channel) -> None:
        if channel.send_over or channel.finished:
            return
        channel.finished = True
        self._unsent[channel.number] = channel
        if channel.stream_id >= 0 and channel.number not in self._alone:
            self._end(channel)

    def reset(self, channel: Channel, code: int) -> None:
        if channel.send_over:
            return
        self.stop(channel)
        if channel.stream_id < 0:
            self._pending[channel.kind].remove(channel)
            self._channels.forget(channel)
            return
        self._core.abandon(channel.stream_id, code)
        self._channels.leave(channel)

    def stop(self, channel: Channel) -> None:
        """This side of the channel is over: nothing waits any more."""
        channel.send_over = True
        channel.queue.clear()
        channel.queued = 0
        self._watched.pop(channel.number, None)
        self._alone.pop(channel.number, None)
        self._unsent.pop(channel.number, None)

    def open(self, token: int, kind: Kind) -> None:
        """Open a stream, now or when the peer's limit allows it. A token names one channel: asking again changes nothing."""
        if token in self._channels.by_number:
            return
        self.watchful = True
        waiting = self._pending.setdefault(kind, deque())
        if self._core.is_over or len(waiting) >= self._limits.pending_opens:
            self.refused.append(token)
            return
        waiting.append(self._channels.add_own(token, kind))

    def advance(self, now: float) -> None:
        """Open what the peer's limits allow by now, and let go what an `alone` send held back."""
        if self._pending:
            self._open_pending(now)
        for channel, until in list(self._alone.values()):
            if now >= until and not self._core.unacknowledged(channel.stream_id):
                del self._alone[channel.number]
                self._drain(channel, now)
        self.watchful = bool(self._watched or self._alone or self.opened or self.refused or self._pending)

    def _open_pending(self, now: float) -> None:
        for kind, waiting in self._pending.items():
            while waiting:
                stream_id = self._core.open(kind is Kind.WRITE_ONLY)
                if stream_id is None:
                    break
                channel = waiting.popleft()
                self._channels.bind(channel, stream_id)
                self.opened.append(channel)
                self._drain(channel, now)
        if not any(self._pending.values()):
            self._pending.clear()

    def rooms(self) -> list[Channel]:
        """Channels whose waiting bytes fell below low water, each once per `notify`."""
        if not self._watched:
            return []
        low = self._limits.low_water
        ready = [channel for channel in self._watched.values() if self.buffered(channel) < low]
        for channel in ready:
            del self._watched[channel.number]
        return ready

    def buffered(self, channel: Channel) -> int:
        return channel.queued + self._core.unacknowledged(channel.stream_id)

    def waiting(self) -> tuple[int, int, int]:
        """Bytes of all channels that are queued or not acknowledged; of those, the ones on channels without `notify`; and
        how many of such were acknowledged, or given up.
        """
        total = replies = 0
        unacknowledged = self._core.unacknowledged
        for number, channel in list(self._unsent.items()):
            size = channel.queued + unacknowledged(channel.stream_id)
            if size:
                total += size
                if not channel.regulated:
                    replies += size
            elif not channel.queue:
                del self._unsent[number]
        return total, replies, self._answered - replies

    def held(self) -> tuple[int, int]:
        """Bytes of all channels that are queued or not acknowledged, and how many were acknowledged, or given up."""
        total = self.waiting()[0]
        return total, self._given - total

    @property
    def delivered(self) -> bool:
        """Whether the peer has acknowledged everything, ends of streams included."""
        return not self.waiting()[0] and all(
            self._core.delivered(stream_id) for stream_id in self._channels.by_stream if stream_id >= 0
        )

    def due(self) -> float | None:
        """When `advance` has something to do that no packet will announce."""
        if not self._alone:
            return None
        return min((until for channel, until in self._alone.values() if self._is_acknowledged(channel)), default=None)

    def _is_acknowledged(self, channel: Channel) -> bool:
        return not self._core.unacknowledged(channel.stream_id)

    def _write(self, channel: Channel, data: Buffer, now: float, alone: bool) -> None:
        if not self._core.write(channel.stream_id, data):
            self.stop(channel)
        elif alone:
            self._alone[channel.number] = (channel, now + ALONE_SECONDS)
            self.watchful = True

    def _drain(self, channel: Channel, now: float) -> None:
        # write what was held back, up to the next `alone`
        queue, channel.queue, channel.queued = channel.queue, [], 0
        for index, (data, alone) in enumerate(queue):
            self._write(channel, data, now, alone)
            if alone:
                channel.queue = queue[index + 1 :]
                channel.queued = sum(len(rest) for rest, _ in channel.queue)
                return
        if channel.finished and not channel.send_over:
            self._end(channel)

    def _end(self, channel: Channel) -> None:
        self._core.write(channel.stream_id, b"", end=True)
        self._channels.leave(channel)
