"""Group commit: who is finished by which commit, what a failure leaves behind, when it heals."""

from __future__ import annotations

import gc
from array import array
from pathlib import Path

import pytest
import trio

from gateway.envelope import Columns
from gateway.errors import (
    CommitFailed,
    InvalidRequest,
    ShuttingDown,
    Status,
    StoreReadOnly,
)
from gateway.recorder import Recorder
from gateway.store.committer import Mode
from gateway.store.interface import Durability, MakeTopic, Put, TopicConfig, Unit
from gateway.store.sqlite import StoreOptions, open_store
from tests.store.kit import MEMORY, SMALL, append, create, everything, open_stepwise, publish, read, unit, until

NEW = [MakeTopic("t", TopicConfig())]


async def test_a_unit_submitted_during_a_commit_belongs_to_the_next(tmp_path: Path) -> None:
    """Getting this wrong acknowledges what is not written."""
    async with open_stepwise(tmp_path) as store:
        committer = store.committer
        first = store.submit(unit(append("t", b"1"), creates=NEW))
        taken = committer.take()
        during = store.submit(unit(append("t", b"2"), creates=NEW))
        commit = committer.write(taken)
        after_write = store.submit(unit(append("t", b"3"), creates=NEW))
        assert not first.done  # written, but not visible yet
        assert store.topics == {}
        committer.finish(taken, commit)
        assert first.done
        assert not during.done
        assert not after_write.done
        assert store.topics["t"].partitions[0].end == 1
        assert committer.step()
        assert during.done
        assert after_write.done
        assert not committer.step()
        assert await everything(store, "t") == [b"1", b"2", b"3"]


async def test_a_unit_submitted_by_a_callback_is_not_finished_by_that_commit(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path) as store:
        later = []
        store.submit(unit(append("t", b"1"), creates=NEW)).on_done(
            lambda _ticket: later.append(store.submit(unit(append("t", b"2"))))
        )
        store.committer.step()
        assert not later[0].done
        store.committer.step()
        assert later[0].done


async def test_units_pending_together_are_one_commit_and_one_chunk(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path) as store:
        tickets = [store.submit(unit(append("t", b"%d" % n), creates=NEW)) for n in range(50)]
        assert store.committer.step()
        assert [ticket.placements[0].base_offset for ticket in tickets] == list(range(50))
        chunks = store._pool.direct.execute("SELECT count(*), sum(count) FROM chunks").fetchone()
        assert chunks == (1, 50)


async def test_what_follows_a_deletion_sees_it(tmp_path: Path) -> None:
    """A unit that alters or deletes ends its commit; the units behind it go back to the front of the queue, in order."""
    from gateway.store.interface import DropTopic

    async with open_stepwise(tmp_path) as store:
        store.submit(unit(append("t", b"old"), creates=NEW))
        store.submit(Unit(deletes=[DropTopic("t")]))
        failing = store.submit(unit(append("t", b"lost")))
        store.submit(unit(append("t", b"new"), creates=NEW))
        last = store.submit(unit(append("t", b"newer")))
        store.committer.drain()
        assert failing.error is not None
        assert failing.error.status is Status.NOT_FOUND
        assert last.placements[0].base_offset == 1
        assert await everything(store, "t") == [b"new", b"newer"]


async def test_an_inline_store_commits_in_order_when_callbacks_submit(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL, mode=Mode.INLINE) as store:
        order: list[bytes] = []

        def again(ticket) -> None:
            value = ticket.unit.appends[0].columns.value(0)
            order.append(value)
            if len(order) < 5:
                store.submit(unit(append("t", value + b"x"))).on_done(again)

        store.submit(unit(append("t", b"a"), creates=NEW)).on_done(again)
        assert order == [b"a" + b"x" * n for n in range(5)]
        assert await everything(store, "t") == order


async def test_what_no_chunk_can_hold_fails_alone(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path) as store:
        good = [store.submit(unit(append("t", b"%d" % n), creates=NEW)) for n in range(3)]
        bad = store.submit(unit(append("t", b"x", expires=[2**70])))
        more = [store.submit(unit(append("t", b"%d" % n))) for n in range(3, 6)]
        store.committer.drain()
        assert isinstance(bad.error, InvalidRequest)
        assert [t.placements[0].base_offset for t in good + more] == list(range(6))
        assert store.health.writable
        assert await everything(store, "t") == [b"%d" % n for n in range(6)]


# --- failure ---


