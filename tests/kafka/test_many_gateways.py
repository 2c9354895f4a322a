"""Several stores on one Kafka: what one writes the others see, nobody wins twice, and who was frozen writes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import confluent_kafka
import pytest
import trio

from gateway.broker.ownership import Owners
from gateway.broker.timers import Pump, SystemClock
from gateway.errors import ConditionFailed, GatewayError, OutcomeUnknown, StoreReadOnly, UnknownTopic
from gateway.librdkafka import threads
from gateway.store.interface import DropTopic, Put, Require, TopicConfig, Unit
from gateway.store.kafka import following
from gateway.store.kafka.cluster import KafkaCluster
from gateway.store.kafka.opening import open_kafka_store
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.reader import KafkaLogReader
from tests.kafka.foreign import make, produce_unreadable
from tests.kafka.node import Kafka
from tests.store.kit import append, create, everything, publish, starting, unit

PATIENCE = 60


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.01)


def options(kafka: Kafka, prefix: str, **others: Any) -> KafkaOptions:
    return KafkaOptions([kafka.brokers], prefix=prefix, **{"timeout": 30.0, **others})


@asynccontextmanager
async def stores(kafka: Kafka, prefix: str, count: int, **others: Any) -> AsyncIterator[list[Any]]:
    async with AsyncExitStack() as stack:
        asked = options(kafka, prefix, **others)
        yield [await stack.enter_async_context(open_kafka_store(asked)) for _ in range(count)]


async def test_a_topic_and_what_is_in_it_is_seen_by_the_others(kafka: Kafka, topics: str) -> None:
    async with stores(kafka, topics, 2) as (one, two):
        await create(one, "t", partitions=2)
        await until(lambda: "t" in two.topics)
        assert two.topics["t"].epoch == one.topics["t"].epoch
        assert two.topics["t"].config == one.topics["t"].config
        told: list[tuple[str, int]] = []
        two.on_visible(told.extend)
        two.watch("t")
        await until(lambda: two.current("t"))
        await publish(one, "t", b"a", b"b", partition=1)
        await until(lambda: ("t", 1) in told and two.topics["t"].partitions[1].end == 2)
        cached = two.read_cached("t", 1, 0, 10, 1000, 0)
        assert cached is not None
        assert [value for run in cached.runs for value in run.columns.values()] == [b"a", b"b"]
        await two.submit(Unit(deletes=[DropTopic("t")])).wait()
        await until(lambda: "t" not in one.topics)
        with pytest.raises(UnknownTopic):
            await publish(one, "t", b"c")


async def test_nobody_knows_where_a_topic_ends_without_asking(kafka: Kafka, topics: str) -> None:
    async with stores(kafka, topics, 2) as (one, two):
        await create(one, "t")
        await two.refresh("t")
        assert not two.current("t") or two.topics["t"].partitions[0].end == 0
        await publish(one, "t", b"a")
        await two.refresh("t")
        assert two.topics["t"].partitions[0].end == 1
        assert await everything(two, "t") == [b"a"]


async def test_two_never_both_win(kafka: Kafka, topics: str) -> None:
    """Each adds one to a row, as often as it takes: no step is lost, and what went with the losers is not in the log."""
    async with stores(kafka, topics, 2) as some:
        await create(some[0], "t")
        await until(lambda: "t" in some[1].topics)
        steps = 12

        async def count(store: Any, name: bytes) -> None:
            done = 0
            while done < steps:
                before = store.table("n").get(b"k")
                value = b"%d" % (int(before or b"0") + 1)
                try:
                    await store.submit(
                        unit(
                            append("t", name + value),
                            requires=[Require("n", b"k", before)],
                            puts=[Put("n", b"k", value), Put("n", name, value)],
                        )
                    ).wait()
                except ConditionFailed:
                    continue
                done += 1

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(count, some[0], b"a")
                nursery.start_soon(count, some[1], b"b")
        await until(lambda: all(store.table("n").get(b"k") == b"%d" % (2 * steps) for store in some))
        values = await everything(some[0], "t")
        assert [int(value[1:]) for value in values] == list(range(1, 2 * steps + 1))
        assert dict(some[0].table("n")) == dict(some[1].table("n"))


async def test_rows_of_others_are_told(kafka: Kafka, topics: str) -> None:
    async with stores(kafka, topics, 2) as (one, two):
        told: list[dict[bytes, bytes | None]] = []
        own: list[dict[bytes, bytes | None]] = []
        two.on_rows("s", told.append)
        one.on_rows("s", own.append)
        await one.submit(Unit(puts=[Put("s", b"k", b"1"), Put("s", b"l", b"2")])).wait()
        await until(lambda: two.table("s").get(b"l") == b"2")
        await one.submit(Unit(puts=[Put("s", b"k", None)])).wait()
        await until(lambda: b"k" not in two.table("s"))
        assert {key: value for rows in told for key, value in rows.items()} == {b"k": None, b"l": b"2"}
        assert own == []


async def test_what_others_write_is_read(kafka: Kafka, topics: str) -> None:
    """By any client of Kafka, into the middle of what gateways write; a record without a text for a header is passed over."""
    async with stores(kafka, topics, 1) as [store]:
        await create(store, "t")
        await publish(store, "t", b"ours", headers=[(("h", b"1"),)], keys=[b"key"])
        other = confluent_kafka.Producer({"bootstrap.servers": kafka.brokers})
        other.produce(f"{topics}t", b"theirs", b"k", headers=[("a", b"b"), ("n", None)], timestamp=1_600_000_000_000)
        other.produce(f"{topics}t", None, b"gone")
        other.produce(f"{topics}t", b"forged", headers=[("gw.id", b"short"), ("gw.origin", b"{}")])
        await trio.to_thread.run_sync(other.flush, PATIENCE)
        await store.refresh("t")
        result = await store.read("t", 0, 0, 100, 10_000, 0)
        ours, theirs, gone, forged = (one for run in result.runs for one in run.envelopes())
        assert (ours.value, ours.key, ours.headers, ours.route) == (b"ours", b"key", (("h", b"1"),), "route")
        assert (theirs.value, theirs.key, theirs.headers) == (b"theirs", b"k", (("a", b"b"), ("n", b"")))
        assert (theirs.route, theirs.origin.protocol, theirs.timestamp_ms) == ("kafka", "kafka", 1_600_000_000_000)
        assert (gone.value, gone.key, gone.headers) == (b"", b"gone", (("gw.absent", b"value"),))
        assert (forged.value, forged.route) == (b"forged", "kafka")
        assert len({ours.id, theirs.id, gone.id, forged.id}) == 4

        def read() -> list[Any]:
            consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.brokers, "group.id": topics})
            consumer.assign([confluent_kafka.TopicPartition(f"{topics}t", 0, 0)])
            try:
                return [consumer.poll(PATIENCE) for _ in range(4)]
            finally:
                consumer.close()

        first, *_rest = await trio.to_thread.run_sync(read)
        assert (first.value(), first.key(), first.headers()[2:]) == (b"ours", b"key", [("h", b"1")])
        assert [name for name, _value in first.headers()[:2]] == ["gw.id", "gw.origin"]


async def test_a_record_with_a_header_whose_name_is_no_text_ends_nobody(kafka: Kafka, topics: str) -> None:
    """Also where it is looked at ahead, since a record before it says that so many follow."""
    topic, follow = f"{topics}t", 20
    begins = [("gw.id", bytes(20)), ("gw.origin", b'{"protocol":"p","listener":"l"}'), ("gw.run", b"%d" % follow)]
    plain = [b"%d" % number for number in range(follow - 1)]
    async with stores(kafka, topics, 1) as [store]:
        await create(store, "t")
        await publish(store, "t", b"ours")
        await trio.to_thread.run_sync(produce_unreadable, kafka, topic, b"unreadable")
        other = confluent_kafka.Producer({"bootstrap.servers": kafka.brokers})
        other.produce(topic, b"announces", headers=begins)
        for value in plain:
            other.produce(topic, value)
        await trio.to_thread.run_sync(other.flush, PATIENCE)
        await trio.to_thread.run_sync(produce_unreadable, kafka, topic, b"unreadable")
        await publish(store, "t", b"behind")
        assert await everything(store, "t") == [b"ours", b"announces", *plain, b"behind"]

        def read() -> Iterator[list[bytes]]:
            with KafkaLogReader(KafkaOptions([kafka.brokers], topics)) as log:
                for _ in range(20):  # the interpreter calls otherwise what it calls often
                    yield [value for run in log.read_chunks("t", 0) for value in run.columns.values()]

        for found in await trio.to_thread.run_sync(lambda: list(read())):
            assert found == [b"ours", b"announces", *plain, b"behind"]


async def test_a_topic_that_others_make_and_drop(kafka: Kafka, topics: str) -> None:
    async with stores(kafka, topics, 1) as [store]:
        new = confluent_kafka.admin.NewTopic(f"{topics}acme_x2Forders", 3, 1)
        kafka.admin.create_topics([new])[f"{topics}acme_x2Forders"].result(PATIENCE)
        await until(lambda: "acme/orders" in store.topics)
        await publish(store, "acme/orders", b"x", partition=2)
        assert await everything(store, "acme/orders", partition=2) == [b"x"]
        store.watch("acme/orders")
        kafka.admin.delete_topics([f"{topics}acme_x2Forders"])[f"{topics}acme_x2Forders"].result(PATIENCE)
        await until(lambda: "acme/orders" not in store.topics)
        with pytest.raises(UnknownTopic):
            await publish(store, "acme/orders", b"y")
        await create(store, "acme/orders")
        await publish(store, "acme/orders", b"again")
        assert await everything(store, "acme/orders") == [b"again"]


async def test_what_needs_more_brokers_than_there_are_now_is_no_fault_of_who_asks(kafka: Kafka, topics: str) -> None:
    """Kafka calls it an invalid number of copies, as it does while it takes all brokers for dead: what comes then may come again."""
    cluster = KafkaCluster(options(kafka, topics, replication=3))
    with pytest.raises(StoreReadOnly):
        await trio.to_thread.run_sync(cluster.create, f"{topics}t", TopicConfig())


async def test_a_start_waits_for_a_broker_that_is_busy(kafka: Kafka, topics: str) -> None:
    """The controller has made a topic, and the broker will know of it later than any request of its own may take."""
    asked = options(kafka, topics, timeout=1.0)
    cluster = KafkaCluster(asked)
    known: list[int] = []

    def wait() -> None:
        known.append(cluster.when_there(f"{topics}t", PATIENCE).partitions)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, wait)
            await trio.sleep(2 * asked.timeout)
            make(kafka, f"{topics}t", 3)
    assert known == [3]


async def test_a_topic_that_goes_while_it_is_written(kafka: Kafka, topics: str) -> None:
    """Nobody is told that something is stored which is not, and everything else goes on."""
    async with stores(kafka, topics, 1, timeout=15.0) as [store]:
        await create(store, "t", "other")
        kafka.admin.delete_topics([f"{topics}t"])[f"{topics}t"].result(PATIENCE)
        refused: GatewayError | None = None
        with trio.fail_after(PATIENCE):
            while refused is None:
                try:
                    await publish(store, "t", b"x")
                except (UnknownTopic, OutcomeUnknown) as error:
                    refused = error
        await until(lambda: store.health.writable)
        await publish(store, "other", b"y")
        assert (await everything(store, "other"))[-1] == b"y"


async def test_jobs_have_one_owner_and_find_another(kafka: Kafka, topics: str) -> None:
    jobs = [f"job {number}" for number in range(40)]
    clock = SystemClock()
    pump = Pump(clock.now)
    asked = options(kafka, topics)
    async with trio.open_nursery() as nursery, open_kafka_store(asked) as staying:
        nursery.start_soon(pump.run)
        two = Owners(staying, clock, pump, starting(nursery))
        async with open_kafka_store(asked) as going:
            one = Owners(going, clock, pump, starting(nursery))
            await jobs_are_shared(jobs, one, two)
            job = next(job for job in jobs if one.owns(job))
            guard = one.guard(job)
            await going.submit(Unit(puts=[Put("s", b"k", b"1")], requires=guard)).wait()
            with pytest.raises(ConditionFailed):
                await staying.submit(Unit(puts=[Put("s", b"k", b"2")], requires=two.guard(job))).wait()
        await until(lambda: all(two.owns(job) for job in jobs))
        with pytest.raises(ConditionFailed):  # what the other would write if it had only been frozen
            await staying.submit(Unit(puts=[Put("s", b"k", b"3")], requires=guard)).wait()
        assert staying.table("s")[b"k"] == b"1"
        nursery.cancel_scope.cancel()


async def jobs_are_shared(jobs: list[str], one: Owners, two: Owners) -> None:
    await until(lambda: all(one.owns(job) != two.owns(job) for job in jobs) and one.held > 0 and two.held > 0)


FIVE_MINUTES = 300_000
"""The most that librdkafka lets a question for more wait, and longer than a test has."""


async def test_no_timer_stands_between_a_row_and_the_other_gateways(
    kafka: Kafka, topics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who follows is woken by the row itself: with every interval of the follower at five minutes it is told as before. And the
    intervals that there are make less than a second all together, if each of them had to end.
    """
    all_of_it = options(kafka, topics).consumer(**following.STATE_FETCHES)
    waits = {name: wait for name, wait in all_of_it.items() if name.startswith("fetch.") and name.endswith(".ms")}
    assert set(waits) == {"fetch.wait.max.ms", "fetch.queue.backoff.ms", "fetch.error.backoff.ms"}
    assert sum(waits.values()) + following.WAIT * 1000 < 1000
    patient: list[Any] = []

    def together(consumer: Any, wait: float, most: int) -> list[Any]:
        return threads.together(consumer, FIVE_MINUTES / 1000 if consumer in patient else wait, most)

    async with stores(kafka, topics, 2) as (one, two):
        told: dict[bytes, bytes | None] = {}
        two.on_rows("s", told.update)
        await trio.to_thread.run_sync(two._state.close)
        monkeypatch.setattr(following, "together", together)
        slow = dict.fromkeys(waits, FIVE_MINUTES)
        two._state = following.Follower(two._options, two._took_state, following.ROWS, **slow)
        two._state.add([(two._options.state_topic, 0, two._read_until)])
        for number in range(20):
            if number == 1:  # it follows: what it is asked to is heard of between two looks
                patient.append(two._state._consumer)
            key, value = b"%d" % number, b"value %d" % number
            requires = [Require("s", key, None)] if number % 2 else []  # in a transaction, and by itself
            if number == 19:
                patient.clear()
            await one.submit(unit(puts=[Put("s", key, value)], requires=requires)).wait()
            await until(lambda key=key: key in told)  # type: ignore[misc]
    assert told == {b"%d" % number: b"value %d" % number for number in range(20)}
