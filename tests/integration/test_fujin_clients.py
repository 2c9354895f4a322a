"""Our Fujin client against the real process: every dialect over everything it runs over, told by `dialect` or found out; and what
lies between two gateways loses neither key nor header nor expiry.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gateway.envelope import Batch, Columns
from gateway.errors import TargetRefused, UnknownTopic
from gateway.pipeline.endpoint import Endpoint, EndpointLog
from gateway.protocols.registry import protocol
from gateway.requests import (
    Begin,
    Begun,
    Commit,
    Publish,
    Published,
    Rollback,
    Settle,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.settings import Dialect, Transport
from gateway.transport.client import Connection, connect
from gateway.transport.quic.certificates import CERTIFICATE_NAME
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext, Credentials
from tests.integration.running import Served, serving

CONFIG = """
version: 1
listeners:
  all:   {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed}}
  seed:  {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed, dialect: stock}}
  v1:    {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed, dialect: v1}}
  keyed: {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed, auth: {{api_keys: [secret]}}}}
  tcp:   {{protocol: fujin, transport: tcp, bind: "127.0.0.1:0"}}
  tcp1:  {{protocol: fujin, transport: tcp, bind: "127.0.0.1:0", dialect: v1}}
  web:   {{protocol: fujin, transport: websocket, bind: "127.0.0.1:0", tls: self-signed}}
  local: {{protocol: fujin, transport: unix, bind: "{dir}/f.sock"}}
storage: {{path: "{dir}/data"}}
admin: {{bind: "127.0.0.1:0"}}
"""
UNVERIFIED = ClientTls(insecure=True)
HEADERS = (("kind", b"order"), ("kind", b"again"))
PATIENCE = 60


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for the module."""
    directory = tmp_path_factory.mktemp("clients")
    served = Served(directory, CONFIG.format(dir=directory))
    served.start()
    try:
        yield served
    finally:
        assert served.end(signal.SIGTERM) == 0


@asynccontextmanager
async def dialled(gateway: Served, name: str, dialect: Dialect, key: str = "") -> AsyncIterator[Connection]:
    transport = {"tcp": Transport.TCP, "tcp1": Transport.TCP, "web": Transport.WEBSOCKET, "local": Transport.UNIX}.get(
        name
    )
    host = str(gateway.data.parent / "f.sock") if name == "local" else "127.0.0.1"
    context = ClientContext(Credentials(api_key=key), dialect, transport=transport)
    tls = UNVERIFIED if name not in ("tcp", "tcp1", "local") else None
    with trio.fail_after(PATIENCE):
        async with connect(
            protocol("fujin"), host, gateway.ports.get(name, 0), tls=tls, context=context, timeout=PATIENCE
        ) as connection:
            yield connection


WAYS = [
    ("all", Dialect.SESSION, True),
    ("all", Dialect.V1, True),
    ("all", Dialect.AUTO, True),
    ("all", Dialect.STOCK, False),
    ("seed", Dialect.AUTO, False),
    ("v1", Dialect.AUTO, True),
    ("tcp", Dialect.AUTO, True),
    ("tcp", Dialect.V1, True),
    ("tcp1", Dialect.AUTO, True),
    ("web", Dialect.SESSION, True),
    ("local", Dialect.AUTO, True),
]


@pytest.mark.parametrize(("name", "dialect", "binds"), WAYS, ids=lambda value: getattr(value, "value", str(value)))
async def test_what_is_published_is_read(gateway: Served, name: str, dialect: Dialect, binds: bool) -> None:
    address = f"way-{name}-{dialect.value}".replace(".", "")
    async with dialled(gateway, name, dialect) as one, dialled(gateway, name, dialect) as two:
        subscribed = await two.request(Subscribe(0, address, acknowledge=True))
        assert isinstance(subscribed, Subscribed)
        columns = Columns.of([b"a", b"b"], [b"K", None], [HEADERS, ()], [0, 1 << 50])
        published = await one.request(Publish(0, Batch(address, columns)))
        assert isinstance(published, Published)
        assert not published.refused
        begun = await one.request(Begin(0))
        assert isinstance(begun, Begun)
        inside = Publish(0, Batch(address, Columns.of([b"c"])), transaction=begun.transaction)
        assert isinstance(await one.request(inside), Published)
        await one.request(Commit(0, begun.transaction))
        begun = await one.request(Begin(0))
        assert isinstance(begun, Begun)
        await one.request(Publish(0, Batch(address, Columns.of([b"never"])), transaction=begun.transaction))
        await one.request(Rollback(0, begun.transaction))
        got = []
        while len(got) < 3:
            taken = await two.request(Take(0, subscribed.subscription, 10, hold_until=trio.current_time() + 30), None)
            assert isinstance(taken, Taken)
            for delivered in taken.deliveries:
                found = delivered.run.columns
                for index in range(found.count):
                    expires = found.expires[index] if found.expires is not None else 0
                    got.append((found.value(index), found.key(index), found.headers_of(index), expires))
                tags = range(delivered.first_tag, delivered.first_tag + found.count)
                await two.request(Settle(0, subscribed.subscription, tags))
        whole = [(b"a", b"K", HEADERS, 0), (b"b", None, (), 1 << 50), (b"c", None, (), 0)]
        assert got == (whole if binds else [(value, None, (), 0) for value, *_ in whole])
        await two.request(Unsubscribe(0, subscribed.subscription))


