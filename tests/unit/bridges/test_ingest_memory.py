"""What ingests hold counts in the one budget: how much of it they may have, that it is given back, and that they wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway import model
from gateway.bridges import ingests
from gateway.bridges.ingest import RESUME_SECONDS, Intake
from gateway.bridges.ingest_memory import LEAST_BYTES, TAKE_BYTES, TAKE_MESSAGES, IngestMemory
from gateway.envelope import Columns, Run
from gateway.requests import Delivered
from gateway.transport.limits import Budget
from tests.unit.bridges.blip import Blip, blipping
from tests.unit.bridges.house import bridged
from tests.unit.bridges.peers import Peer, listening, until
from tests.unit.bridges.test_ingest import STORED, far, stored, subscribed

ROOM = 256 << 20
LIVE = model.Route("live", model.Match(), (model.Proxy("target", "{topic}"),))


def answer(*sizes: int) -> list[Delivered]:
    return [Delivered(Run("t", 0, 0, Columns.of([bytes(size) for size in sizes]), [0] * len(sizes), ()))]


def never() -> None:
    raise AssertionError("there was room all the time")


def test_each_has_an_equal_part_of_half_the_budget() -> None:
    memory = IngestMemory(Budget(ROOM))
    parts = [memory.part(never) for _ in range(64)]
    assert {part.ask() for part in parts} == {(TAKE_MESSAGES, TAKE_BYTES)}
    parts += [memory.part(never) for _ in range(64)]
    assert {part.ask()[1] for part in parts} == {ROOM // 4 // 128}
    parts += [memory.part(never) for _ in range(20_000)]
    assert {part.ask()[1] for part in parts} == {LEAST_BYTES}
    for part in parts[1:]:
        part.close()
    assert parts[0].ask() == (TAKE_MESSAGES, TAKE_BYTES)


def test_those_that_are_stuck_leave_room_for_the_others_and_for_listeners() -> None:
    budget = Budget(ROOM)
    memory = IngestMemory(budget)
    parts = [memory.part(never) for _ in range(1_000)]
    for part in parts[:-1]:
        for _ in range(2):  # one on its way into the log, one ahead
            part.arrived(answer(part.ask()[1] - 1_000))
            part.storing()
    assert ROOM // 2 - (2 << 20) < budget.used < ROOM // 2
    assert parts[-1].ask()[1]
    assert not budget.spent(writer=True)


def test_as_many_messages_are_asked_for_as_fit_by_what_came_before() -> None:
    memory = IngestMemory(Budget(ROOM))
    part = memory.part(never)
    part.arrived(answer(*[100_000] * 20))
    part.forget()
    assert part.ask()[0] == 10
    part.arrived(answer(8 << 20))
    part.forget()
    assert part.ask()[0] == 1
    part.arrived(answer(*[10] * 1_000))
    part.forget()
    assert part.ask()[0] == TAKE_MESSAGES


def test_nothing_more_is_asked_for_after_an_answer_that_is_too_large() -> None:
    woken: list[str] = []
    budget = Budget(ROOM)
    memory = IngestMemory(budget)
    greedy, other = memory.part(lambda: woken.append("greedy")), memory.part(lambda: woken.append("other"))
    greedy.arrived(answer(ROOM // 2))
    assert greedy.ask() == other.ask() == (0, 0)
    assert not budget.spent(writer=True)
    other.stored()
    assert not woken
    greedy.storing()
    greedy.stored()
    assert sorted(woken) == ["greedy", "other"]
    assert other.ask()[0]
    assert budget.used == 0


def test_one_that_is_closed_gives_everything_back_and_is_not_woken() -> None:
    budget = Budget(ROOM)
    memory = IngestMemory(budget)
    part, other = memory.part(never), memory.part(never)
    part.arrived(answer(1_000))
    part.storing()
    part.arrived(answer(2_000))
    other.arrived(answer(ROOM))
    assert part.ask() == (0, 0)
    part.close()
    other.forget()
    assert budget.used == 0
    budget.change(ROOM)
    assert other.ask() == (0, 0)
    other.close()
    budget.change(-ROOM)


def test_while_nothing_is_asked_for_an_old_subscription_cannot_be_late() -> None:
    intake = Intake(None, fallback=9)  # type: ignore[arg-type]
    assert intake.until(10.0, 2.0) == 12.0
    assert intake.until(11.0 + RESUME_SECONDS - 2.0, 2.0) == 10.0 + RESUME_SECONDS
    intake.fallback_at = 0.0  # nothing could be asked for
    assert intake.until(100.0, 2.0) == 102.0
    assert intake.fallback_at == 100.0 + RESUME_SECONDS


@pytest.fixture
async def blip():
    blip = Blip()
    async with blipping(blip):
        yield blip


async def test_what_waits_to_be_stored_is_counted_until_it_is(tmp_path: Path, blip: Blip) -> None:
    budget, peer = Budget(ROOM), Peer()
    peer.say = lambda _key, _value: "later"
    async with listening(peer):
        upstreams = [far(blip.port), model.Upstream("target", "flymq", (("127.0.0.1", peer.port),))]
        async with bridged(tmp_path, upstreams, LIVE, budget=budget) as gateway:
            gateway.bridges.admit()
            await subscribed(blip)
            assert budget.used == 0
            blip.deliver(b"orders", bytes(1_000))
            await peer.until(lambda: bool(peer.seen))
            assert 1_000 < budget.used < 2_000
            peer.say = lambda _key, _value: "ok"
            await blip.until(lambda: blip.acknowledged)
            assert budget.used == 0


async def test_what_is_not_stored_when_the_gateway_goes_down_is_counted_no_more(
    tmp_path: Path, blip: Blip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingests, "STOP_SECONDS", 0.01)
    budget, peer = Budget(ROOM), Peer()
    peer.say = lambda _key, _value: "later"
    async with listening(peer):
        upstreams = [far(blip.port), model.Upstream("target", "flymq", (("127.0.0.1", peer.port),))]
        async with bridged(tmp_path, upstreams, LIVE, budget=budget) as gateway:
            gateway.bridges.admit()
            await subscribed(blip)
            blip.deliver(b"orders", bytes(1_000))
            await peer.until(lambda: budget.used > 1_000)
        assert budget.used == 0
        assert not blip.acknowledged


async def test_while_the_budget_is_spent_nothing_is_taken(tmp_path: Path, blip: Blip) -> None:
    budget = Budget(1_000)
    budget.change(800)  # others hold it
    async with bridged(tmp_path, [far(blip.port)], STORED, budget=budget) as gateway:
        gateway.bridges.admit()
        (ingest,) = gateway.bridges.ingests.all
        with trio.fail_after(20):
            await until(lambda: all(source.running for source in ingest.sources))
        blip.deliver(b"orders", b"1")
        await wait_all_tasks_blocked(0.05)
        (queue,) = blip.queues.values()
        assert queue.polls == 0
        budget.change(-100)
        assert await stored(gateway, 1) == [b"1"]
        blip.deliver(b"orders", bytes(5_000), b"2")  # a message may be larger than all there is
        assert await stored(gateway, 3) == [b"1", bytes(5_000), b"2"]
        await blip.until(lambda: len(blip.acknowledged) == 3)
        assert budget.used == 700
