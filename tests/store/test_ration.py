"""How much goes into a commit, and whose: counted in units and bytes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.envelope import PREFIX
from gateway.store import committer, loop, ration
from gateway.store.database import PAGE_SIZE
from gateway.store.engine import Engine
from gateway.store.interface import Durability, MakeTopic, Put, Ticket, TopicConfig
from gateway.store.maintenance import Trim
from gateway.store.plan import COMMIT_BYTES, unit_bytes
from gateway.store.ration import (
    FIRST,
    FIRST_REST,
    HASTE,
    HASTE_FOR,
    LEAST,
    LEAST_REST,
    LITTLE,
    LONGEST_REST,
    LOUD,
    MOST_REST,
    SLOW,
    STALL,
    TARGET,
    CommitPace,
    DiskTrust,
    Lately,
    Turns,
)
from gateway.store.sqlite import open_store
from gateway.store.writer import REST_PAGES, Writer
from gateway.transport.limits import QUEUE
from tests.store.kit import SMALL, append, everything, open_stepwise, unit, until

NEW = [MakeTopic("t", TopicConfig())]


def ticket(source: int, size: int, **others) -> Ticket:
    return Ticket(unit(append("t", bytes(size)), source=source, **others))


# --- how quick the disk is ---


def test_one_of_a_hundred_that_takes_longer_says_nothing_of_a_disk() -> None:
    lately = Lately()
    for number in range(1000):
        lately.note(2.5 if number % 100 == 50 else 0.4)
        assert lately.within(1.0)


def test_a_disk_that_has_become_slow_is_found_out_soon_and_one_that_hangs_at_once() -> None:
    lately = Lately()
    for _ in range(100):
        lately.note(0.4)
    taken = 0
    while lately.within(1.0):
        lately.note(1.5)
        taken += 1
    assert 1 < taken < 10
    for seconds, quick in [(float(STALL), True), (STALL + 0.1, False)]:
        lately = Lately()
        lately.note(seconds)
        assert lately.within(1.0) == quick


# --- whose ---


def test_who_is_slow_at_first_is_not_trusted_for_long():
    trust = DiskTrust(256, 16)
    assert [trust.slow() for _ in range(3)] == [256] * 3


def test_who_was_quick_for_long_is_forgiven():
    trust = DiskTrust(256, 16)
    for _ in range(256 * 9):
        trust.quick()
    assert [trust.slow() for _ in range(7)] == [16, 32, 64, 128, 256, 256, 256]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40))
def test_no_more_than_one_in_so_many_is_slow_of_those_that_were_trusted(rows: list[int]):
    trust, commits = DiskTrust(256, 16), 0
    for quick in rows:  # and then a slow one
        for _ in range(quick):
            trust.quick()
        commits += quick + 1 + trust.slow()
    assert len(rows) <= commits / 256 + 5, "but for those by which it is found out"


def test_all_that_has_room_goes_together():
    pending = [ticket(number % 3, 1000) for number in range(20)]
    assert Turns().take(pending, 1 << 20) == (pending, [])


def test_little_goes_before_much_of_others():
    turns, flood = Turns(), [ticket(1, 100_000) for _ in range(20)]
    quiet, again = ticket(2, 100), ticket(2, 100)
    assert turns.take([*flood, quiet], 250_000) == ([quiet], flood)
    assert turns.take([*flood, again], 250_000) == ([*flood[:2], again], flood[2:])


def test_but_not_before_what_the_same_source_has_handed_in():
    flood = [ticket(1, 100_000) for _ in range(20)]
    assert Turns().take([*flood, ticket(1, 100)], 250_000)[0] == flood[:2]


def test_who_hands_in_much_at_once_waits_until_others_have_had_as_much_and_no_longer():
    turns, much, took = Turns(), ticket(1, 1_000_000), 0
    pending = [much]
    while much in pending:
        pending += [ticket(2, 50_000) for _ in range(6)]
        taken, pending = turns.take(pending, 250_000)
        took += sum(unit_bytes(one.unit) for one in taken if one is not much)
    assert 900_000 <= took <= 1_000_000 + 6 * 50_004


def test_one_that_has_no_room_is_a_commit_of_its_own():
    turns, large = Turns(), ticket(1, 1_000_000)
    assert turns.take([large, ticket(1, 1)], 1000)[0] == [large]


# --- little beside much ---


def test_who_has_little_is_committed_apart_from_who_has_much_but_not_twice_in_a_row():
    turns, flood = Turns(), [ticket(1, 100_000) for _ in range(5)]
    quiet = [ticket(source, 100) for source in (2, 3, 2)]
    pending = [flood[0], quiet[0], *flood[1:], *quiet[1:]]
    assert turns.take(pending, 1 << 20) == (quiet, flood)
    pending = [*flood, ticket(2, 100)]
    assert turns.take(pending, 1 << 20) == (pending, [])
    assert turns.take(pending, 1 << 20) == (pending[-1:], flood)


def test_there_is_haste_while_somebody_is_quiet_beside_much_and_for_a_while_after_that():
    turns = Turns()
    much = [ticket(1, 100_000) for _ in range(12)]
    turns.take(much, 1 << 20)
    assert not turns.hasty
    for hurried in (turns.take, lambda pending, _room: turns.take_little(pending)):
        hurried([*much, ticket(2, 100)], 1 << 20)
        for _ in range(8):
            assert turns.hasty
            turns.take(much, 1 << 20)
            turns.spent(HASTE_FOR / 8)
        assert not turns.hasty


@pytest.mark.parametrize(("size", "quiet"), [(100, True), (30_000, False)])
def test_whoever_sends_on_and_on_is_not_quiet_because_little_of_it_is_there(size: int, quiet: bool):
    turns = Turns()
    for number in range(100):
        much = [ticket(1, 100_000) for _ in range(2)]
        assert turns.take([*much, ticket(2, size)], 1 << 20)[1] == much, "apart, in any case"
        turns.take([*much, ticket(2, size)], 1 << 20)
        if number > LOUD // 200_000:
            assert turns.hasty == quiet
        else:
            assert quiet or not turns.hasty


@given(st.lists(st.lists(st.integers(17, 64), min_size=8, max_size=8), max_size=20))
def test_equals_do_not_rest_for_each_other(bursts: list[list[int]]):
    """Eight who publish in bursts of a kind: at any moment some have less there than the others."""
    turns = Turns()
    for amounts in bursts:
        pending = [ticket(source, 1000) for source, count in enumerate(amounts, 1) for _ in range(count)]
        while pending:
            _taken, pending = turns.take(pending, 1 << 20)
            assert not turns.hasty


def test_a_commit_that_may_take_less_has_less_room():
    rooms: list[int] = []
    for hasty in (False, True):
        pace = CommitPace()
        pace.hasty = hasty
        for _ in range(200):
            pace.note(pace.room, pace.room / 500e6, False)  # a disk that takes 500 MB/s
        rooms.append(pace.room)
    assert rooms[0] > 1.5 * rooms[1]
    assert rooms[1] <= HASTE * 500e6 * 9 / 8


# --- how long who has much rests ---


def hurried(usual: float = 0.0002) -> CommitPace:
    pace = CommitPace()
    for _ in range(100):
        pace.note(100, usual, True)
    pace.hasty = True
    return pace


def test_rests_become_longer_while_small_commits_are_slow_and_shorter_again_when_they_are_not():
    pace = hurried()
    assert pace.rest(0.001) == FIRST_REST * 0.001
    for _ in range(3):
        before = pace.rest(0.0001)
        pace.note(100, 2 * SLOW * 0.0002, True)
        assert pace.rest(0.0001) > before
    for _ in range(1000):
        pace.note(100, 0.0002, True)
    assert pace.rest(0.001) == LEAST_REST * 0.001


def test_who_has_much_has_a_floor_however_slow_the_small_ones_are():
    pace = hurried()
    for _ in range(1000):
        pace.note(100, 60.0, True)
        assert pace.rest(60.0) <= LONGEST_REST
        assert pace.rest(0.0001) <= MOST_REST * 0.0001
    assert pace.rest(60.0) == LONGEST_REST


@given(st.floats(1e-5, 1.0), st.lists(st.tuples(st.integers(1, 64), st.booleans()), max_size=300))
def test_a_rest_has_bounds_and_depends_on_how_slow_small_ones_are_and_not_on_the_disk(usual, taken):
    """All in units of what is usual: a disk a hundred times as slow makes the same of it."""
    pace, other = hurried(usual), hurried(100 * usual)
    for times, hasty in taken:
        for each, common in ((pace, usual), (other, 100 * usual)):
            each.hasty = hasty
            each.note(LITTLE, times * 1.01 * common, True)
        assert pace.rest(1e-9) == pytest.approx(other.rest(1e-9))
        assert LEAST_REST * 0.999e-9 < pace.rest(1e-9) < MOST_REST * 1.001e-9


@pytest.mark.parametrize("by_itself", [0.0, 0.02, 0.2])
def test_in_balance_few_small_ones_are_slow(by_itself: float):
    """A disk beside which the more of them are slow the shorter the rests: one of thirty is, or as few as are to be had."""
    pace, slow, random = hurried(), 0, Random(1)
    for number in range(6000):
        late = random.random() < max(by_itself, 0.5 / (pace.rest(1e-9) * 1e9))
        slow += late and number >= 3000
        pace.note(100, 2 * SLOW * 0.0002 if late else 0.0002, True)
    assert slow / 3000 == pytest.approx(max(by_itself, 1 / 30), abs=0.012)


def test_of_whom_as_much_goes_apart_as_makes_no_long_commit():
    turns, flood = Turns(), [ticket(1, 100_000) for _ in range(5)]
    many = [ticket(source, LITTLE - PREFIX) for source in range(2, 12)]
    taken, rest = turns.take([*flood, *many], 1 << 20)
    assert taken == many[: LEAST // LITTLE]
    assert turns.take(rest, 1 << 20) == (rest, [])


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([(1, 60_000), (1, 60_000)], id="together they are quickly written"),
        pytest.param([(source, LITTLE - PREFIX) for source in range(2, 30)], id="many have as little as it has"),
    ],
)
def test_a_commit_is_shared_where_nobody_has_much(others: list[tuple[int, int]]):
    pending = [*(ticket(source, size) for source, size in others), ticket(1000, 100)]
    assert Turns().take(pending, 1 << 20) == (pending, [])


def test_what_is_much_by_many_small_ones_is_no_little():
    flood, busy = [ticket(1, 100_000) for _ in range(5)], [ticket(2, 1000) for _ in range(LITTLE // 1000 + 1)]
    pending = [*flood, *busy]
    assert Turns().take(pending, 1 << 20) == (pending, [])


@pytest.mark.parametrize("barrier", [{}, {"puts": [Put("s", b"k", b"v")]}])
def test_little_does_not_go_apart_past_what_keeps_its_place(barrier):
    kept, before, behind = ticket(0 if not barrier else 3, 10, **barrier), ticket(2, 100), ticket(2, 100)
    flood = [ticket(1, 100_000) for _ in range(5)]
    turns, pending = Turns(), [*flood, before, kept, behind]
    assert turns.take(pending, 1 << 20) == ([before], [*flood, kept, behind])
    pending = [*flood, kept, behind]
    assert Turns().take(pending, 1 << 20) == (pending, [])


def test_who_has_much_loses_no_place_by_what_goes_apart():
    """Two floods share by bytes, whatever goes between them."""
    turns, took, pending = Turns(), {1: 0, 2: 0, 3: 0}, [ticket(1, 100_000) for _ in range(40)]
    for _ in range(12):
        pending += [ticket(2, 50_000), ticket(2, 50_000), ticket(3, 100)]
        taken, pending = turns.take(pending, 250_000)
        for one in taken:
            took[one.unit.source] += unit_bytes(one.unit)
    assert took[3] == 12 * unit_bytes(ticket(3, 100).unit)
    assert min(took[1], took[2]) > 500_000
    assert abs(took[1] - took[2]) <= 150_000


BARRIERS = {"puts": [Put("s", b"k", b"v")], "creates": NEW}


@pytest.mark.parametrize("barrier", [{}, *({name: value} for name, value in BARRIERS.items())])
def test_what_does_more_than_append_or_has_no_source_keeps_its_place(barrier):
    kept = ticket(0 if not barrier else 3, 10, **barrier)
    flood = [ticket(1, 100_000) for _ in range(5)]
    pending = [*flood, kept, ticket(2, 100)]
    assert Turns().take(pending, 250_000) == (flood[:2], pending[2:])
    assert Turns().take(pending, 500_500) == ([*flood, kept, pending[-1]], [])


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 5000) | st.sampled_from([LITTLE, 70_000])), min_size=1, max_size=60
    ),
    st.integers(1, 20_000) | st.integers(LEAST, 4 * LEAST),
    st.integers(1, 8),
)
def test_every_source_keeps_its_order_and_nothing_is_lost(units, room, at_once):
    turns, coming = Turns(), [ticket(source, size) for source, size in units]
    known, pending, done = {one: number for number, one in enumerate(coming)}, [], []
    while coming or pending:
        pending += coming[:at_once]
        del coming[:at_once]
        taken, pending = turns.take(pending, room)
        assert taken
        assert len(taken) == 1 or sum(unit_bytes(one.unit) for one in taken) <= room
        done += taken
    order = [known[one] for one in done]
    assert sorted(order) == list(range(len(units)))
    for one in range(5):
        of_it = [number for number in order if units[number][0] == one]
        assert of_it == sorted(of_it)
    for kept in (number for number in order if units[number][0] == 0):
        assert all(number < kept for number in order[: order.index(kept)])


# --- how much ---


def test_a_commit_that_takes_long_leaves_less_room_and_a_quick_one_more():
    pace = CommitPace()
    pace.note(FIRST, 3 * TARGET, synced=True)
    assert pace.room == FIRST * 3 // 4
    for _ in range(100):
        pace.note(pace.room, TARGET / 2, synced=True)
    assert pace.room == COMMIT_BYTES
    for _ in range(100):
        pace.note(pace.room, 3 * TARGET, synced=False)
    assert pace.room == LEAST


def test_a_quick_commit_with_little_in_it_says_nothing_of_more():
    pace = CommitPace()
    for _ in range(100):
        pace.note(1000, TARGET / 100, synced=True)
    assert pace.room == FIRST


def test_on_a_slow_disk_a_commit_may_take_a_few_times_what_the_least_takes():
    pace, least, per_byte = CommitPace(), 10 * TARGET, TARGET / FIRST
    for _ in range(1000):
        pace.note(pace.room, least + pace.room * per_byte, synced=True)
    assert pace.room > QUEUE  # all that connections may have under way


# --- in a store ---


async def test_beside_a_flood_every_small_one_is_in_the_next_commit(tmp_path: Path):
    async with open_stepwise(tmp_path) as store:
        store.submit(unit(append("t", b"first"), creates=NEW))
        store.committer.step()
        store.committer.pace.room = 300_000
        flood = [store.submit(unit(append("t", b"%d" % n + bytes(99_999)), source=1)) for n in range(20)]
        steps = 0
        while not all(one.done for one in flood):
            quiet = store.submit(unit(append("t", b"quiet"), source=2))
            store.committer.pace.room = 300_000
            assert store.committer.step()
            assert quiet.done
            steps += 1
        assert steps == 20  # and every other is without the flood
        assert [one.placements[0].base_offset for one in flood] == sorted(
            one.placements[0].base_offset for one in flood
        )
        assert (await everything(store, "t")).count(b"quiet") == steps


async def test_who_is_alone_shares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(committer, "SHARED_FOR", 3)
    async with open_stepwise(tmp_path) as store:
        store.submit(unit(append("t", b"first"), creates=NEW))
        store.committer.step()

        def flood() -> int:
            """In how many commits it is stored."""
            store.committer.pace.room = LEAST
            for _ in range(8):
                store.submit(unit(append("t", bytes(100_000)), source=1))
            return sum(1 for _ in iter(store.committer.step, False))

        assert flood() > 3
        assert flood() == 1
        store.submit(unit(append("t", b"somebody else"), source=2))
        assert flood() > 3
        assert flood() == 1


async def test_who_has_little_beside_much_does_not_wait_for_upkeep_and_upkeep_waits_for_no_more_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop, "COMMITS_PER_JOB", 0)  # a step of it is due before each commit
    seen: list[str] = []
    trim = Trim.write

    def noted(step: Trim, writer: Writer) -> None:
        seen.append("upkeep")
        trim(step, writer)

    monkeypatch.setattr(Trim, "write", noted)
    async with open_store(tmp_path, SMALL) as store:
        short = [MakeTopic("short", TopicConfig(durability=Durability.NONE, retention_bytes=200_000))]
        await store.submit(unit(append("short", b"first"), creates=short)).wait()
        await store.submit(unit(append("t", b"first"), creates=NEW)).wait()

        def more(_ticket: Ticket) -> None:
            store.hold()
            for number in range(4):
                much = store.submit(unit(append("short", bytes(100_000)), source=1))
                much.on_done(lambda _ticket: seen.append("much"))
                little = store.submit(unit(append("t", b"%d" % number), source=2))
                little.on_done(lambda _ticket: seen.append("little"))
            store.release(0)

        store.hold()
        first = [store.submit(unit(append("short", bytes(100_000)), source=1)) for _ in range(4)]
        first[-1].on_done(more)
        store.release(0)
        await until(lambda: seen.count("much") == 4)
        assert seen[:5] == ["little"] * 4 + ["upkeep"]
        assert await everything(store, "t") == [b"first", b"0", b"1", b"2", b"3"]


@pytest.fixture
async def rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> AsyncIterator[tuple[Engine, Ticket]]:
    """A store that has just committed somebody's much, beside somebody's little; and the next of the one who has much."""
    monkeypatch.setattr(ration, "FIRST_REST", 1e9)
    monkeypatch.setattr(ration, "MOST_REST", 1e9)
    monkeypatch.setattr(ration, "HASTE_FOR", 60.0)
    monkeypatch.setattr(ration, "LOUD", 0)
    monkeypatch.setattr(ration, "LONGEST_REST", 1.0)
    async with open_store(tmp_path, SMALL) as store:
        await store.submit(unit(append("t", b"first"), creates=NEW)).wait()
        store.hold()
        much = [store.submit(unit(append("t", bytes(100_000)), source=1)) for _ in range(3)]
        store.submit(unit(append("t", b"little"), source=2))
        store.release(0)
        for each in much:
            await each.wait()
        yield store, store.submit(unit(append("t", bytes(100_000)), source=1))


async def test_who_has_little_is_committed_while_who_has_much_rests(rests, mock_clock: MockClock):
    store, much = rests
    for _ in range(3):
        await store.submit(unit(append("t", b"little"), source=2)).wait()
    assert not much.done
    mock_clock.jump(0.5)
    await store.submit(unit(append("t", b"little"), source=2)).wait()
    assert not much.done


async def test_the_rest_ends_by_itself(rests, mock_clock: MockClock):
    _store, much = rests
    mock_clock.jump(1.0)
    await much.wait()


@pytest.mark.parametrize("barrier", [{"puts": [Put("s", b"k", b"v")]}, {"source": 0}])
async def test_the_rest_ends_with_what_keeps_its_place(rests, barrier):
    store, much = rests
    await store.submit(unit(append("t", b"barrier"), **{"source": 3, **barrier})).wait()
    assert much.done


async def test_who_has_much_goes_on_however_slow_the_small_ones_beside_it_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ration, "SLOW", 0)
    monkeypatch.setattr(ration, "LOUD", 0)
    monkeypatch.setattr(ration, "LONGEST_REST", 0.005)
    async with open_store(tmp_path, SMALL) as store:
        await store.submit(unit(append("t", b"first"), creates=NEW)).wait()
        flood = [store.submit(unit(append("t", b"%d" % n + bytes(99_999)), source=1)) for n in range(40)]
        small = 0
        while not all(one.done for one in flood):
            await store.submit(unit(append("t", b"small"), source=2)).wait()
            small += 1
        assert store.committer.pace.hasty
        found = await everything(store, "t")
        assert found.count(b"small") == small
        assert [one.rstrip(b"\0") for one in found if len(one) > 10] == [b"%d" % n for n in range(40)]


async def test_nobody_rests_in_a_store_that_closes(rests):
    store, much = rests
    store._loop.close()
    await much.wait()


# --- the write-ahead log ---


async def test_commits_go_on_while_the_log_is_carried_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begun: list[Writer] = []
    go_on, carry_over = threading.Event(), Writer.carry_over

    def held(writer: Writer) -> bool:
        begun.append(writer)
        assert go_on.wait(60)
        return carry_over(writer)

    monkeypatch.setattr(Writer, "carry_over", held)
    monkeypatch.setattr(loop, "CHECKPOINT_PAGES", 8)
    monkeypatch.setattr(loop, "REST_PAGES", 4)
    async with open_store(tmp_path, SMALL) as store:
        await store.submit(unit(append("t", b"first"), creates=NEW)).wait()
        for _ in range(20):
            await store.submit(unit(append("t", bytes(100_000)))).wait()
        assert len(begun) == 1
        go_on.set()
        await until(lambda: not store._loop._carrying)
        assert len(await everything(store, "t")) == 21


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.NONE])
async def test_the_log_begins_anew_although_commits_never_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability
):
    """Else it would grow for as long as somebody writes."""
    monkeypatch.setattr(loop, "CHECKPOINT_PAGES", 2 * REST_PAGES)
    monkeypatch.setattr(loop, "MOST_PAGES", 8 * REST_PAGES)
    log, value, written = tmp_path / "log.sqlite-wal", bytes(300_000), 0
    async with open_store(tmp_path, SMALL) as store:
        made = [MakeTopic("t", TopicConfig(durability=durability))]
        await store.submit(unit(append("t", b"first"), creates=made)).wait()
        while not written or log.stat().st_size > written * len(value) / 2:
            await store.submit(unit(append("t", value))).wait()
            written += 1
            assert written < 200
        assert await everything(store, "t") == [b"first", *[value] * written]


async def test_the_log_is_carried_over_by_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """SQLite lets nobody else: who comes second does nothing, and the log goes on growing."""
    monkeypatch.setattr(loop, "CHECKPOINT_PAGES", 2 * REST_PAGES)
    monkeypatch.setattr(loop, "MOST_PAGES", 8 * REST_PAGES)
    under_way: list[str] = []
    most: list[int] = []

    def noted(name: str) -> None:
        work = getattr(Writer, name)

        def call(writer: Writer) -> object:
            under_way.append(name)
            most.append(len(under_way))
            try:
                return work(writer)
            finally:
                under_way.remove(name)

        monkeypatch.setattr(Writer, name, call)

    noted("checkpoint")
    noted("carry_over")
    async with open_store(tmp_path, SMALL) as store:
        made = [MakeTopic("t", TopicConfig(durability=Durability.NONE))]
        await store.submit(unit(append("t", b"first"), creates=made)).wait()
        for _ in range(200):
            await store.submit(unit(append("t", bytes(300_000)))).wait()
    assert len(most) > 10
    assert max(most) == 1


async def test_the_log_begins_anew_when_it_is_long_and_not_for_each_piece_that_is_carried_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Between two commits nothing is carried over but the rest, and that seldom."""
    monkeypatch.setattr(loop, "CHECKPOINT_PAGES", 2 * REST_PAGES)
    monkeypatch.setattr(loop, "LOG_PAGES", 16 * REST_PAGES)
    monkeypatch.setattr(loop, "MOST_PAGES", 64 * REST_PAGES)
    begun, checkpoint = 0, Writer.checkpoint

    def counted(writer: Writer) -> None:
        nonlocal begun
        begun += 1
        checkpoint(writer)

    monkeypatch.setattr(Writer, "checkpoint", counted)
    value = bytes(20 * PAGE_SIZE)
    async with open_store(tmp_path, SMALL) as store:
        await store.submit(unit(append("t", b"first"), creates=NEW)).wait()
        written = 0
        while begun < 2:
            await store.submit(unit(append("t", value))).wait()
            written += 1
            assert written < 1000
        assert written * 21 >= 2 * 16 * REST_PAGES


