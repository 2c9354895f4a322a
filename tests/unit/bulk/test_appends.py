"""Appends with a key on the real broker and store: two at once, memory topics, transforms, what is left of a week."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from gateway import model
from gateway.bulk.appends import Appends
from gateway.bulk.ranges import RangeAsked
from gateway.bulk.service import Bulk, Listeners
from gateway.bulk.wire import Appended, AppendRequest, Stretch
from gateway.errors import InvalidRequest, NotRouted, OffsetOutOfRange, UnknownTopic
from gateway.requests import CreateTopic
from gateway.routing.table import compile_table
from tests.unit.broker.house import Opened, opened

MEMORY = model.TopicSettings(durability=model.DurabilitySetting(model.Durability.MEMORY))


@asynccontextmanager
async def bulk(path: Path, *routes: model.Route) -> AsyncIterator[tuple[Bulk, Opened]]:
    async with opened(path, *routes) as house:
        config = model.Config(listeners={}, routes=routes or (model.IDENTITY,))
        yield Bulk(house.store, house.house, compile_table(config, {}), Listeners({"door": ["toy"]})), house


def body(*values: bytes, **more: Any) -> AppendRequest:
    return AppendRequest(**{"address": "t", "producer": "p", "values": values, **more})


async def test_two_at_once_are_one(tmp_path: Path) -> None:
    async with bulk(tmp_path) as (api, opened_house):
        found: list[Appended] = []

        async def append(service: Appends) -> None:
            found.append(await service.append(api.caller("peer"), body(b"a", b"b")))

        other = Appends(
            opened_house.store, opened_house.house.pipeline, opened_house.house.appending, opened_house.house.clock
        )
        async with trio.open_nursery() as nursery:
            # one waits for its turn; the other does not know of it, as after a client that was cut off in the midst
            nursery.start_soon(append, api.appends)
            nursery.start_soon(append, api.appends)
            nursery.start_soon(append, other)
        assert sorted(one.duplicate for one in found) == [False, True, True]
        assert {tuple(one.places) for one in found} == {(Stretch("t", 0, 0, 2),)}
        assert opened_house.store.topics["t"].partitions[0].end == 2
        assert all(door.unaccounted == 0 for door in opened_house.house.snapshot().doors)


async def test_memory_topics_take_appends_too(tmp_path: Path) -> None:
    route = model.Route("m", model.Match(), (model.StoreTarget("{topic}", MEMORY),))
    async with bulk(tmp_path, route) as (api, house):
        first = await api.appends.append(api.caller("peer"), body(b"a"))
        again = await api.appends.append(api.caller("peer"), body(b"a"))
        assert (first.places, first.duplicate, again.duplicate) == ([Stretch("t", 0, 0, 1)], False, True)
        assert (again.stored, again.places) == (1, [])  # nobody knew its place when the key was written
        assert house.store.topics["t"].partitions[0].end == 1


async def test_what_is_filtered_is_remembered_as_said(tmp_path: Path) -> None:
    route = model.Route("f", model.Match(), (model.StoreTarget("{topic}"),), transform=(model.Filter("value.a > 1"),))
    async with bulk(tmp_path, route) as (api, house):
        for expected in (False, True):
            done = await api.appends.append(api.caller("peer"), body(b'{"a": 1}', b'{"a": 2}', b'{"a": 3}'))
            assert (done.stored, done.places, done.duplicate) == (2, [Stretch("t", 0, 0, 2)], expected)
            assert done.filtered == 1
            none = await api.appends.append(api.caller("peer"), body(b'{"a": 0}', sequence=1))
            assert (none.stored, none.places, none.duplicate) == (0, [], expected)
        assert house.store.topics["t"].partitions[0].end == 2


async def test_an_address_of_another_protocol(tmp_path: Path) -> None:
    routes = (
        model.Route("mine", model.Match(protocol=("toy",)), (model.StoreTarget("toys.{topic}"),)),
        model.Route("some", model.Match(topic="a*"), (model.StoreTarget("{topic}"),)),
    )
    async with bulk(tmp_path, *routes) as (api, _house):
        as_toy = await api.appends.append(api.caller("peer", "toy"), body(b"x", protocol="toy"))
        assert as_toy.places == [Stretch("toys.t", 0, 0, 1)]
        plain = await api.appends.append(api.caller("peer"), body(b"x", address="abc", producer="q"))
        assert plain.places == [Stretch("abc", 0, 0, 1)]
        with pytest.raises(NotRouted):
            await api.appends.append(api.caller("peer"), body(b"x", address="nobody", producer="r"))
        with pytest.raises(InvalidRequest, match="no listener other; there are door"):
            api.caller("peer", listener="other")
        assert api.caller("peer", listener="door").origin.protocol == "bulk"


async def test_the_topic_may_have_to_exist(tmp_path: Path) -> None:
    async with bulk(tmp_path) as (api, house):
        with pytest.raises(UnknownTopic):
            await api.appends.append(api.caller("peer"), body(b"x", create=False))
        await house.client().ask(CreateTopic(0, "t"))
        assert (await api.appends.append(api.caller("peer"), body(b"x", create=False))).stored == 1


async def test_a_range_that_retention_has_begun_to_remove(tmp_path: Path) -> None:
    async with bulk(tmp_path) as (api, house):
        await api.appends.append(api.caller("peer"), body(b"a", b"b"))
        house.store.topics["t"].partitions[0].start = 1
        with pytest.raises(OffsetOutOfRange) as caught:
            api.ranges.find(RangeAsked("t", 0, 0))
        assert (caught.value.first, caught.value.next_offset) == (1, 2)
        parts = [part async for part in api.ranges.chunks(RangeAsked("t", 0, 0))]
        assert msgspec.json.decode(parts[-1][5:])["type"] == "OffsetOutOfRange"
