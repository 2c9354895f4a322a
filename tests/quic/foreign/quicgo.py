"""The program in `quicgo/` as a connection of streams, like the one that `tests.integration.quic_raw` makes of our own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from gateway.wire.session import Kind
from tests.integration.quic_raw import Streams

GOODBYE = 5
"""Seconds for ending in good order."""


class Orders:
    """What `Streams` does with a link, written to the program's standard input."""

    def __init__(self) -> None:
        self.queued = bytearray()
        self.ready = trio.Event()

    def order(self, *words: object) -> None:
        self.queued += b"%s\n" % " ".join(map(str, words)).encode()
        self.ready.set()

    def open(self, channel: int, kind: Kind) -> None:
        self.order("open", channel, "uni" if kind is Kind.WRITE_ONLY else "bidi")

    def send(self, channel: int, data: bytes) -> None:
        self.order("send", channel, data.hex())

    def finish(self, channel: int) -> None:
        self.order("end", channel)

    def reset(self, channel: int, code: int) -> None:
        self.order("reset", channel, code)

    def stop_sending(self, channel: int, code: int) -> None:
        self.order("stop", channel, code)

    def flush(self) -> None:
        """It is on its way already."""


class ForeignStreams(Streams):
    """A connection of quic-go's."""

    link: Any

    def __init__(self) -> None:
        super().__init__()
        self.link = Orders()
        self.port = 0
        self.ready = False
        self.why = ""
        self._reports: list[dict[str, Any]] = []

    def happened(self, line: str) -> None:
        """What the program says."""
        what, _, rest = line.partition(" ")
        if what == "report":
            self._reports.append(json.loads(rest))
            self._change()
            return
        if what == "gone":
            self.why = self.why or rest
            self.lost()
            return
        if what in {"port", "ready"}:
            self.port, self.ready = int(rest or self.port), what == "ready"
            self._change()
            return
        number, _, rest = rest.partition(" ")
        channel = int(number)
        if what == "opened":
            self.opened(channel, Kind.DUPLEX if rest == "bidi" else Kind.READ_ONLY)
        elif what == "data":
            self.received(channel, bytes.fromhex(rest))
        elif what == "end":
            self.eof(channel)
        else:
            {"reset": self.reset, "stopped": self.stopped}[what](channel, int(rest))

    async def report(self) -> dict[str, Any]:
        """What the connection went through so far."""
        self.link.order("report")
        await self.until(lambda: bool(self._reports) or self.gone)
        assert not self.gone, self.why
        return self._reports.pop()


@asynccontextmanager
async def quic_go_streams(
    program: Path, port: int, alpn: str | None = None, options: Sequence[str] = ()
) -> AsyncIterator[ForeignStreams]:
    """A connection of quic-go's to a port of this machine."""
    async with _running([str(program), "-address", f"127.0.0.1:{port}", *_offer(alpn), *options]) as wire:
        await wire.until(lambda: wire.ready or wire.gone)
        assert wire.ready, wire.why
        yield wire


@asynccontextmanager
async def quic_go_listening(
    program: Path, alpn: str | None = None, options: Sequence[str] = ()
) -> AsyncIterator[ForeignStreams]:
    """A server of quic-go's on its `port`; what happens is what happens on the one connection that it accepts."""
    async with _running([str(program), *_offer(alpn), *options]) as wire:
        await wire.until(lambda: wire.port > 0 or wire.gone)
        assert wire.port, wire.why
        yield wire


def _offer(alpn: str | None) -> Sequence[str]:
    return ["-alpn", alpn] if alpn else []


@asynccontextmanager
async def _running(command: Sequence[str]) -> AsyncIterator[ForeignStreams]:
    running = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stdin, stdout = running.stdin, running.stdout
    assert stdin is not None
    assert stdout is not None
    wire = ForeignStreams()

    async def listen() -> None:
        async for line in _lines(stdout):
            wire.happened(line)

    async def speak() -> None:
        while True:
            await wire.link.ready.wait()
            wire.link.ready = trio.Event()
            words, wire.link.queued = wire.link.queued, bytearray()
            await stdin.send_all(words)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            nursery.start_soon(speak)
            yield wire
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await stdin.aclose()  # it says goodbye to the other side, and ends
            with trio.move_on_after(GOODBYE):
                await running.wait()
            running.kill()
            await running.wait()
            await stdout.aclose()


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    buffer = bytearray()
    while chunk := await stream.receive_some(1 << 20):
        buffer += chunk
        *whole, rest = buffer.split(b"\n")
        buffer = bytearray(rest)
        for line in whole:
            yield line.decode()
