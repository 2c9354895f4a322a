"""Cutting runs to what a reader asked for: from an offset, so many messages, so many bytes, nothing that has expired."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.envelope import PREFIX, BatchMeta, Columns, Run
from gateway.store.interface import ReadResult


def fit(columns: Columns, start: int, stop: int, budget: int) -> int:
    """How far from `start` the values fit into `budget` bytes, `stop` at most. May be `start` itself."""
    ends = columns.ends
    base = (ends[start - 1] if start else 0) - PREFIX * start
    if ends[stop - 1] - PREFIX * stop - base <= budget:
        return stop
    low, high = start, stop - 1
    while low < high:
        middle = (low + high + 1) // 2
        if ends[middle - 1] - PREFIX * middle - base <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def value_bytes(columns: Columns, start: int, stop: int) -> int:
    ends = columns.ends
    return ends[stop - 1] - (ends[start - 1] if start else 0) - PREFIX * (stop - start) if stop > start else 0


def alive(expires: Sequence[int] | None, start: int, stop: int, now_ms: int) -> Sequence[tuple[int, int]]:
    """The stretches of [start, stop) that have not expired."""
    if expires is None:
        return ((start, stop),)
    dead = [start + index for index, expiry in enumerate(expires[start:stop]) if 0 < expiry <= now_ms]
    if not dead:
        return ((start, stop),)
    stretches: list[tuple[int, int]] = []
    position = start
    for index in dead:
        if index > position:
            stretches.append((position, index))
        position = index + 1
    if position < stop:
        stretches.append((position, stop))
    return stretches


def gather(runs: Iterable[Run], offset: int, max_messages: int, max_bytes: int, now_ms: int) -> ReadResult:
    """Read from consecutive runs, the first of which holds `offset`. The first record fits whatever its size."""
    taken: list[Run] = []
    room, budget, expired, position = max_messages, max_bytes, 0, offset
    for run in runs:
        if room <= 0 or (budget <= 0 and taken):
            break
        columns, base = run.columns, run.base_offset
        position = max(position, base)  # what is missing before it has not expired: there was nothing
        count = columns.count
        if position == base and count <= room and columns.expires is None:
            size = len(columns.packed) - PREFIX * count
            if size <= budget or (count == 1 and not taken):  # all of it, as mostly
                taken.append(run)
                room, budget, position = room - count, budget - size, base + count
                continue
        full = False
        for begin, end in alive(columns.expires, position - base, columns.count, now_ms):
            if room <= 0:
                full = True
                break
            stop = fit(columns, begin, min(end, begin + room), budget)
            if stop == begin and not taken:
                stop = begin + 1
            expired += begin - (position - base)
            position = base + begin
            if stop > begin:
                taken.append(run.slice(begin, stop))
                room -= stop - begin
                budget -= value_bytes(columns, begin, stop)
                position = base + stop
            if stop < end:
                full = True
                break
        if full:
            break
        expired += base + columns.count - position  # what is left of it has expired
        position = base + columns.count
    return ReadResult(taken, position, expired)


def concat(runs: Sequence[Run]) -> Run:
    """Runs that follow each other as one."""
    times: list[int] = []
    batches: list[tuple[int, int, BatchMeta]] = []
    known: dict[BatchMeta, BatchMeta] = {}
    for run in runs:
        at = len(times)
        batches += [(first + at, inner, known.setdefault(meta, meta)) for first, inner, meta in run.batches]
        times += run.times
    first = runs[0]
    columns = Columns.concat([run.columns for run in runs])
    return Run(first.topic, first.partition, first.base_offset, columns, times, batches)