async def test_while_somebody_is_quiet_beside_much_the_log_is_carried_over_in_smaller_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ration, "LOUD", 0)
    monkeypatch.setattr(ration, "HASTE_FOR", 1e9)
    pieces: list[int] = []
    prepare = Writer.prepare_to_carry

    def noted(writer: Writer) -> None:
        pieces.append(writer.pages)
        prepare(writer)

    monkeypatch.setattr(Writer, "prepare_to_carry", noted)
    async with open_store(tmp_path, SMALL) as store:
        await store.submit(unit(append("t", b"first"), creates=NEW)).wait()

        async def flood(count: int, *, quiet: bool) -> None:
            while len(pieces) < count:
                store.hold()
                much = [store.submit(unit(append("t", bytes(100_000)), source=1)) for _ in range(3)]
                if quiet:
                    store.submit(unit(append("t", b"little"), source=2))
                store.release(0)
                for each in much:
                    await each.wait()
                await until(lambda: not store._loop._carrying)

        await flood(8, quiet=True)
        assert pieces[0] >= loop.CHECKPOINT_PAGES
        assert max(pieces[1:]) < 4 * loop.HASTY_PAGES < loop.CHECKPOINT_PAGES
        store.committer._turns.spent(1e9)
        await flood(11, quiet=False)
        assert min(pieces[9:]) >= loop.CHECKPOINT_PAGES


