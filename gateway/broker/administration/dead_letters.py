"""Looking after dead letters: listing, replaying and purging them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from gateway.broker.administration.permissions import Permission
from gateway.broker.administration.topics import TopicService
from gateway.broker.letters import PREFIX, letters_topic, split_headers
from gateway.broker.offload import Offload
from gateway.broker.publish.appending import Appending
from gateway.broker.publish.publication import TRANSFORM, Prepared
from gateway.broker.service import Caller, Clock, Handler
from gateway.envelope import BatchIds, Columns, Run
from gateway.errors import Conflict, Denied, GatewayError, NotFound, UnknownTopic
from gateway.requests import (
    DONE,
    DeadLetter,
    DeadLetters,
    Published,
    PurgeDeadLetters,
    ReadDeadLetters,
    ReplayDeadLetter,
    Request,
)
from gateway.routing.table import RoutingTable
from gateway.store.interface import Append, DropTopic, Store, Unit

MOST_LETTERS = 1_000
"""Letters in one answer."""
MOST_BYTES = 8 << 20
"""Bytes of values in one answer, headers not counted."""
MOST_REPLAYS = 16
"""A message that died so often is not replayed any more."""

Permit = Callable[[Caller, Permission, str], None]
"""Raises unless the caller has this right on an address."""


class DeadLetterService:
    def __init__(
        self,
        store: Store,
        appending: Appending,
        topics: TopicService,
        table: RoutingTable,
        clock: Clock,
        offload: Offload,
        permit: Permit,
    ) -> None:
        self._store = store
        self._appending = appending
        self._topics = topics
        self._table = table
        self._clock = clock
        self._offload = offload
        self._permit = permit
        self._ids = BatchIds()

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {ReadDeadLetters: self.read, ReplayDeadLetter: self.replay, PurgeDeadLetters: self.purge}

    # --- for looking after them ---

    def read(self, caller: Caller, request: ReadDeadLetters) -> None:
        """The letters of an address, oldest first."""
        letters = letters_topic(self._topics.name(caller, request.address))

        async def job() -> DeadLetters:
            return DeadLetters(await self._read(letters, max(0, min(request.max_messages, MOST_LETTERS))))

        def done(outcome: DeadLetters | GatewayError) -> None:
            # the topic may have gone while it was being read
            caller.answer(request.id, DeadLetters([]) if isinstance(outcome, UnknownTopic) else outcome)

        self._offload.task(job, done)

    async def _read(self, topic: str, wanted: int) -> Sequence[DeadLetter]:
        await self._store.refresh(topic)  # another gateway may have written them
        state = self._store.topics.get(topic)
        found: list[tuple[int, DeadLetter]] = []
        for number, partition in enumerate(state.partitions if state is not None else ()):
            offset, left, size = partition.start, wanted, MOST_BYTES
            while left > 0 and size > 0 and offset < partition.end:
                result = await self._store.read(topic, number, offset, left, size, self._clock.now_ms())
                for run in result.runs:
                    found += ((run.times[index], _letter(run, index)) for index in range(run.count))
                    left -= run.count
                    size -= run.columns.value_bytes
                offset = result.next_offset
        found.sort(key=lambda entry: entry[0])  # stable: the order of each partition stays
        return _within([letter for _time, letter in found[:wanted]])

    def replay(self, caller: Caller, request: ReplayDeadLetter) -> None:
        """Append a letter's message to the topic it came from again. The letter stays until it is purged."""
        topic = self._topics.name(caller, request.address)
        letters = letters_topic(topic)
        place = _place(request.letter)
        missing = NotFound(f"message not found: {request.letter[:64]}")
        if place is None:
            raise missing
        number, offset = place

        async def job() -> Run | None:
            await self._store.refresh(letters)  # another gateway may have written it
            state = self._store.topics.get(letters)
            if state is None or number >= len(state.partitions):
                return None
            if not state.partitions[number].start <= offset < state.partitions[number].end:
                return None
            result = await self._store.read(letters, number, offset, 1, MOST_BYTES, self._clock.now_ms())
            return result.runs[0] if result.runs and result.runs[0].base_offset == offset else None

        def done(run: Run | GatewayError | None) -> None:
            if run is None or isinstance(run, GatewayError):
                caller.answer(request.id, run or missing)
                return
            try:
                self._append_again(caller, request, topic, run)
            except GatewayError as refusal:
                caller.answer(request.id, refusal)

        self._offload.task(job, done)

    def _append_again(self, caller: Caller, request: ReplayDeadLetter, topic: str, run: Run) -> None:
        columns = run.columns
        own, facts = split_headers(columns.headers_of(0))
        target = facts.topic or topic
        if target != topic:
            # several topics may share these letters, and a header is only what somebody wrote
            address = self._table.address_of(caller.listener.protocol, caller.listener.name, target)
            if address is None:
                raise Denied
            self._permit(caller, Permission.WRITE, address)
        if facts.reason == TRANSFORM:
            raise Conflict("the transform of its route could not work on it: publish it again")
        if facts.count > MOST_REPLAYS:
            raise Conflict(f"this message died {facts.count} times")
        state = self._store.topics.get(target)
        if state is None:
            raise UnknownTopic(f"topic not found: {target}")
        partition = facts.partition if facts.partition < len(state.partitions) else 0
        # the count goes with the message, so that one that dies again and again is seen
        headers = (*own, (PREFIX + "count", str(facts.count).encode()))
        message = Columns.of(
            [columns.value(0)],
            [columns.key(0)],
            [headers],
            [facts.expires_ms] if facts.expires_ms else None,
        )
        meta = replace(run.meta_of(0)[0], id=self._ids.next(self._clock.now_ms()))
        parts = ((meta.route, 1, message.value_bytes),)
        self._appending.adopt(parts)
        append = Append(target, partition, message, meta)
        prepared = Prepared([append], (), lambda _placements: Published(request.address, 0), parts, self._clock.now())
        ticket = self._appending.commit([prepared])
        ticket.on_done(lambda done: caller.answer(request.id, done.error or DONE))

    def purge(self, caller: Caller, request: PurgeDeadLetters) -> None:
        """Drop all letters of an address, with their topic."""
        letters = letters_topic(self._topics.name(caller, request.address))
        if letters not in self._store.topics:
            caller.answer(request.id, DONE)
            return
        for objection in self._topics.before_delete:
            reason = objection(letters)
            if reason is not None:
                raise Conflict(reason)
        ticket = self._store.submit(Unit(deletes=[DropTopic(letters)]))

        def done(error: GatewayError | None) -> None:
            if error is None:
                for callback in self._topics.after_delete:
                    callback(letters)
            caller.answer(request.id, error or DONE)

        ticket.on_done(lambda ticket: done(ticket.error))


def _letter(run: Run, index: int) -> DeadLetter:
    columns = run.columns
    own, facts = split_headers(columns.headers_of(index))
    message = Columns.of([columns.value(index)], [columns.key(index)], [own])
    return DeadLetter(
        id=f"{run.partition}:{run.base_offset + index}",
        columns=message,
        reason=facts.reason,
        attempts=facts.attempts,
        first_error=facts.first_error,
        last_error=facts.last_error,
        origin_topic=facts.topic,
    )


def _within(letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
    # the letters that one answer may hold: one at least, however large
    size = 0
    for number, letter in enumerate(letters):
        size += letter.columns.value_bytes
        if size > MOST_BYTES and number:
            return letters[:number]
    return letters


def _place(letter: str) -> tuple[int, int] | None:
    partition, colon, offset = letter.partition(":")
    if not colon or not all(part.isascii() and part.isdecimal() and len(part) <= 19 for part in (partition, offset)):
        return None
    return int(partition), int(offset)
