"""A log to read by its path, or by the address of a gateway that serves it: the same tests for both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from tests.pipeline.served import Gateway
from tests.pipeline.stored import Log, filled

MODES = ("path", "endpoint")
FORMATS = ("gateway", "gateway-python")
"""The data source in the JVM, and the one in Python that it is compared with."""


@attrs.define(eq=False)
class Place:
    """A store, and a gateway on it if that is how it is read."""

    path: Path
    gateway: Gateway | None = None
    format: str = FORMATS[0]
    _now_ms: int = 0

    @property
    def options(self) -> dict[str, str]:
        """Where it is, as options of the data source."""
        return {"path": str(self.path)} if self.gateway is None else {"endpoint": self.gateway.url}

    def fill(self, work: Callable[[Log], Any]) -> None:
        """Change what is stored; a gateway stops for it and comes back at the same address."""
        port = 0
        if self.gateway is not None:
            port = int(self.gateway.url.rsplit(":", 1)[1])
            self.gateway.end()

        async def and_look_at_the_clock(log: Log) -> None:
            await work(log)
            self._now_ms = log.clock.ms

        filled(self.path, and_look_at_the_clock)
        if self.gateway is not None:
            self.serve(port)

    def serve(self, port: int = 0) -> None:
        """Read it from a gateway from now on, for which it is as late as for whoever wrote last."""
        self.gateway = Gateway()
        self.gateway.start(self.path, port=port, now_ms=lambda: self._now_ms)


@contextmanager
def place(path: Path, mode: str, work: Callable[[Log], Any], form: str = FORMATS[0]) -> Iterator[Place]:
    """A log with something in it."""
    made = Place(path, format=form)
    made.fill(work)
    if mode == "endpoint":
        made.serve()
    try:
        yield made
    finally:
        if made.gateway is not None:
            made.gateway.end()
