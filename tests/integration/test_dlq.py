"""`gateway dlq` on real processes: letters of a BlipMQ reader that never acknowledges, and of a forward that is refused."""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.cli.main import main
from gateway.envelope import Batch, Columns, Envelope
from gateway.pipeline.endpoint import Endpoint, EndpointLog
from gateway.protocols.registry import protocol
from gateway.requests import Publish, Subscribe, Take
from gateway.transport.client import connect
from gateway.wire.session import ClientContext, Credentials
from tests.integration.running import Served, started
from tests.kafka.fixtures import Log

TOKEN = "s3cret"
KEPT = """
version: 1
listeners:
  blipmq: {{protocol: blipmq, bind: "127.0.0.1:0", auth: {{api_keys: [key]}}, max_deliveries: 2, backoff: 5ms..5ms}}
  flymq:  {{protocol: flymq, bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0", token: s3cret}}
storage: {storage}
"""


class Shell:
    """Runs `gateway dlq` in this process, against a gateway in another."""

    def __init__(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        self.served = served
        self._capsys = capsys

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.served.ports['admin']}"

    async def __call__(self, *args: str, code: int = 0, token: str = TOKEN) -> str:
        self._capsys.readouterr()
        line = ["dlq", *args, "--admin", self.url, "--token", token]
        assert await trio.to_thread.run_sync(main, line) == code, self._capsys.readouterr()
        shown = self._capsys.readouterr()
        return shown.out if code != 2 else shown.err

    def stored(self, topic: str) -> list[Envelope]:
        with EndpointLog(Endpoint(self.url, TOKEN)) as log:
            return [one for run in log.read_chunks(topic, 0) for one in run.envelopes()]


