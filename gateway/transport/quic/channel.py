"""The streams of a connection as the channels a session knows: numbers, what waits in each direction, what is over."""

from __future__ import annotations

import enum

from gateway.transport.quic.windows import Credit
from gateway.wire.session import Buffer, Kind


class End(enum.Enum):
    """How the peer ended its side."""

    OPEN = enum.auto()
    FINISHED = enum.auto()
    RESET = enum.auto()


class Channel:
    """One stream: own state of both directions. `stream_id` is negative until the stream exists."""

    __slots__ = (
        "announced",
        "code",
        "credit",
        "end",
        "end_told",
        "finished",
        "held",
        "kind",
        "number",
        "parts",
        "paused",
        "queue",
        "queued",
        "refused",
        "regulated",
        "send_over",
        "stop_code",
        "stream_id",
    )

    def __init__(self, number: int, kind: Kind, window: int, stream_id: int = -1) -> None:
        self.number = number
        self.kind = kind
        self.stream_id = stream_id
        # receiving
        self.announced = False
        self.credit = Credit(window)
        self.parts: list[bytes] = []
        self.held = 0
        self.end = End.FINISHED if kind is Kind.WRITE_ONLY else End.OPEN
        self.end_told = kind is Kind.WRITE_ONLY
        self.code = 0
        self.paused = False
        self.refused = False
        # sending
        self.queue: list[tuple[Buffer, bool]] = []
        self.queued = 0
        self.finished = False
        self.regulated = False
        self.send_over = kind is Kind.READ_ONLY
        self.stop_code: int | None = None

    @property
    def over(self) -> bool:
        """Nothing will be told about it or sent on it any more."""
        return self.end_told and (self.send_over or (self.finished and not self.queue))


class Channels:
    """A connection's channels, by their number and by their stream id."""

    __slots__ = ("by_number", "by_stream", "leaving", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.by_number: dict[int, Channel] = {}
        self.by_stream: dict[int, Channel] = {}
        self.leaving: dict[int, Channel] = {}
        """What may be forgotten once the core has."""

    def add_peers(self, stream_id: int) -> Channel:
        kind = Kind.READ_ONLY if stream_id & 2 else Kind.DUPLEX
        channel = Channel(stream_id, kind, self.window, stream_id)
        self.by_number[stream_id] = self.by_stream[stream_id] = channel
        return channel

    def add_own(self, token: int, kind: Kind) -> Channel:
        """A stream of ours: its number is the token it was asked for with. No stream yet."""
        channel = self.by_number[token] = Channel(token, kind, self.window)
        channel.announced = True
        return channel

    def bind(self, channel: Channel, stream_id: int) -> None:
        channel.stream_id = stream_id
        self.by_stream[stream_id] = channel

    def forget(self, channel: Channel) -> None:
        """Drop a channel that is over, or whose stream was never opened."""
        self.by_number.pop(channel.number, None)
        self.by_stream.pop(channel.stream_id, None)
        self.leaving.pop(channel.number, None)

    def leave(self, channel: Channel) -> None:
        """Forget it as soon as the core has discarded its stream: until then frames for it may still come."""
        if channel.over:
            self.leaving[channel.number] = channel
