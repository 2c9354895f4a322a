"""What is counted when runs are handed out: once per run, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.broker.latencies import Latencies
from gateway.broker.service import ListenerInfo
from gateway.envelope import PREFIX, Run
from gateway.recorder import Recorder


def record_delivered(
    recorder: Recorder, latencies: Latencies, runs: Iterable[Run], to: ListenerInfo, now_ms: int
) -> None:
    """Count runs as handed out, by the routes their batches came in."""
    for run in runs:
        counted = by_route(run)
        for route, messages, size in counted:
            recorder.delivered(route, to.name, messages, size)
        if len(counted) == 1:
            latencies.add(counted[0][0], run.topic, to.protocol, run.times, now_ms)
        else:
            latencies.add_mixed(run, to.protocol, now_ms)


def record_acknowledged(recorder: Recorder, runs: Iterable[Run], by: ListenerInfo) -> None:
    """Count runs whose reader need not confirm them."""
    for run in runs:
        for route, messages, size in by_route(run):
            recorder.acknowledged(route, by.name, messages, size)


def by_route(run: Run) -> Sequence[tuple[str, int, int]]:
    """(route, messages, bytes) of a run."""
    batches = run.batches
    if len({meta.route for _first, _inner, meta in batches}) == 1:
        return [(batches[0][2].route, run.count, run.columns.value_bytes)]
    counted: dict[str, tuple[int, int]] = {}
    ends = run.columns.ends
    for position, (first, _inner, meta) in enumerate(batches):
        stop = batches[position + 1][0] if position + 1 < len(batches) else run.count
        size = ends[stop - 1] - (ends[first - 1] if first else 0) - PREFIX * (stop - first)
        messages, total = counted.get(meta.route, (0, 0))
        counted[meta.route] = (messages + stop - first, total + size)
    return [(route, messages, size) for route, (messages, size) in counted.items()]
