"""A message on which its route's transform fails is in the dead letters, and its publisher is told that it was taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from gateway import model
from gateway.broker.letters import split_headers
from gateway.errors import Conflict, InvalidRequest
from gateway.requests import DONE, Begin, Commit, Published, ReadDeadLetters, ReplayDeadLetter
from gateway.store.interface import Durability
from tests.unit.broker.house import Opened, opened, publish

STEPS = (model.SetHeader({"seen": "1"}), model.Filter("value.n > 1"))
ROUTE = model.Route(
    "r", model.Match(topic="in.*"), (model.StoreTarget("out.{1}"), model.StoreTarget("copy.{1}")), transform=STEPS
)


def stored(house: Opened, topic: str) -> Sequence[bytes]:
    if topic not in house.store.topics:
        return []
    result = house.store.read_cached(topic, 0, 0, 100, 1 << 20, 0)
    assert result is not None
    return [value for run in result.runs for value in run.columns.values()]


def balanced(house: Opened) -> bool:
    return all(door.unaccounted == 0 for door in house.house.doors.counts())


async def test_it_is_kept_as_it_came_with_the_reason(tmp_path: Path) -> None:
    async with opened(tmp_path, ROUTE) as house:
        client = house.client()
        keys = [b"a", b"b", b"c", b"d"]
        reply = await client.publish("in.x", b'{"n": 2}', b"no json", b'{"n": 1}', b'{"m": 1}', keys=keys)
        assert isinstance(reply, Published)
        assert reply.refused == {}
        assert reply.position(0) == (0, 0)
        assert stored(house, "out.x") == stored(house, "copy.x") == [b'{"n": 2}']
        result = house.store.read_cached("out.x.dlq", 0, 0, 100, 1 << 20, 0)
        assert result is not None
        (run,) = result.runs
        assert run.columns.values() == [b"no json", b'{"m": 1}']
        assert run.columns.keys == [b"b", b"d"]
        own, facts = split_headers(run.columns.headers_of(0))
        assert own == ()  # as it came: nothing that an earlier step did
        assert (facts.reason, facts.attempts, facts.topic) == ("transform", 1, "out.x")
        assert "the payload is not JSON" in facts.first_error
        assert facts.first_error == facts.last_error
        assert (run.meta_of(0)[0].route, run.meta_of(0)[0].origin.listener) == ("r", "door")
        (door,) = house.house.doors.counts()
        assert (door.received, door.stored, door.filtered, door.refused) == (4, 3, 1, 0)
        assert balanced(house)


async def test_letters_of_what_goes_to_memory_are_on_disk(tmp_path: Path) -> None:
    memory = model.TopicSettings(durability=model.DurabilitySetting(Durability.MEMORY))
    targets = (model.StoreTarget("out.{1}", memory), model.StoreTarget("copy.{1}"))
    async with opened(tmp_path, attrs.evolve(ROUTE, targets=targets)) as house:
        client = house.client()
        reply = await client.publish("in.x", b"no json", b'{"n": 2}')
        assert isinstance(reply, Published)
        assert reply.refused == {}
        begun = (await client.ask(Begin(0))).transaction
        await client.ask(publish("in.x", b'{"n": 3}', transaction=begun))
        assert await client.ask(Commit(0, begun)) == DONE
        assert stored(house, "out.x") == stored(house, "copy.x") == [b'{"n": 2}', b'{"n": 3}']
        assert stored(house, "out.x.dlq") == [b"no json"]
        assert balanced(house)
    async with opened(tmp_path, ROUTE) as house:
        assert set(house.store.topics) == {"copy.x", "out.x.dlq"}


async def test_a_batch_of_which_nothing_is_left(tmp_path: Path) -> None:
    async with opened(tmp_path, ROUTE) as house:
        for _ in range(2):
            assert isinstance(await house.client().publish("in.x", b"bad"), Published)
        assert stored(house, "out.x.dlq") == [b"bad", b"bad"]
        assert "out.x" not in house.store.topics
        assert balanced(house)


async def test_in_a_transaction_it_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, ROUTE) as house:
        client = house.client()
        begun = await client.ask(Begin(0))
        reply = await client.publish("in.x", b"bad", transaction=begun.transaction)
        assert isinstance(reply, InvalidRequest) or isinstance(reply.refused[0], InvalidRequest)
        assert not house.store.topics
        assert balanced(house)


async def test_it_does_not_get_around_the_transform_by_being_replayed(tmp_path: Path) -> None:
    route = model.Route("r", model.Match(), (model.StoreTarget("{topic}"),), transform=STEPS)
    async with opened(tmp_path, route) as house:
        client = house.client()
        await client.publish("x", b'{"n": 2}', b"bad")
        (letter,) = (await client.ask(ReadDeadLetters(0, "x", 10))).letters
        assert isinstance(await client.ask(ReplayDeadLetter(0, "x", letter.id)), Conflict)
        assert stored(house, "x") == [b'{"n": 2}']


@pytest.mark.parametrize("bad", [b"no json", b'{"n": 3}'])
async def test_a_schema_that_refuses_what_is_left_leaves_nothing_unaccounted(tmp_path: Path, bad: bytes) -> None:
    topics = {"t": model.TopicSettings(schema="nobody knows it")}
    route = model.Route("r", model.Match(), (model.StoreTarget("{topic}"),), transform=STEPS)
    async with opened(tmp_path, route, topics=topics) as house:
        (number,) = (client := house.client()).start(publish("t", b'{"n": 0}', bad, b'{"n": 9}'))
        await client.outcome(number)
        assert balanced(house)
