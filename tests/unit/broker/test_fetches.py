"""Fetch on the real store: bounds, limits, waiting, gaps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gateway import model
from gateway.envelope import Run
from gateway.errors import OffsetOutOfRange, TooLarge, UnknownPartition, UnknownTopic
from gateway.observe.prometheus import PrometheusRecorder
from gateway.requests import Cancel, DeleteTopic, Fetch, Fetched
from gateway.routing.table import compile_table
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


async def test_several_batches_are_one_answer_within_the_limits(tmp_path: Path, autojump_clock: MockClock):
    """Published one by one, as a reader that was away finds them: each limit ends where it does within one batch."""
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        for value in (b"hello", b"from", b"rustlog"):
            await filled(client, value)
        whole = await client.ask(fetch(max_bytes=52, record_overhead=12, value_limit=100, allow_gaps=False))
        assert (values(whole), whole.next_offset) == ([b"hello", b"from", b"rustlog"], 3)
        two = await client.ask(fetch(max_bytes=51, record_overhead=12, value_limit=100, allow_gaps=False))
        assert (values(two), two.next_offset) == ([b"hello", b"from"], 2)
        # together they are larger than the limit, which is each one's
        small = await client.ask(fetch(value_limit=7))
        assert (values(small), small.next_offset) == ([b"hello", b"from", b"rustlog"], 3)
        before = await client.ask(fetch(value_limit=6))
        assert (values(before), before.next_offset) == ([b"hello", b"from"], 2)


async def test_expired_ones_between_batches_end_an_answer_without_gaps(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        gone = gateway.house.clock.now_ms() - 1
        await filled(client, b"a")
        await filled(client, b"gone", expires=[gone])
        await filled(client, b"c")
        whole = await client.ask(fetch())
        assert (values(whole), whole.next_offset) == ([b"a", b"c"], 3)
        first = await client.ask(fetch(allow_gaps=False))
        assert (values(first), first.next_offset) == ([b"a"], 1)


def _ours(recorder: PrometheusRecorder) -> list[str]:
    return [line for line in recorder.text().splitlines() if line.startswith("gateway_")]


async def test_what_was_read_is_counted_by_the_routes_it_came_by(tmp_path: Path, autojump_clock: MockClock):
    recorder = PrometheusRecorder(listeners={"door": "toy"})
    ways = [model.Route(name, model.Match(topic=name), (model.StoreTarget("t"),)) for name in ("one", "other")]
    async with opened(tmp_path, *ways, model.IDENTITY, recorder=recorder) as gateway:
        client = gateway.client()
        await client.publish("one", b"a", b"bc")
        await client.publish("one", b"d")
        assert len(values(await client.ask(fetch()))) == 3
        await client.publish("other", b"efgh")
        assert len(values(await client.ask(fetch()))) == 4  # by both
        assert len(values(await client.ask(fetch(3)))) == 1
        assert values(await client.ask(fetch(4))) == []
        scraped = _ours(recorder)
        for route, messages, size in (("one", 6.0, 8.0), ("other", 2.0, 8.0)):
            labels = f'{{route="{route}",target="door"}}'
            assert f"gateway_route_delivered_messages_total{labels} {messages}" in scraped
            assert f"gateway_route_delivered_bytes_total{labels} {size}" in scraped
        assert 'gateway_fetch_latency_seconds_count{listener="door"} 3.0' in scraped
        assert _ours(recorder) == scraped  # nothing twice


async def test_who_has_read_a_topic_finds_the_one_that_is_made_again(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await filled(client, b"old", b"older")
        assert values(await client.ask(fetch())) == [b"old", b"older"]
        await client.ask(DeleteTopic(0, "t"))
        assert isinstance(await client.ask(fetch()), UnknownTopic)
        await filled(client, b"new")
        assert values(await client.ask(fetch())) == [b"new"]


async def test_who_has_read_an_address_goes_where_a_reload_leads_it(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await filled(client, b"here")
        await client.publish("u", b"there")
        assert values(await client.ask(fetch())) == [b"here"]
        moved = model.Route("moved", model.Match(topic="t"), (model.StoreTarget("u"),))
        gateway.table.become(compile_table(model.Config(listeners={}, routes=(moved,)), {}))
        assert values(await client.ask(fetch())) == [b"there"]
