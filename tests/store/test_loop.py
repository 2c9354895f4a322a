"""When a store in an event loop makes its commits: together what came together, at once for who is alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gateway.store import loop
from gateway.store.interface import Durability, MakeTopic, Ticket, TopicConfig
from gateway.store.sqlite import open_store
from tests.store.kit import SMALL, append, everything, unit, until

LAZY = TopicConfig(durability=Durability.INTERVAL, interval=0.005)


def chunks(store, topic: str) -> list[int]:
    """How many records each commit has put into a topic."""
    return [run.columns.count for run in store.topics[topic].logs[0].hot.since(0)]


async def made(store, *topics: str, config: TopicConfig) -> None:
    for topic in topics:
        await store.submit(unit(append(topic, b"first"), creates=[MakeTopic(topic, config)])).wait()


def handed_in(store, by: int, topic: str, *values: bytes) -> list[Ticket]:
    """What the requests of one read lead to."""
    store.hold()
    tickets = [store.submit(unit(append(topic, value))) for value in values]
    assert not any(ticket.done for ticket in tickets)
    store.release(by)
    return tickets


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.INTERVAL])
async def test_what_came_in_one_read_is_one_commit(tmp_path: Path, durability: Durability) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig(durability=durability))
        for number in range(3):
            for ticket in handed_in(store, 1, "t", b"%d" % number, b"b", b"c"):
                await ticket.wait()
        assert chunks(store, "t") == [1, 3, 3, 3]
        assert await everything(store, "t") == [b"first", b"0", b"b", b"c", b"1", b"b", b"c", b"2", b"b", b"c"]


async def test_who_is_alone_has_a_small_unsynced_commit_at_once(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=LAZY)
        for ticket in handed_in(store, 1, "t", b"0"):
            await ticket.wait()
        tickets = handed_in(store, 1, "t", b"1", b"2")
        assert [ticket.placements[0].base_offset for ticket in tickets] == [2, 3]


async def test_what_a_commit_leads_to_is_committed_too_and_not_by_it(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=LAZY)
        await handed_in(store, 1, "t", b"0")[0].wait()
        led_to: list[list[Ticket]] = []
        store.hold()
        store.submit(unit(append("t", b"1"))).on_done(lambda _ticket: led_to.append(handed_in(store, 1, "t", b"2")))
        store.release(1)
        assert led_to[0][0].done
        assert chunks(store, "t") == [1, 1, 1, 1]


async def test_what_is_made_in_the_loop_is_made_at_once_whoever_hands_it_in(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=LAZY)
        for by in (*range(1, 6), *range(1, 6)):
            (ticket,) = handed_in(store, by, "t", b"%d" % by)
            assert ticket.done
        assert chunks(store, "t") == [1] * 11


async def test_what_was_handed_in_before_goes_along(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=LAZY)
        alone = store.submit(unit(append("t", b"0")))  # by nobody who reads for several: it waits for the next pass
        assert not alone.done
        assert handed_in(store, 2, "t", b"1")[0].done
        assert alone.done
        assert await everything(store, "t") == [b"first", b"0", b"1"]


async def test_several_that_are_synced_share_a_commit(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig())
        before = chunks(store, "t")
        tickets = [handed_in(store, by, "t", b"%d" % by)[0] for by in range(1, 6)]
        assert not any(ticket.done for ticket in tickets)
        for ticket in tickets:
            await ticket.wait()
        assert chunks(store, "t") == [*before, 5]


async def test_who_writes_alone_waits_for_nobody_who_only_reads(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig())
        await handed_in(store, 1, "t", b"0")[0].wait()
        store.hold()  # as when what was stored is delivered: nothing to commit
        store.release(2)
        (ticket,) = handed_in(store, 1, "t", b"1")
        assert store._loop._working  # the thread has it at once, and not from the next pass on
        await ticket.wait()
        (ticket,) = handed_in(store, 3, "t", b"2")
        assert not store._loop._working  # somebody else may have something as well: one commit for both
        await ticket.wait()


async def test_the_next_commit_is_written_while_the_tickets_of_the_last_are_finished(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig())
        seen: list[tuple[bytes, bool]] = []

        def note(ticket: Ticket) -> None:
            seen.append((ticket.unit.appends[0].columns.value(0), store._loop._working))

        await handed_in(store, 1, "t", b"0")[0].wait()
        for value in (b"1", b"2", b"3"):
            for ticket in handed_in(store, 1, "t", value):
                ticket.on_done(note)  # the first is with the thread already, the others wait for it
        await ticket.wait()
        assert seen == [(b"1", True), (b"2", False), (b"3", False)]
        assert chunks(store, "t") == [1, 1, 1, 2]


async def under_way(store, *sources: int) -> list[Ticket]:
    """A commit of one unit from each, which the thread is at: nobody hears of its end before the next await."""
    await handed_in(store, 1, "t", b"who comes again is served at once")[0].wait()
    return read(store, 1, *sources)


def read(store, by: int, *sources: int) -> list[Ticket]:
    """One unit from each."""
    store.hold()
    tickets = [store.submit(unit(append("t", b"%d" % source), source=source)) for source in sources]
    store.release(by)
    return tickets


async def through(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        if not ticket.done:  # or each would be a pass of the loop
            await ticket.wait()
        assert ticket.error is None


@pytest.mark.parametrize(
    ("meanwhile", "commits"),
    [
        pytest.param([4], [3, 4], id="who waits for his answers waits for the others too"),
        pytest.param([3], [3, 1, 3], id="who does not wait for them does not wait"),
        pytest.param([4, 3], [3, 2, 3], id="nor does who comes with him"),
        pytest.param([0], [3, 1, 3], id="nor the gateway itself"),
        pytest.param([4, 5, 6], [3, 3, 3], id="as many do not wait"),
    ],
)
async def test_those_who_are_answered_and_those_who_came_meanwhile_share_the_next_commit(
    tmp_path: Path, meanwhile: list[int], commits: list[int]
) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig())
        first = await under_way(store, 1, 2, 3)
        others = read(store, 2, *meanwhile)
        await through(first)
        again = read(store, 2, 1, 2, 3)
        await through([*others, *again])
        assert chunks(store, "t")[2:] == commits


async def test_who_came_meanwhile_is_stored_though_nobody_comes_back(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig())
        first = await under_way(store, 1, 2, 3)
        others = read(store, 2, 4)
        await through([*first, *others])
        assert chunks(store, "t")[2:] == [3, 1]


async def test_what_has_no_room_in_one_commit_does_not_wait_for_it(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig())
        first = await under_way(store, 1, 2, 3)
        others = read(store, 2, 4)
        store.committer.pace.room = 3
        await through(first)
        again = read(store, 2, 1, 2, 3)
        await through([*others, *again])
        assert chunks(store, "t")[2] == 3
        assert others[0].placements[0].base_offset < again[0].placements[0].base_offset
        assert chunks(store, "t")[3] == 1


async def test_a_mistake_in_a_callback_ends_the_store_and_not_who_asked(tmp_path: Path) -> None:
    def mistaken(_ticket: Ticket) -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError):
        async with open_store(tmp_path, SMALL) as store:
            await made(store, "t", config=LAZY)
            await handed_in(store, 1, "t", b"0")[0].wait()
            store.hold()
            store.submit(unit(append("t", b"1"))).on_done(mistaken)
            store.release(1)  # it does not come out here
            await trio.sleep(5)


async def one_at_a_time(store, by: int, topic: str, times: int) -> int:
    """How many of so many synced commits were made in the loop: done when they are handed in."""
    made_here = 0
    for number in range(times):
        (ticket,) = handed_in(store, by, topic, b"%d" % number)
        made_here += ticket.done
        await ticket.wait()
    return made_here


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the disk of this machine, and whoever else is at it."""
    monkeypatch.setattr(loop, "QUICK_COMMIT", 60.0)
    monkeypatch.setattr(loop, "SLOW_COMMIT", 60.0)


