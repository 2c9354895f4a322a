"""An archive that follows a gateway under load, drawn: `python -m tests.bench.behind [RATE] [SECONDS] [FILE.svg]`.

Every quarter of a second: how many messages the gateway has answered for, how many are named by the archive's manifests, and so how
many seconds old the youngest of these is. The load is that of `tests.bench.following`; it waits until the archive has caught up.
"""

from __future__ import annotations

import bisect
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from gateway.pipeline.manifest import Archive
from tests.bench.following import RECORDS, SIZE, caught_up, follower, paced
from tests.bench.loads import produce
from tests.bench.processes import gateway

EVERY_S = 0.25
WIDTH, HEIGHT, LEFT, TOP = 960, 420, 70, 30
PANEL = 160
"""How high each of the two drawings is."""


@attrs.frozen
class Sample:
    at: float
    served: int
    archived: int


def measured(rate: int, seconds: int) -> list[Sample]:
    """From the load's first message until all are archived."""
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as directory, gateway(directory) as process:
        to, port = Path(directory) / "archive", process.ports["rustlog"]
        before, _ = produce(port, b"orders", SIZE, RECORDS, 1, 10)
        with follower(Path(directory) / "data", to):
            caught_up(to, before)  # Spark is up
            answered, over = [0], threading.Event()
            began = time.perf_counter()

            def look() -> None:
                archive = Archive(to)
                while True:
                    done = over.is_set()
                    archived = sum(file.records for file in archive.named()) - before
                    samples.append(Sample(time.perf_counter() - began, answered[0], archived))
                    if done and archived >= answered[0]:
                        return
                    threading.Event().wait(EVERY_S)

            looking = threading.Thread(target=look)
            looking.start()
            paced(port, b"orders", rate=rate, seconds=seconds, told=lambda count: answered.__setitem__(0, count))
            over.set()
            looking.join()
    return samples


def behind(samples: Sequence[Sample]) -> list[float]:
    """How old the youngest archived message is, in seconds, while there are younger ones."""
    served = [one.served for one in samples]
    return [
        0.0 if one.archived >= one.served else one.at - samples[bisect.bisect_right(served, one.archived) - 1].at
        for one in samples
    ]


def drawn(samples: Sequence[Sample], late: Sequence[float], title: str) -> str:
    """Two drawings, one above the other, over one axis of time."""
    last = samples[-1].at
    most, worst = max(one.served for one in samples), max(5.0, *late)
    right = WIDTH - 20

    def x(at: float) -> float:
        return LEFT + (right - LEFT) * at / last

    def line(values: Sequence[float], top: float, low: int, colour: str) -> str:
        points = " ".join(
            f"{x(one.at):.1f},{low - PANEL * value / top:.1f}" for one, value in zip(samples, values, strict=True)
        )
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'

    def ticks(top: float, low: int, unit: str) -> str:
        return "".join(
            f'<line x1="{LEFT}" x2="{right}" y1="{low - PANEL * share:.0f}" y2="{low - PANEL * share:.0f}" stroke="#d0d7de"/>'
            f'<text x="{LEFT - 6}" y="{low - PANEL * share + 4:.0f}" text-anchor="end">{top * share:.1f}{unit}</text>'
            for share in (0, 0.5, 1)
        )

    first, second = TOP + PANEL, TOP + 2 * PANEL + 30
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
        f' fill="#57606a"><rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/><text x="{LEFT}" y="18">{title}</text>'
    )
    across = [last * part / 6 for part in range(6)]
    parts = [
        head,
        ticks(most / 1e6, first, " M"),
        line([one.served for one in samples], most, first, "#e08a00"),
        line([one.archived for one in samples], most, first, "#4269d0"),
        f'<text x="{LEFT + 8}" y="{TOP + 14}" fill="#9a5f00">served</text>',
        f'<text x="{LEFT + 8}" y="{TOP + 30}" fill="#4269d0">archived</text>',
        ticks(worst, second, " s"),
        line(late, worst, second, "#d9344a"),
        f'<text x="{LEFT + 8}" y="{second - PANEL + 14}" fill="#d9344a">behind</text>',
        *(f'<text x="{x(at):.0f}" y="{HEIGHT - 12}">{at:.0f} s</text>' for at in across),
        "</svg>\n",
    ]
    return "".join(parts)


def main(rate: int = 100_000, seconds: int = 60, file: str = "") -> None:
    samples = measured(rate, seconds)
    late = behind(samples)
    load = os.getloadavg()[0]
    print(
        f"{rate:,}/s for {seconds} s: at most {max(late):.1f} s behind, median {statistics.median(late):.1f} s; load {load:.0f}"
    )
    if file:
        title = f"{rate:,} messages a second for {seconds} s on two cores, and an archive that follows (load of the machine {load:.0f})"
        Path(file).write_text(drawn(samples, late, title))


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:3]), *sys.argv[3:4])
