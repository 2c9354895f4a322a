"""Transactions: private until commit, all or nothing, and whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import model
from gateway.broker.publish import transactions as module
from gateway.errors import Conflict, InvalidRequest, NotFound, Throttled, UnknownTopic, Unsupported
from gateway.requests import DONE, Begin, Begun, Commit, DeleteTopic, Published, Rollback
from gateway.store.interface import Durability
from tests.unit.broker.support import Bench, RecordingCaller, open_bench, publish


async def begin(bench: Bench, caller: RecordingCaller, number: int = 1, **more: Any) -> str:
    reply = await bench.ask(caller, Begin(number, **more))
    assert isinstance(reply, Begun)
    return reply.transaction


def unaccounted(bench: Bench) -> dict[str, int]:
    return {door.route: door.unaccounted for door in bench.doors.counts() if door.unaccounted}


async def test_nothing_is_visible_until_one_commit_shows_all_topics(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        name = await begin(bench, caller)
        first = await bench.ask(caller, publish(2, "a", b"1", b"2", transaction=name))
        await bench.ask(caller, publish(3, "b", b"3", transaction=name))
        await bench.ask(caller, publish(4, "a", b"4", transaction=name))
        assert first == Published("a", bench.clock.now_ms())
        assert bench.values("a") == bench.values("b") == []
        seen: list[set[tuple[str, int]]] = []
        bench.store.on_visible(lambda grown: seen.append(set(grown)))
        assert await bench.ask(caller, Commit(5, name)) == DONE
        assert (bench.values("a"), bench.values("b")) == ([b"1", b"2", b"4"], [b"3"])
        assert seen == [{("a", 0), ("b", 0)}]  # one commit
        assert unaccounted(bench) == {}


async def test_rollback_forgets(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        name = await begin(bench, caller)
        await bench.ask(caller, publish(2, "a", b"1", transaction=name))
        assert await bench.ask(caller, Rollback(3, name)) == DONE
        assert bench.values("a") == []
        assert isinstance(await bench.ask(caller, Commit(4, name)), Conflict)
        assert [door.rolled_back for door in bench.doors.counts()] == [1]
        assert unaccounted(bench) == {}


async def test_it_is_rolled_back_when_its_time_is_over(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        name = await begin(bench, caller)
        await bench.ask(caller, publish(2, "a", b"1", transaction=name))
        bench.advance(module.TIMEOUT - 1)
        await bench.ask(caller, publish(3, "a", b"2", transaction=name))
        bench.advance(1.0)
        late = await bench.ask(caller, publish(4, "a", b"3", transaction=name))
        assert isinstance(late, Conflict)
        assert "timed out" in late.message
        assert isinstance(await bench.ask(caller, Commit(5, name)), Conflict)
        assert bench.values("a") == []
        assert unaccounted(bench) == {}


async def test_it_ends_with_its_connection(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        name = await begin(bench, caller)
        await bench.ask(caller, publish(2, "a", b"1", transaction=name))
        caller.detach()
        bench.advance(module.TIMEOUT + 1)  # its timer is gone as well
        assert bench.values("a") == []
        assert unaccounted(bench) == {}


async def test_an_id_is_good_on_its_own_connection_only(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        owner, other = RecordingCaller(), RecordingCaller()
        name = await begin(bench, owner)
        await begin(bench, other)
        for number, request in enumerate(
            (Commit(11, name), Rollback(12, name), publish(13, "a", b"x", transaction=name))
        ):
            refusal = await bench.ask(other, request)
            assert isinstance(refusal, NotFound), number
            assert name in refusal.message
        assert isinstance(await bench.ask(owner, Commit(2, "txn-none")), NotFound)
        await bench.ask(owner, publish(3, "a", b"mine", transaction=name))
        assert await bench.ask(owner, Commit(4, name)) == DONE
        assert bench.values("a") == [b"mine"]


async def test_a_finished_one_stays_finished(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        name = await begin(bench, caller)
        assert await bench.ask(caller, Commit(2, name)) == DONE  # empty
        for request in (Commit(3, name), Rollback(4, name), publish(5, "a", b"x", transaction=name)):
            assert isinstance(await bench.ask(caller, request), Conflict)


async def test_a_commit_that_fails_stores_nothing_of_any_topic(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        for number, topic in enumerate(("a", "b")):
            await bench.ask(caller, publish(100 + number, topic, b"0"))
        name = await begin(bench, caller)
        await bench.ask(caller, publish(2, "a", b"1", transaction=name))
        await bench.ask(caller, publish(3, "b", b"2", transaction=name))
        await bench.ask(caller, DeleteTopic(4, "b"))
        refusal = await bench.ask(caller, Commit(5, name))
        assert isinstance(refusal, UnknownTopic)
        assert bench.values("a") == [b"0"]
        assert unaccounted(bench) == {}


async def test_one_whose_commit_failed_is_not_called_committed(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        await bench.ask(caller, publish(1, "t", b"there"))
        transaction = await begin(bench, caller, 2)
        await bench.ask(caller, publish(3, "t", b"lost", transaction=transaction))
        await bench.ask(caller, DeleteTopic(4, "t"))
        assert isinstance(await bench.ask(caller, Commit(5, transaction)), UnknownTopic)
        refusal = await bench.ask(caller, Rollback(6, transaction))
        assert isinstance(refusal, Conflict)
        assert "failed" in refusal.message


async def test_it_may_be_over_memory_and_stored_topics(tmp_path: Path) -> None:
    memory = model.TopicSettings(durability=model.DurabilitySetting(Durability.MEMORY))
    config = model.Config(
        listeners={},
        routes=(
            model.Route("fast", model.Match(topic="fast.*"), (model.StoreTarget("fast.{1}", memory),)),
            model.IDENTITY,
        ),
    )
    async with open_bench(tmp_path, config=config) as bench:
        caller = RecordingCaller()
        name = await begin(bench, caller)
        await bench.ask(caller, publish(2, "fast.a", b"1", transaction=name))
        await bench.ask(caller, publish(3, "slow", b"2", transaction=name))
        assert (bench.values("fast.a"), bench.values("slow")) == ([], [])
        assert await bench.ask(caller, Commit(4, name)) == DONE
        assert (bench.values("fast.a"), bench.values("slow")) == ([b"1"], [b"2"])
        assert unaccounted(bench) == {}


async def test_its_size_and_number_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    monkeypatch.setattr(module, "MOST_BYTES_TOGETHER", 15)
    monkeypatch.setattr(module, "MOST_MESSAGES", 3)
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        name = await begin(bench, caller)
        await bench.ask(caller, publish(2, "a", b"x" * 10, transaction=name))
        assert isinstance(await bench.ask(caller, publish(3, "a", b"y", transaction=name)), Throttled)
        other = await begin(bench, caller, 4)
        assert isinstance(await bench.ask(caller, publish(5, "a", b"z" * 6, transaction=other)), Throttled)
        assert isinstance(await bench.ask(caller, publish(6, "a", *[b""] * 4, transaction=other)), Throttled)
        assert await bench.ask(caller, Commit(7, name)) == DONE
        assert isinstance(await bench.ask(caller, publish(8, "a", b"z" * 6, transaction=other)), Published)
        for number in range(module.MOST_PER_CONNECTION - 1):
            await begin(bench, caller, 20 + number)
        assert isinstance(await bench.ask(caller, Begin(90)), Throttled)
        assert unaccounted(bench) == {}


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("inf"), float("nan"), module.LONGEST_TIMEOUT + 1])
async def test_the_time_it_may_ask_for_is_bounded(tmp_path: Path, timeout: float) -> None:
    async with open_bench(tmp_path) as bench:
        assert isinstance(await bench.ask(RecordingCaller(), Begin(1, timeout=timeout)), InvalidRequest)


async def test_a_message_in_it_may_expire_but_not_be_delayed(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller()
        name = await begin(bench, caller)
        assert isinstance(await bench.ask(caller, publish(2, "a", b"x", transaction=name, delay_ms=5)), Unsupported)
        await bench.ask(caller, publish(3, "a", b"x", transaction=name, ttl_ms=1000))
        await bench.ask(caller, Commit(4, name))
        assert bench.values("a") == [b"x"]
        bench.advance(1.0)
        assert bench.values("a") == []
        assert unaccounted(bench) == {}
