"""Dead letters: what they keep, and reading, replaying and purging them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway import model
from gateway.broker.administration.dead_letters import MOST_REPLAYS
from gateway.broker.letters import PREFIX, Facts, letters_topic, split_headers
from gateway.envelope import Batch, Columns, Headers, Run
from gateway.errors import Conflict, Denied, NotFound, NotRouted, UnknownTopic
from gateway.requests import (
    DONE,
    Authenticate,
    CreateUser,
    DeadLetter,
    DeadLetters,
    DeleteTopic,
    Publish,
    PurgeDeadLetters,
    ReadDeadLetters,
    ReplayDeadLetter,
)
from gateway.store.interface import Unit
from tests.unit.broker.support import Bench, RecordingCaller, open_bench


def run_of(bench: Bench, topic: str, partition: int = 0) -> Run:
    result = bench.store.read_cached(topic, partition, 0, 1000, 1 << 20, bench.clock.now_ms())
    assert result is not None
    return result.runs[0]


def bury(bench: Bench, topic: str, *indexes: int, error: str = "boom") -> None:
    """As a subscription does with what it could not deliver."""
    for index in indexes:
        creates, append = bench.letters.dead_letter_append(
            run_of(bench, topic), index, reason="max_deliveries", attempts=3, first_error="first", last_error=error
        )
        assert bench.store.submit(Unit(creates=creates, appends=[append])).error is None


async def letters(bench: Bench, address: str, most: int = 10) -> Sequence[DeadLetter]:
    reply = await bench.ask(RecordingCaller(), ReadDeadLetters(1, address, most))
    assert isinstance(reply, DeadLetters), reply
    return reply.letters


HEADERS: Headers = (("trace", b"1"), ("trace", b"2"))


async def put(bench: Bench, topic: str, *values: bytes, ttl_ms: int = 0) -> RecordingCaller:
    caller = RecordingCaller(protocol="flymq")
    columns = Columns.of(list(values), [b"key"] * len(values), [HEADERS] * len(values))
    await bench.ask(caller, Publish(1, Batch(topic, columns), ttl_ms=ttl_ms))
    return caller


async def test_a_letter_keeps_the_message_and_says_what_happened(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = await put(bench, "orders", b"a", b"b")
        bury(bench, "orders", 1)
        (letter,) = await letters(bench, "orders")
        assert letter.id == "0:0"
        assert (letter.columns.value(0), letter.columns.key(0), letter.columns.headers_of(0)) == (b"b", b"key", HEADERS)
        assert (letter.reason, letter.attempts, letter.origin_topic) == ("max_deliveries", 3, "orders")
        assert (letter.first_error, letter.last_error) == ("first", "boom")
        (stored,) = run_of(bench, "orders.dlq").envelopes()  # an ordinary record, for every protocol
        (_first, original) = run_of(bench, "orders").envelopes()
        assert (stored.value, stored.key, stored.origin, stored.route) == (b"b", b"key", caller.origin, "identity")
        assert stored.id == original.id
        assert stored.headers == (
            *HEADERS,
            ("x-dead-letter-reason", b"max_deliveries"),
            ("x-dead-letter-attempts", b"3"),
            ("x-dead-letter-first-error", b"first"),
            ("x-dead-letter-last-error", b"boom"),
            ("x-dead-letter-topic", b"orders"),
            ("x-dead-letter-partition", b"0"),
            ("x-dead-letter-offset", b"1"),
            ("x-dead-letter-expires-ms", b"0"),
            ("x-dead-letter-count", b"1"),
        )


async def test_reading_is_oldest_first_and_bounded(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        assert await letters(bench, "orders") == []
        await put(bench, "orders", *(b"%d" % n for n in range(5)))
        for index in (3, 0, 4):
            bury(bench, "orders", index)
        assert [(letter.id, letter.columns.value(0)) for letter in await letters(bench, "orders")] == [
            ("0:0", b"3"), ("0:1", b"0"), ("0:2", b"4"),
        ]  # fmt: skip
        assert [letter.id for letter in await letters(bench, "orders", 2)] == ["0:0", "0:1"]
        assert await letters(bench, "orders", 0) == await letters(bench, "orders", -5) == []


async def test_an_answer_holds_so_many_bytes(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        for _ in range(4):
            await put(bench, "big", b"x" * (3 << 20))
        state = bench.store.topics["big"]
        for offset in range(state.partitions[0].end):
            result = await bench.store.read("big", 0, offset, 1, 1, bench.clock.now_ms())
            creates, append = bench.letters.dead_letter_append(
                result.runs[0], 0, reason="size", attempts=0, first_error="", last_error=""
            )
            bench.store.submit(Unit(creates=creates, appends=[append]))
        assert len(await letters(bench, "big", 10)) == 2


async def test_a_replay_is_the_message_as_it_was_where_it_was(tmp_path: Path) -> None:
    config = model.Config(listeners={}, routes=(model.IDENTITY,), topics={"orders": model.TopicSettings(partitions=4)})
    async with open_bench(tmp_path, config=config) as bench:
        caller = await put(bench, "orders", b"a", b"b", ttl_ms=60_000)
        partition = next(n for n, state in enumerate(bench.store.topics["orders"].partitions) if state.end)
        run = run_of(bench, "orders", partition)
        creates, append = bench.letters.dead_letter_append(
            run, 1, reason="r", attempts=1, first_error="", last_error=""
        )
        bench.store.submit(Unit(creates=creates, appends=[append]))
        assert await bench.ask(RecordingCaller(), ReplayDeadLetter(1, "orders", "0:0")) == DONE
        first, second, third = run_of_all(bench, "orders", partition)
        assert (third.value, third.key, third.expires_ms) == (b"b", b"key", second.expires_ms)
        assert third.expires_ms > 0
        assert (third.origin, third.route) == (caller.origin, "identity")
        assert third.headers == (*HEADERS, (PREFIX + "count", b"1"))
        assert third.id not in (first.id, second.id)  # whoever drops what it knows must not drop this
        assert len(await letters(bench, "orders")) == 1  # it stays until it is purged
        assert all(door.unaccounted == 0 for door in bench.doors.counts())


def run_of_all(bench: Bench, topic: str, partition: int) -> list:  # type: ignore[type-arg]
    result = bench.store.read_cached(topic, partition, 0, 1000, 1 << 20, bench.clock.now_ms())
    assert result is not None
    return [envelope for run in result.runs for envelope in run.envelopes()]


async def test_a_message_that_dies_again_and_again_is_counted_and_then_left(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await put(bench, "orders", b"a")
        for death in range(MOST_REPLAYS + 1):
            latest = run_of_all(bench, "orders", 0)[-1].offset
            result = bench.store.read_cached("orders", 0, latest, 1, 1000, bench.clock.now_ms())
            assert result is not None
            creates, append = bench.letters.dead_letter_append(
                result.runs[0], 0, reason="r", attempts=1, first_error="", last_error=""
            )
            bench.store.submit(Unit(creates=creates, appends=[append]))
            stored = run_of_all(bench, "orders.dlq", 0)[-1]
            assert split_headers(stored.headers)[1].count == death + 1
            assert split_headers(stored.headers)[0] == HEADERS
            outcome = await bench.ask(RecordingCaller(), ReplayDeadLetter(death, "orders", f"0:{death}"))
            assert isinstance(outcome, Conflict) if death == MOST_REPLAYS else outcome == DONE


@pytest.mark.parametrize("letter", ["", "0", "0:", ":0", "0:1", "1:0", "-1:0", "0:-1", "0:²", "x:y", "0:" + "9" * 30])
async def test_letters_that_are_not_there(tmp_path: Path, letter: str) -> None:
    async with open_bench(tmp_path) as bench:
        assert isinstance(await bench.ask(RecordingCaller(), ReplayDeadLetter(1, "orders", letter)), NotFound)
        await put(bench, "orders", b"a")
        bury(bench, "orders", 0)
        refusal = await bench.ask(RecordingCaller(), ReplayDeadLetter(2, "orders", letter))
        assert isinstance(refusal, NotFound)
        assert refusal.message == f"message not found: {letter}"
        assert bench.values("orders") == [b"a"]


async def test_a_letter_of_a_topic_that_is_gone(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await put(bench, "orders", b"a")
        bury(bench, "orders", 0)
        await bench.ask(RecordingCaller(), DeleteTopic(1, "orders"))
        assert isinstance(await bench.ask(RecordingCaller(), ReplayDeadLetter(2, "orders", "0:0")), UnknownTopic)
        assert "orders" not in bench.store.topics


async def test_topics_may_share_letters_and_a_replay_needs_the_right_on_where_it_goes(tmp_path: Path) -> None:
    users = model.AuthUsers(model.Administrator("root", password="secret"))
    async with open_bench(tmp_path) as bench:
        await bench.accounts.start([users])
        await put(bench, "private", b"a")
        creates, append = bench.letters.dead_letter_append(
            run_of(bench, "private"), 0, reason="r", attempts=1, first_error="", last_error="", topic="orders.dlq"
        )
        bench.store.submit(Unit(creates=creates, appends=[append]))
        admin, guest = RecordingCaller(users), RecordingCaller(users)
        await bench.ask(admin, Authenticate(1, "root", "secret"))
        await bench.ask(admin, CreateUser(2, "guest", "pw"))
        await bench.ask(guest, Authenticate(3, "guest", "pw"))
        replay = ReplayDeadLetter(4, "orders", "0:0")
        assert isinstance(await bench.ask(guest, replay, authorised=False), Denied)  # as if an ACL let it at "orders"
        assert bench.values("private") == [b"a"]
        assert await bench.ask(admin, ReplayDeadLetter(5, "orders", "0:0")) == DONE
        assert bench.values("private") == [b"a", b"a"]


async def test_letters_that_a_client_wrote_by_hand(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await put(bench, "orders", b"a")
        nonsense: Headers = tuple(
            (PREFIX + name, b"\xff" * 9999) for name in ("attempts", "reason", "partition", "count", "x")
        )
        columns = Columns.of([b"by hand", b"plain"], None, [nonsense, ()])
        await bench.ask(RecordingCaller(), Publish(2, Batch("orders.dlq", columns)))
        by_hand, plain = await letters(bench, "orders")
        assert (by_hand.attempts, plain.attempts, plain.reason, plain.origin_topic) == (0, 0, "", "")
        assert await bench.ask(RecordingCaller(), ReplayDeadLetter(3, "orders", "0:1")) == DONE
        assert bench.values("orders") == [b"a", b"plain"]


async def test_purging(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        assert await bench.ask(RecordingCaller(), PurgeDeadLetters(1, "orders")) == DONE
        await put(bench, "orders", b"a")
        bury(bench, "orders", 0)
        bench.topics.before_delete.append(lambda topic: f"{topic} is needed")
        refusal = await bench.ask(RecordingCaller(), PurgeDeadLetters(2, "orders"))
        assert isinstance(refusal, Conflict)
        assert refusal.message == "orders.dlq is needed"
        bench.topics.before_delete.clear()
        forgotten: list[str] = []
        bench.topics.after_delete.append(forgotten.append)
        assert await bench.ask(RecordingCaller(), PurgeDeadLetters(3, "orders")) == DONE
        assert forgotten == ["orders.dlq"]
        assert await letters(bench, "orders") == []
        assert bench.values("orders") == [b"a"]


async def test_an_address_without_a_route(tmp_path: Path) -> None:
    config = model.Config(
        listeners={}, routes=(model.Route("o", model.Match(topic="o.*"), (model.StoreTarget("o.{1}"),)),)
    )
    async with open_bench(tmp_path, config=config) as bench:
        for number, request in enumerate(
            (ReadDeadLetters(1, "x", 1), ReplayDeadLetter(2, "x", "0:0"), PurgeDeadLetters(3, "x"))
        ):
            assert isinstance(await bench.ask(RecordingCaller(), request), NotRouted), number


async def test_letters_of_letters_are_one_further(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await put(bench, "orders", b"a")
        bury(bench, "orders", 0)
        bury(bench, "orders.dlq", 0)
        (stored,) = run_of_all(bench, "orders.dlq.dlq", 0)
        own, facts = split_headers(stored.headers)
        assert (own, facts.topic, facts.count) == (HEADERS, "orders.dlq", 2)


def test_facts_come_back_from_headers() -> None:
    facts = Facts("r", 3, "first", "last", "t", 2, 7, 99, 4)
    assert split_headers((("a", b"b"), *facts.headers())) == ((("a", b"b"),), facts)


def test_the_letters_of_a_long_name_have_a_name() -> None:
    longest = "é" * 256
    names = {letters_topic(longest), letters_topic("é" * 255 + "xx"), letters_topic("x" * 508)}
    assert len(names) == 3
    assert all(len(name.encode()) <= 512 and name.endswith(".dlq") for name in names)
    assert letters_topic("orders") == "orders.dlq"
