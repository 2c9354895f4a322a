"""Topics by the addresses clients use: create, delete, describe; and the way from an address to a topic for readers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import attrs

from gateway.broker.administration.permissions import Permission
from gateway.broker.service import Caller, Handler
from gateway.errors import Conflict, InvalidRequest, NotRouted, UnknownPartition, UnknownTopic
from gateway.requests import (
    DONE,
    AddressProfile,
    CreateTopic,
    DeleteTopic,
    DescribeTopics,
    Offset,
    OffsetForTime,
    PartitionInfo,
    Profile,
    Profiles,
    Request,
    TopicCreated,
    TopicInfo,
    Topics,
)
from gateway.routing.table import RoutingTable
from gateway.store import interface as store_interface
from gateway.store.interface import Durability, PartitionState, Store, TopicState, Unit

MAX_PARTITIONS = 1_000
PAGE, PAGE_PARTITIONS = 500, 2_000
"""Topics looked at, and partitions described, for one page of a list."""


class TopicService:
    """Serves the topic requests; other services ask it for the topic behind an address."""

    def __init__(
        self, store: Store, table: RoutingTable, start_soon: Callable[..., None], max_partitions: int = MAX_PARTITIONS
    ) -> None:
        self._store = store
        self._table = table
        self._start_soon = start_soon
        self._max_partitions = max_partitions
        self._sorted: list[str] = []
        """The topics there were when a list was begun: its further pages go by it."""
        self.before_delete: list[Callable[[str], str | None]] = []
        """Who may object to deleting a topic, with the reason."""
        self.after_delete: list[Callable[[str], None]] = []
        self.may: Callable[[Caller, Permission, str], bool] = lambda _caller, _permission, _address: True
        """Whether a caller has a right on an address."""

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            CreateTopic: self.create,
            DeleteTopic: self.delete,
            DescribeTopics: self.describe,
            OffsetForTime: self.offset_for_time,
            Profile: self.profile,
        }

    def name(self, caller: Caller, address: str) -> str:
        """The topic an address of the caller's listener leads to. Raises NotRouted or InvalidRequest."""
        return self._table.reader(caller.listener.protocol, caller.listener.name, address)

    def state(self, caller: Caller, address: str) -> TopicState:
        """The topic behind an address. Raises UnknownTopic if it does not exist."""
        state = self._store.topics.get(self.name(caller, address))
        if state is None:
            raise UnknownTopic(f"topic not found: {address}")
        return state

    def partition(self, caller: Caller, address: str, partition: int) -> tuple[TopicState, PartitionState]:
        state = self.state(caller, address)
        if not 0 <= partition < len(state.partitions):
            raise self.no_partition(address, partition)
        return state, state.partitions[partition]

    @staticmethod
    def no_partition(address: str, partition: int) -> UnknownPartition:
        return UnknownPartition(f"partition {partition} not found in topic {address}")

    def create(self, caller: Caller, request: CreateTopic) -> None:
        """Make a topic; what a route or the configuration says about it comes before what the client asks for."""
        topic = self.name(caller, request.address)
        existing = self._store.topics.get(topic)
        if existing is not None:
            caller.answer(request.id, TopicCreated(created=False, partitions=len(existing.partitions)))
            return
        if not 1 <= request.partitions <= self._max_partitions:
            raise InvalidRequest(f"invalid partition count: {request.partitions} (1 to {self._max_partitions})")
        config = self._table.topic_config(topic)
        if not self._table.decides_partitions(topic):
            config = attrs.evolve(config, partitions=request.partitions)
        ticket = self._store.submit(Unit(creates=[store_interface.MakeTopic(topic, config)]))
        ticket.on_done(
            lambda ticket: caller.answer(
                request.id, ticket.error or TopicCreated(created=True, partitions=config.partitions)
            )
        )

    def delete(self, caller: Caller, request: DeleteTopic) -> None:
        state = self.state(caller, request.address)
        for objection in self.before_delete:
            reason = objection(state.name)
            if reason is not None:
                raise Conflict(reason)

        def done(ticket: store_interface.Ticket) -> None:
            if ticket.error is None:
                for callback in self.after_delete:
                    callback(state.name)
            caller.answer(request.id, ticket.error or DONE)

        self._store.submit(Unit(deletes=[store_interface.DropTopic(state.name)])).on_done(done)

    def describe(self, caller: Caller, request: DescribeTopics) -> None:
        """One topic, or the next page of those that the caller's listener has an address for."""
        if request.address:
            caller.answer(request.id, Topics([self._info(request.address, self.state(caller, request.address))]))
            return
        if not request.after or len(self._sorted) != len(self._store.topics):
            self._sorted = sorted(self._store.topics)
        found: list[TopicInfo] = []
        looked = partitions = 0
        following = ""
        for name in self._sorted[bisect_right(self._sorted, request.after) :]:
            if looked == PAGE or partitions >= PAGE_PARTITIONS:
                break
            looked, following = looked + 1, name
            address = self._table.address_of(caller.listener.protocol, caller.listener.name, name)
            state = self._store.topics.get(name)
            if address is not None and state is not None:
                found.append(self._info(address, state))
                partitions += len(found[-1].partitions)
        else:
            following = ""
        caller.answer(request.id, Topics(found, following))

    def profile(self, caller: Caller, request: Profile) -> None:
        profiles: list[AddressProfile] = []
        for address in request.addresses:
            try:
                topic = self.name(caller, address)
            except (NotRouted, InvalidRequest):
                continue
            state = self._store.topics.get(topic)
            config = state.config if state is not None else self._table.topic_config(topic)
            readable, writable = (self.may(caller, right, address) for right in (Permission.READ, Permission.WRITE))
            if readable or writable:  # or else it is nothing to the caller
                durable = config.durability is Durability.FSYNC
                profiles.append(AddressProfile(address, readable, writable, durable))
        caller.answer(request.id, Profiles(profiles))

    def offset_for_time(self, caller: Caller, request: OffsetForTime) -> None:
        state, _partition = self.partition(caller, request.address, request.partition)

        async def look() -> None:
            offset = await self._store.offset_for_time(state.name, request.partition, request.timestamp_ms)
            caller.answer(request.id, Offset(offset))

        self._start_soon(caller, request, look)

    @staticmethod
    def _info(address: str, state: TopicState) -> TopicInfo:
        partitions: Sequence[PartitionInfo] = [
            PartitionInfo(number, partition.start, partition.end) for number, partition in enumerate(state.partitions)
        ]
        return TopicInfo(address, partitions)
