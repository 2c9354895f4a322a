"""Real processes: started, waited for by what they print, ended with the block."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

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
        match = re.match(r"listening ([\w-]+): .* 127\.0\.0\.1:(\d+)", line)
        if match:
            found[match[1]] = int(match[2])
    return found
