"""Real processes: started, waited for by what they print, ended with the block."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio


@asynccontextmanager
async def process(command: Sequence[str], ready: Callable[[bytes], bool] | None = None) -> AsyncIterator[list[str]]:
    """A process that is ended with the block; yields the lines it wrote until it was ready."""
    lines: list[str] = []
    out = subprocess.PIPE if ready else subprocess.DEVNULL
    running = await trio.lowlevel.open_process(command, stdin=None, stdout=out, stderr=subprocess.DEVNULL)
    try:
        if ready and running.stdout is not None:
            buffer = b""
            while not ready(buffer):
                chunk = await running.stdout.receive_some()
                assert chunk, f"{command[0]} ended: {buffer.decode()}"
                buffer += chunk
            lines = buffer.decode().splitlines()
        yield lines
    finally:
        running.terminate()
        with trio.move_on_after(15, shield=True) as waited:
            await running.wait()
        if waited.cancelled_caught:
            running.kill()
        if running.stdout is not None:
            await running.stdout.aclose()


@asynccontextmanager
async def serving(directory: Path, config: str) -> AsyncIterator[Mapping[str, int]]:
    """`gateway serve` with this configuration, ready; yields the real port of each listener and of `admin`."""
    path = directory / "gateway.yaml"
    await trio.Path(path).write_text(config)
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(path)]
    async with process(command, lambda out: b"\nready\n" in out) as lines:
        yield ports(lines)


def ports(lines: Sequence[str]) -> Mapping[str, int]:
    """The real ports by listener, from what `serve` prints."""
    found = {}
    for line in lines:
        match = re.match(r"listening ([\w-]+): .* [\d.]+:(\d+)", line)
        if match:
            found[match[1]] = int(match[2])
    return found


def children_of(pid: int) -> Sequence[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(one) for task in tasks for one in task.read_text().split())


class Served:
    """A gateway that a test starts, kills and starts again over the same data."""

    def __init__(self, directory: Path, config: str, within: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        """`within`: a command that runs others somewhere. `options`: of `gateway serve`."""
        self._within = within
        self._options = options
        self._path = directory / "gateway.yaml"
        self._path.write_text(config)
        self._log = directory / "log"  # of a process that ended badly; pytest keeps the directory
        self.data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.ports: Mapping[str, int] = {}

    def start(self) -> None:
        """Returns when it is ready."""
        command = [*self._within, sys.executable, "-m", "gateway", "serve", "--config", str(self._path), *self._options]
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        lines: list[str] = []
        while "ready" not in lines:
            line = process.stdout.readline().decode()
            assert line, lines
            lines.append(line.rstrip("\n"))
        self.ports = ports(lines)

    def end(self, number: int) -> int:
        """Send a signal and wait; the exit code."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(number)
        try:
            code = process.wait(20)
        finally:
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
        return code

    def write(self, config: str) -> None:
        """What a later start reads, or a reload. Another file takes the place of the one there is."""
        fresh = self._path.with_suffix(".fresh")
        fresh.write_text(config)
        fresh.replace(self._path)

    def logged(self) -> Sequence[Mapping[str, Any]]:
        """What it has written to its log."""
        return [json.loads(line) for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def send_signal(self, number: int) -> None:
        """Send a signal and go on."""
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def memory(self) -> int:
        """Resident bytes of the process."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024

    @property
    def children(self) -> Sequence[int]:
        """Process ids of those it has started."""
        return children_of(self.pid)

    @property
    def running(self) -> bool:
        """Whether there is a process to end."""
        return self._process is not None


@contextmanager
def started(directory: Path, config: str, *options: str) -> Iterator[Served]:
    """A gateway that a test may end and start again; what runs at the end of the block is killed."""
    served = Served(directory, config, options=options)
    served.start()
    try:
        yield served
    finally:
        if served.running:
            served.end(signal.SIGKILL)
