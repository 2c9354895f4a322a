"""What the driver needs from a connection, whatever carries it, and what a connection tells the driver.

Everything here is synchronous: a link is fed by whoever reads its socket, and sends without waiting. Waiting for the
socket is the link's own affair; how much waits is bounded by the driver, which stops reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gateway.wire.session import Buffer, Close, Finish, Kind, Open, Output, Reset, Send, StopSending, Withhold


class Link(Protocol):
    """One connection. Channel numbers are those of `gateway.wire.session`."""

    @property
    def immediate(self) -> bool:
        """Whether `flush` sends at once, so that late replies need not wait for the link's own next pass."""
        ...

    @property
    def peer(self) -> str:
        """The other side's address, for logs and origins."""
        ...

    def send(self, channel: int, data: Buffer, notify: bool = False, alone: bool = False) -> None:
        """Queue bytes."""
        ...

    def finish(self, channel: int) -> None:
        """No more bytes on a channel, after what is queued."""
        ...

    def reset(self, channel: int, code: int) -> None:
        """Abandon sending on a channel."""
        ...

    def stop_sending(self, channel: int, code: int) -> None:
        """Ask the peer to stop sending on a channel."""
        ...

    def open(self, token: int, kind: Kind) -> None:
        """Open a stream; the handler hears `opened(token)` or `reset(token)`."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Close after what is queued."""
        ...

    def abort(self) -> None:
        """Close now, whatever is queued."""
        ...

    def flush(self) -> None:
        """Everything for this turn is queued: send it."""
        ...

    def pause(self, channel: int | None = None, /) -> None:
        """Stop reading from the peer, or one channel only."""
        ...

    def resume(self, channel: int | None = None, /) -> None:
        """Read again."""
        ...

    def waiting(self) -> tuple[int, int, int]:
        """Bytes that the other side has not taken yet, as far as one can know; how much of them are replies: what goes out with
        `notify` is bounded by whoever waits for `room`, on its own channel, everything else only by reading less; and how much
        of replies was ever taken, or is of no use any more. Who reads makes that grow, however much waits.
        """
        ...

    def held(self) -> tuple[int, int]:
        """The bytes that the other side has not taken and that are kept here, and how many of all it was ever seen to take, as
        exactly as one can know. Dearer than `waiting`.
        """
        ...

    def wake(self) -> None:
        """See to it that the handler's `turn` is called soon, but not from inside this call."""
        ...

    def set_deadline(self, when: float | None) -> None:
        """Call the handler's `turn` at this time as well."""
        ...


class LinkHandler(Protocol):
    """Who listens to a link. Never raises."""

    def opened(self, channel: int, kind: Kind) -> None:
        """A channel is there."""
        ...

    def received(self, channel: int, data: bytes) -> None:
        """Bytes came in."""
        ...

    def eof(self, channel: int) -> None:
        """The peer has finished this channel."""
        ...

    def reset(self, channel: int, code: int) -> None:
        """The peer abandoned the channel, or an `open` was refused."""
        ...

    def stopped(self, channel: int, code: int) -> None:
        """The peer reads no more on this channel."""
        ...

    def room(self, channel: int) -> None:
        """What was sent with `notify` has left, down to low water."""
        ...

    def turn(self, now: float) -> None:
        """All events of this pass are delivered: answer them."""
        ...

    def lost(self) -> None:
        """The connection is gone. Called once."""
        ...


class GatheringHandler(LinkHandler, Protocol):
    """One that can be read beside others, by a task that they share. What goes wrong in `take` and `answer` is for that task to
    say (`fail`): it looks once for all whom it reads, and not in each call.
    """

    @property
    def asked(self) -> int:
        """Requests that it has handed over, ever."""
        ...

    def gather(self, channel: int, data: bytes, now: float) -> None:
        """Bytes came in. What follows from them may wait for `respond`: until then others are read too."""
        ...

    def respond(self, now: float) -> None:
        """`turn`, behind `gather`."""
        ...

    def take(self, channel: int, data: bytes, now: float) -> int:
        """The same. Returns how many requests were handed over."""
        ...

    def answer(self, now: float) -> bytes | None:
        """`turn`, behind `take`. Bytes: they are all there is to be done; who cannot send all of them calls `turn`. None at all:
        for certain there will be some when the disk has what was asked.
        """
        ...

    def fail(self, error: Exception) -> None:
        """Something inside went wrong that nobody expected."""
        ...


def apply(outputs: Iterable[Output], link: Link) -> None:
    """Do what a session put out, and send it: the same for both roles."""
    for output in outputs:
        if isinstance(output, Send):
            link.send(output.channel, output.data, output.notify, output.alone)
        elif isinstance(output, Open):
            link.open(output.token, output.kind)
        elif isinstance(output, Finish):
            link.finish(output.channel)
        elif isinstance(output, Reset):
            link.reset(output.channel, output.code)
        elif isinstance(output, StopSending):
            link.stop_sending(output.channel, output.code)
        elif isinstance(output, Withhold):
            (link.pause if output.on else link.resume)(output.channel)
        elif isinstance(output, Close):
            link.close(output.code, output.reason)
    link.flush()
