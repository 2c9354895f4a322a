"""What another gateway sends again is stored once, whatever happens in between; what is not known to be the same is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway import model
from gateway.broker.publish import deduplication as module
from gateway.envelope import Batch, Columns, Copies
from gateway.errors import InvalidRequest, OutOfTurn, Throttled, UnknownTopic
from gateway.requests import Publish, Published, RegisterSchema
from gateway.store.committer import Mode
from gateway.store.interface import DropTopic, Durability, Unit
from gateway.store.sqlite import open_store
from tests.unit.bridges.house import bridged, upstream
from tests.unit.bridges.peers import Peer, listening
from tests.unit.broker.house import Opened, opened, opened_on
from tests.unit.broker.support import OPTIONS

SOURCE = b"s" * 16
SCHEMA = b'{"type": "object"}'


def copied(first: int, *values: bytes, batch: bytes = b"b" * 16, source: bytes = SOURCE, index: int = 0) -> Publish:
    """Messages that lie side by side in another log, from offset `first` on."""
    copies = Copies(source, [(first, batch, index, len(values))])
    return Publish(0, Batch("copy", Columns.of(values), copies=copies))


async def stored(place: Opened, topic: str = "copy") -> list[bytes]:
    state = place.store.topics.get(topic)
    if state is None:
        return []
    result = await place.store.read(topic, 0, 0, 1_000, 1 << 20, 0)
    return [value for run in result.runs for value in run.columns.values()]


def door(place: Opened) -> tuple[int, int, int, int]:
    (counts,) = place.house.snapshot().doors
    return counts.received, counts.stored, counts.duplicate, counts.unaccounted


async def test_a_second_time_is_answered_and_not_stored(tmp_path: Path):
    async with opened(tmp_path) as place:
        client = place.client()
        assert isinstance(await client.ask(copied(5, b"a", b"b")), Published)
        assert isinstance(await client.ask(copied(5, b"a", b"b")), Published)
        await client.ask(copied(6, b"b", b"c", index=1))
        assert await stored(place) == [b"a", b"b", b"c"]
        assert door(place) == (6, 3, 3, 0)


async def test_a_restart_forgets_nothing(tmp_path: Path):
    async with opened(tmp_path) as place:
        await place.client().ask(copied(126, *[b"%d" % number for number in range(300)]))
    async with opened(tmp_path) as place:
        await place.client().ask(copied(127, b"1", index=1))
        await place.client().ask(copied(425, b"299", b"300", index=299))
        assert await stored(place) == [b"%d" % number for number in range(301)]


async def test_other_messages_at_the_same_offsets_are_stored(tmp_path: Path):
    """A log that was restored from a copy gives its offsets again."""
    async with opened(tmp_path) as place:
        client = place.client()
        await client.ask(copied(0, b"a", b"b"))
        await client.ask(copied(0, b"x", b"y", batch=b"c" * 16))
        assert await stored(place) == [b"a", b"b", b"x", b"y"]


async def test_a_source_belongs_to_who_sent_it(tmp_path: Path):
    async with opened(tmp_path) as place:
        await place.client(name="one").ask(copied(0, b"a"))
        await place.client(name="two").ask(copied(0, b"a"))
        await place.client(name="two").ask(copied(0, b"a", source=b"t" * 16))
        assert await stored(place) == [b"a"] * 3


async def test_what_was_refused_is_not_known(tmp_path: Path):
    """It may be sent again when the schema has changed."""
    topics = {"copy": model.TopicSettings(schema="object")}
    async with opened(tmp_path, topics=topics) as place:
        client = place.client()
        await client.ask(RegisterSchema(0, "object", "json", SCHEMA))
        reply = await client.ask(copied(0, b"{}", b"[]", b'{"a": 1}'))
        assert list(reply.refused) == [1]
        reply = await client.ask(copied(0, b"{}", b"[]", b'{"a": 1}', b"{} "))
        assert list(reply.refused) == [1]
        assert await stored(place) == [b"{}", b'{"a": 1}', b"{} "]
        assert door(place) == (7, 3, 2, 0)


async def test_what_is_refused_as_a_whole_leaves_nothing_behind(tmp_path: Path):
    async with opened(tmp_path) as place:
        client = place.client()
        await client.ask(copied(0, b"a"))
        await client.ask(replace(copied(1, b"b", index=1), create=False))
        bad = Publish(0, Batch("not/../allowed", Columns.of([b"c"]), copies=Copies(SOURCE, [(2, b"b" * 16, 2, 1)])))
        assert isinstance(await client.ask(bad), Exception)
        await client.ask(copied(2, b"c", index=2))
        assert await stored(place) == [b"a", b"b", b"c"]


async def test_more_or_fewer_copies_than_messages_are_refused(tmp_path: Path):
    async with opened(tmp_path) as place:
        batch = Batch("copy", Columns.of([b"a"]), copies=Copies(SOURCE, [(0, b"b" * 16, 0, 2)]))
        assert isinstance(await place.client().ask(Publish(0, batch)), InvalidRequest)


async def test_twice_in_one_request_is_once(tmp_path: Path):
    async with opened(tmp_path) as place:
        copies = Copies(SOURCE, [(0, b"b" * 16, 0, 2), (0, b"b" * 16, 0, 2)])
        await place.client().ask(Publish(0, Batch("copy", Columns.of([b"a", b"b"] * 2), copies=copies)))
        assert await stored(place) == [b"a", b"b"]


async def test_what_a_broker_elsewhere_answers_goes_there(tmp_path: Path):
    peer = Peer()
    proxied = model.Route("live", model.Match(topic="copy"), (model.Proxy("far", "{topic}"),))
    async with listening(peer), bridged(tmp_path, [upstream(peer.port)], proxied) as gateway:
        await peer.until(lambda: gateway.bridges.pools["far"].connected)
        assert isinstance(await gateway.client().ask(copied(0, b"a")), Published)
    assert peer.values() == [b"a"]


async def test_a_source_whose_first_message_could_not_be_stored_is_remembered_all_the_same(tmp_path: Path):
    async with open_store(tmp_path, OPTIONS, mode=Mode.THREAD) as store, opened_on(store) as place:
        client = place.client()
        await client.ask(Publish(0, Batch("copy", Columns.of([b"before"]))))
        store.submit(Unit(deletes=[DropTopic("copy")]))
        assert isinstance(await client.ask(copied(0, b"a")), UnknownTopic)
        assert isinstance(await client.ask(copied(0, b"a")), Published)
    async with opened(tmp_path) as place:
        assert isinstance(await place.client().ask(copied(0, b"a")), Published)
        assert await stored(place) == [b"a"]


async def test_what_could_not_be_stored_is_not_known_by_the_batch_behind_it(tmp_path: Path):
    """Both are on their way at once, and their marks lie side by side in one row."""
    first, behind = copied(0, b"a"), copied(1, b"b", index=1)
    behind = replace(behind, batch=replace(behind.batch, address="other"))
    async with open_store(tmp_path, OPTIONS, mode=Mode.THREAD) as store, opened_on(store) as place:
        client = place.client()
        await client.ask(copied(9, b"before", index=9))
        store.submit(Unit(deletes=[DropTopic("copy")]))
        one, two = client.start(first), client.start(behind)
        assert isinstance(await client.outcome(one[0]), UnknownTopic)
        if not isinstance(await client.outcome(two[0]), Published):
            assert isinstance(await client.ask(behind), Published)
    async with opened(tmp_path) as place:
        assert isinstance(await place.client().ask(first), Published)
        assert await stored(place) == [b"a"]
        assert await stored(place, "other") == [b"b"]


def behind(before: Publish, *values: bytes, address: str = "copy", gap: int = 0) -> Publish:
    """What follows that in the other log, `gap` messages later, and was sent before that was answered."""
    copies = before.batch.copies
    offset, batch, index = copies.last
    ranges = [(offset + 1 + gap, batch, index + 1 + gap, len(values))]
    return Publish(0, Batch(address, Columns.of(values), copies=Copies(SOURCE, ranges, after=copies.last)))


@pytest.mark.parametrize("first", [5, 127, 1_000])
async def test_what_comes_after_something_is_stored_behind_it(tmp_path: Path, first: int):
    """Whether their marks lie in one row or not."""
    async with opened(tmp_path) as place:
        client = place.client()
        one = copied(first, b"a", b"b")
        two = behind(one, b"c")
        three = behind(two, b"d", gap=300)
        assert isinstance(await client.ask(two), OutOfTurn)
        started = [client.start(request) for request in (one, two, three)]
        for (number,) in started:
            assert isinstance(await client.outcome(number), Published)
        assert await stored(place) == [b"a", b"b", b"c", b"d"]
        assert isinstance(await client.ask(two), Published)  # again
        assert await stored(place) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("first", [8, 127])
async def test_what_comes_after_something_that_could_not_be_stored_is_not_either(tmp_path: Path, first: int):
    """The first is refused by its commit, when the second is on its way: their marks may be in different rows."""
    one = copied(first, b"a")
    two = behind(one, b"b", address="other")
    async with open_store(tmp_path, OPTIONS, mode=Mode.THREAD) as store, opened_on(store) as place:
        client = place.client()
        await client.ask(Publish(0, Batch("copy", Columns.of([b"before"]))))
        store.submit(Unit(deletes=[DropTopic("copy")]))
        (first_of,), (second_of,) = client.start(one), client.start(two)
        assert isinstance(await client.outcome(first_of), UnknownTopic)
        assert isinstance(await client.outcome(second_of), Throttled)
        assert await stored(place, "other") == []
        assert isinstance(await client.ask(two), OutOfTurn)
        for request in (one, two):
            assert isinstance(await client.ask(request), Published)
        assert await stored(place) == [b"a"]
        assert await stored(place, "other") == [b"b"]


async def test_what_is_still_read_from_a_connection_has_no_place_between_what_came_again_over_another(tmp_path: Path):
    """The beginning of a chain was refused there. Some of it came again, and by that alone what follows would be in its turn."""
    async with opened(tmp_path) as place:
        lost, other = place.client(), place.client()
        one = copied(0, b"first of a key", b"of none")
        two = behind(one, b"second of that key")
        refused = replace(one, batch=replace(one.batch, address="not/../allowed"))
        assert isinstance(await lost.ask(refused), Exception)
        assert isinstance(await other.ask(copied(1, b"of none", index=1)), Published)
        assert isinstance(await lost.ask(two), OutOfTurn)
        assert isinstance(await other.ask(one), Published)
        assert isinstance(await lost.ask(two), OutOfTurn)
        assert isinstance(await other.ask(two), Published)
        assert await stored(place) == [b"of none", b"first of a key", b"second of that key"]


async def test_what_could_not_be_stored_gives_nobody_a_turn(tmp_path: Path):
    """It came over the connection that is lost, behind what came again over another, and its commit failed."""
    one, again = copied(0, b"first of a key", b"of none"), copied(1, b"of none", index=1)
    again = replace(again, batch=replace(again.batch, address="other"))
    async with open_store(tmp_path, OPTIONS, mode=Mode.THREAD) as store, opened_on(store) as place:
        lost, other = place.client(), place.client()
        await other.ask(Publish(0, Batch("copy", Columns.of([b"before"]))))
        assert isinstance(await other.ask(again), Published)
        store.submit(Unit(deletes=[DropTopic("copy")]))
        assert isinstance(await lost.ask(one), UnknownTopic)
        assert isinstance(await lost.ask(behind(one, b"second of that key")), OutOfTurn)
        assert isinstance(await other.ask(one), Published)
        assert await stored(place) == [b"first of a key"]


async def test_nothing_in_memory_overtakes_what_is_being_stored(tmp_path: Path):
    topics = {"fleeting": model.TopicSettings(durability=model.DurabilitySetting(Durability.MEMORY))}
    async with open_store(tmp_path, OPTIONS, mode=Mode.THREAD) as store, opened_on(store, topics=topics) as place:
        client = place.client()
        one = copied(0, b"a")
        two = behind(one, b"b", address="fleeting")
        (first_of,), (second_of,) = client.start(one), client.start(two)
        assert isinstance(await client.outcome(second_of), OutOfTurn)
        assert isinstance(await client.outcome(first_of), Published)
        assert isinstance(await client.ask(two), Published)
        assert await stored(place, "fleeting") == [b"b"]


async def test_what_went_to_memory_is_known_and_holds_up_nothing_that_goes_to_disk(tmp_path: Path):
    """Their marks lie side by side, where a configuration was changed meanwhile."""
    topics = {"fleeting": model.TopicSettings(durability=model.DurabilitySetting(Durability.MEMORY))}
    async with opened(tmp_path, topics=topics) as place:
        client = place.client()
        one, two, three = copied(0, b"a"), copied(1, b"b", index=1), copied(2, b"c", index=2)
        one = replace(one, batch=replace(one.batch, address="fleeting"))
        three = replace(three, batch=replace(three.batch, address="fleeting"))
        for request in (one, two, three, one, two, three, copied(3, b"d", index=3)):
            assert isinstance(await client.ask(request), Published)
        assert await stored(place) == [b"b", b"d"]
        assert await stored(place, "fleeting") == [b"a", b"c"]
    async with opened(tmp_path, topics=topics) as place:
        await place.client().ask(copied(1, b"b", index=1))
        assert await stored(place) == [b"b", b"d"]


async def test_of_what_is_out_of_turn_nothing_is_kept(tmp_path: Path):
    async with opened(tmp_path) as place:
        assert isinstance(await place.client().ask(behind(copied(0, b"a"), b"b")), OutOfTurn)
        assert not place.house.pipeline.deduplication._windows


async def test_a_broker_elsewhere_keeps_no_turns(tmp_path: Path):
    peer = Peer()
    proxied = model.Route("live", model.Match(topic="copy"), (model.Proxy("far", "{topic}"),))
    async with listening(peer), bridged(tmp_path, [upstream(peer.port)], proxied) as gateway:
        await peer.until(lambda: gateway.bridges.pools["far"].connected)
        assert isinstance(await gateway.client().ask(behind(copied(0, b"a"), b"b")), OutOfTurn)
    assert peer.values() == []


async def test_windows_are_bounded_and_the_idle_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_SEGMENTS", 2)
    async with opened(tmp_path) as place:
        client = place.client()
        for name in (b"1", b"2", b"1", b"3"):
            await client.ask(copied(0, name, source=name * 16))
        assert len({key[:16] for key in place.store.table(module.TABLE)}) == 2
        await client.ask(copied(0, b"1", source=b"1" * 16))
        assert await stored(place) == [b"1", b"2", b"3"]


async def test_a_source_of_which_nothing_is_taken_leaves_nothing_behind(tmp_path: Path):
    topics = {"copy": model.TopicSettings(schema="object")}
    async with opened(tmp_path, topics=topics) as place:
        client = place.client()
        await client.ask(RegisterSchema(0, "object", "json", SCHEMA))
        for number in range(5):
            await client.ask(copied(0, b"[]", b"1", source=bytes([number]) * 16))
        assert not place.house.pipeline.deduplication._windows
        assert not place.store.table(module.TABLE)


async def test_a_source_that_is_silent_for_long_is_forgotten_at_a_start(tmp_path: Path, monkeypatch):
    async with opened(tmp_path) as place:
        await place.client().ask(copied(0, b"a"))
    monkeypatch.setattr(module, "KEEP_MS", -1_000)
    async with opened(tmp_path) as place:
        await place.client().ask(copied(0, b"a"))
        assert await stored(place) == [b"a", b"a"]
