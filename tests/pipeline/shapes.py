"""Runs of every shape: keys, headers, expiries, times and batches or none of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gateway.envelope import BatchMeta, Columns, Delivery, Origin, Run
from gateway.store.chunk import decode, encode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
HEADERS = st.lists(st.tuples(texts, st.binary(max_size=3)), max_size=3).map(tuple)


IDS = [b"sixteen-bytes-id", b"another-sixteen-", b"", b"odd"]


@st.composite
def runs(draw: Any, usual: bool = False) -> list[Run]:
    """Consecutive ones; `usual`: with ids as the gateway makes them."""
    made = []
    base, time = draw(st.integers(0, 5)), 1_700_000_000_000
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 5))

        def column(cells: st.SearchStrategy[Any], count: int = count) -> Any:
            return draw(st.none() | st.lists(cells, min_size=count, max_size=count))

        size = draw(st.none() | st.integers(0, 3))
        value = st.binary(max_size=6) if size is None else st.binary(min_size=size, max_size=size)
        columns = Columns.of(
            draw(st.lists(value, min_size=count, max_size=count)),
            column(st.none() | st.binary(max_size=3)),
            column(HEADERS),
            column(st.sampled_from([0, 1, 1_700_000_000_001])),
        )
        times = sorted(draw(st.lists(st.integers(time, time + 9), min_size=count, max_size=count)))
        firsts = sorted({0, *draw(st.lists(st.integers(0, count - 1), max_size=2))})
        metas = [
            (
                first,
                draw(st.integers(0, 300)),
                BatchMeta(
                    draw(st.sampled_from(IDS[:2] if usual else IDS)),
                    Origin(draw(texts), "here", draw(texts), "c"),
                    draw(texts),
                    draw(st.sampled_from(Delivery)),
                ),
            )
            for first in firsts
        ]
        run = Run("t", 3, base, columns, times, metas)
        if draw(st.booleans()):  # as it comes from disk; otherwise from memory
            run = decode(encode(run), "t", 3, base, count)
            start = draw(st.integers(0, count - 1))
            run = run.slice(start, draw(st.integers(start + 1, count)))
        made.append(run)
        base, time = base + count, times[-1]
    return made