class Writability(Recorder):
    def __init__(self) -> None:
        self.values: list[bool] = []
        self.writable_again = trio.Event()

    def writable(self, now: bool, reason: str = "") -> None:
        assert now or reason
        if now and self.values:
            self.writable_again.set()
        self.values.append(now)


def fill(store) -> None:
    """A disk without room, as SQLite sees it: the database may not grow."""
    pages = store.committer.writer.connection.execute("PRAGMA page_count").fetchone()[0]
    store.committer.writer.connection.execute(f"PRAGMA max_page_count={pages}")


def make_room(store) -> None:
    store.committer.writer.connection.execute("PRAGMA max_page_count=1000000")


async def test_a_full_disk_refuses_falls_back_and_heals(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path) as store:
        committer = store.committer
        store.submit(unit(append("t", b"kept"), creates=[*NEW, MakeTopic("m", TopicConfig(**MEMORY))][:1]))
        committer.step()
        store.submit(Unit(creates=[MakeTopic("m", TopicConfig(**MEMORY))]))
        fill(store)
        in_it = [store.submit(unit(append("t", bytes(100_000)), puts=[Put("s", b"k", b"lost")])) for _ in range(2)]
        taken = committer.take()
        behind = store.submit(unit(append("t", b"behind")))
        committer.finish(taken, committer.write(taken))
        for ticket in [*in_it, behind]:
            assert isinstance(ticket.error, CommitFailed)
        assert not store.health.writable
        assert "full" in store.health.reason
        assert store.topics["t"].partitions[0].end == 1

        refused = store.submit(unit(append("t", b"x")))
        assert isinstance(refused.error, StoreReadOnly)
        assert store.submit(unit(append("m", b"x"))).error is None  # memory topics do not care
        assert await everything(store, "t") == [b"kept"]
        assert await store.get("s", b"k") is None

        store.maintain()
        assert not store.health.writable  # the probe needs room as well
        make_room(store)
        store.maintain()
        assert store.health.writable
        again = store.submit(unit(append("t", b"again")))
        committer.step()
        assert again.placements[0].base_offset == 1  # handed out again from the committed end
        assert await everything(store, "t") == [b"kept", b"again"]
    async with open_stepwise(tmp_path) as store:
        assert await everything(store, "t") == [b"kept", b"again"]


async def test_the_task_heals_by_itself(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    gauges = Writability()
    async with open_store(tmp_path, SMALL, recorder=gauges) as store:
        await create(store, "t")
        fill(store)
        with pytest.raises(CommitFailed):
            await publish(store, "t", bytes(200_000))
        make_room(store)
        await gauges.writable_again.wait()
        await publish(store, "t", b"x")
    assert gauges.values == [True, False, True]


async def test_writes_are_refused_before_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    free = 10 << 30
    total = 100 << 30
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(total, total - free, free))
    async with open_stepwise(tmp_path, options=StoreOptions(free_space_floor=1 << 30)) as store:
        store.submit(unit(append("t", b"1"), creates=NEW))
        store.committer.step()
        free = 1 << 20
        store.committer.writer._check_at = 0.0  # it is time to look again
        refused = store.submit(unit(append("t", b"2")))
        store.committer.step()
        assert isinstance(refused.error, StoreReadOnly)
        assert "floor is 1024 MiB" in store.health.reason
        free = 10 << 30
        store.maintain()
        assert store.health.writable


async def test_a_small_volume_has_a_smaller_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(1000 << 20, 0, 51 << 20))
    async with open_stepwise(tmp_path, options=StoreOptions(free_space_floor=1 << 30)) as store:
        ticket = store.submit(unit(append("t", b"1"), creates=NEW))
        store.committer.step()
        assert ticket.error is None


async def test_commits_are_counted(tmp_path: Path) -> None:
    counted: list[tuple[int, int, bool]] = []

    class Counts(Recorder):
        def committed(self, records: int, size: int, seconds: float, synced: bool) -> None:
            assert seconds > 0
            counted.append((records, size, synced))

    async with open_store(tmp_path, SMALL, mode=Mode.STEPWISE, recorder=Counts()) as store:
        unsynced = MakeTopic("n", TopicConfig(durability=Durability.NONE))
        store.submit(unit(append("t", b"abc", b"d"), append("n", b"ef"), creates=[*NEW, unsynced]))
        store.committer.step()
        store.submit(unit(append("n", b"x")))
        store.committer.step()
        store.submit(unit(append("nope", b"x")))
        store.committer.step()
    assert counted == [(3, 6, True), (1, 1, False)]


# --- the end ---


