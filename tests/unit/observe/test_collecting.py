"""What the collector of cycles looks at, counted in objects: what lives is not looked at again, and what was frozen alive and died in a
cycle is found when nobody waits.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.observe.collecting import ENOUGH, EVERY, IDLE, MOST, YOUNG, Collector, collecting
from gateway.observe.prometheus import PrometheusRecorder
from tests.unit.observe.test_prometheus import value

MANY = 50_000


class Knot:
    """Nothing but the collector finds one that is let go of."""

    def __init__(self) -> None:
        self.me = self


class Connections:
    """As a recorder tells of them."""

    def __init__(self) -> None:
        self.there, self.closed = 1, 0

    def told(self) -> tuple[int, int]:
        return self.there, self.closed


@pytest.fixture
def process() -> Iterator[None]:
    """What is frozen, and whether there are collections, is the whole process's: it is put back."""
    gc.collect()
    yield
    gc.unfreeze()
    gc.enable()


def looked_at() -> int:
    """Objects that the next full collection looks at."""
    return len(gc.get_objects())


def alone(recorder: PrometheusRecorder, connections: Connections) -> Collector:
    """One that finds only what is asked of it."""
    gc.disable()
    return Collector(recorder.collected, connections.told)


def pauses(recorder: PrometheusRecorder, kind: str) -> float:
    return value(recorder, "gateway_collection_seconds_count", kind=kind)


@pytest.mark.usefixtures("process")
def test_what_has_outlived_a_full_collection_is_not_looked_at_again():
    recorder = PrometheusRecorder()
    with collecting(Collector(recorder.collected, recorder.connected)):
        kept = [[number] for number in range(MANY)]
        gc.collect()
        assert looked_at() < YOUNG
        assert gc.get_freeze_count() > MANY
        assert pauses(recorder, "full") == 1
        there = gc.get_freeze_count()
        del kept
        assert gc.get_freeze_count() <= there - MANY, "what is let go of is gone, frozen or not"


@pytest.mark.usefixtures("process")
def test_however_much_there_is_a_collection_is_about_what_is_new():
    most = 0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal most
        if phase == "start":
            most = max(most, sum(len(gc.get_objects(number)) for number in range(info["generation"] + 1)))

    recorder = PrometheusRecorder()
    gc.callbacks.append(watch)
    try:
        with collecting(Collector(recorder.collected, recorder.connected)):
            kept = [[number] for number in range(20 * MANY)]
    finally:
        gc.callbacks.remove(watch)
    assert len(kept) == 20 * MANY
    assert most < 3 * MANY
    assert pauses(recorder, "full") >= 5


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("thorough", [False, True])
def test_nor_does_it_wait_for_more_where_there_was_much_before(thorough: bool):
    much = [[number] for number in range(20 * MANY)]
    gc.collect()
    recorder, connections = PrometheusRecorder(), Connections()
    connections.there, connections.closed = 0, ENOUGH
    collector = Collector(recorder.collected, connections.told)
    with collecting(collector):
        if thorough:
            collector.look(idle=True)
        before = pauses(recorder, "full")
        kept = [[number] for number in range(3 * MANY)]
        assert pauses(recorder, "full") > before
    assert len(much) + len(kept) == 23 * MANY
    assert pauses(recorder, "thorough") == int(thorough)


@pytest.mark.usefixtures("process")
def test_what_died_frozen_is_found_when_nobody_waits():
    recorder, connections = PrometheusRecorder(), Connections()
    collector = alone(recorder, connections)
    with collecting(collector):
        knot = Knot()
        gone = weakref.ref(knot)
        gc.collect()
        del knot
        gc.collect()
        assert gone() is not None, "it was frozen alive"
        collector.look(idle=False)
        assert gone() is not None, "somebody waits"
        connections.there = 0
        collector.look(idle=True)
        assert gone() is None
        assert pauses(recorder, "thorough") == 1
        collector.look(idle=True)
        assert pauses(recorder, "thorough") == 1, "nothing was frozen since, and nobody has gone"
        connections.closed += ENOUGH
        collector.look(idle=True)
        assert pauses(recorder, "thorough") == 2


@pytest.mark.usefixtures("process")
def test_while_somebody_is_connected_it_is_done_only_if_it_is_short():
    recorder, connections = PrometheusRecorder(), Connections()
    collector = alone(recorder, connections)
    connections.closed = ENOUGH
    with collecting(collector):
        collector._per_object = (
            2 * MOST / gc.get_freeze_count()
        )  # as measured on a slow machine, or if there were so many
        collector.look(idle=True)
        assert pauses(recorder, "thorough") == 0
        collector._per_object = 0.5 * MOST / gc.get_freeze_count()
        collector.look(idle=True)
        assert pauses(recorder, "thorough") == 1


@pytest.mark.usefixtures("process")
async def test_who_uses_the_processor_is_not_idle(mock_clock: MockClock):
    recorder, connections = PrometheusRecorder(), Connections()
    used = 0.0
    collector = Collector(recorder.collected, connections.told, lambda: used)
    gc.disable()
    connections.there, connections.closed = 0, ENOUGH
    async with trio.open_nursery() as nursery:
        with collecting(collector):
            nursery.start_soon(collector.run)
            for busy, times in ((True, 0), (False, 1), (False, 1)):
                await wait_all_tasks_blocked()
                used += EVERY * IDLE * (1.5 if busy else 0.5)
                mock_clock.jump(EVERY)
                await wait_all_tasks_blocked()
                assert pauses(recorder, "thorough") == times
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("process")
def test_the_policy_ends_with_the_block():
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    with collecting(Collector(lambda _kind, _seconds: None, lambda: (0, 0))):
        assert gc.get_threshold() != before
    assert gc.get_threshold() == before
    assert gc.callbacks == callbacks
