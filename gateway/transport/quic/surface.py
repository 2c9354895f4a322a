"""What the driver calls on a QUIC connection: the channel half of `gateway.transport.link.Link`.

Apart from the connection, which knows packets and timers: this knows channels.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.transport.quic.aioquic_private import Core
from gateway.transport.quic.channel import Channels
from gateway.transport.quic.input import Input
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.output import Output
from gateway.wire.session import Buffer, Kind


class ChannelLink:
    """The channels of a connection. Every call only queues, and asks the endpoint for a pass by `wake`."""

    __slots__ = (
        "_asked_for_room",
        "_channels",
        "_clock",
        "_deadline",
        "_in",
        "_out",
        "_turning",
        "_writable",
        "attended",
        "core",
    )
    immediate = False
    """Output leaves in the endpoint's next pass, together with everybody else's."""

    def __init__(self, core: Core, limits: QuicLimits, clock: Callable[[], float]) -> None:
        self.core = core
        self.attended = False
        """A pass is under way that sends what is queued now."""
        self._clock = clock
        self._channels = Channels(limits.stream_window)
        self._out = Output(core, self._channels, limits)
        self._in = Input(core, self._channels, limits)
        self._writable = False
        self._turning = False
        """The handler has its turn."""
        self._asked_for_room = False
        self._deadline: float | None = None

    def send(self, channel: int, data: Buffer, notify: bool = False, alone: bool = False) -> None:
        """Queue bytes. On a channel that is gone or was stopped by the peer, nothing happens."""
        found = self._channels.by_number.get(channel)
        if found is not None and self._writable:
            self._out.send(found, data, self._clock() if alone else 0.0, notify, alone)
            if notify:
                # there may be room already: that is told in this turn, or in one that is to come
                if self._turning:
                    self._asked_for_room = True
                else:
                    self.wake()
            elif not self.attended:
                self.touch()

    def finish(self, channel: int) -> None:
        found = self._channels.by_number.get(channel)
        if found is not None and self._writable:
            self._out.finish(found)
            self.touch()

    def reset(self, channel: int, code: int) -> None:
        found = self._channels.by_number.get(channel)
        if found is not None:
            self._out.reset(found, code)
            self.touch()

    def stop_sending(self, channel: int, code: int) -> None:
        """Ask the peer to stop sending; its bytes are no longer handed on, its end still is."""
        found = self._channels.by_number.get(channel)
        if found is not None:
            self._in.refuse(found, code)
            self.touch()

    def open(self, token: int, kind: Kind) -> None:
        self._out.open(token, kind)
        self.wake()

    def flush(self) -> None:
        if not self.attended:
            self.touch()

    def pause(self, channel: int | None = None) -> None:
        """Hand on no more bytes of a channel, or of any; what is not handed on gets no credit."""
        found = None if channel is None else self._channels.by_number.get(channel)
        if channel is None or found is not None:
            self._in.pause(found)

    def resume(self, channel: int | None = None) -> None:
        found = None if channel is None else self._channels.by_number.get(channel)
        if (channel is None or found is not None) and self._in.resume(found):
            self.wake()

    def knows(self, channel: int) -> bool:
        """Whether anything can still happen on a channel."""
        return channel in self._channels.by_number

    def buffered(self, channel: int) -> int:
        found = self._channels.by_number.get(channel)
        return 0 if found is None else self._out.buffered(found)

    def waiting(self) -> tuple[int, int, int]:
        """Bytes of all channels that are queued or not acknowledged, how many of them are replies, and how many were."""
        return self._out.waiting()

    def held(self) -> tuple[int, int]:
        return self._out.held()

    def wake(self) -> None:
        raise NotImplementedError

    def touch(self) -> None:
        raise NotImplementedError

    def set_deadline(self, when: float | None) -> None:
        if when != self._deadline:
            self._deadline = when
            self.touch()
