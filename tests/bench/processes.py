"""The processes of the benchmark: the gateway and the bare loop beside it."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
admin:     {{bind: "127.0.0.1:0"}}
storage:   {{path: "{path}", durability: fsync}}
routes:
  - name: polled
    match: {{topic: "memory.polled.**"}}
    to: [{{store: {{topic: "{{topic}}", durability: memory, retention: {{bytes: 2GiB}}}}}}]
  - {{name: memory, match: {{topic: "memory.**"}}, to: [{{store: {{topic: "{{topic}}", durability: memory}}}}]}}
  - {{name: lazy, match: {{topic: "lazy.**"}}, to: [{{store: {{topic: "{{topic}}", durability: {{interval: 5ms}}}}}}]}}
  - {{name: durable, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""


@attrs.frozen
class Process:
    """A server, its ports by listener, and how long it took to be ready."""

    pid: int
    ports: Mapping[str, int]
    started: float

    def processor(self) -> float:
        """Seconds of a core that it has taken: its own clock, which counts finer than the ticks of /proc."""
        return time.clock_gettime((~self.pid << 3) | 2)  # what clock_getcpuclockid(3) makes of a process

    def memory(self) -> int:
        """Resident bytes."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        return int(found[1]) * 1024 if found else 0


@contextmanager
def running(command: list[str]) -> Iterator[Process]:
    """A server that prints where it listens and then `ready`."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_environment()
    )
    try:
        ports: dict[str, int] = {}
        assert process.stdout is not None
        for line in process.stdout:
            found = re.match(r"listening ([\w-]+): .* 127\.0\.0\.1:(\d+)", line)
            if found:
                ports[found[1]] = int(found[2])
            if line == "ready\n":
                break
        else:
            raise RuntimeError(f"{command} did not start")
        yield Process(process.pid, ports, time.perf_counter() - started)
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


@functools.cache
def _bytecode() -> str:
    kept = tempfile.mkdtemp(prefix="gateway-bench-")
    atexit.register(shutil.rmtree, kept, ignore_errors=True)
    return kept


def _environment() -> dict[str, str]:
    """With byte code kept from start to start, as where it is installed: without, half of a start is the compiler's."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": _bytecode()}


@contextmanager
def gateway(directory: str) -> Iterator[Process]:
    """The gateway on a store in a directory."""
    config = Path(directory) / "gateway.yaml"
    config.write_text(CONFIG.format(path=Path(directory) / "data"))
    with running(
        [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--log-level", "error"]
    ) as process:
        yield process


@contextmanager
def bare_process(protocol: str, mode: str) -> Iterator[Process]:
    """The bare loop."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tests.bench.bare", protocol, mode, directory]
        with running(command) as process:
            yield process


@contextmanager
def bare(protocol: str, mode: str) -> Iterator[int]:
    """The bare loop; yields its port."""
    with bare_process(protocol, mode) as process:
        yield process.ports[protocol]
