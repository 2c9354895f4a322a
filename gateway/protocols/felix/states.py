"""The states of a client's stream and of a subscription, as tables.

A stream starts OPEN; where logging in is required, its first frame has to be `auth`. Logging in holds back what follows.
After the client's FIN what it sent is still served; then this side finishes too (Felix wire section 0, row 8). A stream
that broke the protocol is FAILED: queued replies go out first, then the error, then FIN.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.wire.machine import Named


class StreamState(Named):
    """Where a client's stream stands."""

    OPEN = "open"
    HELD = "held"
    LAST = "last"  # the client finished its side
    LAST_HELD = "last and held"
    FAILED = "failed"  # nothing more is parsed
    CLOSED = "closed"


class StreamEvent(Named):
    """What moves it."""

    HOLD = "hold"
    RELEASE = "release"
    EOF = "eof"
    FAIL = "fail"
    ANSWERED = "answered"  # no reply is owed any more


STREAMS: Mapping[tuple[StreamState, StreamEvent], StreamState] = {
    (StreamState.OPEN, StreamEvent.HOLD): StreamState.HELD,
    (StreamState.OPEN, StreamEvent.EOF): StreamState.LAST,
    (StreamState.OPEN, StreamEvent.FAIL): StreamState.FAILED,
    (StreamState.HELD, StreamEvent.RELEASE): StreamState.OPEN,
    (StreamState.HELD, StreamEvent.EOF): StreamState.LAST_HELD,
    (StreamState.HELD, StreamEvent.FAIL): StreamState.FAILED,
    (StreamState.LAST, StreamEvent.HOLD): StreamState.LAST_HELD,
    (StreamState.LAST, StreamEvent.EOF): StreamState.LAST,
    (StreamState.LAST, StreamEvent.FAIL): StreamState.FAILED,
    (StreamState.LAST, StreamEvent.ANSWERED): StreamState.CLOSED,
    (StreamState.LAST_HELD, StreamEvent.RELEASE): StreamState.LAST,
    (StreamState.LAST_HELD, StreamEvent.EOF): StreamState.LAST_HELD,
    (StreamState.LAST_HELD, StreamEvent.FAIL): StreamState.FAILED,
    (StreamState.FAILED, StreamEvent.RELEASE): StreamState.FAILED,
    (StreamState.FAILED, StreamEvent.EOF): StreamState.FAILED,
    (StreamState.FAILED, StreamEvent.FAIL): StreamState.FAILED,
    (StreamState.FAILED, StreamEvent.ANSWERED): StreamState.CLOSED,
    (StreamState.CLOSED, StreamEvent.RELEASE): StreamState.CLOSED,
    (StreamState.CLOSED, StreamEvent.EOF): StreamState.CLOSED,
    (StreamState.CLOSED, StreamEvent.FAIL): StreamState.CLOSED,
}

PARSING = (StreamState.OPEN, StreamState.LAST)
KEEPING = (StreamState.OPEN, StreamState.HELD, StreamState.LAST_HELD)
READING = (StreamState.OPEN, StreamState.HELD)
LEAVING = (StreamState.LAST, StreamState.FAILED)


class FeedState(Named):
    """Where a subscription stands."""

    ASKED = "asked"  # the broker is making it
    TAKING = "taking"  # the one Take is with the broker
    SENDING = "sending"  # events wait for room on their stream
    PAUSED = "paused"  # more events gather until the next frame is due
    ENDED = "ended"


class FeedEvent(Named):
    """What moves it."""

    SUBSCRIBED = "subscribed"
    EVENTS = "events"
    NOTHING = "nothing"
    ROOM = "room"
    EARLY = "early"  # there is room before the next frame is due
    DUE = "due"
    END = "end"


FEEDS: Mapping[tuple[FeedState, FeedEvent], FeedState] = {
    (FeedState.ASKED, FeedEvent.SUBSCRIBED): FeedState.TAKING,
    (FeedState.ASKED, FeedEvent.END): FeedState.ENDED,
    (FeedState.TAKING, FeedEvent.EVENTS): FeedState.SENDING,
    (FeedState.TAKING, FeedEvent.NOTHING): FeedState.TAKING,
    (FeedState.TAKING, FeedEvent.END): FeedState.ENDED,
    (FeedState.SENDING, FeedEvent.ROOM): FeedState.TAKING,
    (FeedState.SENDING, FeedEvent.EARLY): FeedState.PAUSED,
    (FeedState.SENDING, FeedEvent.END): FeedState.ENDED,
    (FeedState.PAUSED, FeedEvent.DUE): FeedState.TAKING,
    (FeedState.PAUSED, FeedEvent.END): FeedState.ENDED,
    (FeedState.ENDED, FeedEvent.END): FeedState.ENDED,
}
