"""The end of every way into the log: prepared batches become one unit of the store, and the doors hear how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.broker.publish.door import Doors
from gateway.broker.publish.publication import Prepared
from gateway.broker.service import Clock
from gateway.recorder import Recorder
from gateway.store.interface import Put, Require, Store, Ticket, Unit

Done = Callable[[Ticket], None]


class Appending:
    """Publishes, transactions, delayed messages, replays and bridges all end here."""

    def __init__(self, store: Store, clock: Clock, recorder: Recorder, doors: Doors) -> None:
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._doors = doors

    def commit(
        self,
        prepared: Sequence[Prepared],
        puts: Sequence[Put] = (),
        requires: Sequence[Require] = (),
        done: Done | None = None,
        source: int = 0,
    ) -> Ticket:
        """Append prepared batches in one unit, with table writes and conditions. The ticket's placements are in the order
        of the appends. `done` hears of it when the accounting is done. `source`: as in `Unit`.
        """
        if len(prepared) == 1:
            one = prepared[0]
            appends, creates = one.appends, one.creates
            puts, requires = (*one.puts, *puts), (*one.requires, *requires)
        else:
            appends = [append for one in prepared for append in one.appends]
            creates = [create for one in prepared for create in one.creates]
            puts = [*(put for one in prepared for put in one.puts), *puts]
            requires = [*(require for one in prepared for require in one.requires), *requires]
        for one in prepared:
            for route, messages, _size in one.parts:
                door = self._doors.of(route)
                door.held -= messages
                door.committing += messages
        unit = Unit(appends=appends, creates=creates, puts=puts, requires=requires, source=source)
        ticket = self._store.submit(unit)
        ticket.on_done(lambda ticket: self._account(prepared, ticket))
        if done is not None:
            ticket.on_done(done)
        return ticket

    def discard(self, prepared: Sequence[Prepared]) -> None:
        """Prepared batches will not be committed (a transaction rolled back)."""
        for one in prepared:
            for route, messages, _size in one.parts:
                self._doors.drop(route, messages, "rolled_back")

    def adopt(self, parts: Sequence[tuple[str, int, int]]) -> None:
        """What an earlier process took and did not append waits here now: it counts as received."""
        for route, messages, _size in parts:
            door = self._doors.of(route)
            door.received += messages
            door.held += messages

    def _account(self, prepared: Sequence[Prepared], ticket: Ticket) -> None:
        now = self._clock.now()
        for one in prepared:
            for route, messages, size in one.parts:
                door = self._doors.of(route)
                door.committing -= messages
                if ticket.error is not None:
                    door.held += messages
                    self._doors.refuse(route, messages, ticket.error)
                else:
                    door.stored += messages
                    self._recorder.stored(route, messages, size)
                    self._recorder.publish_latency(route, now - one.started)
            if ticket.error is None:
                for route, reason, messages in one.letters:
                    self._recorder.dead_lettered(route, reason, messages)
