"""The receiving half of a connection's channels: what came in, handed on in one piece per pass, consumed, credited.

Apart from `output`: neither half of a channel knows the other, and each ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from aioquic.quic.events import StreamDataReceived, StreamReset

from gateway.transport.link import LinkHandler
from gateway.transport.quic.aioquic_private import Core
from gateway.transport.quic.channel import Channel, Channels, End
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.windows import Credit

OPEN = End.OPEN
Gather = Callable[[int, bytes, float], None]
"""Takes the bytes of a channel, and the time."""


class Input:
    __slots__ = ("_channels", "_core", "_credit", "_paused", "_withheld", "fresh")

    def __init__(self, core: Core, channels: Channels, limits: QuicLimits) -> None:
        self._core = core
        self._channels = channels
        self._credit = Credit(limits.connection_window)
        self.fresh: dict[int, Channel] = {}
        """Of which there is something to tell."""
        self._withheld: dict[int, Channel] = {}
        self._paused = False

    def data(self, event: StreamDataReceived) -> None:
        """The next bytes of a stream, and whether they are its last."""
        channel = self._touch(event.stream_id)
        if event.data:
            self.take(event.stream_id, event.data)
        if event.end_stream:
            channel.end = End.FINISHED
            self._core.receive_ended(event.stream_id)

    def take(self, stream_id: int, data: bytes) -> None:
        """The next bytes of a stream."""
        channel = self._channels.by_stream.get(stream_id) or self._channels.add_peers(stream_id)
        self.fresh[channel.number] = channel
        if channel.refused:
            self._consume(channel, len(data))
        else:
            channel.parts.append(data)
            channel.held += len(data)

    def reset(self, event: StreamReset) -> None:
        # The peer abandoned a stream. Bytes that will never come count as consumed, or the window would leak away.
        stream_id = event.stream_id
        channel = self._touch(stream_id)
        channel.end = End.RESET
        channel.code = event.error_code
        self._core.receive_ended(stream_id)
        missing = self._core.received_on(stream_id) - channel.credit.consumed - channel.held
        if missing > 0:
            self._consume(channel, missing)

    def stopped(self, stream_id: int, code: int) -> Channel:
        channel = self._touch(stream_id)
        if not channel.send_over:
            channel.stop_code = code
        return channel

    def _touch(self, stream_id: int) -> Channel:
        channel = self._channels.by_stream.get(stream_id) or self._channels.add_peers(stream_id)
        self.fresh[channel.number] = channel
        return channel

    def deliver(self, handler: LinkHandler, now: float = 0.0, gather: Gather | None = None) -> None:
        """Tell the handler what is new, channel by channel: existence, bytes (gathered, if it can), end, stop."""
        while self.fresh:
            fresh, self.fresh = self.fresh, {}
            for channel in fresh.values():
                self._tell(channel, handler, now, gather)

    def _tell(self, channel: Channel, handler: LinkHandler, now: float, gather: Gather | None) -> None:
        number = channel.number
        if not channel.announced:
            channel.announced = True
            handler.opened(number, channel.kind)
        # what is not handed on is not credited either: so the peer's own window holds it back
        arrived = channel.parts
        if arrived and (channel.paused or self._paused):
            self._withheld[number] = channel
        else:
            if arrived:
                data = arrived[0] if len(arrived) == 1 else b"".join(arrived)
                channel.parts = []
                channel.held = 0
                if gather is None:
                    handler.received(number, data)
                else:
                    gather(number, data, now)
                self._consume(channel, len(data))
            if channel.end is not OPEN and not channel.end_told:
                channel.end_told = True
                if channel.end is End.RESET:
                    handler.reset(number, channel.code)
                else:
                    handler.eof(number)
        if channel.stop_code is not None:
            code, channel.stop_code = channel.stop_code, None
            handler.stopped(number, code)
        if channel.end_told:
            self._channels.leave(channel)

    def pause(self, channel: Channel | None) -> None:
        """Hand on no more bytes of one channel, or of any: no credit for them either."""
        if channel is None:
            self._paused = True
        else:
            channel.paused = True

    def resume(self, channel: Channel | None) -> bool:
        """Hand on again. True when something waits."""
        if channel is None:
            self._paused = False
            if not self._withheld:
                return False
            self.fresh.update(self._withheld)
            self._withheld.clear()
            return True
        channel.paused = False
        if self._withheld.pop(channel.number, None) is None:
            return False
        self.fresh[channel.number] = channel
        return True

    def refuse(self, channel: Channel, code: int) -> None:
        """Ask the peer to stop sending; what still comes is thrown away."""
        if channel.refused or channel.end is not End.OPEN:
            return
        channel.refused = True
        self._core.refuse(channel.stream_id, code)
        self._throw_away(channel)

    def discard(self) -> None:
        """Throw away what waits: the connection is closing."""
        for channel in (*self.fresh.values(), *self._withheld.values()):
            channel.refused = True
            self._throw_away(channel)
        self.fresh.clear()
        self._withheld.clear()

    def _throw_away(self, channel: Channel) -> None:
        held, channel.parts, channel.held = channel.held, [], 0
        if held:
            self._consume(channel, held)

    def _consume(self, channel: Channel, count: int) -> None:
        # no credit for a stream that has ended, but for the connection always: its window is shared by those that go on
        own, shared = channel.credit, self._credit
        if own.consumed + count < own.due and shared.consumed + count < shared.due:  # as nearly always
            own.consumed += count
            shared.consumed += count
            return
        if own.consume(count) and channel.end is OPEN and not channel.refused:
            self._core.grant_stream(channel.stream_id, own.limit)
        if shared.consume(count):
            self._core.grant_connection(shared.limit)
