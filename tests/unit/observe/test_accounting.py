"""The identity: 0 while every message is somewhere, and not 0 when one is lost on purpose."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.accounting import Accounting
from gateway.observe.prometheus import PrometheusRecorder
from gateway.recorder import ConsumerCounts, DoorCounts, Snapshot
from tests.unit.observe.test_prometheus import value

PLACES = ("stored", "refused", "filtered", "duplicate", "rolled_back", "committing", "in_transactions", "delayed")
SETTLED = ("acknowledged", "filtered", "expired", "dead_lettered", "trimmed", "backlog")
counts = st.integers(min_value=0, max_value=10**12)


@given(st.fixed_dictionaries(dict.fromkeys(PLACES, counts)), st.sampled_from(PLACES))
def test_at_the_door_every_place_counts_once(places: dict[str, int], changed: str) -> None:
    door = DoorCounts("orders", received=sum(places.values()), **places)
    assert door.unaccounted == 0
    assert attrs.evolve(door, received=door.received + 1).unaccounted == 1
    assert attrs.evolve(door, **{changed: places[changed] + 1}).unaccounted == -1


@given(st.fixed_dictionaries(dict.fromkeys(SETTLED, counts)), counts, st.sampled_from(SETTLED))
def test_at_a_consumer_every_place_counts_once(places: dict[str, int], start: int, changed: str) -> None:
    consumer = ConsumerCounts("reader", "r", start=start, end=start + sum(places.values()), **places)
    assert consumer.unaccounted == 0
    assert attrs.evolve(consumer, end=consumer.end + 1).unaccounted == 1
    assert attrs.evolve(consumer, **{changed: places[changed] + 1}).unaccounted == -1


@pytest.fixture
def recorder() -> PrometheusRecorder:
    return PrometheusRecorder(routes=["orders"], listeners={"front": "blipmq"})


async def test_a_lost_message_shows_at_the_next_scrape(recorder: PrometheusRecorder) -> None:
    now = [Snapshot(doors=[DoorCounts("orders", received=5, stored=5)])]
    recorder.before_scrape(Accounting(recorder, lambda: now[0]).take)
    await recorder.prepare()
    assert value(recorder, "gateway_route_unaccounted_messages", route="orders") == 0
    now[0] = Snapshot(doors=[DoorCounts("orders", received=6, stored=5)])
    await recorder.prepare()
    assert value(recorder, "gateway_route_unaccounted_messages", route="orders") == 1


async def test_two_wrong_consumers_do_not_cancel_out(recorder: PrometheusRecorder) -> None:
    lost = ConsumerCounts("forward", "a", start=0, end=10, acknowledged=8, backlog=1)
    twice = ConsumerCounts("forward", "b", start=0, end=10, acknowledged=10, backlog=1)
    await Accounting(recorder, lambda: Snapshot(consumers=[lost, twice])).take()
    assert value(recorder, "gateway_consumer_unaccounted_messages", kind="forward") == 2
    assert value(recorder, "gateway_consumer_unaccounted_messages", kind="reader") == 0


async def test_a_forward_that_is_gone_falls_to_zero(recorder: PrometheusRecorder) -> None:
    behind = ConsumerCounts("forward", "a", start=0, end=10, acknowledged=4, backlog=6)
    now = [Snapshot(consumers=[behind])]
    account = Accounting(recorder, lambda: now[0])
    await account.take()
    assert value(recorder, "gateway_forward_backlog_messages", forward="a") == 6
    now[0] = Snapshot()
    await account.take()
    assert value(recorder, "gateway_forward_backlog_messages", forward="a") == 0
    assert value(recorder, "gateway_consumer_backlog_messages", kind="forward") == 0
