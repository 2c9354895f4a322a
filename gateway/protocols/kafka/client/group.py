"""Reading as a member of a group: one consumer of the library for all topics that are read under one name.

Data flow:

    library ──a poll of the thread──► hop ──► what each topic has ahead ──Take──► who asked
                                                   │ too much: its partitions are paused
    library ◄──commit, at most one a turn of the thread── settled, in order per partition ◄──Settle

What is handed out has a tag. A partition's place moves behind the tags that are settled from its beginning on, and whoever
settled them is answered when the group's coordinator has written that. While members come and go it refuses, and is asked again
as long as the partition is ours. One that goes to another member takes its tags with it: whoever settles them is told so, nothing
is written over what the other one writes, and he is given again what was not settled. (A tag that is settled before one in front
of it moves nothing: it is remembered here, and comes again with that one if the partition goes.)
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import attrs

from gateway.errors import GatewayError, TargetError, UnknownSubscription
from gateway.librdkafka.codes import MEMBERS_MOVE, NO_TOPIC
from gateway.librdkafka.hop import Hop
from gateway.librdkafka.threads import together
from gateway.protocols.kafka.wire.mapping import target_error
from gateway.protocols.kafka.wire.records import runs_of, size_of
from gateway.requests import Delivered, Settled, Start, Taken

POLL_SECONDS = 0.1
POLL_MESSAGES = 1_000
AHEAD_BYTES = 2 << 20
AHEAD_MESSAGES = 4_000
"""What a topic has ahead of whoever takes, at most: then its partitions are paused, until half of it is gone."""
MOST_OUT = 100_000
"""Tags of a topic that are not settled: nothing more is handed out until some are."""
Place = tuple[str, int]


@attrs.define(eq=False)
class _Out:
    """What was handed out of a partition: tags with their offsets, in order."""

    tags: deque[tuple[int, int]] = attrs.Factory(deque)
    settled: set[int] = attrs.Factory(set)


@attrs.define(eq=False)
class TopicIntake:
    """One topic of a group: what came, and who waits for it."""

    number: int
    address: str
    acknowledge: bool
    ahead: deque[Any] = attrs.Factory(deque)
    ahead_bytes: int = 0
    paused: bool = False
    out: dict[int, _Out] = attrs.Factory(dict)
    tags: dict[int, int] = attrs.Factory(dict)
    """Tag to partition."""
    waiting: tuple[int, int, int] | None = None
    """The Take that waits: its request, its most messages and bytes."""


@attrs.define(eq=False)
class Settling:
    """A Settle that is not answered."""

    request: int
    results: list[GatewayError | None]
    unwritten: dict[Place, list[int]]
    """Which of its tags wait for a place to be written."""

    def decided(self, refused: Mapping[Place, GatewayError], open_places: Container[Place]) -> bool:
        """Whether nothing is waited for any more."""
        for place in [*self.unwritten]:
            if place in refused:
                for index in self.unwritten[place]:
                    self.results[index] = refused[place]
            elif place in open_places:
                continue
            del self.unwritten[place]
        return not self.unwritten


@attrs.frozen
class Revoked:
    """Partitions that are another member's from now on."""

    places: frozenset[Place]


@attrs.frozen
class ReaderFailed:
    """The consumer is of no more use."""

    error: GatewayError


