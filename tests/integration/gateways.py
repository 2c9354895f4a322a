"""Gateways as processes over one log, which every stock client can connect to."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from tests.integration.running import Served
from tests.kafka.fixtures import Log

LISTENERS = """
version: 1
listeners:
  blipmq:   {protocol: blipmq,  bind: "127.0.0.1:0", auth: {api_keys: [dev-key]}}
  flymq:    {protocol: flymq,   bind: "127.0.0.1:0"}
  users:    {protocol: flymq,   bind: "127.0.0.1:0", auth: {users: store, admin: {name: root, password: s3cret-root}}}
  rustlog:  {protocol: rustlog, bind: "127.0.0.1:0"}
  felix:    {protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}
  fujin:    {protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}
  fujin05:  {protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed, dialect: "0.5"}
  fujinv1:  {protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed, dialect: v1}
  fujintcp: {protocol: fujin,   bind: "127.0.0.1:0", transport: tcp}
"""


def configured(log: Log, data: Path) -> str:
    return f"{LISTENERS}storage: {log.storage(data)}\n"


def gateway(log: Log, directory: Path, more: str = "") -> Served:
    directory.mkdir()
    return Served(directory, configured(log, directory / "data") + more)


@contextmanager
def gateways(log: Log, directory: Path, *names: str, more: str = "") -> Iterator[list[Served]]:
    """What still runs at the end of the block is killed."""
    made = [gateway(log, directory / name, more) for name in names]
    try:
        for one in made:
            one.start()
        yield made
    finally:
        for one in made:
            if one.running:
                one.end(signal.SIGKILL)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await trio.lowlevel.checkpoint()
        await trio.sleep(0.05)
