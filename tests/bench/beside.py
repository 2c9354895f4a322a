"""What Felix and Fujin cost beside the bare loop, kept for the page on the benchmark: every round, and the table of them.

`python -m tests.bench.loads_quic --rounds 9 --into gateway/docs/images` measures; `make docs` writes the table.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

KEPT = "bench-quic.json"


class PairedRound(msgspec.Struct, frozen=True):
    """So many a second by the clock, and a second of the server's processor: the gateway, and the bare loop right before it."""

    gateway: float
    gateway_processor: float
    bare: float
    bare_processor: float


class BesideBare(msgspec.Struct, frozen=True):
    what: str
    rounds: Sequence[PairedRound]


class MeasuredBeside(msgspec.Struct, frozen=True):
    """What the file holds."""

    loads: Sequence[BesideBare]


def keep(found: Sequence[BesideBare], into: Path) -> None:
    (into / KEPT).write_bytes(msgspec.json.format(msgspec.json.encode(MeasuredBeside(found)), indent=1) + b"\n")


def kept(images: Path) -> Sequence[BesideBare]:
    return msgspec.json.decode((images / KEPT).read_bytes(), type=MeasuredBeside).loads


def spread(values: Sequence[float], decimals: int) -> str:
    """The median, and from where to where they went."""
    return f"{statistics.median(values):.{decimals}f} ({min(values):.{decimals}f}–{max(values):.{decimals}f})"


def table(found: Sequence[BesideBare]) -> str:
    """Processor time of one, in microseconds, and the ratios, which are taken round by round."""
    lines = [
        "| what | gateway µs | bare loop µs | ratio of processor time | by the clock | gateway, a second |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        ours = statistics.median(1e6 / each.gateway_processor for each in one.rounds)
        theirs = statistics.median(1e6 / each.bare_processor for each in one.rounds)
        decimals = 0 if ours >= 10 else 2
        processor = spread([each.gateway_processor / each.bare_processor for each in one.rounds], 2)
        clock = spread([each.gateway / each.bare for each in one.rounds], 2)
        rate = statistics.median(each.gateway for each in one.rounds)
        lines.append(
            f"| {one.what} | {ours:.{decimals}f} | {theirs:.{decimals}f} | {processor} | {clock} | {rate:,.0f} |"
        )
    return "\n".join(lines)
