"""Consumer groups: a committed offset per (topic, group, partition), durable, shared by every protocol that has groups."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import islice

import trio
from msgspec.structs import replace

from gateway.broker.administration.topics import TopicService
from gateway.broker.consume.group_offsets import (
    TABLE,
    decode_key,
    encode_key,
    lag_of,
    moves_of,
    offset_of,
    row_of,
    unit_of,
)
from gateway.broker.consume.readers import GroupKey, GroupReaders
from gateway.broker.service import Caller, Handler
from gateway.errors import CommitFailed, ConditionFailed, Conflict, UnknownGroup, UnknownPartition
from gateway.recorder import GroupPosition, Recorder
from gateway.requests import (
    DONE,
    CommitOffset,
    DeleteGroup,
    GroupInfo,
    GroupMove,
    GroupOffset,
    GroupReset,
    Groups,
    JoinGroup,
    ListGroups,
    ReadOffset,
    ReadTotals,
    Request,
)
from gateway.routing.table import RoutingTable
from gateway.store.interface import Put, Store, Ticket, Unit

MOST_LEFT = 10_000
"""Groups without an offset or a member that are remembered, until the next start."""
GROUPS_AT_ONCE = 500
"""Looked at before others are served."""
PAGE = 500
"""Groups looked at for one page of a list."""
MOST_PARTITIONS = 10_000
"""A group may commit for partitions that are not there, but not for more: what it has is told in one piece."""


class GroupService:
    def __init__(
        self,
        store: Store,
        table: RoutingTable,
        topics: TopicService,
        recorder: Recorder,
        start_soon: Callable[..., None],
        readers: GroupReaders,
    ) -> None:
        self._store = store
        self._readers = readers
        self._recorder = recorder
        self._start_soon = start_soon
        self._table = table
        self._topics = topics
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self._members: dict[tuple[str, str], set[int]] = {}
        """The connections that read as this group now."""
        self._left: dict[tuple[str, str], None] = {}
        """Groups that nobody reads as any more and that never committed: FlyMQ's clients expect to find them (wire 1)."""
        for key, value in store.table(TABLE).items():
            topic, group, partition = decode_key(key)
            self._offsets.setdefault((topic, group), {})[partition] = offset_of(value)
        self._sweeping: dict[str, dict[tuple[str, str], None]] = {}
        """By topic that is gone: its groups that are not forgotten yet."""
        self._sorted = sorted({*self._offsets, *readers.groups()})
        """(topic, group) of all there are: what has committed, what has members, here or elsewhere, and what had some."""
        self._topics_of: dict[str, set[str]] = {}
        for topic, group in self._sorted:
            self._topics_of.setdefault(group, set()).add(topic)
        topics.after_delete.append(self._forget_topic)
        store.on_rows(TABLE, self._committed_elsewhere)
        readers.changed = self._read_elsewhere

    def _read_elsewhere(self, group: GroupKey) -> None:
        if self._readers.elsewhere(group):
            self._list(group)
        else:
            self._forget_unless_used(group)

    def _committed_elsewhere(self, rows: Mapping[bytes, bytes | None]) -> None:
        for row, value in rows.items():
            topic, group, partition = decode_key(row)
            key = topic, group
            if value is not None:
                self._know(key)
                self._offsets.setdefault(key, {})[partition] = offset_of(value)
                continue
            offsets = self._offsets.get(key)
            if offsets is not None:
                offsets.pop(partition, None)
                if not offsets:
                    del self._offsets[key]
                    self._forget_unless_used(key)

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            CommitOffset: self.commit,
            ReadOffset: self.read,
            JoinGroup: self.join,
            ListGroups: self.list_groups,
            DeleteGroup: self.delete,
            ReadTotals: self.totals,
        }

    def commit(self, caller: Caller, request: CommitOffset) -> None:
        """Remember where a group reads on. Creates the group."""
        if self._store.taken_for_dead:
            # who asked may be elsewhere by now, and further; or the group was put back, since nobody was seen to read as it
            raise CommitFailed("this gateway was not to be seen for a while: ask again")
        topic = self._topics.name(caller, request.address)
        if request.must_exist:
            self._topics.partition(caller, request.address, request.partition)
        elif not 0 <= request.partition < MOST_PARTITIONS:
            raise UnknownPartition(f"partition {request.partition} not found in topic {request.address}")

        if self._sweeping:  # the topic is there again, and so is the group
            self._sweeping.get(topic, {}).pop((topic, request.group), None)

        def done(ticket: Ticket) -> None:
            if ticket.error is None:
                self._know((topic, request.group))
                self._offsets.setdefault((topic, request.group), {})[request.partition] = request.offset
            caller.answer(request.id, ticket.error or DONE)

        put = Put(TABLE, encode_key(topic, request.group, request.partition), row_of(request.offset))
        self._store.submit(Unit(puts=[put])).on_done(done)

    def read(self, caller: Caller, request: ReadOffset) -> None:
        topic = self._topics.name(caller, request.address)
        offsets = self._offsets.get((topic, request.group))
        start = end = 0
        state = self._store.topics.get(topic)
        if state is not None and 0 <= request.partition < len(state.partitions):
            partition = state.partitions[request.partition]
            start, end = partition.start, partition.end
        exists = offsets is not None or (topic, request.group) in self._members or (topic, request.group) in self._left
        offset = offsets.get(request.partition) if offsets is not None else None
        if offset is None:
            self._store.lost.check(
                TABLE,
                encode_key(topic, request.group, request.partition),
                f"what {request.group} has committed on {topic}/{request.partition}",
                state.epoch if state is not None else 0,
            )
        caller.answer(request.id, GroupOffset(offset, exists, start, end))

    def positions(self, groups: Container[str] | None = None) -> Iterator[GroupPosition]:
        """Where these groups are now, or all, on every partition that each has committed."""
        for (topic, group), offsets in self._offsets.items():
            state = self._store.topics.get(topic) if groups is None or group in groups else None
            for number, offset in offsets.items() if state is not None else ():
                if state is not None and number < len(state.partitions):
                    one = state.partitions[number]
                    lag = lag_of(offset, one)
                    yield GroupPosition(group, topic, number, offset, one.start, one.end, lag)

    async def reset(self, asked: GroupReset) -> Sequence[GroupMove]:
        """Put a group elsewhere, unless somebody reads as it, at any gateway; with `dry_run` only say where it would be."""
        key = asked.topic, asked.group
        others = await self._readers.reading_elsewhere(key)  # by then it is known here too what was committed elsewhere
        moves = await moves_of(self._store, asked)
        if not asked.force:
            readers = len(self._members.get(key, ())) + others
            if readers:
                where = f" ({others} at other gateways)" if others else ""
                raise Conflict(
                    f"{readers} connections{where} read {asked.topic} as {asked.group}, and would commit over it"
                )

        def done(ticket: Ticket) -> None:
            # not later: what is committed elsewhere behind it is told behind this
            if ticket.error is None:
                self._know(key)
                self._offsets.setdefault(key, {}).update({one.partition: one.after for one in moves})

        if not asked.dry_run:
            try:
                await self._store.submit(unit_of(asked, moves), done).wait()
            except ConditionFailed:
                raise Conflict(f"{asked.group} has committed on {asked.topic} meanwhile: nothing is changed") from None
        return moves

    def join(self, caller: Caller, request: JoinGroup) -> None:
        """Count the connection as a member until it goes."""
        member = (self._topics.name(caller, request.address), request.group)
        self._know(member)
        connections = self._members.setdefault(member, set())
        connections.add(caller.id)
        self._left.pop(member, None)
        caller.on_detach(lambda: self._leave(member, caller.id))
        self._readers.have(member, len(connections), lambda: caller.answer(request.id, DONE))

    def list_groups(self, caller: Caller, request: ListGroups) -> None:
        """The next page of the groups on topics that the caller has an address for."""
        wanted = self._topics.name(caller, request.address) if request.address else ""
        page, following = self._page(wanted, request.group, request.after)
        found: list[GroupInfo] = []
        for key in page:
            address = self._table.address_of(caller.listener.protocol, caller.listener.name, key[0])
            if address is not None:
                offsets = sorted(self._offsets.get(key, {}).items())
                members = len(self._members.get(key, ())) + self._readers.elsewhere(key)
                found.append(GroupInfo(address, key[1], members, offsets))
        caller.answer(request.id, Groups(found, following))

    def _page(
        self, topic: str, group: str, after: tuple[str, str] | None
    ) -> tuple[Sequence[tuple[str, str]], tuple[str, str] | None]:
        # the groups that come next, and the last of them if there are more
        known = self._named(topic, group) if group else self._sorted
        begin = bisect_right(known, after) if after is not None else 0
        end = len(known)
        if topic and not group:
            begin, end = max(begin, bisect_left(known, (topic,))), bisect_left(known, (topic + "\0",))
        page = known[begin : min(end, begin + PAGE)]
        return page, page[-1] if begin + PAGE < end else None

    def _named(self, topic: str, group: str) -> list[tuple[str, str]]:
        # the groups of one name, on one topic or on all
        topics = self._topics_of.get(group, set())
        return [(one, group) for one in sorted(topics & {topic} if topic else topics)]

    def delete(self, caller: Caller, request: DeleteGroup) -> None:
        """Forget a group on a topic, or everywhere, and who was reading as it."""
        wanted = self._topics.name(caller, request.address) if request.address else ""
        victims = self._named(wanted, request.group)
        if not victims:
            raise UnknownGroup(f"consumer group not found: {request.address}:{request.group}")
        self._delete(victims, lambda ticket: caller.answer(request.id, ticket.error or DONE))

    def _delete(self, victims: list[tuple[str, str]], done: Callable[[Ticket], None]) -> None:
        puts = [
            Put(TABLE, encode_key(topic, group, partition), None)
            for topic, group in victims
            for partition in self._offsets.get((topic, group), ())
        ]

        def forget(ticket: Ticket) -> None:
            if ticket.error is None:
                for victim in victims:
                    self._offsets.pop(victim, None)
                    if self._members.pop(victim, None):
                        self._readers.have(victim, 0)
                    self._left.pop(victim, None)
                    self._forget_unless_used(victim)
            done(ticket)

        self._store.submit(Unit(puts=puts)).on_done(forget)

    def totals(self, caller: Caller, request: ReadTotals) -> None:
        async def count() -> None:
            lag = 0
            for number, ((topic, _group), offsets) in enumerate(list(self._offsets.items())):
                state = self._store.topics.get(topic)
                partitions = state.partitions if state is not None else ()
                for partition, offset in offsets.items():
                    if partition < len(partitions):
                        lag += lag_of(offset, partitions[partition])
                if number % GROUPS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            caller.answer(request.id, replace(self._recorder.totals(), lag=lag))

        self._start_soon(caller, request, count)

    def _forget_topic(self, topic: str) -> None:
        victims = self._sorted[bisect_left(self._sorted, (topic,)) : bisect_left(self._sorted, (topic + "\0",))]
        self._sweeping.setdefault(topic, {}).update(dict.fromkeys(victims))
        self._sweep(topic)

    def _sweep(self, topic: str) -> None:
        # forget the next of the groups of a topic that is gone; the others follow when these are
        left = self._sweeping[topic]
        page = list(islice(left, PAGE))
        for key in page:
            del left[key]
        if page:
            self._delete(page, lambda _ticket: self._sweep(topic))
        else:
            self._sweeping.pop(topic, None)

    def _leave(self, member: tuple[str, str], connection: int) -> None:
        connections = self._members.get(member, set())
        if connection not in connections:
            return
        connections.discard(connection)
        self._readers.have(member, len(connections))
        if not connections:
            self._members.pop(member, None)
            self._left[member] = None
            if len(self._left) > MOST_LEFT:
                oldest = next(iter(self._left))
                del self._left[oldest]
                self._forget_unless_used(oldest)

    # --- the indexes ---

    def _know(self, key: tuple[str, str]) -> None:
        if not self._used(key):
            self._list(key)

    def _list(self, key: tuple[str, str]) -> None:
        place = bisect_left(self._sorted, key)
        if self._sorted[place : place + 1] != [key]:
            self._sorted.insert(place, key)
            self._topics_of.setdefault(key[1], set()).add(key[0])

    def _used(self, key: tuple[str, str]) -> bool:
        here = key in self._offsets or key in self._members or key in self._left
        return here or self._readers.elsewhere(key) > 0

    def _forget_unless_used(self, key: tuple[str, str]) -> None:
        place = bisect_left(self._sorted, key)
        if self._used(key) or self._sorted[place : place + 1] != [key]:
            return
        del self._sorted[place]
        topics = self._topics_of[key[1]]
        topics.discard(key[0])
        if not topics:
            del self._topics_of[key[1]]
