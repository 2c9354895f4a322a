"""What operation 09 answers: the original's names in its order, with values (RustLog wire 7).

There every value is 0 for ever, and no value says anything about a single topic, group or client. So it is here: sums.

Apart from the operations: a format of its own, with names that are not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.recorder import MERGED, NOTHING_MERGED, NOTHING_TRIMMED, TRIMMED
from gateway.requests import Quantiles, Totals, Upkeep

_NONE = Upkeep()


def _upkeep(done: str, field: str) -> Callable[[Totals], int]:
    return lambda totals: getattr(totals.upkeep.get(done, _NONE), field)


COUNTERS: tuple[tuple[str, str, Callable[[Totals], int]], ...] = (
    ("messages_produced_total", "Messages received.", lambda totals: totals.received),
    ("messages_fetched_total", "Messages handed to readers.", lambda totals: totals.delivered),
    ("bytes_in_total", "Bytes of the values received.", lambda totals: totals.received_bytes),
    ("bytes_out_total", "Bytes of the values handed to readers.", lambda totals: totals.delivered_bytes),
    ("active_connections", "Open connections.", lambda totals: totals.connections),
    ("throttled_consumers_total", "Times a peer that did not read was held back.", lambda totals: totals.held_back),
    ("slow_consumers_total", "Peers cut off because they did not read.", lambda totals: totals.cut_off),
    ("segments_deleted_total", "Chunks that retention removed.", _upkeep(TRIMMED, "chunks")),
    ("bytes_reclaimed_total", "Bytes that retention removed.", _upkeep(TRIMMED, "size")),
    ("compaction_runs_total", "Times small chunks were merged.", _upkeep(MERGED, "steps")),
    ("compaction_skipped_segments_total", "Times there was nothing to merge.", _upkeep(NOTHING_MERGED, "steps")),
    ("retention_noop_runs_total", "Times retention had nothing to remove.", _upkeep(NOTHING_TRIMMED, "steps")),
    ("checkpoint_corruption_total", "Damaged ranges that readers met.", lambda totals: totals.damaged),
    ("compaction_segments_rewritten_total", "Chunks that were merged.", _upkeep(MERGED, "chunks")),
    ("compaction_records_dropped_total", "Records that merging dropped: it drops none.", lambda _totals: 0),
    ("compaction_bytes_rewritten_total", "Bytes of the chunks that were merged.", _upkeep(MERGED, "size")),
)


def exposition(totals: Totals) -> str:
    return "".join(_lines(totals))


def _lines(totals: Totals) -> Iterator[str]:
    for name, text, value in COUNTERS:
        kind = "counter" if name.endswith("_total") else "gauge"
        yield _metric(name, kind, text, name, value(totals))
    yield from _latencies("fetch", "Reading", totals.fetches)
    yield from _latencies("produce", "Publishing", totals.publishes)
    lag = 'consumer_lag{topic="",partition="",group=""}'
    yield _metric("consumer_lag", "gauge", "Messages behind what groups have committed.", lag, totals.lag)


def _latencies(what: str, doing: str, seconds: Quantiles) -> Iterator[str]:
    for share, value in zip((50, 95, 99), seconds, strict=True):
        name = f"{what}_latency_ns_p{share}"
        yield _metric(name, "gauge", f"{doing} took {share} of 100 no longer.", name, round(value * 1e9))


def _metric(name: str, kind: str, text: str, series: str, value: int) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{series} {value}\n"