async def test_a_log_that_has_become_long_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    go_on, carry_over = threading.Event(), Writer.carry_over
    monkeypatch.setattr(Writer, "carry_over", lambda writer: go_on.wait(60) and carry_over(writer))
    monkeypatch.setattr(loop, "CHECKPOINT_PAGES", 2 * REST_PAGES)
    monkeypatch.setattr(loop, "MOST_PAGES", 4 * REST_PAGES)
    async with open_store(tmp_path, SMALL) as store:
        await store.submit(unit(append("t", b"first"), creates=NEW)).wait()
        written = 0
        while store.committer.writer.pages < store._loop._pages_until or not store._loop._carrying:
            await store.submit(unit(append("t", bytes(300_000)))).wait()
            written += 1
        assert written < 30
        waiting = store.submit(unit(append("t", b"waits")))
        store._loop._advance()
        assert not waiting.done
        assert waiting in store.committer.pending
        go_on.set()
        await waiting.wait()
        assert len(await everything(store, "t")) == 1 + written + 1


async def test_who_has_little_does_not_wait_for_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What a flood has written is carried over while nobody adds much to it, so that little is left for the end."""
    go_on, carry_over, checkpoint = threading.Semaphore(0), Writer.carry_over, Writer.checkpoint
    left: list[int] = []

    def last(writer: Writer) -> None:
        left.append(writer.pages)
        checkpoint(writer)

    monkeypatch.setattr(Writer, "carry_over", lambda writer: go_on.acquire(timeout=60) and carry_over(writer))
    monkeypatch.setattr(Writer, "checkpoint", last)
    monkeypatch.setattr(loop, "CHECKPOINT_PAGES", 2 * REST_PAGES)
    monkeypatch.setattr(loop, "LOG_PAGES", 2 * REST_PAGES)
    monkeypatch.setattr(loop, "MOST_PAGES", 4 * REST_PAGES)
    async with open_store(tmp_path, SMALL) as store:
        await store.submit(unit(append("t", b"first"), creates=NEW)).wait()

        def flood() -> Ticket:
            return store.submit(unit(append("t", bytes(300_000)), source=1))

        async def small() -> None:
            for _ in range(3):
                ticket = store.submit(unit(append("t", b"small"), source=2))
                await ticket.wait()

        while store.committer.writer.pages < store._loop._pages_until or not store._loop._carrying:
            await flood().wait()
        waiting = [flood() for _ in range(3)]
        await small()
        assert not any(ticket.done for ticket in waiting)
        go_on.release()
        await until(lambda: store._loop._carried_pages >= 4 * REST_PAGES)  # once more
        await small()
        assert not any(ticket.done for ticket in waiting)
        assert not left
        go_on.release()
        for ticket in waiting:
            await ticket.wait()
        assert left == [max(left)]
        assert left[0] < REST_PAGES
        for _ in range(1000):  # for what is begun until it ends
            go_on.release()
        assert (await everything(store, "t")).count(b"small") == 6


async def test_what_a_reader_holds_back_is_carried_over_when_it_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop, "CHECKPOINT_PAGES", 8)
    monkeypatch.setattr(loop, "REST_PAGES", 4)
    async with open_store(tmp_path, SMALL) as store:
        await store.submit(unit(append("t", b"first"), creates=NEW)).wait()
        reader = store._pool.direct
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM chunks").fetchone()
        for _ in range(40):
            await store.submit(unit(append("t", bytes(20_000)))).wait()
        await until(lambda: not store._loop._carrying)
        assert reader.execute("SELECT count(*) FROM chunks").fetchone() == (1,)
        reader.execute("ROLLBACK")
        for _ in range(40):
            await store.submit(unit(append("t", bytes(20_000)))).wait()
        await until(lambda: not store._loop._carrying)
        writer = store.committer.writer
        writer.prepare_to_carry()
        _busy, there, carried = writer.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert there == carried
        assert len(await everything(store, "t")) == 81
