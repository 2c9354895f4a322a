"""Forwarding in the benchmark: FlyMQ into one gateway, over Felix to a second one, and how long that takes.

Both are processes of their own. What arrived is read back at the second and counted. Beside each rate stands how much of a
core the first gateway took for it: machines that do other things at the same time show that truer than a clock.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench import forwarded, loads, loads_flymq
from tests.bench.processes import Process, running

SIZE, BLOCK = 256, 500
MESSAGES = 100_000
PAIRED, PAIRS = 15_000, 16
ROUNDS = 3
Report = Callable[[str, str, str, str], None]

FAR = """
version: 1
listeners:
  felix:   {{protocol: felix,   bind: "127.0.0.1:{felix}", tls: self-signed}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}, poll_hold: 10s}}
storage: {{path: "{path}"}}
"""
NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
  blipmq: {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}, poll_hold: 10s}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{path}"}}
upstreams:
  far:  {{protocol: felix, address: "127.0.0.1:{felix}", tls: {{ca: "{ca}"}}}}
  dead: {{protocol: flymq, address: "127.0.0.1:1"}}
routes:
  - name: pair
    match: {{topic: "pair.*"}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{upstream: far, address: "{{topic}}", window: 2048, accept_loss: all}}
      - forward: {{upstream: dead, address: "{{topic}}", accept_loss: all}}
  - name: rest
    match: {{}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{upstream: far, address: "{{topic}}", name: rest-far, window: 2048, accept_loss: all}}
"""


@contextmanager
def serving(directory: Path, config: str) -> Iterator[Process]:
    """A gateway on this configuration."""
    directory.mkdir(exist_ok=True)
    path = directory / "gateway.yaml"
    path.write_text(config)
    with running([sys.executable, "-m", "gateway", "serve", "--config", str(path), "--log-level", "error"]) as process:
        yield process


class Bench:
    """Two gateways."""

    def __init__(self, near: Process, far: Process, report: Report) -> None:
        self.near, self.far, self.report = near, far, report
        self.sent: Counter[bytes] = Counter()

    def forward(self, topic: bytes, messages: int) -> tuple[float, float]:
        """(messages a second from the first PRODUCE to the last one there, messages a second of the first gateway's core)."""
        with loads.rustlog(self.far.ports["rustlog"], topic) as sock:
            before, started = self.near.processor(), time.perf_counter()
            loads_flymq.pipelined(self.near.ports["flymq"], topic, SIZE, BLOCK, messages // BLOCK)
            self.sent[topic] += messages + 1  # one that makes the topic
            rate = messages / (loads.wait(sock, topic, self.sent[topic] - 1) - started)
            return rate, messages / (self.near.processor() - before)

    def live(self) -> tuple[float, float]:
        """What is forwarded while it comes in, beside the bare loop that takes the same PRODUCEs and does nothing with them."""
        rates, cores, marks = [], [], []
        with loads_flymq.bare() as port:
            for number in range(ROUNDS):
                count, seconds = loads_flymq.pipelined(port, b"mark", SIZE, BLOCK, MESSAGES // BLOCK)
                marks.append(count / seconds)
                rate, core = self.forward(b"live.%d" % number, MESSAGES)
                rates.append(rate)
                cores.append(core)
        rate, core, mark = map(statistics.median, (rates, cores, marks))
        self.report(
            "FlyMQ > forward > Felix, 256 B, live", f"{rate:,.0f}/s", f"{rate / mark:.2f} of {mark:,.0f}", "40 k/s"
        )
        self.report("  for each second of the forwarding core", f"{core:,.0f}", f"{core / mark:.2f}", "40 k")
        records, _size, first, _seconds = loads.fetch_all(self.far.ports["rustlog"], b"live.0")
        again = loads.fetch_all(self.far.ports["rustlog"], b"live.0")
        if (records, first) != (MESSAGES + 1, again[2]):
            raise RuntimeError(f"{records} arrived of {MESSAGES + 1}")
        return rate, core

    def sibling(self) -> None:
        """The same with a second target that is down: many short pairs, each one's two halves side by side, either first in
        turns. What the machine does beside it changes more from one second to the next than what is looked for, but
        seldom within a pair.
        """
        self.forward(b"solo.x", PAIRED)
        self.forward(b"pair.x", PAIRED)  # what waits for a dead target is as much as it will ever be
        ratios: list[tuple[float, ...]] = []
        for number in range(PAIRS):
            topics = (b"solo.x", b"pair.x") if number % 2 else (b"pair.x", b"solo.x")
            figures = {topic: self.forward(topic, PAIRED) for topic in topics}
            ratios.append(tuple(two / one for one, two in zip(figures[b"solo.x"], figures[b"pair.x"], strict=True)))
        for index, what in enumerate(("throughput", "messages per second of core")):
            low, middle, high = statistics.quantiles((ratio[index] for ratio in ratios), n=4)
            spread = f"{low - 1:+.1%} to {high - 1:+.1%} of {PAIRS}"
            self.report(f"beside a target that is down: {what}", f"{middle - 1:+.1%}", spread, "-5 %")


def backlog(directory: Path, felix: int, ca: Path, live: tuple[float, float], report: Report) -> None:
    """What was stored while nobody was there, from a tenth of it to its end."""
    topic, rates = b"backlog", []
    near = directory / "behind"
    with serving(near, NEAR.format(path=near / "data", felix=felix, ca=ca)) as process:
        loads_flymq.pipelined(process.ports["flymq"], topic, SIZE, BLOCK, MESSAGES // BLOCK)
        far = directory / "late"
        with (
            serving(far, FAR.format(path=ca.parent, felix=felix)) as late,
            loads.rustlog(late.ports["rustlog"], topic) as sock,
        ):
            first = loads.wait(sock, topic, MESSAGES // 10)
            before = process.processor()
            last = loads.wait(sock, topic, MESSAGES)
            rates = [0.9 * MESSAGES / (last - first), 0.9 * MESSAGES / max(process.processor() - before, 0.01)]
    for what, rate, mark in zip(("backlog, drained", "  for each second of core"), rates, live, strict=True):
        report(what, f"{rate:,.0f}/s", f"{rate / mark:.2f} of live", "0.80 of live")


def bridges(report: Report) -> None:
    """All of it."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        ca = directory / "far" / "data" / "self-signed.crt"
        with serving(directory / "far", FAR.format(path=ca.parent, felix=0)) as far:
            felix = far.ports["felix"]
            near = NEAR.format(path=directory / "near" / "data", felix=felix, ca=ca)
            with serving(directory / "near", near) as process:
                bench = Bench(process, far, report)
                live = bench.live()
                bench.sibling()
        backlog(directory, felix, ca, live, report)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        ca = directory / "far" / "data" / "self-signed.crt"
        with serving(directory / "far", FAR.format(path=ca.parent, felix=0)) as far:
            near = NEAR.format(path=directory / "near" / "data", felix=far.ports["felix"], ca=ca)
            with serving(directory / "near", near) as process:
                forwarded.latency(directory, process.ports, far.ports, report)