@contextmanager
def running(directory: Path, config: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    directory.mkdir(exist_ok=True)
    with started(directory, config) as served:
        yield Shell(served, capsys)


async def publish(port: int, *values: bytes) -> None:
    async with connect(protocol("flymq"), "127.0.0.1", port) as connection:
        await connection.request(Publish(0, Batch("orders", Columns.of(values, [b"k"] * len(values)))))


async def let_them_die(shell: Shell, letters: int, *values: bytes) -> None:
    """A reader takes the messages and never acknowledges, until so many letters are there."""
    key = ClientContext(credentials=Credentials(api_key="key"))
    async with connect(protocol("blipmq"), "127.0.0.1", shell.served.ports["blipmq"], context=key) as reader:
        subscribed = await reader.request(Subscribe(0, "orders", acknowledge=True))
        if values:
            await publish(shell.served.ports["flymq"], *values)
        else:
            await shell("redrive", "orders", "--reason", "max_deliveries")
        while True:
            await reader.request(Take(0, subscribed.subscription, 10, hold_until=trio.current_time() + 0.05))
            found = json.loads(await shell("list", "--output", "json"))
            if found and found[0]["letters"] >= letters:
                return


async def test_letters_of_a_reader_that_never_acknowledges(
    log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = KEPT.format(storage=log.storage(tmp_path / "data"))
    with running(tmp_path / "kept", config, capsys) as shell, trio.fail_after(120):
        assert await shell("list") == "no dead letters\n"
        assert "asks for another token" in await shell("list", token="wrong", code=2)
        assert "there are no dead letters of orders" in await shell("show", "orders", code=2)
        await let_them_die(shell, 3, b"one", b"two", b"three")

        listed = await shell("list")
        assert listed.splitlines() == ["orders.dlq: 3 letters", "         3  max_deliveries", "  from orders"]
        shown = [json.loads(line) for line in (await shell("show", "orders.dlq", "--output", "json")).splitlines()]
        assert {(one["reason"], one["attempts"], one["origin"]["topic"]) for one in shown} == {
            ("max_deliveries", 2, "orders")
        }
        assert {one["origin"]["protocol"] for one in shown} == {"flymq"}
        text = await shell("show", "orders", "--id", "0:0")
        assert "max_deliveries after 2 attempts" in text
        assert "from   orders/0 at 0, sent by flymq flymq" in text
        assert "key    k" in text

        dry = await shell("redrive", "orders", "--dry-run")
        assert dry.splitlines()[-1] == "orders.dlq: 3 letters would be sent again"
        assert len(shell.stored("orders")) == 3
        assert "1 letter sent again" in await shell("redrive", "orders", "--limit", "1", "--rate", "1000")
        shell.served.end(signal.SIGKILL)  # in the midst of it, as far as the rest is concerned
        shell.served.start()
        assert "2 letters sent again, 1 were before" in await shell("redrive", "orders")
        assert "0 letters sent again, 3 were before" in await shell("redrive", "orders")
        assert "0:99999 is not there" in await shell("redrive", "orders", "--id", "0:99999", code=1)
        again = shell.stored("orders")
        assert sorted(one.value for one in again[3:]) == [b"one", b"three", b"two"]
        assert {one.headers for one in again[3:]} == {(("x-dead-letter-count", b"1"),)}
        assert {(one.origin.protocol, one.route, one.key) for one in again} == {("flymq", "identity", b"k")}
        assert again[0].id != again[3].id

        await let_them_die(shell, 4, b"four")
        fourth = f"0:{next(one.offset for one in shell.stored('orders.dlq') if one.value == b'four')}"
        refused = await shell("redrive", "orders", "--id", fourth, "--to", "__own", code=1)
        assert f"{fourth} stays: " in refused
        assert "1 letter sent again" in await shell(
            "redrive", "orders", "--id", fourth, "--to", "elsewhere", "--protocol", "flymq"
        )
        assert [(one.value, one.origin.protocol) for one in shell.stored("elsewhere")] == [(b"four", "bulk")]
        assert "4 redriven" in await shell("list")
        assert await shell("purge", "orders", "--yes") == "orders.dlq: 4 letters dropped\n"
        assert await shell("list") == "no dead letters\n"


async def test_what_dies_again_and_again_is_left(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = KEPT.format(storage=log.storage(tmp_path / "data"))
    with running(tmp_path / "kept", config, capsys) as shell, trio.fail_after(120):
        await let_them_die(shell, 1, b"poison")
        await let_them_die(shell, 2)
        left = await shell("redrive", "orders", "--max-replays", "1", code=1)
        again = f"0:{shell.stored('orders.dlq')[1].offset}"
        assert f"{again} stays: it died 2 times, and --max-replays is 1" in left
        assert "orders.dlq: 0 letters sent again, 1 were before, 1 left" in left
        assert "died 2 times" in await shell("show", "orders", "--id", again)
        assert "1 letter sent again" in await shell("redrive", "orders", "--max-replays", "2")


async def test_the_admin_address_speaks_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = KEPT.replace("token: s3cret", "token: s3cret, tls: self-signed")
    config = config.format(storage=Log().storage(tmp_path / "data"))
    with running(tmp_path / "kept", config, capsys) as shell:
        url = f"https://127.0.0.1:{shell.served.ports['admin']}"
        trust = ["--admin", url, "--token", TOKEN]
        ca = str(tmp_path / "data" / "self-signed.crt")
        for more, code in ((["--ca", ca], 0), (["--insecure"], 0), ([], 2), (["--fingerprint", "00"], 2)):
            assert await trio.to_thread.run_sync(main, ["dlq", "list", *trust, *more]) == code
        shown = capsys.readouterr()
        assert shown.out == "no dead letters\n" * 2
        assert "its certificate is not trusted" in shown.err
        assert "shows a certificate with the fingerprint" in shown.err
        assert await trio.to_thread.run_sync(main, ["dlq", "list", "--admin", shell.url, "--token", TOKEN]) == 2
        assert f"{shell.url}" in capsys.readouterr().err  # it is not http there
        assert shell.served.end(signal.SIGTERM) == 0


FAR = """
version: 1
listeners:
  felix: {{protocol: felix, bind: "127.0.0.1:{port}", tls: self-signed, create: {create}}}
admin: {{bind: "127.0.0.1:0", token: s3cret}}
storage: {{path: "{data}"}}
"""
NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0", token: s3cret}}
storage: {{path: "{data}"}}
upstreams:
  far: {{protocol: felix, address: "localhost:{port}", timeout: 5s, tls: {{ca: "{ca}"}}}}
routes:
  - name: orders
    match: {{protocol: flymq, topic: orders}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{upstream: far, address: "t1/default/orders", dead_letter: undelivered, accept_loss: all}}
  - {{name: others, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""


async def test_letters_of_a_forward_that_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    far_data = tmp_path / "far" / "data"
    with running(tmp_path / "far", FAR.format(port=0, create="false", data=far_data), capsys) as far:
        port = far.served.ports["felix"]
        near_config = NEAR.format(data=tmp_path / "near" / "data", port=port, ca=far_data / "self-signed.crt")
        with running(tmp_path / "near", near_config, capsys) as near, trio.fail_after(120):
            await publish(near.served.ports["flymq"], b"refused")
            (letters,) = await until(lambda: listed(near))
            assert (letters["topic"], letters["letters"], letters["origins"]) == ("undelivered", 1, {"orders": 1})
            (letter,) = [
                json.loads(line) for line in (await near("show", "undelivered", "--output", "json")).splitlines()
            ]
            assert letter["origin"]["route"] == "orders"
            assert letter["last_error"]
            assert letter["reason"] in letters["reasons"]
            far.served.end(signal.SIGTERM)
        with running(tmp_path / "far", FAR.format(port=port, create="true", data=far_data), capsys) as far:
            near.served.start()
            with trio.fail_after(120):
                assert "1 letter sent again" in await near("redrive", "undelivered")
                assert await until(lambda: everything(far, "orders")) == [b"refused"]
                assert near.served.end(signal.SIGTERM) == 0


async def until(ask: Callable[[], Awaitable[list[Any]]]) -> list[Any]:
    """The first answer that says something."""
    while True:
        if found := await ask():
            return found
        await trio.sleep(0.05)


async def listed(shell: Shell) -> list[Any]:
    found: list[Any] = json.loads(await shell("list", "--output", "json"))
    return found


async def everything(shell: Shell, topic: str) -> list[bytes]:
    """The values of a topic that may not be there yet."""

    def look() -> list[bytes]:
        with EndpointLog(Endpoint(shell.url, TOKEN)) as log:
            if not log.described(topic):
                return []
        return [one.value for one in shell.stored(topic)]

    return await trio.to_thread.run_sync(look)
