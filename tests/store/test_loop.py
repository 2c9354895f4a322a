"""When a store in an event loop makes its commits: together what came together, at once for who is alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gateway.store import loop
from gateway.store.interface import Durability, MakeTopic, Ticket, TopicConfig
from gateway.store.sqlite import open_store
from tests.store.kit import SMALL, append, everything, unit

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


async def test_several_share_a_commit(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=LAZY)
        before = chunks(store, "t")
        tickets = [handed_in(store, by, "t", b"%d" % by)[0] for by in range(1, 6)]
        assert not any(ticket.done for ticket in tickets)
        for ticket in tickets:
            await ticket.wait()
        assert chunks(store, "t") == [*before, 5]


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


async def synced(store) -> None:
    """The clock stands: it is over when the thread says so."""
    writer = store.committer.writer
    while writer.synced < writer.number or store._loop._syncing:
        await trio.lowlevel.checkpoint()


async def test_a_commit_that_finds_a_sync_due_begins_it(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=LAZY)
        await handed_in(store, 1, "t", b"0")[0].wait()
        mock_clock.jump(0.002)
        assert handed_in(store, 1, "t", b"1")[0].done
        assert not store._loop._syncing
        mock_clock.jump(0.001)
        assert handed_in(store, 1, "t", b"2")[0].done
        assert store._loop._syncing
        await synced(store)
        assert handed_in(store, 1, "t", b"3")[0].done  # and the next one is due a while later
        assert not store._loop._syncing
        mock_clock.jump(0.003)
        assert handed_in(store, 1, "t", b"4")[0].done
        assert store._loop._syncing


async def test_when_nobody_commits_the_store_begins_a_sync_by_itself(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await made(store, "t", config=LAZY)
        for value in (b"0", b"1"):
            await handed_in(store, 1, "t", value)[0].wait()
            assert store.committer.writer.synced < store.committer.writer.number
            mock_clock.jump(0.004)
            await synced(store)
