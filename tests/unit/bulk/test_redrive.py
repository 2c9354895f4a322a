"""Which dead letters go out again, which stay and why, and that a purge forgets what it dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import model
from gateway.bulk.service import Bulk
from gateway.bulk.wire import Redrive, Redriven
from gateway.envelope import Columns, Envelope, Headers
from gateway.errors import Conflict, InvalidRequest, UnknownTopic
from gateway.store.interface import Unit
from tests.unit.broker.house import Opened, publish
from tests.unit.bulk.test_appends import bulk


async def bury(
    house: Opened, topic: str, *values: bytes, headers: Headers = (), expires: int = 0, route: str = ""
) -> None:
    """Messages of a topic, and each of them in its dead letters."""
    columns = Columns.of(values, None, [headers] * len(values), [expires] * len(values) if expires else None)
    request = publish(topic)
    client = house.client()
    from msgspec.structs import replace

    reply = await client.ask(replace(request, batch=replace(request.batch, columns=columns)))
    result = await house.store.read(topic, 0, reply.base_offset, len(values), 1 << 20, 0)
    for run in result.runs:
        for index in range(run.count):
            creates, append = house.house.letters.dead_letter_append(
                run, index, reason="test", attempts=3, first_error="one", last_error="two"
            )
            await house.store.submit(Unit(creates=creates, appends=[append])).wait()


async def redriven(api: Bulk, house: Opened, topic: str, *offsets: int, **more: Any) -> list[Redriven]:
    epoch = house.store.topics[topic].epoch
    asked = Redrive(
        topic=topic, epoch=more.pop("epoch", epoch), partition=more.pop("partition", 0), offsets=offsets, **more
    )
    return list(await api.redrives.redrive(api.caller("peer"), asked))


async def stored(house: Opened, topic: str) -> list[Envelope]:
    result = await house.store.read(topic, 0, 0, 1_000, 1 << 20, 0)
    return [one for run in result.runs for one in run.envelopes()]


async def test_back_where_it_came_from_as_what_it_was(tmp_path: Path) -> None:
    routes = (
        model.Route("special", model.Match(protocol=("toy",), topic="t"), (model.StoreTarget("{topic}"),)),
        model.IDENTITY,
    )
    async with bulk(tmp_path, *routes) as (api, house):
        await bury(house, "t", b"a", b"b", headers=(("h", b"1"),))
        assert await redriven(api, house, "t.dlq", 1, dry_run=True) == [Redriven(1, "would", "t")]
        assert await redriven(api, house, "t.dlq", 1) == [Redriven(1, "done", "t")]
        assert await redriven(api, house, "t.dlq", 0, 1) == [Redriven(0, "done", "t"), Redriven(1, "before", "t")]
        first, _second, again, last = await stored(house, "t")
        assert [again.value, last.value] == [b"b", b"a"]
        assert (again.route, again.origin) == ("special", first.origin)
        assert again.headers == (("h", b"1"), ("x-dead-letter-count", b"1"))
        assert await api.redrives.done("t.dlq", house.store.topics["t.dlq"].epoch, 0, 0, 10) == [0, 1]
        assert all(door.unaccounted == 0 for door in house.house.snapshot().doors)


async def test_what_stays(tmp_path: Path) -> None:
    async with bulk(tmp_path) as (api, house):
        await bury(house, "t", b"often", headers=(("x-dead-letter-count", b"4"),))
        await bury(house, "t", b"late", expires=5)
        await house.client().publish("t.dlq", b"by hand")
        found = await redriven(api, house, "t.dlq", 0, 1, 2, 3, max_replays=4)
        assert [(one.outcome, one.message.split(":")[0]) for one in found] == [
            ("refused", "it died 5 times, and --max-replays is 4"),
            ("refused", "it has expired meanwhile"),
            ("refused", "this is no dead letter"),
            ("gone", "there is no letter at this offset any more"),
        ]
        assert await redriven(api, house, "t.dlq", 0, max_replays=5) == [Redriven(0, "done", "t")]


async def test_a_topic_that_is_gone_and_one_that_is_not_what_it_was(tmp_path: Path) -> None:
    from gateway.requests import DeleteTopic

    async with bulk(tmp_path) as (api, house):
        await bury(house, "t", b"a")
        await house.client().ask(DeleteTopic(0, "t"))
        (left,) = await redriven(api, house, "t.dlq", 0, dry_run=True)
        assert (left.outcome, left.message) == ("refused", "the topic t is gone: name another place with --to")
        assert await redriven(api, house, "t.dlq", 0, to="u") == [Redriven(0, "done", "u")]
        assert [one.value for one in await stored(house, "u")] == [b"a"]
        with pytest.raises(Conflict, match="purged and made again"):
            await redriven(api, house, "t.dlq", 0, epoch=1)
        with pytest.raises(InvalidRequest, match="no partition 3"):
            await redriven(api, house, "t.dlq", 0, partition=3)
        with pytest.raises(InvalidRequest, match="at most 1000 letters"):
            await redriven(api, house, "t.dlq", *range(1001))
        with pytest.raises(InvalidRequest, match="count from 0"):
            await redriven(api, house, "t.dlq", 1 << 63)
        with pytest.raises(InvalidRequest, match="no partition"):
            await api.redrives.done("t.dlq", 1, 1 << 40, 0, 10)


async def test_a_purge_drops_letters_and_nothing_else(tmp_path: Path) -> None:
    async with bulk(tmp_path) as (api, house):
        await bury(house, "t", b"a")
        await redriven(api, house, "t.dlq", 0)
        assert [one.name for one in (await api.topics()).topics if one.dead_letters] == ["t.dlq"]
        with pytest.raises(InvalidRequest, match="t does not hold dead letters"):
            await api.purge("t")
        with pytest.raises(UnknownTopic):
            await api.purge("nothing.dlq")
        house.house.topics.before_delete.append(lambda name: "a forward reads it" if name == "t.dlq" else None)
        with pytest.raises(Conflict, match="a forward reads it"):
            await api.purge("t.dlq")
        house.house.topics.before_delete.clear()
        gone: list[str] = []
        house.house.topics.after_delete.append(gone.append)
        (listed,) = [one for one in (await api.topics()).topics if one.dead_letters]
        seen = (listed.epoch, sum(one.end for one in listed.partitions))
        late = [bury(house, "t", b"late") for _ in range(2)]
        await late[0]
        for wrong in (seen, (seen[0] + 1, seen[1] + 1)):
            with pytest.raises(Conflict, match="letters have come to"):
                await api.purge("t.dlq", wrong)
        assert not gone
        await late[1]
        await api.purge("t.dlq", (seen[0], seen[1] + 2))
        assert gone == ["t.dlq"]
        assert await house.store.scan("redriven", b"", 10) == []
        await bury(house, "t", b"b")
        assert await redriven(api, house, "t.dlq", 0) == [Redriven(0, "done", "t")]
