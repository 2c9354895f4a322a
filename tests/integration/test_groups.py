"""`gateway groups` on a real process and on its store, the metric, and the audit."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from gateway.cli.main import main
from gateway.envelope import Batch, Columns
from gateway.protocols.registry import protocol
from gateway.requests import CommitOffset, CreateTopic, JoinGroup, Publish
from gateway.transport.client import connect
from tests.integration.running import Served, started
from tests.kafka.fixtures import Log

CONFIG = """
version: 1
listeners:
  flymq:   {{protocol: flymq, bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0", token: s3cret}}
storage: {storage}
metrics: {{groups: [billing, nobody]}}
"""


class Shell:
    """Runs commands in this process, against a gateway in another or its store."""

    def __init__(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        self.served = served
        self._capsys = capsys

    async def __call__(self, *args: str, code: int = 0) -> str:
        self._capsys.readouterr()
        if "--path" not in args:
            args = (*args, "--admin", f"http://127.0.0.1:{self.served.ports['admin']}", "--token", "s3cret")
        assert await trio.to_thread.run_sync(main, args) == code, self._capsys.readouterr()
        shown = self._capsys.readouterr()
        return shown.out if not code else shown.err

    async def shown(self, *args: str) -> Any:
        return json.loads(await self("groups", *args, "--output", "json"))


@pytest.fixture
def shell(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with started(tmp_path, CONFIG.format(storage=log.storage(tmp_path / "data"))) as served:
        yield Shell(served, capsys)


async def committed(served: Served) -> None:
    """Ten messages in each partition of `orders`, ten of `bills`; what two groups have committed of them."""
    async with (
        connect(protocol("flymq"), "127.0.0.1", served.ports["flymq"]) as flymq,
        connect(protocol("rustlog"), "127.0.0.1", served.ports["rustlog"]) as rustlog,
    ):
        await flymq.request(CreateTopic(0, "orders", 2))
        for address, partition in (("orders", 0), ("orders", 1), ("bills", None)):
            await flymq.request(Publish(0, Batch(address, Columns.of([b"x"] * 10), partition=partition)))
        for group, address, partition, offset in (
            ("billing", "orders", 0, 4),
            ("billing", "orders", 1, 10),
            ("shipping", "bills", 0, 0),
        ):
            await flymq.request(CommitOffset(0, address, group, partition, offset))
        await rustlog.request(CommitOffset(0, "bills", "billing", 0, 7))


async def test_where_groups_are(shell: Shell) -> None:
    await committed(shell.served)
    assert (await shell("groups", "list")).split() == (
        [
            "GROUP",
            "TOPIC",
            "PARTITIONS",
            "LAG",
            "billing",
            "bills",
            "1",
            "3",
            "billing",
            "orders",
            "2",
            "6",
            "shipping",
            "bills",
            "1",
            "10",
        ]
    )
    assert [(one["topic"], one["partition"], one["lag"]) for one in await shell.shown("show", "billing")] == [
        ("bills", 0, 3),
        ("orders", 0, 6),
        ("orders", 1, 0),
    ]
    assert (await shell("groups", "show", "billing", "--topic", "bills")).splitlines()[1].split() == (
        ["bills", "0", "7", "0", "10", "3"]
    )
    assert "elsewhere has committed nothing" in await shell("groups", "show", "elsewhere", code=1)


async def test_the_lag_of_named_groups_is_a_metric_and_in_the_audit(shell: Shell) -> None:
    await committed(shell.served)
    headers = {"authorization": "Bearer s3cret"}
    async with httpx.AsyncClient(timeout=60, headers=headers, trust_env=False) as client:
        text = (await client.get(f"http://127.0.0.1:{shell.served.ports['admin']}/metrics")).text
    lags = [line for line in text.splitlines() if line.startswith("gateway_group_lag_messages{")]
    assert lags == ['gateway_group_lag_messages{group="billing"} 9.0', 'gateway_group_lag_messages{group="nobody"} 0.0']
    audit = await shell("audit")
    assert "group billing of orders/0, offsets 0 to 10: committed 4, 6 behind" in audit
    assert "shipping" not in audit


async def test_a_group_is_put_elsewhere(shell: Shell) -> None:
    await committed(shell.served)
    away = ("reset", "billing", "--topic", "orders")
    dry = await shell("groups", *away, "--to", "earliest", "--dry-run")
    assert dry.splitlines()[-1] == "billing would be there on orders"
    # before, after, what is skipped, what comes again, how far behind that is
    assert [line.split() for line in dry.splitlines()[1:3]] == [
        ["0", "4", "0", "0", "4", "10"],
        ["1", "10", "0", "0", "10", "10"],
    ]
    assert [one["committed"] for one in await shell.shown("show", "billing", "--topic", "orders")] == [4, 10]

    await shell("groups", *away, "--to", "latest")
    assert [one["committed"] for one in await shell.shown("show", "billing", "--topic", "orders")] == [10, 10]
    await shell("groups", *away, "--to", "3", "--partition", "1")
    await shell("groups", *away, "--to", "2001-01-01T00:00Z", "--partition", "0")
    assert [one["committed"] for one in await shell.shown("show", "billing", "--topic", "orders")] == [0, 3]

    for wrong, said in (
        (("reset", "billing", "--topic", "orders", "--to", "3"), "2 partitions: say of which"),
        (("reset", "billing", "--topic", "orders", "--to", "11", "--partition", "0"), "the log holds [0, 10)"),
        (("reset", "billing", "--topic", "nowhere", "--to", "latest"), "there is no topic nowhere"),
        (("reset", "biling", "--topic", "orders", "--to", "latest"), "biling has committed nothing on orders"),
        (("reset", "billing", "--topic", "orders", "--to", "soon"), "--to is earliest, latest, an offset or a time"),
    ):
        assert said in " ".join((await shell("groups", *wrong, code=2)).split())


async def test_a_group_that_is_subscribed_as_is_left_alone(shell: Shell) -> None:
    await committed(shell.served)
    async with connect(protocol("flymq"), "127.0.0.1", shell.served.ports["flymq"]) as reader:
        await reader.request(JoinGroup(0, "orders", "billing"))
        reset = ("groups", "reset", "billing", "--topic", "orders", "--to", "earliest")
        assert "1 connections read orders as billing" in await shell(*reset, code=2)
        assert [one["committed"] for one in await shell.shown("show", "billing", "--topic", "orders")] == [4, 10]
        await shell(*reset, "--force")
    assert [one["committed"] for one in await shell.shown("show", "billing", "--topic", "orders")] == [0, 0]


@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
async def test_on_a_store_that_nobody_serves(shell: Shell) -> None:
    await committed(shell.served)
    path = ("--path", str(shell.served.data))
    reset = ("groups", "reset", "billing", "--topic", "bills", "--to", "latest", *path)
    assert "is served by another process" in await shell(*reset, code=2)
    assert [one["lag"] for one in await shell.shown("list", *path)] == [3, 6, 10]
    shell.served.end(signal.SIGTERM)

    await shell(*reset, "--dry-run")
    assert [one["lag"] for one in await shell.shown("list", *path)] == [3, 6, 10]
    await shell(*reset)
    assert "group billing of bills/0, offsets 0 to 10: committed 10, 0 behind" in await shell("audit", *path)
    shell.served.start()
    assert [one["lag"] for one in await shell.shown("list")] == [0, 6, 10]
