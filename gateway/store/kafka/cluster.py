"""What is asked of the cluster itself: which topics there are, where they begin and end; making, changing, dropping them.

Everything here blocks, and is called in threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import attrs
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from gateway.errors import GatewayError, InvalidRequest, StoreReadOnly, UnknownTopic
from gateway.librdkafka.codes import COORDINATOR_MOVES, NOT_THERE, SOON_KNOWN, TRANSPORT
from gateway.store.interface import TopicConfig
from gateway.store.kafka.options import RECORD_ROOM, KafkaOptions
from gateway.store.kafka.slots import SLOTS

T = TypeVar("T")
PAUSE_SECONDS = 0.02
"""Seconds after which what a broker does not know yet is asked again."""
LONGEST_PAUSE_SECONDS = 0.5
BUSY_SECONDS = 60.0
"""How long a start waits for a broker to know what its controller has made: one that has just been told of a thousand topics
makes their files first, and knows nothing newer meanwhile.
"""
Bounds = tuple[int, int]
"""The first offset there is, and the one behind the last that is decided."""

_REFUSED = frozenset(
    {
        KafkaError.INVALID_PARTITIONS,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
    }
)
_NOT_OWN = frozenset(
    {
        # what a gateway sets
        "retention.ms",
        "retention.bytes",
        "min.insync.replicas",
        "max.message.bytes",
        # what is about the brokers of this cluster, by their numbers
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)


@attrs.frozen
class Known:
    """A topic, as Kafka says it is."""

    epoch: int
    partitions: int
    led: bool = True
    """Whether each partition has a leader."""


def translated(error: KafkaException) -> GatewayError:
    found = error.args[0]
    if not isinstance(found, KafkaError):
        return StoreReadOnly(str(error))
    if found.code() in NOT_THERE:
        return UnknownTopic(found.str())
    if found.code() in _REFUSED:
        return InvalidRequest(f"Kafka refuses: {found.str()}")
    return StoreReadOnly(f"Kafka does not do it: {found.str()}")


def settings_of(config: TopicConfig, options: KafkaOptions) -> dict[str, str]:
    seconds, size = config.retention_seconds, config.retention_bytes
    return {
        "retention.ms": "-1" if seconds is None else str(int(seconds * 1000)),
        "retention.bytes": "-1" if size is None else str(max(1, size // config.partitions)),
        "min.insync.replicas": str(options.min_insync),
        "max.message.bytes": str(options.largest + RECORD_ROOM),
    }


class KafkaCluster:
    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._admin = AdminClient(options.client())
        self._pause = threading.Event()

    def names(self) -> Mapping[str, int]:
        """All topics there are, with how many partitions each has."""
        try:
            found = self._admin.list_topics(timeout=self._options.timeout)
        except KafkaException as error:
            raise self._unanswered(error) from error
        return {name: len(one.partitions) for name, one in found.topics.items() if one.error is None}

    def identity(self) -> str:
        """What tells this cluster from all others."""
        try:
            return str(self._admin.list_topics(timeout=self._options.timeout).cluster_id)
        except KafkaException as error:
            raise self._unanswered(error) from error

    def brokers(self) -> int:
        """How many there are."""
        try:
            return len(self._admin.list_topics(timeout=self._options.timeout).brokers)
        except KafkaException as error:
            raise self._unanswered(error) from error

    def _unanswered(self, error: KafkaException) -> GatewayError:
        if error.args[0].code() != TRANSPORT:
            return translated(error)
        return StoreReadOnly(f"no broker of {', '.join(self._options.brokers)} answers: {error.args[0].str()}")

    def members(self, group: str) -> Mapping[str, frozenset[int]]:
        """What the clients are called that are members of a group now, and which partitions of its topic each has."""
        until = time.monotonic() + self._options.timeout
        while True:
            found = self._admin.describe_consumer_groups([group], request_timeout=self._options.timeout)[group]
            try:
                return {one.client_id: _assigned(one.assignment) for one in found.result().members}
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.GROUP_ID_NOT_FOUND:
                    return {}
                if code not in COORDINATOR_MOVES | {TRANSPORT} or time.monotonic() > until:
                    raise translated(error) from error
            self._pause.wait(PAUSE_SECONDS)

    def describe(self, names: Iterable[str]) -> dict[str, Known]:
        """Those of them that exist."""
        wanted = list(names)
        if not wanted:
            return {}
        futures = self._admin.describe_topics(TopicCollection(wanted), request_timeout=self._options.timeout)
        found: dict[str, Known] = {}
        for name, future in futures.items():
            try:
                one = _wait(future)
            except UnknownTopic:
                continue
            found[name] = Known(
                _epoch(one.topic_id), len(one.partitions), all(_has_leader(each) for each in one.partitions)
            )
        return found

    def create(self, name: str, config: TopicConfig) -> Known:
        return self._create(name, config.partitions, settings_of(config, self._options), self._options.timeout)

    def create_state(self) -> Bounds:
        """The log of the state, and the topic that says who owns what. Returns where the first is."""
        compacted = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.3",
            "segment.bytes": str(64 << 20),
            "min.insync.replicas": str(self._options.min_insync),
            "max.message.bytes": str(self._options.largest + RECORD_ROOM),
        }
        self._create(self._options.state_topic, 1, compacted, BUSY_SECONDS)
        self._create(self._options.owners_topic, SLOTS, {"min.insync.replicas": "1"}, BUSY_SECONDS)
        state = self._options.state_topic, 0
        return self._known(state[0], BUSY_SECONDS, lambda: self.bounds([state]).get(state))

    def _create(self, name: str, partitions: int, settings: Mapping[str, str], patience: float) -> Known:
        new = NewTopic(name, partitions, self._options.replication, config=dict(settings))
        future = self._admin.create_topics([new], request_timeout=self._options.timeout)[name]
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise translated(error) from error
        return self.when_there(name, patience)

    def when_there(self, name: str, patience: float) -> Known:
        """A topic that the controller has made: brokers learn of it one after the other."""
        return self._known(name, patience, lambda: self._led(name))

    def _led(self, name: str) -> Known | None:
        found = self.describe([name]).get(name)
        return found if found is not None and found.led else None

    def _known(self, name: str, patience: float, look: Callable[[], T | None]) -> T:
        until, pause = time.monotonic() + patience, PAUSE_SECONDS
        while time.monotonic() < until:
            found = look()
            if found is not None:
                return found
            self._pause.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        raise StoreReadOnly(f"Kafka has made the topic {name}, and does not know it")

    def alter(self, name: str, config: TopicConfig, more: bool) -> None:
        if more:
            grown = self._admin.create_partitions(
                [NewPartitions(name, config.partitions)], request_timeout=self._options.timeout
            )
            _wait(grown[name])
        self.set(name, settings_of(config, self._options))

    def delete(self, name: str) -> None:
        _wait(self._admin.delete_topics([name], request_timeout=self._options.timeout)[name])

    def bounds(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Bounds]:
        """Where partitions begin and end; those that are gone are left out."""
        return self._bounds(partitions, self._offsets(partitions, OffsetSpec.latest()))

    def settled_bounds(
        self, partitions: Sequence[tuple[str, int]], patience: float
    ) -> tuple[dict[tuple[str, int], Bounds], Sequence[tuple[str, int]]]:
        """The same, once all that is written by now is decided, or so many seconds are over; and of which it is not decided then.
        Kafka answers a commit before its partitions hear of it, and nothing behind a transaction counts until that is over.
        """
        written = self._offsets(partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        last = self._offsets(partitions, OffsetSpec.latest())
        until, pause = time.monotonic() + patience, PAUSE_SECONDS
        while (
            open_ones := [key for key, end in last.items() if end < written.get(key, 0)]
        ) and time.monotonic() < until:
            self._pause.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            last |= self._offsets(open_ones, OffsetSpec.latest())
        return self._bounds(partitions, last), open_ones

    def _bounds(
        self, partitions: Sequence[tuple[str, int]], last: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], Bounds]:
        first = self._offsets(partitions, OffsetSpec.earliest())
        found: dict[tuple[str, int], Bounds] = {}
        for key in partitions:
            begin, end = first.get(key), last.get(key)
            if begin is not None and end is not None:
                found[key] = begin, max(begin, end)
        return found

    def offset_at(self, name: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after a time, if there is one."""
        found = self._offsets([(name, partition)], OffsetSpec.for_timestamp(max(timestamp_ms, 0)))
        offset = found.get((name, partition))
        if offset is None:
            raise UnknownTopic
        return offset if offset >= 0 else None

    def settings(self, name: str) -> Mapping[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        (future,) = self._admin.describe_configs([resource], request_timeout=self._options.timeout).values()
        return {key: entry.value for key, entry in _wait(future).items()}

    def own_settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """What these topics are set to that no gateway sets, where it is not what the brokers have for all."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        asked = self._admin.describe_configs(resources, request_timeout=self._options.timeout)
        return {
            resource.name: {
                key: entry.value
                for key, entry in sorted(_wait(future).items())
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and key not in _NOT_OWN
            }
            for resource, future in asked.items()
        }

    def set(self, name: str, settings: Mapping[str, str]) -> None:
        """Raises InvalidRequest where these brokers do not take one of them: then none is set."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        for future in self._admin.incremental_alter_configs([resource], request_timeout=self._options.timeout).values():
            _wait(future)

    def decided(self, name: str) -> int:
        """Up to where all transactions in the one partition of a topic are over."""
        return self._offsets([(name, 0)], OffsetSpec.latest()).get((name, 0), 0)

    def written(self, name: str) -> int:
        """Where it ends, with what is not decided."""
        found = self._offsets([(name, 0)], OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        return found.get((name, 0), 0)

    def _offsets(
        self,
        partitions: Sequence[tuple[str, int]],
        which: Any,
        isolation: Any = IsolationLevel.READ_COMMITTED,
    ) -> dict[tuple[str, int], int]:
        # while a partition changes its leader it is asked again
        found: dict[tuple[str, int], int] = {}
        until = time.monotonic() + self._options.timeout
        asked = list(partitions)
        while asked:
            futures = self._admin.list_offsets(
                {TopicPartition(*key): which for key in asked},
                isolation_level=isolation,
                request_timeout=self._options.timeout,
            )
            asked = []
            for place, future in futures.items():
                key = place.topic, place.partition
                try:
                    found[key] = future.result().offset
                except KafkaException as error:
                    if error.args[0].code() in NOT_THERE:
                        continue
                    if error.args[0].code() not in SOON_KNOWN or time.monotonic() > until:
                        raise translated(error) from error
                    asked.append(key)
            if asked:
                self._pause.wait(PAUSE_SECONDS)
        return found


def _assigned(assignment: Any) -> frozenset[int]:
    return (
        frozenset(place.partition for place in assignment.topic_partitions) if assignment is not None else frozenset()
    )


def _wait(future: Future[T]) -> T:
    try:
        return future.result()
    except KafkaException as error:
        raise translated(error) from error


def _has_leader(partition: Any) -> bool:
    return partition.leader is not None and partition.leader.id >= 0


def _epoch(topic_id: Any) -> int:
    # kafka's own name for this life of a topic, as a number that every protocol can carry
    both = topic_id.get_most_significant_bits() ^ topic_id.get_least_significant_bits()
    return int(both) & 0x7FFF_FFFF_FFFF_FFFF
