"""What a gateway says of itself at its admin address."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import trio

from tests.integration.running import Served

ADMIN = '\nadmin: {bind: "127.0.0.1:0"}\n'


async def page(gateway: Served, path: str) -> str:
    async with await trio.open_tcp_stream("127.0.0.1", gateway.ports["admin"]) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        head, _, body = b"".join([chunk async for chunk in stream]).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    return body.decode()


async def owned(gateway: Served) -> int:
    """How many shares it has of what one gateway does at a time."""
    return int(float(re.findall(r"^gateway_owned_slots (\S+)$", await page(gateway, "/metrics"), re.MULTILINE)[0]))


async def shared_out(gateways: Sequence[Served]) -> None:
    """Until each has some of those shares and nobody waits for any. Before that a subscription may change its gateway, and the
    tags of its messages begin anew.
    """
    from gateway.store.kafka.slots import SLOTS  # who has his log in a directory need not have Kafka's client

    while True:
        counts = [await owned(one) for one in gateways]
        if all(counts) and sum(counts) == SLOTS:
            return
        await trio.sleep(0.05)


async def consumers(gateway: Served) -> list[dict[str, Any]]:
    """The durable ones that it has."""
    found: list[dict[str, Any]] = json.loads(await page(gateway, "/v1/consumers"))["consumers"]
    return found