async def test_a_login(gateway: Served) -> None:
    async with dialled(gateway, "keyed", Dialect.AUTO, "secret") as connection:
        assert isinstance(await connection.request(Publish(0, Batch("keyed", Columns.of([b"x"])))), Published)
    async with dialled(gateway, "keyed", Dialect.AUTO, "wrong") as connection:
        with pytest.raises(TargetRefused, match="UNAUTHENTICATED"):
            await connection.request(Publish(0, Batch("keyed", Columns.of([b"x"]))))


async def tool(*args: str) -> str:
    done = await trio.run_process(
        [sys.executable, "-m", "gateway", *args], stdin=b"", capture_stdout=True, capture_stderr=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_the_command_line_by_every_scheme(gateway: Served) -> None:
    ports = gateway.ports
    sock = str(gateway.data.parent / "f.sock").replace("/", "%2F")
    with trio.fail_after(4 * PATIENCE):
        for url, *more in (
            (f"fujin://127.0.0.1:{ports['all']}/cli", "--insecure"),
            (f"fujin+tcp://127.0.0.1:{ports['tcp']}/cli",),
            (f"fujin+wss://127.0.0.1:{ports['web']}/cli", "--insecure"),
            (f"fujin+unix://{sock}/cli",),
        ):
            said = await tool("pub", url, "--data", "x", "--key", "K", "--header", "kind=order", *more)
            assert said == "published 1 message to cli\n"
        stored = await trio.to_thread.run_sync(messages, ports["admin"], "cli")
        assert stored == [(b"K", b"x", (("kind", b"order"),), None)] * 4
        url = f"fujin+tcp://127.0.0.1:{ports['tcp']}/cli"
        report = json.loads(await tool("bench", url, "--messages", "200", "--size", "100", "--output", "json"))
        assert report["targets"][0]["rounds"][0]["messages"] == 200


def messages(port: int, topic: str) -> list[tuple[object, ...]]:
    with EndpointLog(Endpoint.of(f"http://127.0.0.1:{port}")) as log:
        runs = list(log.read_chunks(topic, 0, *log.bounds(topic, 0)))
    return [
        (
            run.columns.key(index), run.columns.value(index), run.columns.headers_of(index),
            run.columns.expires[index] if run.columns.expires is not None else None,
        )
        for run in runs
        for index in range(run.count)
    ]  # fmt: skip


NEAR = """
version: 1
listeners:
  tcp: {{protocol: fujin, transport: tcp, bind: "127.0.0.1:0"}}
storage: {{path: "{dir}/data"}}
upstreams:
  far: {{protocol: fujin, transport: {transport}, address: "{address}", {tls} dialect: "{dialect}"{ingest}}}
routes:
  - name: onwards
    match: {{topic: "out.*"}}
    to: [{{store: {{topic: "{{topic}}"}}}}, {{forward: {{upstream: far, address: "far.{{1}}"{loss}}}}}]
  - {{name: rest, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
admin: {{bind: "127.0.0.1:0"}}
"""


@pytest.mark.parametrize(
    ("listener", "transport", "dialect"),
    [("all", "quic", "0.5"), ("tcp", "tcp", "0.5"), ("tcp1", "tcp", "auto"), ("v1", "quic", "v1")],
)
async def test_a_forward_and_an_ingest_lose_nothing(
    gateway: Served, tmp_path: Path, listener: str, transport: str, dialect: str
) -> None:
    """Key, headers and expiry go to the next gateway by a forward, and come back by an ingest."""
    address, back = f"127.0.0.1:{gateway.ports[listener]}", f"back-{listener}-{transport}"
    config = NEAR.format(
        dir=tmp_path, transport=transport, address=address, dialect=dialect,
        tls="tls: {ca: PLACE}," if transport == "quic" else "",
        ingest=f', ingest: [{{from: "{back}", into: "came.{back}"}}]',
        loss="" if dialect != "auto" else ", accept_loss: all",
    )  # fmt: skip
    config = config.replace("PLACE", str(gateway.data / CERTIFICATE_NAME))
    later = 1 << 50
    columns = Columns.of([b"one", b"two"], [b"K", None], [HEADERS, (("x", b""),)], [later, 0])
    with trio.fail_after(3 * PATIENCE):
        async with serving(tmp_path, config) as ports:
            async with connect(
                protocol("fujin"), "127.0.0.1", ports["tcp"],
                context=ClientContext(dialect=Dialect.SESSION, transport=Transport.TCP),
            ) as near:  # fmt: skip
                await near.request(Publish(0, Batch(f"out.{back}", columns)))
            there: list[tuple[object, ...]] = []
            while len(there) < 2:
                await trio.sleep(0.1)
                there = await _found(gateway.ports["admin"], f"far.{back}")
            assert [(key, value, _plain(headers), expires or None) for key, value, headers, expires in there] == [
                (b"K", b"one", HEADERS, later),
                (None, b"two", (("x", b""),), None),
            ]
            async with dialled(gateway, "all", Dialect.SESSION) as far:
                came: list[tuple[object, ...]] = []
                while not came:  # an ingest begins at the tail, whenever it is there
                    await far.request(Publish(0, Batch(back, columns)))
                    await trio.sleep(0.2)
                    came = await _found(ports["admin"], f"came.{back}")
            key, value, headers, expires = came[0]
            assert (key, value, _plain(headers), expires) in (
                (b"K", b"one", HEADERS, later),
                (None, b"two", (("x", b""),), 0),
            )


def _plain(headers: object) -> tuple[tuple[str, bytes], ...]:
    """Without what says by which gateways it came."""
    assert isinstance(headers, tuple)
    return tuple(one for one in headers if one[0] != "x-gateway-via")


async def _found(port: int, topic: str) -> list[tuple[object, ...]]:
    try:
        return await trio.to_thread.run_sync(messages, port, topic)
    except UnknownTopic:
        return []
