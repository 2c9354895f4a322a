"""A gateway that serves, and `gateway pipeline archive --follow` beside it: whether the archive keeps up, and what it costs.

The load is RustLog's Produce of 100 records of 200 bytes, each answered after the synced commit. First 50 000 messages a
second for a while; then as many as the gateway takes, in turns with the archive and with the archive's processes stopped.
Between two turns the archive catches up.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.pipeline.manifest import Archive
from tests.bench.loads import PRODUCED_SIZE, produce, produce_frame, rustlog
from tests.bench.processes import Process, gateway

RATE = 50_000
SECONDS = 20
RECORDS = 100
SIZE = 200
ROUNDS = 9
ROUND_RECORDS = 1_000_000
WINDOW = 8
PATIENCE = 120.0


def family(pid: int) -> dict[int, int]:
    """A process and all that it has started, with the clock ticks that each has used."""
    ticks: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has ended meanwhile
        fields = text.rsplit(") ", 1)[1].split()
        ticks[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found = {pid} & set(ticks)
    grown = found
    while grown:
        grown = {one for one, (parent, _used) in ticks.items() if parent in grown} - found
        found = found | grown
    return {one: ticks[one][1] for one in found}


def cpu_seconds(pid: int) -> float:
    """What a process and all that it has started have used."""
    return sum(family(pid).values()) / os.sysconf("SC_CLK_TCK")


def archived(directory: Path) -> int:
    """How many records an archive has."""
    if not (directory / "_manifests").is_dir():
        return 0
    return sum(file.end - file.start for file in Archive(directory).named())


def caught_up(directory: Path, records: int) -> float:
    """Seconds until an archive has so many records."""
    started = time.perf_counter()
    while archived(directory) < records:
        if time.perf_counter() - started > PATIENCE:
            raise RuntimeError(f"the archive has {archived(directory)} of {records} records")
        threading.Event().wait(0.05)
    return time.perf_counter() - started


def paced(
    port: int,
    topic: bytes,
    *,
    rate: int = RATE,
    seconds: int = SECONDS,
    told: Callable[[int], object] = lambda _count: None,
) -> tuple[int, float]:
    """So many a second: how many were answered (`told` hears it meanwhile), and how late the last answer was."""
    with rustlog(port, topic) as sock:
        one = produce_frame(topic, [b"x" * SIZE] * RECORDS)
        requests = rate * seconds // RECORDS
        sent = answered = 0
        started = time.perf_counter()
        while answered < requests * PRODUCED_SIZE:
            due = min(int((time.perf_counter() - started) * rate / RECORDS) + 1, requests)
            if due > sent:
                sock.settimeout(60)
                sock.sendall(one * (due - sent))
                sent = due
            sock.settimeout(
                max(started + sent * RECORDS / rate - time.perf_counter(), 0.0005) if sent < requests else 60
            )
            try:
                answered += len(sock.recv(1 << 16))
                told(answered // PRODUCED_SIZE * RECORDS)
            except TimeoutError:
                continue
        return requests * RECORDS, time.perf_counter() - started - seconds


@contextmanager
def follower(data: Path, to: Path) -> Iterator[int]:
    """The archive, going on; yields its process."""
    command = [sys.executable, "-m", "gateway", "pipeline", "archive", "--path", str(data), "--to", str(to)]
    process = subprocess.Popen(
        [*command, "--follow", "--interval", "1", "--master", "local[2]"], stdout=subprocess.DEVNULL
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """With all of its processes standing still."""
    those = list(family(pid))
    for one in those:
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in those:
            os.kill(one, signal.SIGCONT)


def following(say: Callable[[str, str], None]) -> None:
    """Measure, and say it line by line."""
    with tempfile.TemporaryDirectory() as directory, gateway(directory) as process:
        to = Path(directory) / "archive"
        port = process.ports["rustlog"]
        total, _ = produce(port, b"orders", SIZE, RECORDS, 1, 10)
        with follower(Path(directory) / "data", to) as archive:
            caught_up(to, total)  # Spark is up
            total = _paced(process, archive, to, total, say)
            _unpaced(port, archive, to, total, say)


def _paced(process: Process, archive: int, to: Path, total: int, say: Callable[[str, str], None]) -> int:
    used = cpu_seconds(archive), cpu_seconds(process.pid)
    count, late = paced(process.ports["rustlog"], b"orders")
    behind = total + count - archived(to)
    own, theirs = cpu_seconds(archive) - used[0], cpu_seconds(process.pid) - used[1]
    seconds = caught_up(to, total + count)
    say(
        "archive --follow, behind at the end",
        f"{behind:,} records ({behind / RATE:.1f} s of {SECONDS} s at {RATE:,}/s)",
    )
    say(
        "archive --follow, all there after", f"{seconds:.1f} s; the gateway's last answer came {late * 1e3:.0f} ms late"
    )
    say("CPU for that", f"archive {own / SECONDS:.0%}, gateway {theirs / SECONDS:.0%} of a core")
    return total + count


def _unpaced(port: int, archive: int, to: Path, total: int, say: Callable[[str, str], None]) -> None:
    beside: list[float] = []
    alone: list[float] = []
    requests = ROUND_RECORDS // RECORDS
    for _ in range(ROUNDS):
        with stopped(archive):
            count, seconds = produce(port, b"orders", SIZE, RECORDS, WINDOW, requests)
        alone.append(count / seconds)
        total += count
        caught_up(to, total)
        count, seconds = produce(port, b"orders", SIZE, RECORDS, WINDOW, requests)
        beside.append(count / seconds)
        total += count
        caught_up(to, total)
    # in pairs, one right after the other: over a minute the machine itself changes by more than what is looked for
    first, cost, third = statistics.quantiles([1 - two / one for one, two in zip(alone, beside, strict=True)])
    say("gateway alone, unpaced", _rates(alone))
    say("gateway with the archive beside it", _rates(beside))
    say("the archive's cost", f"{cost:.0%} of the gateway's throughput (quartiles {first:.0%} and {third:.0%})")


def _rates(found: list[float]) -> str:
    return f"{statistics.median(found):,.0f}/s ({', '.join(f'{one:,.0f}' for one in found)})"


if __name__ == "__main__":
    following(lambda label, figure: print(f"{label:<40} {figure}", flush=True))
