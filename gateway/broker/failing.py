"""Messages on which a route's transform fails: they go to the dead letters of the topic they were meant for.

Only what a client publishes by itself. In a transaction, in a bulk append and when a letter is sent again it is refused
instead: there somebody decides about the whole, and nothing of it may be stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from gateway.envelope import BatchMeta, Columns, Run
from gateway.errors import GatewayError
from gateway.routing.table import ResolvedRoute
from gateway.store.interface import Append, CreateTopic

TRANSFORM = "transform"
"""The reason of such a letter."""


class Failed(NamedTuple):
    """What a transform could not work on: a part of a batch as it came, and why, by index."""

    route: ResolvedRoute
    columns: Columns
    errors: Mapping[int, GatewayError]


class LetterMaker(Protocol):
    """What is needed of the dead-letter service."""

    def dead_letter_append(
        self, run: Run, index: int, *, reason: str, attempts: int, first_error: str, last_error: str
    ) -> tuple[Sequence[CreateTopic], Append]:
        """The operations that put one message into its topic's dead letters."""
        ...


def letters_of(
    maker: LetterMaker, failed: Failed, meta: BatchMeta, now_ms: int
) -> tuple[Sequence[CreateTopic], Append]:
    """The operations that put all of them into the dead letters: one append, however many there are."""
    columns = failed.columns
    run = Run(failed.route.topic, 0, 0, columns, [now_ms] * columns.count, [(0, 0, meta)])
    creates: Sequence[CreateTopic] = ()
    letters: list[Columns] = []
    target = ""
    for index, error in sorted(failed.errors.items()):
        creates, append = maker.dead_letter_append(
            run, index, reason=TRANSFORM, attempts=1, first_error=error.message, last_error=error.message
        )
        target = append.topic
        letters.append(append.columns)
    return creates, Append(target, 0, Columns.concat(letters), meta, indexes=sorted(failed.errors))
