"""A stream's share in a reader of the broker's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gateway.protocols.fujin.server.stream import Stream
from gateway.protocols.fujin.settings import FujinSettings
from gateway.requests import Outcome, Redelivery, Settle, Unsubscribe


class Lease:
    """Other readers of this connection may be the same one for the broker, which knows readers of a connection only as one:
    who leaves gives back what is unsettled if others go on, and has the broker give back everything if nobody does.
    """

    def __init__(self, stream: Stream, subscription: int) -> None:
        self.subscription = subscription
        self._stream = stream
        self._left = False
        users = stream.context.users
        users[subscription] = users.get(subscription, 0) + 1

    def leave(self) -> bool:
        """Whether others go on: a Take that waits has to be ended then, and what is unsettled given back."""
        users = self._stream.context.users
        users[self.subscription] -= 1
        if users[self.subscription]:
            self._left = True
        else:
            del users[self.subscription]
            self._stream.ask(partial(Unsubscribe, subscription=self.subscription), ignored)
        return self._left

    def give_back(self, tags: Sequence[int]) -> None:
        if tags and self._left:
            settle = partial(Settle, subscription=self.subscription, tags=tags, accepted=False, tried=False)
            self._stream.ask(settle, ignored)


def redelivery(settings: FujinSettings) -> Redelivery:
    """What is unacknowledged stays with the client; a NACK is an attempt that failed."""
    return Redelivery(settings.max_deliveries, settings.backoff.first, settings.backoff.longest, unanswered=False)


def ignored(outcome: Outcome, now: float) -> None:
    """Nobody is left to be told."""
