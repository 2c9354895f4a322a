"""How far a consumer is in one partition: what is settled, why, and what of that is on disk.

Subscriptions and forwards have one of these for each partition they read. A message is settled when its consumer has
acknowledged it, when nobody is to get it (`passed`), or by the very commit that stores its dead letter: as long as that
fails the message counts as backlog, is counted nowhere else, and the letter is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from gateway.broker.service import Clock, LetterMaker, Timers
from gateway.envelope import Run
from gateway.recorder import ConsumerCounts, Recorder
from gateway.store.ack_window import AckWindow
from gateway.store.interface import Append, CreateTopic, Put, Store, Ticket, Unit

WRITE_BEHIND = 0.05
"""Positions are written this long after they moved: at-least-once may repeat what a crash forgets in between."""
TRY_AGAIN = 1.0
"""After a write that failed: the store is read-only."""


class Message:
    """One message that a consumer has under way."""

    __slots__ = ("attempts", "first_error", "index", "last_error", "offset", "run")

    def __init__(self, run: Run, index: int, attempts: int = 0) -> None:
        self.run = run
        self.index = index
        self.offset = run.base_offset + index
        self.attempts = attempts
        """How often it was tried."""
        self.first_error = ""
        self.last_error = ""

    def detach(self) -> None:
        """Keep the message alone, not the whole read it came with: it may stay for long."""
        self.run = self.run.slice(self.index, self.index + 1)
        self.index = 0


@attrs.define(eq=False)
class Tally:
    """What became of the messages since the consumer began with the partition at `start`."""

    start: int
    acknowledged: int = 0
    filtered: int = 0
    expired: int = 0
    dead_lettered: int = 0
    trimmed: int = 0


@attrs.frozen(eq=False)
class PositionContext:
    """What every position works with."""

    store: Store
    timers: Timers
    clock: Clock
    recorder: Recorder
    letters: LetterMaker


class Position:
    """What is settled of one partition, and its writing."""

    def __init__(
        self,
        context: PositionContext,
        window: AckWindow,
        tally: Tally,
        *,
        rows: Callable[[AckWindow, Tally], Sequence[Put]] | None,
        written: Callable[[], None],
        letters_topic: str = "",
    ) -> None:
        """`rows`: what keeps it in the store, None if nothing does. `written`: called after each write.
        `letters_topic`: empty for where the topic's dead letters are.
        """
        self.window = window
        self.tally = tally
        self.unsaved = 0
        """Acknowledged messages that a crash would deliver again."""
        self.error = ""
        """Why it cannot be written."""
        self.on_disk = window.low
        """Retention may go no further."""
        self.letters: list[tuple[Message, str]] = []
        """What is given up and not stored yet, with the reason. Nobody reads on while there are any: that is their bound."""
        self.closed = False
        self._context = context
        self._rows = rows
        self._written = written
        self._letters_topic = letters_topic
        self._dirty = self._writing = False
        self._timer: Callable[[], None] | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing waits to be written."""
        return not (self._dirty or self._writing or self.letters)

    def acknowledged(self, first: int, stop: int) -> int:
        """The consumer has them; returns how many were not settled before."""
        count = self.passed(first, stop)
        self.tally.acknowledged += count
        self.unsaved += count
        return count

    def passed(self, first: int, stop: int) -> int:
        """Messages that are not to be delivered; returns how many were not settled before."""
        count = self.window.settle_range(first, stop)
        self._dirty = self._dirty or (count > 0 and self._rows is not None)
        return count

    def touch(self) -> None:
        """Something else that its rows keep has changed."""
        self._dirty = self._rows is not None

    def tried(self, messages: Iterable[Message]) -> None:
        """Remember attempts in vain: a restart must not give a message that fails all its attempts again."""
        window = self.window
        for message in messages:
            # attempts on what is very far ahead of the oldest are not worth keeping
            near = message.offset - window.low < window.max_span
            if message.attempts and near and not window.is_settled(message.offset):
                while window.outstanding.get(message.offset, 0) < message.attempts:
                    window.hand_out(message.offset)
                self.touch()

    def give_up(self, message: Message, reason: str) -> None:
        """To the dead letters with it."""
        message.detach()
        self.letters.append((message, reason))

    # --- writing ---

    def save_soon(self, *, at_once: bool = False) -> None:
        """See to it that what changed is written; letters at once."""
        if self._writing or self.closed or self.settled:
            return
        if self.error:
            self._save_in(TRY_AGAIN)
        elif at_once or self.letters:
            self.save()
        else:
            self._save_in(WRITE_BEHIND)

    def save(self) -> None:
        """Write it, with the letters there are."""
        self._stop_timer()
        if self._writing or self.closed or self.settled:
            return
        letters, window, tally = list(self.letters), self.window, self.tally
        creates: list[CreateTopic] = []
        appends: list[Append] = []
        if letters:  # settled in a copy: whether they are is known when this is stored
            window = AckWindow.from_bytes(window.to_bytes())
            settled = sum(window.settle(message.offset) for message, _reason in letters)
            tally = attrs.evolve(tally, dead_lettered=tally.dead_lettered + settled)
        for message, reason in letters:
            made, append = self._context.letters.dead_letter_append(
                message.run,
                message.index,
                reason=reason,
                attempts=message.attempts,
                first_error=message.first_error or reason,
                last_error=message.last_error or reason,
                topic=self._letters_topic,
            )
            creates += (one for one in made if one not in creates)
            appends.append(append)
        unsaved, low = self.unsaved, window.low
        self._writing, self._dirty = True, False
        puts = self._rows(window, tally) if self._rows is not None else ()
        unit = Unit(creates=creates, appends=appends, puts=puts, synced=None if letters else False)
        self._context.store.submit(unit).on_done(lambda ticket: self._ended(ticket, letters, unsaved, low))

    def _ended(self, ticket: Ticket, letters: Sequence[tuple[Message, str]], unsaved: int, low: int) -> None:
        self._writing = False
        if ticket.error is not None:
            self.error = f"its position cannot be written: {ticket.error.message}"
            self._dirty = self._rows is not None
            if not self.closed:
                self._save_in(TRY_AGAIN)
            return
        self.error = ""
        self.unsaved -= unsaved
        self.on_disk = low
        del self.letters[: len(letters)]
        for message, reason in letters:
            self.tally.dead_lettered += self.window.settle(message.offset)
            meta, _inner = message.run.meta_of(message.index)
            self._context.recorder.dead_lettered(meta.route, reason, 1)
        self.save_soon()
        self._written()

    def close(self) -> None:
        """Write nothing more."""
        self.closed = True
        self._stop_timer()

    def _save_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._context.timers.call_at(self._context.clock.now() + seconds, self.save)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer()
            self._timer = None

    # --- accounting ---

    def counts(self, kind: str, name: str, topic: str, partition: int, end: int) -> ConsumerCounts:
        """The account, while the log ends at `end`."""
        return counts_of(kind, name, topic, partition, end, self.window, self.tally)


def counts_of(
    kind: str, name: str, topic: str, partition: int, end: int, window: AckWindow, tally: Tally
) -> ConsumerCounts:
    """The account of one partition. A position beyond the end has passed what is not there."""
    return ConsumerCounts(
        kind=kind,
        name=name,
        end=end,
        backlog=max(0, end - window.low - window.settled_above),
        topic=topic,
        partition=partition,
        **attrs.asdict(tally),
    )