async def test_what_is_pending_is_committed_when_the_store_closes(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        tickets = [store.submit(unit(append("t", b"%d" % n), creates=NEW)) for n in range(3)]
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    assert isinstance(store.submit(unit(append("t", b"late"))).error, ShuttingDown)
    async with open_store(tmp_path, SMALL) as store:
        assert await everything(store, "t") == [b"0", b"1", b"2"]


async def test_cancelling_leaves_no_ticket_unfinished(tmp_path: Path) -> None:
    tickets = []
    with trio.CancelScope() as scope:
        async with open_store(tmp_path, SMALL) as store:
            await create(store, "t")
            tickets += [store.submit(unit(append("t", b"%d" % n))) for n in range(3)]
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert all(ticket.done for ticket in tickets)
    async with open_store(tmp_path, SMALL) as store:
        stored = await everything(store, "t")
    assert stored == [b"%d" % n for n, ticket in enumerate(tickets) if ticket.error is None]


# --- durability ---


async def test_which_commits_are_synced(tmp_path: Path) -> None:
    async with open_stepwise(tmp_path) as store:
        writer = store.committer.writer
        interval = TopicConfig(durability=Durability.INTERVAL)
        none = TopicConfig(durability=Durability.NONE)
        store.submit(Unit(creates=[*NEW, MakeTopic("i", interval), MakeTopic("n", none)]))
        store.committer.step()

        def synced(*units: Unit) -> bool:
            for one in units:
                store.submit(one)
            store.committer.step()
            return writer.synced == writer.number

        assert synced(unit(append("t", b"x")))
        assert not synced(unit(append("i", b"x")))
        assert not synced(unit(append("n", b"x")))
        assert synced(unit(append("n", b"x")), unit(append("t", b"x")))  # one that asks is enough
        assert synced(unit(append("n", b"x"), synced=True))
        assert synced(Unit(puts=[Put("s", b"k", b"v")]))
        assert not synced(Unit(puts=[Put("s", b"k", b"v")], synced=False))
        assert not synced(unit(append("i", b"x"), puts=[Put("s", b"k", b"v")]))
        assert synced(unit(append("t", b"x"), synced=False))  # the topic's promise stands
        assert not synced(unit(append("i", b"x")))
        assert int((tmp_path / "committed").read_bytes()) == writer.synced < writer.number
        store.maintain()
        assert writer.synced == writer.number


async def test_interval_topics_are_synced_within_their_interval(tmp_path: Path) -> None:
    async with open_store(tmp_path, SMALL) as store:
        await create(store, "i", durability=Durability.INTERVAL, interval=0.02)
        writer = store.committer.writer
        await publish(store, "i", b"x")
        assert writer.synced < writer.number
        await until(lambda: writer.synced == writer.number)


async def test_large_appends_are_chunks_of_their_own(tmp_path: Path) -> None:
    """Between small ones, which go together; offsets and batches follow each other all the same."""
    async with open_stepwise(tmp_path) as store:
        appends = [append("t", b"1"), append("t", b"2"), append("t", bytes(70_000), b"x"), append("t", b"3")]
        tickets = [store.submit(unit(one, creates=NEW)) for one in appends]
        assert store.committer.step()
        assert [ticket.placements[0].base_offset for ticket in tickets] == [0, 1, 2, 4]
        rows = store._pool.direct.execute("SELECT count FROM chunks ORDER BY id").fetchall()
        assert rows == [(2,), (2,), (1,)]
        assert await everything(store, "t") == [b"1", b"2", bytes(70_000), b"x", b"3"]
        runs = (await read(store, "t", 0)).runs
        assert [[first for first, _inner, _meta in run.batches] for run in runs] == [[0, 1], [0], [0]]


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.NONE])
async def test_what_is_kept_of_a_message_is_little_to_look_through_for_cycles(
    tmp_path: Path, durability: Durability
) -> None:
    """Each full collection stops everything for as long as it takes to look at all that is kept."""
    async with open_store(tmp_path, SMALL) as store:
        await create(store, "t", durability=durability)
        for number in range(20):
            await publish(store, "t", b"%d" % number)
        for _ in range(3):  # a tuple is let go of when all that it names has been
            gc.collect()
        for run in store.topics["t"].logs[0].hot.since(0):
            there = [run, run.times, run.batches, *run.batches, run.batches[0][2], run.columns, run.columns.ends]
            assert [type(one) for one in there if gc.is_tracked(one)] == [Columns, array]
        assert not any(gc.is_tracked(chunk) for chunk in store.committer.writer.unposted)
