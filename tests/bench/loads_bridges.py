"""Forwarding in the benchmark: FlyMQ into one gateway, over Felix to a second one, and how long that takes.

Both are processes of their own. What arrived is read back at the second and counted. Beside each rate stands how much of a
core the first gateway took for it: machines that do other things at the same time show that truer than a clock.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from gateway.protocols.registry import protocol
from gateway.requests import Start, Subscribe, Subscribed, Take, Taken
from gateway.transport.client import connect
from gateway.transport.tls import ClientTls
from tests.bench import loads, loads_flymq
from tests.bench.processes import Process, running

SIZE, BLOCK = 256, 500
MESSAGES = 100_000
PAIRED = 40_000
ROUNDS = 3
EACH_SECOND, SECONDS = 1_000, 3
Report = Callable[[str, str, str, str], None]

FAR = """
version: 1
listeners:
  felix:   {{protocol: felix,   bind: "127.0.0.1:{felix}", tls: self-signed}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
storage: {{path: "{path}"}}
"""
NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
  felix: {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed}}
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


def cpu(process: Process) -> float:
    """Seconds of a core that a process has taken."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def arrived(sock: socket.socket, topic: bytes, offset: int) -> bool:
    """Whether the far gateway has a message at an offset."""
    try:
        return loads.fetch(sock, topic, offset, 1)[0] > 0
    except RuntimeError:  # no such topic yet
        return False


def wait(sock: socket.socket, topic: bytes, offset: int) -> float:
    """When a message was there."""
    while not arrived(sock, topic, offset):
        time.sleep(0.005)  # noqa: TID251  # no event loop here
    return time.perf_counter()


class Bench:
    """Two gateways."""

    def __init__(self, near: Process, far: Process, report: Report) -> None:
        self.near, self.far, self.report = near, far, report
        self.sent: Counter[bytes] = Counter()

    def forward(self, topic: bytes, messages: int) -> tuple[float, float]:
        """(messages a second from the first PRODUCE to the last one there, messages a second of the first gateway's core)."""
        with loads.rustlog(self.far.ports["rustlog"], topic) as sock:
            before, started = cpu(self.near), time.perf_counter()
            loads_flymq.pipelined(self.near.ports["flymq"], topic, SIZE, BLOCK, messages // BLOCK)
            self.sent[topic] += messages + 1  # one that makes the topic
            rate = messages / (wait(sock, topic, self.sent[topic] - 1) - started)
            return rate, messages / (cpu(self.near) - before)

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
        """The same with a second target that is down, in turns."""
        self.forward(b"solo.x", PAIRED)
        self.forward(b"pair.x", PAIRED)  # what waits for a dead target is as much as it will ever be
        alone, beside = [], []
        for _ in range(ROUNDS + 2):
            alone.append(self.forward(b"solo.x", PAIRED))
            beside.append(self.forward(b"pair.x", PAIRED))
        for what, index in (("throughput", 0), ("messages per second of core", 1)):
            one, two = (statistics.median(pair[index] for pair in rates) for rates in (alone, beside))
            self.report(
                f"beside a target that is down: {what}", f"{two:,.0f}", f"{(two / one - 1) * 100:+.1f} %", "-5 %"
            )

    def latency(self, certificates: tuple[str, str]) -> None:
        """From PRODUCE to a Felix subscriber, of the first gateway and of the second, at 1 000 a second."""
        near, far = trio.run(self._latencies, certificates)
        first, second = statistics.median(near), statistics.median(far)
        what = f"{(second - first) * 1e3:.2f} ms"
        self.report(
            "added by a forward at 1 000/s, median", what, f"{second / first:.2f} of {first * 1e3:.2f} ms", "3 ms"
        )

    async def _latencies(self, certificates: tuple[str, str]) -> tuple[list[float], list[float]]:
        """One subscriber at a time, and a producer that does as little as can be: they share the machine with what is measured."""
        taken: tuple[list[float], list[float]] = ([], [])
        topic = b"latency"
        with loads.connect(self.near.ports["flymq"]) as sock:
            sock.sendall(loads_flymq.produce_frame(topic, SIZE))
            loads.receive(sock, loads_flymq.FIXED + len(topic))
            head = loads_flymq.produce_frame(topic, SIZE)[: -SIZE - 4]
            for process, ca, times in zip((self.near, self.far), certificates, taken, strict=True):
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._subscribe, process.ports["felix"], ca, times)
                    started = trio.current_time()
                    for number in range(EACH_SECOND * SECONDS):
                        await trio.sleep_until(started + number / EACH_SECOND)
                        now = struct.pack(">d", time.perf_counter())
                        sock.sendall(head + now + bytes(SIZE - 8) + b"\xff" * 4)
                    while len(times) < EACH_SECOND * SECONDS:  # noqa: ASYNC110  # it happens in other processes
                        await trio.sleep(0.05)
                    nursery.cancel_scope.cancel()
                loads.receive(sock, EACH_SECOND * SECONDS * (loads_flymq.FIXED + len(topic)))
        return taken

    async def _subscribe(
        self, port: int, ca: str, times: list[float], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with connect(protocol("felix"), "127.0.0.1", port, tls=ClientTls(ca=ca)) as connection:
            subscribed = await connection.request(Subscribe(0, "latency", start=Start.LATEST))
            assert isinstance(subscribed, Subscribed)
            task_status.started()
            while True:
                request = Take(0, subscribed.subscription, 1_000, hold_until=float("inf"))
                taken = await connection.request(request, timeout=None)
                now = time.perf_counter()
                assert isinstance(taken, Taken)
                for delivered in taken.deliveries:
                    times += [now - struct.unpack(">d", value[:8])[0] for value in delivered.run.columns.values()]


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
            first = wait(sock, topic, MESSAGES // 10)
            before = cpu(process)
            last = wait(sock, topic, MESSAGES)
            rates = [0.9 * MESSAGES / (last - first), 0.9 * MESSAGES / max(cpu(process) - before, 0.01)]
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
                bench.latency((str(directory / "near" / "data" / "self-signed.crt"), str(ca)))
        backlog(directory, felix, ca, live, report)