@pytest.mark.usefixtures("quick_disk")
async def test_who_goes_on_alone_has_synced_commits_at_once_too(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig())
        await handed_in(store, 1, "t", b"the first")[0].wait()
        assert await one_at_a_time(store, 1, "t", loop.ALONE_FOR) == 0
        assert await one_at_a_time(store, 1, "t", 10) == 10
        assert store.committer.writer.synced == store.committer.writer.number
        assert len(await everything(store, "t")) == 2 + loop.ALONE_FOR + 10


@pytest.mark.usefixtures("quick_disk")
async def test_who_has_a_neighbour_or_does_not_wait_for_answers_has_the_thread(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig())
        await one_at_a_time(store, 1, "t", loop.ALONE_FOR + 2)
        store.hold()  # somebody else reads: nothing to commit
        store.release(2)
        assert await one_at_a_time(store, 1, "t", loop.ALONE_FOR) == 0
        assert await one_at_a_time(store, 1, "t", 2) > 0
        for ticket in handed_in(store, 1, "t", b"two", b"at once"):
            await ticket.wait()
        assert await one_at_a_time(store, 1, "t", loop.ALONE_FOR) == 0


async def test_on_a_slow_disk_the_loop_waits_for_one_commit_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SLOW_COMMIT", 60.0)
    monkeypatch.setattr(loop, "QUICK_COMMIT", 0.0)
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig())
        assert await one_at_a_time(store, 1, "t", loop.ALONE_FOR + loop.SLOW_FOR) == 1


@pytest.mark.usefixtures("quick_disk")
async def test_who_was_quick_for_long_is_back_in_the_loop_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SLOW_FOR", 32)
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=TopicConfig())
        await one_at_a_time(store, 1, "t", loop.ALONE_FOR + 1)
        assert await one_at_a_time(store, 1, "t", 40) == 40
        with monkeypatch.context() as slow:
            slow.setattr(loop, "QUICK_COMMIT", 0.0)
            assert await one_at_a_time(store, 1, "t", 1) == 1
        assert await one_at_a_time(store, 1, "t", loop.SOON_AGAIN + loop.ALONE_FOR) == 0
        assert await one_at_a_time(store, 1, "t", 5) == 5


async def test_what_was_promised_for_an_interval_is_synced_whether_or_not_anybody_commits(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=LAZY)
        writer = store.committer.writer
        for value in (b"0", b"1"):
            await handed_in(store, 1, "t", value)[0].wait()
            number = writer.number
            await until(lambda number=number: writer.synced == number)
        number = writer.number
        with trio.fail_after(60):
            while writer.synced == number:  # a sync that is under way, or waits for its time, is put off by nobody
                await handed_in(store, 1, "t", b"more")[0].wait()
