"""Fetch on the real store: bounds, limits, waiting, gaps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gateway.envelope import Run
from gateway.errors import OffsetOutOfRange, TooLarge, UnknownPartition, UnknownTopic
from gateway.requests import Cancel, Fetch, Fetched
from tests.unit.broker.house import Client, opened


def fetch(offset: int = 0, **more) -> Fetch:
    return Fetch(
        0, "t", more.pop("partition", 0), offset, more.pop("max_messages", 100), more.pop("max_bytes", 1 << 20), **more
    )


def values(fetched: Fetched) -> list[bytes]:
    return [value for run in fetched.runs for value in run.columns.values()]


async def filled(client: Client, *data: bytes, **more) -> None:
    await client.publish("t", *data, **more)


async def test_reads_from_an_offset_and_says_where_to_read_on(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await filled(client, b"a", b"b", b"c")
        got = await client.ask(fetch(1))
        assert (values(got), got.next_offset, got.log_start, got.log_end) == ([b"b", b"c"], 3, 0, 3)
        beyond = await client.ask(fetch(500))
        assert (values(beyond), beyond.next_offset) == ([], 500)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (fetch(partition=1), UnknownPartition),
        (fetch(partition=-1), UnknownPartition),
        (Fetch(0, "no", 0, 0, 1, 1), UnknownTopic),
    ],
)
async def test_refuses_what_does_not_exist(tmp_path: Path, autojump_clock: MockClock, request_: Fetch, error: type):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await filled(client, b"a")
        assert isinstance(await client.ask(request_), error)


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (32, 1), (33, 2), (51, 2), (52, 3)])
async def test_an_overhead_counts_against_the_limit(tmp_path: Path, autojump_clock: MockClock, limit: int, count: int):
    """RustLog wire 1.4: 12 bytes beside each record; records of 5, 4 and 7 bytes."""
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await filled(client, b"hello", b"from", b"rustlog")
        got = await client.ask(fetch(max_bytes=limit, record_overhead=12))
        assert (len(values(got)), got.next_offset) == (count, count)


async def test_a_record_too_large_for_the_reader_is_refused_at_its_offset(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await filled(client, b"a", b"b" * 50, b"c")
        before = await client.ask(fetch(value_limit=10))
        assert (values(before), before.next_offset) == ([b"a"], 1)
        refusal = await client.ask(fetch(1, value_limit=10))
        assert isinstance(refusal, TooLarge)
        assert "offset 2" in refusal.message
        assert values(await client.ask(fetch(2, value_limit=10))) == [b"c"]


async def test_answers_do_not_reach_across_a_gap_unless_allowed(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        gone = gateway.house.clock.now_ms() - 1
        await filled(client, b"a", b"gone", b"c", expires=[0, gone, 0])
        whole = await client.ask(fetch())
        assert (values(whole), whole.next_offset) == ([b"a", b"c"], 3)
        first = await client.ask(fetch(allow_gaps=False))
        assert (values(first), first.next_offset) == ([b"a"], 1)
        second = await client.ask(fetch(1, allow_gaps=False))
        assert (values(second), second.next_offset) == ([b"c"], 3)


async def test_waits_for_the_next_record_until_its_time_is_up(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client, other = gateway.client(), gateway.client()
        await filled(other, b"a")
        assert values(await client.ask(fetch(1, hold_until=trio.current_time() + 1))) == []
        (waiting,) = client.start(fetch(1, hold_until=trio.current_time() + 60))
        await filled(other, b"b")
        assert values(await client.outcome(waiting)) == [b"b"]
        (waiting,) = client.start(fetch(2, hold_until=trio.current_time() + 60))
        await client.ask(Cancel(0, waiting))
        assert values(await client.outcome(waiting)) == []


async def test_a_sieve_picks_beside_the_event_loop(tmp_path: Path, autojump_clock: MockClock):
    """It may look through megabytes for a pattern: meanwhile others are served."""
    threads: list[int] = []

    def sieve(runs: Sequence[Run]) -> tuple[Sequence[Run], int | None]:
        threads.append(threading.get_ident())
        (run,) = runs
        return [run.slice(1, 2)], run.base_offset + 2

    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await filled(client, b"a", b"b", b"c")
        got = await client.ask(fetch(sieve=sieve))
        assert (values(got), got.next_offset, got.log_end) == ([b"b"], 2, 3)
        assert threads
        assert threading.get_ident() not in threads


async def test_below_the_log_start_the_refusal_names_the_bounds(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await filled(client, b"a", b"b")
        gateway.store.topics["t"].partitions[0].start = 1  # as retention leaves it
        refusal = await client.ask(fetch())
        assert isinstance(refusal, OffsetOutOfRange)
        assert (refusal.first, refusal.next_offset) == (1, 2)
