"""Whether a target was there at all, whether it is worth asking, and which of its addresses: without a clock."""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping
from typing import TypeGuard

import attrs

from gateway.errors import Status, TargetError, TargetRefused
from gateway.settings import Backoff, Seconds

FAILURES_TO_OPEN = 5
"""So many requests in a row that came to nothing, and no more are sent for a while."""
BACKOFF = Backoff(Seconds(0.1), Seconds(10.0))
"""Between attempts to connect, and while a breaker is open."""


def jittered(delay: float, chance: random.Random) -> float:
    """A delay made up to half shorter, so that those who failed together do not come back together."""
    return delay * (1.0 - chance.random() / 2.0)


def refuses_login(outcome: object) -> TypeGuard[TargetRefused]:
    """Whether an upstream does not let us in with these credentials: nothing will get better by itself, and nothing that
    was asked is to blame.
    """
    return isinstance(outcome, TargetRefused) and outcome.refusal is Status.UNAUTHENTICATED


def is_outage(outcome: object) -> bool:
    """Whether nobody has said anything about what was asked: it says nothing about a message, and costs it nothing."""
    return isinstance(outcome, TargetError) and (refuses_login(outcome) or not isinstance(outcome, TargetRefused))


class Circuit(enum.Enum):
    """Closed: all is well. Open: nothing is sent. Trial: one request finds out."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


class Happening(enum.Enum):
    SUCCESS = "success"
    TOO_MANY_FAILURES = "too many failures"
    FAILURE = "failure"
    TIME = "time"


CIRCUIT: Mapping[tuple[Circuit, Happening], Circuit] = {
    (Circuit.CLOSED, Happening.SUCCESS): Circuit.CLOSED,
    (Circuit.CLOSED, Happening.FAILURE): Circuit.CLOSED,
    (Circuit.CLOSED, Happening.TOO_MANY_FAILURES): Circuit.OPEN,
    (Circuit.OPEN, Happening.SUCCESS): Circuit.CLOSED,  # an answer to what was sent before it opened
    (Circuit.OPEN, Happening.FAILURE): Circuit.OPEN,
    (Circuit.OPEN, Happening.TOO_MANY_FAILURES): Circuit.OPEN,
    (Circuit.OPEN, Happening.TIME): Circuit.TRIAL,
    (Circuit.TRIAL, Happening.SUCCESS): Circuit.CLOSED,
    (Circuit.TRIAL, Happening.FAILURE): Circuit.OPEN,
    (Circuit.TRIAL, Happening.TOO_MANY_FAILURES): Circuit.OPEN,
}


class Breaker:
    """Counts requests that came to nothing; open, it holds everything back until its time."""

    def __init__(self, chance: random.Random, backoff: Backoff = BACKOFF) -> None:
        self.state = Circuit.CLOSED
        self.opens_until = 0.0
        self._backoff = backoff
        self._chance = chance
        self._failures = 0
        self._times_open = 0

    def allows(self, now: float, in_flight: int) -> bool:
        """Whether a request may be sent: any while closed, one at a time on trial."""
        if self.state is Circuit.OPEN and now >= self.opens_until:
            self.state = CIRCUIT[self.state, Happening.TIME]
        return self.state is Circuit.CLOSED or (self.state is Circuit.TRIAL and not in_flight)

    def succeeded(self) -> None:
        self.state = CIRCUIT[self.state, Happening.SUCCESS]
        self._failures = self._times_open = 0

    def failed(self, now: float) -> None:
        self._failures += 1
        before = self.state
        many = self._failures >= FAILURES_TO_OPEN
        self.state = CIRCUIT[before, Happening.TOO_MANY_FAILURES if many else Happening.FAILURE]
        if self.state is Circuit.OPEN and before is not Circuit.OPEN:
            self._times_open += 1
            self.opens_until = now + jittered(self._backoff.delay(self._times_open), self._chance)


PROBES_TO_RETURN = 3
"""Probes in a row that a better address has to answer before it is used again."""
MOST_PROBES = 48
"""So many for an address that answered probes and then nothing else: four minutes."""


@attrs.define(eq=False)
class Preference:
    """Which of several addresses to use. The first that answers; back to a better one only after it answered several
    probes in a row, or a flapping address would be changed to again and again. All connections share it: probes that come
    at the same time, from several of them, count as one.
    """

    addresses: int
    """How many addresses the upstream has."""
    current: int = 0
    _candidate: int = 0
    _answers: int = 0
    _probed_at: float = float("-inf")
    _needed: int = PROBES_TO_RETURN

    def order(self) -> list[int]:
        """The addresses in the order they are to be tried: the one in use, then from the best down."""
        return [self.current, *(index for index in range(self.addresses) if index != self.current)]

    def use(self, index: int) -> None:
        self.current = index
        self._answers = 0

    def was_deaf(self) -> None:
        """The one in use took a connection and answered nothing: what its probes say is worth less from now on."""
        self._needed = min(self._needed * 2, MOST_PROBES)

    def was_useful(self, index: int) -> None:
        if not index:
            self._needed = PROBES_TO_RETURN

    def probed(self, answering: int | None, now: float, spacing: float) -> bool:
        """Better ones than the one in use were probed, and this is the best that answered; True when it is time to go there.
        Answers less than `spacing` apart count as one.
        """
        if answering is None:
            self._answers = 0
            return False
        if answering == self.current:
            return True  # another connection has gone there already
        if answering != self._candidate:
            self._candidate, self._answers = answering, 0
        if now - self._probed_at >= spacing:
            self._probed_at = now
            self._answers += 1
        return self._answers >= self._needed