class GroupReader:
    """One consumer of the library, in a thread."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        group: str,
        start: Start,
        answer: Callable[[int, Taken | Settled | GatewayError], None],
        failed: Callable[[GatewayError], None],
    ) -> None:
        import confluent_kafka

        self._partition = confluent_kafka.TopicPartition
        self._broken = confluent_kafka.KafkaException
        self._consumer = confluent_kafka.Consumer(
            {
                **settings,
                "group.id": group,
                "auto.offset.reset": "earliest" if start is Start.EARLIEST else "latest",
                "enable.auto.commit": False,
                # whoever goes on where this one died need not wait for longer
                "session.timeout.ms": 10_000,
                "enable.partition.eof": False,
                "isolation.level": "read_committed",
                "partition.assignment.strategy": "cooperative-sticky",
                "queued.max.messages.kbytes": 4 << 10,
                "fetch.wait.max.ms": 100,
                "topic.metadata.refresh.interval.ms": 5_000,
                "allow.auto.create.topics": False,
            }
        )
        self._answer = answer
        self._on_failed = failed
        self._hop: Hop[Any] = Hop(self._arrived)
        self._topics: dict[str, TopicIntake] = {}
        self._numbers: dict[int, TopicIntake] = {}
        self._tags = itertools.count(1)
        self._lock = threading.Lock()
        self._wanted: list[str] | None = None
        """Topics to subscribe to, when they are others than before."""
        self._commits: dict[Place, int] = {}
        self._settling: list[Settling] = []
        self._leaving: Counter[Place] = Counter()
        """Places that are another member's, of which the event loop has not heard yet: nothing is written there."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kafka group", daemon=True)
        self._thread.start()

    def has(self, subscription: int) -> bool:
        return subscription in self._numbers

    @property
    def empty(self) -> bool:
        return not self._topics

    def subscribe(self, number: int, address: str, acknowledge: bool) -> None:
        topic = TopicIntake(number, address, acknowledge)
        self._topics[address] = self._numbers[number] = topic
        self._change()

    def subscribed_to(self, address: str) -> bool:
        return address in self._topics

    def unsubscribe(self, number: int) -> None:
        topic = self._numbers.pop(number)
        del self._topics[topic.address]
        self._end_take(topic, ended=True)
        self._change()

    def take(self, request: int, number: int, messages: int, size: int, *, wait: bool) -> None:
        topic = self._numbers[number]
        self._end_take(topic)
        topic.waiting = request, messages, size
        if topic.ahead or not wait:
            self._hand_out(topic)

    def end_take(self, request: int) -> None:
        """Its time has come, or it was cancelled: it is answered with what there is."""
        for topic in self._topics.values():
            if topic.waiting is not None and topic.waiting[0] == request:
                self._end_take(topic)

    def settle(self, request: int, number: int, tags: Sequence[int], *, accepted: bool) -> None:
        """What is not accepted stays where it is: the next member, or the next session, is given it again."""
        topic = self._numbers[number]
        results: list[GatewayError | None] = []
        moved: dict[Place, int] = {}
        of: dict[Place, list[int]] = {}
        for tag in tags:
            partition = topic.tags.get(tag)
            if partition is None:
                results.append(given_away())
                continue
            of.setdefault((topic.address, partition), []).append(len(results))
            results.append(None)
            if accepted:
                topic.out[partition].settled.add(tag)
        for partition, out in topic.out.items():
            while out.tags and out.tags[0][0] in out.settled:
                tag, offset = out.tags.popleft()
                out.settled.discard(tag)
                del topic.tags[tag]
                moved[topic.address, partition] = offset + 1
        settling = Settling(request, results, {place: of[place] for place in moved if place in of})
        with self._lock:
            gone = {place: given_away() for place, offset in moved.items() if not self._to_write(place, offset)}
            decided = settling.decided(gone, moved)
            if not decided:
                self._settling.append(settling)
        if decided:
            self._answer(request, Settled(results))
        self._hand_out(topic, only_full=True)

    def close(self) -> None:
        """Leave the group; blocks until the thread has ended."""
        self._closing = True
        self._hop.closed = True
        self._thread.join()

    # --- in the event loop ---

    def _change(self) -> None:
        with self._lock:
            self._wanted = sorted(self._topics)

    def _arrived(self, items: Sequence[Any]) -> None:
        grown: dict[str, TopicIntake] = {}
        for item in items:
            if isinstance(item, Revoked):
                self._revoked(item.places)
            elif isinstance(item, ReaderFailed):
                self._on_failed(item.error)
            elif isinstance(item, tuple):
                self._answer(*item)
            else:
                topic = self._topics.get(item.topic())
                if topic is not None:
                    topic.ahead.append(item)
                    topic.ahead_bytes += size_of(item)
                    grown[topic.address] = topic
        for topic in grown.values():
            self._hand_out(topic)
            if not topic.paused and (topic.ahead_bytes > AHEAD_BYTES or len(topic.ahead) > AHEAD_MESSAGES):
                self._pause(topic, on=True)

    def _revoked(self, places: frozenset[Place]) -> None:
        for topic in self._topics.values():
            gone = {partition for address, partition in places if address == topic.address}
            if gone:
                topic.ahead = deque(record for record in topic.ahead if record.partition() not in gone)
                topic.ahead_bytes = sum(map(size_of, topic.ahead))
                for partition in gone:
                    for tag, _offset in topic.out.pop(partition, _Out()).tags:
                        del topic.tags[tag]
        with self._lock:
            self._leaving -= Counter(places)

    def _hand_out(self, topic: TopicIntake, *, only_full: bool = False) -> None:
        if topic.waiting is None or len(topic.tags) >= MOST_OUT or (only_full and not topic.ahead):
            return
        request, messages, size = topic.waiting
        topic.waiting = None
        records: list[Any] = []
        while topic.ahead and len(records) < messages and (size > 0 or not records):
            record = topic.ahead.popleft()
            taken = size_of(record)
            size -= taken
            topic.ahead_bytes -= taken
            records.append(record)
        deliveries: list[Delivered] = []
        for run in runs_of(records):
            first = next(self._tags)
            deliveries.append(Delivered(run, first))
            tags = [first, *(next(self._tags) for _ in range(run.count - 1))]
            if topic.acknowledge:
                out = topic.out.setdefault(run.partition, _Out())
                out.tags.extend(zip(tags, range(run.base_offset, run.next_offset), strict=True))
                topic.tags.update(dict.fromkeys(tags, run.partition))
            else:
                with self._lock:
                    self._to_write((topic.address, run.partition), run.next_offset)
        if topic.paused and topic.ahead_bytes < AHEAD_BYTES // 2 and len(topic.ahead) < AHEAD_MESSAGES // 2:
            self._pause(topic, on=False)
        self._answer(request, Taken(deliveries, address=topic.address, acknowledge=topic.acknowledge))

    def _end_take(self, topic: TopicIntake, *, ended: bool = False) -> None:
        if topic.waiting is not None:
            request, _, _ = topic.waiting
            topic.waiting = None
            self._answer(request, Taken((), ended=ended, address=topic.address, acknowledge=topic.acknowledge))

    def _to_write(self, place: Place, offset: int) -> bool:
        # with the lock, from both sides; False if it is not ours
        if self._leaving[place]:
            return False
        self._commits[place] = max(offset, self._commits.get(place, 0))
        return True

    def _pause(self, topic: TopicIntake, *, on: bool) -> None:
        topic.paused = on
        places = [one for one in self._consumer.assignment() if one.topic == topic.address]
        if places:
            (self._consumer.pause if on else self._consumer.resume)(places)

    # --- in the thread ---

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except self._broken as error:
            self._hop.put([ReaderFailed(target_error(error.args[0]))])
        finally:
            self._consumer.close()

    def _turn(self) -> None:
        self._write()
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted:
            self._consumer.subscribe(wanted, on_revoke=self._handed_over, on_lost=self._lost)
        elif wanted is not None:
            self._consumer.unsubscribe()
        found = together(self._consumer, POLL_SECONDS, POLL_MESSAGES)
        for record in found:
            if record.error() is not None:
                self._judge(record.error())
        self._hop.put([record for record in found if record.error() is None])

    def _judge(self, error: Any) -> None:
        # of what is told beside records: a topic that is not there (yet) is waited for
        ended = target_error(error)
        if error.fatal() or (isinstance(ended, TargetError) and getattr(ended, "refusal", None) is not None):
            if error.code() in NO_TOPIC:
                return
            self._hop.put([ReaderFailed(ended)])

    def _write(self) -> None:
        with self._lock:
            commits, self._commits = self._commits, {}
            settling, self._settling = self._settling, []
        refused: dict[Place, GatewayError] = {}
        again: dict[Place, int] = {}
        for place, error in self._commit(commits).items():
            if error.code() in MEMBERS_MOVE:
                again[place] = commits[place]
            else:
                refused[place] = target_error(error)
        with self._lock:
            for place, offset in again.items():
                self._to_write(place, offset)
            open_ones = self._tell(settling, refused, again)
            self._settling[:0] = open_ones
        if refused:
            self._hop.put([ReaderFailed(next(iter(refused.values())))])

    def _commit(self, commits: Mapping[Place, int]) -> Mapping[Place, Any]:
        # what is refused, and how
        if not commits:
            return {}
        offsets = [self._partition(topic, number, offset) for (topic, number), offset in commits.items()]
        try:
            told = self._consumer.commit(offsets=offsets, asynchronous=False)
        except self._broken as error:
            return dict.fromkeys(commits, error.args[0])
        return {(one.topic, one.partition): one.error for one in told if one.error is not None}

    def _tell(
        self, settling: Sequence[Settling], refused: Mapping[Place, GatewayError], open_places: Container[Place]
    ) -> list[Settling]:
        # whom nothing keeps waiting; the others
        decided = [one.decided(refused, open_places) for one in settling]
        self._hop.put([(one.request, Settled(one.results)) for one, so in zip(settling, decided, strict=True) if so])
        return [one for one, so in zip(settling, decided, strict=True) if not so]

    def _handed_over(self, consumer: Any, places: Sequence[Any]) -> None:
        # as long as it is asked for, and not taken, what is settled may still be written
        self._write()
        self._lost(consumer, places)

    def _lost(self, _consumer: Any, places: Sequence[Any]) -> None:
        gone = frozenset((one.topic, one.partition) for one in places)
        with self._lock:
            self._leaving.update(gone)
            for place in gone:
                self._commits.pop(place, None)
            self._settling = self._tell(self._settling, {place: given_away() for place in gone}, self._commits)
        self._hop.put([Revoked(gone)])


def given_away() -> GatewayError:
    return UnknownSubscription("the partition was given to another member")
