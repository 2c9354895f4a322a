"""Consumer groups: a committed offset per (topic, group, partition), durable, shared by every protocol that has groups."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

import trio
from msgspec.structs import replace

from gateway.broker.service import Caller, Handler
from gateway.broker.topics import TopicService
from gateway.errors import UnknownGroup, UnknownPartition
from gateway.recorder import Recorder
from gateway.requests import (
    DONE,
    CommitOffset,
    DeleteGroup,
    GroupInfo,
    GroupOffset,
    Groups,
    JoinGroup,
    ListGroups,
    ReadOffset,
    ReadTotals,
    Request,
)
from gateway.routing.table import RoutingTable
from gateway.store.interface import Put, Store, Ticket, Unit

TABLE = "group_offsets"
MOST_LEFT = 10_000
"""Groups without an offset or a member that are remembered, until the next start."""
GROUPS_AT_ONCE = 500
"""Looked at before others are served."""
_VALUE = struct.Struct(">Q")
_TAIL = struct.Struct(">I")


def encode_key(topic: str, group: str, partition: int) -> bytes:
    """Length-prefixed, so that no two keys collide whatever the names hold."""
    parts = (topic.encode(), group.encode())
    return b"".join(_TAIL.pack(len(part)) + part for part in parts) + _TAIL.pack(partition)


def decode_key(key: bytes) -> tuple[str, str, int]:
    """The opposite of `encode_key`."""
    parts: list[str] = []
    position = 0
    for _ in range(2):
        (size,) = _TAIL.unpack_from(key, position)
        position += _TAIL.size
        parts.append(key[position : position + size].decode())
        position += size
    return parts[0], parts[1], _TAIL.unpack_from(key, position)[0]


class GroupService:
    """Serves the group requests."""

    def __init__(
        self,
        store: Store,
        table: RoutingTable,
        topics: TopicService,
        recorder: Recorder,
        start_soon: Callable[..., None],
    ) -> None:
        self._store = store
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
            self._offsets.setdefault((topic, group), {})[partition] = _VALUE.unpack(value)[0]
        topics.after_delete.append(self._forget_topic)

    def handlers(self) -> Mapping[type[Request], Handler]:
        """Committing, reading, joining, listing, deleting."""
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
        topic = self._topics.name(caller, request.address)
        if request.must_exist:
            self._topics.partition(caller, request.address, request.partition)
        elif request.partition < 0:
            raise UnknownPartition(f"partition {request.partition} not found in topic {request.address}")

        def done(ticket: Ticket) -> None:
            if ticket.error is None:
                self._offsets.setdefault((topic, request.group), {})[request.partition] = request.offset
            caller.answer(request.id, ticket.error or DONE)

        put = Put(TABLE, encode_key(topic, request.group, request.partition), _VALUE.pack(request.offset))
        self._store.submit(Unit(puts=[put])).on_done(done)

    def read(self, caller: Caller, request: ReadOffset) -> None:
        """What a group has committed, and the bounds of the partition if it exists."""
        topic = self._topics.name(caller, request.address)
        offsets = self._offsets.get((topic, request.group))
        start = end = 0
        state = self._store.topics.get(topic)
        if state is not None and 0 <= request.partition < len(state.partitions):
            partition = state.partitions[request.partition]
            start, end = partition.start, partition.end
        exists = offsets is not None or (topic, request.group) in self._members or (topic, request.group) in self._left
        offset = offsets.get(request.partition) if offsets is not None else None
        caller.answer(request.id, GroupOffset(offset, exists, start, end))

    def _known(self) -> set[tuple[str, str]]:
        return {*self._offsets, *self._members, *self._left}

    def join(self, caller: Caller, request: JoinGroup) -> None:
        """Count the connection as a member until it goes."""
        member = (self._topics.name(caller, request.address), request.group)
        self._members.setdefault(member, set()).add(caller.id)
        self._left.pop(member, None)
        caller.on_detach(lambda: self._leave(member, caller.id))
        caller.answer(request.id, DONE)

    def list_groups(self, caller: Caller, request: ListGroups) -> None:
        """Every group on every topic the caller has an address for."""
        wanted = self._topics.name(caller, request.address) if request.address else ""
        found: list[GroupInfo] = []
        for topic, group in sorted(self._known()):
            if (wanted and topic != wanted) or (request.group and group != request.group):
                continue
            address = self._table.address_of(caller.listener.protocol, caller.listener.name, topic)
            if address is not None:
                offsets = sorted(self._offsets.get((topic, group), {}).items())
                members = len(self._members.get((topic, group), ()))
                found.append(GroupInfo(address, group, members, offsets))
        caller.answer(request.id, Groups(found))

    def delete(self, caller: Caller, request: DeleteGroup) -> None:
        """Forget a group on a topic, or everywhere, and who was reading as it."""
        wanted = self._topics.name(caller, request.address) if request.address else ""
        victims = [key for key in self._known() if key[1] == request.group and wanted in {"", key[0]}]
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
                    self._members.pop(victim, None)
                    self._left.pop(victim, None)
            done(ticket)

        self._store.submit(Unit(puts=puts)).on_done(forget)

    def totals(self, caller: Caller, request: ReadTotals) -> None:
        """What the gateway counts, and how far all groups together are behind."""

        async def count() -> None:
            lag, dense = 0, self._store.capabilities.dense_offsets
            for number, ((topic, _group), offsets) in enumerate(list(self._offsets.items()) if dense else ()):
                state = self._store.topics.get(topic)
                partitions = state.partitions if state is not None else ()
                for partition, offset in offsets.items():
                    if partition < len(partitions):
                        lag += max(0, partitions[partition].end - max(offset, partitions[partition].start))
                if number % GROUPS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            caller.answer(request.id, replace(self._recorder.totals(), lag=lag))

        self._start_soon(caller, request, count)

    def _forget_topic(self, topic: str) -> None:
        victims = [key for key in self._known() if key[0] == topic]
        if victims:
            self._delete(victims, lambda _ticket: None)

    def _leave(self, member: tuple[str, str], connection: int) -> None:
        connections = self._members.get(member, set())
        connections.discard(connection)
        if not connections:
            self._members.pop(member, None)
            self._left[member] = None
            if len(self._left) > MOST_LEFT:
                del self._left[next(iter(self._left))]
