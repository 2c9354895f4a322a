"""Who has written a row hears how that ended before he is told what another gateway wrote behind it, however late the answer comes: else
he would take what he wrote for what is so, for good.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from gateway.broker.administration.cluster import SERVING, ClusterService
from gateway.broker.administration.schemas import TABLE as SCHEMAS
from gateway.broker.consume.group_offsets import TABLE as OFFSETS
from gateway.broker.consume.readers import TABLE as READERS
from gateway.broker.consume.readers import GroupReaders
from gateway.broker.ownership import TABLE as OWNERS
from gateway.broker.ownership import Owners
from gateway.broker.timers import Pump, SystemClock
from gateway.requests import DONE, CommitOffset, GroupReset, ReadOffset, RegisterSchema, ResetTo
from gateway.store.interface import Put, Require
from tests.kafka.node import Kafka
from tests.kafka.test_many_gateways import stores, until
from tests.store.kit import create, publish, starting, unit
from tests.unit.broker.house import Client, opened_on

PATIENCE = 150
GROUP = "orders", "billing"


@asynccontextmanager
async def unheard(store: Any, table: str) -> AsyncIterator[None]:
    """What becomes of its own rows of a table it hears at the end of the block, as where the answer is lost and asked for again; and
    meanwhile what others write.
    """
    again = trio.Event()
    late: list[Callable[[], None]] = []
    send, commit = store._sender.send, store._commit

    def send_row(topic: str, partition: int, records: Iterable[Any], count: int, done: Callable[..., None]) -> None:
        kept = list(records) if topic == store._options.state_topic else []

        def heard(*given: Any) -> None:
            if again.is_set():
                done(*given)
            else:
                late.append(lambda: done(*given))

        of_it = any((key or b"").startswith(table.encode() + b"\0") for _value, key, *_more in kept)
        send(topic, partition, kept or records, count, heard if of_it else done)

    async def commit_rows(planned: Any) -> None:
        await commit(planned)
        if any(put.table == table for one in planned for put in one.job.ticket.unit.puts):
            await again.wait()

    store._sender.send, store._commit = send_row, commit_rows
    try:
        yield
    finally:
        del store._sender.send, store._commit
        again.set()
        store._arrived(late)


@pytest.mark.parametrize("whole", [False, True], ids=["a row", "a transaction"])
async def test_what_is_behind_an_own_row_is_told_behind_it(kafka: Kafka, topics: str, whole: bool) -> None:
    heard: list[Any] = []
    async with stores(kafka, topics, 2) as (one, two):
        one.on_rows("s", heard.append)
        async with unheard(one, "s"):
            mine = unit(puts=[Put("s", b"k", b"mine")], requires=[Require("s", b"k", None)] if whole else [])
            one.submit(mine).on_done(lambda ticket: heard.append(ticket.error))
            await until(lambda: two.table("s").get(b"k") == b"mine")
            await two.submit(unit(puts=[Put("s", b"k", b"theirs")])).wait()
            await two.submit(unit(puts=[Put("s", b"other", b"theirs")])).wait()
            await until(lambda: one.table("s").get(b"other") is not None)
            assert heard == [{b"other": b"theirs"}]  # this waits for nobody
            assert one.table("s")[b"k"] == b"theirs"
        await until(lambda: len(heard) == 3)
        assert heard[1:] == [None, {b"k": b"theirs"}]


async def test_what_is_before_an_own_row_is_not_told_behind_it(kafka: Kafka, topics: str) -> None:
    heard: list[Any] = []
    async with stores(kafka, topics, 2) as (one, two):
        one.on_rows("s", heard.append)
        written = trio.Event()
        async with unheard(one, "s"):
            one.submit(unit(puts=[Put("s", b"k", b"first")])).on_done(lambda _ticket: heard.append("first"))
            await until(lambda: two.table("s").get(b"k") == b"first")
            await two.submit(unit(puts=[Put("s", b"k", b"theirs")])).wait()
            one.submit(unit(puts=[Put("s", b"k", b"second")])).on_done(lambda _ticket: heard.append("second"))
            await until(lambda: two.table("s").get(b"k") == b"second" and one.table("s").get(b"k") == b"second")
        one.submit(unit(puts=[Put("s", b"last", b"")])).on_done(lambda _ticket: written.set())
        await written.wait()
        assert heard == ["first", "second"]
        assert one.table("s")[b"k"] == b"second"


async def test_a_row_of_readers_that_is_taken_away_while_it_is_written_comes_back(kafka: Kafka, topics: str) -> None:
    clock = SystemClock()
    pump = Pump(clock.now)
    async with stores(kafka, topics, 2) as (one, two), trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        start = starting(nursery)
        here = GroupReaders(one, Owners(one, clock, pump, start), clock, pump, start)
        async with unheard(one, READERS):
            here.have(GROUP, 2)
            await until(lambda: two.table(READERS))
            (key,) = two.table(READERS)
            await two.submit(unit(puts=[Put(READERS, key, None)])).wait()
            await until(lambda: not one.table(READERS))
        await until(lambda: two.table(READERS))
        assert dict(two.table(READERS)) == {key: b"\0\0\0\2"}
        nursery.cancel_scope.cancel()


async def test_a_group_is_nowhere_else_than_where_it_was_put_last(kafka: Kafka, topics: str) -> None:
    """By a commit at another gateway, behind one here, and behind a reset here."""
    with trio.fail_after(PATIENCE):
        async with stores(kafka, topics, 2) as (one, two), opened_on(one) as here, opened_on(two) as there:
            await create(one, "orders")
            await publish(one, "orders", *(b"%d" % number for number in range(10)))
            mine, theirs = here.client(), there.client()
            await two.refresh("orders")

            async def known(store: Any, offset: int) -> None:
                await until(lambda: [value[-1:] for value in store.table(OFFSETS).values()] == [bytes([offset])])

            async def commit(client: Client, offset: int) -> None:
                # a gateway that Kafka has not heard of for a while wants to be asked again
                while await client.ask(CommitOffset(0, *GROUP, 0, offset)) is not DONE:  # noqa: ASYNC110
                    await trio.sleep(0.05)

            async with trio.open_nursery() as nursery, unheard(one, OFFSETS):
                nursery.start_soon(commit, mine, 3)
                await known(two, 3)
                await commit(theirs, 5)
                await known(one, 5)
            assert (await mine.ask(ReadOffset(0, *GROUP, 0))).offset == 5
            async with trio.open_nursery() as nursery, unheard(one, OFFSETS):
                asked_for = GroupReset(topic=GROUP[0], group=GROUP[1], to=ResetTo.OFFSET, value=1)
                nursery.start_soon(here.house.groups.reset, asked_for)
                await known(two, 1)
                await commit(theirs, 7)
                await known(one, 7)
            assert (await mine.ask(ReadOffset(0, *GROUP, 0))).offset == 7


async def test_versions_of_a_schema_go_on_behind_those_of_another_gateway(kafka: Kafka, topics: str) -> None:
    """Who took his own for the last asked for the same number again and again, without an end."""

    def register(fields: int) -> RegisterSchema:
        properties = ",".join(f'"f{number}":{{"type":"string"}}' for number in range(fields))
        return RegisterSchema(0, "orders", "json", b'{"type":"object","properties":{%s}}' % properties.encode())

    with trio.fail_after(PATIENCE):
        async with stores(kafka, topics, 2) as (one, two), opened_on(one) as here, opened_on(two) as there:
            mine, theirs = here.client(), there.client()
            async with unheard(one, SCHEMAS):
                asked = mine.start(register(1))[0]
                await until(lambda: len(two.table(SCHEMAS)) == 2)
                second = await theirs.ask(register(2))
                await until(lambda: len(one.table(SCHEMAS)) == 3)
            first = await mine.outcome(asked)
            third = await mine.ask(register(3))
            assert [one.schemas[0].version for one in (first, second, third)] == [1, 2, 3]


async def test_a_slot_that_is_anothers_behind_its_taking_is_not_held(kafka: Kafka, topics: str) -> None:
    clock = SystemClock()
    pump = Pump(clock.now)
    job = "job"
    async with stores(kafka, topics, 2) as (one, two), trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        async with unheard(one, OWNERS):
            owners = Owners(one, clock, pump, starting(nursery))
            seen: list[tuple[bool, bytes | None]] = []
            owners.on_change(lambda: seen.append((owners.owns(job), owners.owner_of(job))))
            await until(lambda: len(two.table(OWNERS)) == two.slots)
            (guard,) = owners.guard(job)
            theirs = Put(OWNERS, guard.key, two.member)
            await two.submit(unit(puts=[theirs], requires=[guard])).wait()
            await until(lambda: owners.owner_of(job) == two.member)
            assert seen == []
        # nobody who serves has it, so that it is taken again
        await until(lambda: owners.held == one.slots)
        assert all(owner == owners.name for owns, owner in seen if owns)
        assert seen[0] == (False, two.member)
        nursery.cancel_scope.cancel()


async def test_who_was_taken_for_gone_says_again_that_it_serves(kafka: Kafka, topics: str) -> None:
    address = b"10.0.0.1:9600"
    async with stores(kafka, topics, 2) as (one, other), trio.open_nursery() as nursery:
        service = ClusterService(one, id="one", address=address.decode())
        await nursery.start(service.run)
        await until(lambda: other.table(SERVING).get(address) == b"one")
        gone = unit(puts=[Put(SERVING, address, None)])
        async with unheard(one, SERVING):
            await other.submit(gone).wait()
            await until(lambda: address in other.table(SERVING))
            await other.submit(gone).wait()  # before it knows that it has said so again
            await until(lambda: address not in one.table(SERVING))
        await until(lambda: other.table(SERVING).get(address) == b"one")
        await service.leave_the_log()
        await until(lambda: address not in other.table(SERVING))
        service._look.set()
        await trio.testing.wait_all_tasks_blocked()
        assert address not in one.table(SERVING)
        nursery.cancel_scope.cancel()
