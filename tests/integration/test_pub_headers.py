"""`gateway pub --header`, where headers can travel, and what is said where they cannot."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from gateway.envelope import Headers
from gateway.pipeline.endpoint import Endpoint, EndpointLog
from gateway.protocols.registry import served
from tests.integration.running import serving

CONFIG = """
version: 1
listeners:
  fujin: {{protocol: fujin, bind: "127.0.0.1:0", tls: self-signed, dialect: document}}
storage: {{path: "{dir}/data"}}
topics: {{wide: {{partitions: 2}}}}
admin: {{bind: "127.0.0.1:0", token: 0123456789abcdef0123456789abcdef}}
"""
TOKEN = "0123456789abcdef0123456789abcdef"


async def pub(*args: str, code: int = 0) -> str:
    line = [sys.executable, "-m", "gateway", "pub", *args]
    done = await trio.run_process(line, stdin=b"", capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == code, done.stderr.decode()
    return (done.stdout if not code else done.stderr).decode()


def stored(port: int, topic: str, partition: int = 0) -> Sequence[tuple[bytes | None, bytes, Headers]]:
    endpoint = Endpoint.of(f"http://127.0.0.1:{port}", token=TOKEN)
    with EndpointLog(endpoint) as log:
        runs = list(log.read_chunks(topic, partition, *log.bounds(topic, partition)))
    return [
        (run.columns.key(index), run.columns.value(index), run.columns.headers_of(index))
        for run in runs
        for index in range(run.count)
    ]


async def test_headers_travel_over_the_admin_address_and_over_fujins_document(tmp_path: Path) -> None:
    headers = ("kind", b"order"), ("note", b"a=b")
    with trio.fail_after(120):
        async with serving(tmp_path, CONFIG.format(dir=tmp_path)) as ports:
            given = ("--header", "kind=order", "-H", "note=a=b", "--data", "one", "--data", "")
            place = f"http://127.0.0.1:{ports['admin']}"
            said = await pub(f"{place}/orders%2Feu", *given, "--key", "k", "--token", TOKEN)
            assert said == "published 2 messages to orders/eu, partition 0, offset 0 to 1\n"
            wanted = [(b"k", b"one", headers), (b"k", b"", headers)]
            assert await trio.to_thread.run_sync(stored, ports["admin"], "orders/eu") == wanted
            report = await pub(f"{place}/wide", "--data", "x", "--partition", "1", "--token", TOKEN, "--output", "json")
            assert json.loads(report) == {
                "address": "wide",
                "published": 1,
                "filtered": 0,
                "partition": 1,
                "first_offset": 0,
                "last_offset": 0,
            }
            assert "token" in await pub(f"{place}/orders", "--data", "x", code=2)
            fujin = f"fujin://127.0.0.1:{ports['fujin']}/documents"
            await pub(fujin, "--dialect", "document", "--insecure", "--header", "kind=order", "--data", "two")
            assert await trio.to_thread.run_sync(stored, ports["admin"], "documents") == [(None, b"two", headers[:1])]


FILTERING = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{dir}/data"}}
admin: {{bind: "127.0.0.1:0"}}
routes:
  - name: large
    match: {{}}
    transform: [{{filter: value.amount > 10}}]
    to: [{{store: {{topic: "{{topic}}"}}}}, {{store: {{topic: "copy.{{topic}}"}}}}]
"""


async def test_what_a_transform_left_out_is_told_where_the_answer_says_it(tmp_path: Path) -> None:
    amounts = [word for amount in (5, 20, 7, 30) for word in ("--data", json.dumps({"amount": amount}))]
    with trio.fail_after(120):
        async with serving(tmp_path, FILTERING.format(dir=tmp_path)) as ports:
            admin = f"http://127.0.0.1:{ports['admin']}/orders"
            said = await pub(admin, *amounts)
            assert said == "published 2 messages to orders, 2 filtered, partition 0, offset 0 to 1\n"
            assert await pub(admin, *amounts[:2]) == "published 0 messages to orders, 1 filtered\n"
            # FlyMQ tells each message a place, and those that have none the same one: nothing is said about places
            assert (
                await pub(f"flymq://127.0.0.1:{ports['flymq']}/orders", *amounts) == "published 4 messages to orders\n"
            )


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        ("v1", "No common ALPN protocols"),
        ("auto", "after 0 messages; does the listener speak this dialect?"),
    ],
)
async def test_headers_at_a_listener_that_takes_none_are_not_waited_for_for_ever(
    tmp_path: Path, dialect: str, expected: str
) -> None:
    config = CONFIG.replace("dialect: document", f"dialect: {dialect}")
    with trio.fail_after(120):
        async with serving(tmp_path, config.format(dir=tmp_path)) as ports:
            place = f"fujin://127.0.0.1:{ports['fujin']}/documents"
            options = ("--dialect", "document", "--insecure", "--header", "k=v", "--data", "x", "--timeout", "1")
            said = await pub(place, *options, code=2)
            assert said.startswith("gateway: ")
            assert expected in said


@pytest.mark.parametrize("scheme", ["flymq", "rustlog", "http"])
async def test_who_takes_a_message_and_never_answers_is_not_waited_for_for_ever(scheme: str) -> None:
    with trio.fail_after(120), socket.create_server(("127.0.0.1", 0)) as mute:
        place = f"{scheme}://127.0.0.1:{mute.getsockname()[1]}/orders"
        said = await pub(place, "--data", "x", "--timeout", "0.3", "--dialect", "document", code=2)
        assert "no answer within 0.3 s" in said or "timed out" in said, said


@pytest.mark.parametrize("name", sorted(served()))
async def test_elsewhere_it_says_where_they_do(name: str) -> None:
    assert not served()[name].carries.headers
    seeds = ("--dialect", "stock") if name == "fujin" else ()  # with auto it is 0.5, which has headers
    said = await pub(f"{name}://127.0.0.1:1/orders", "--header", "k=v", "--data", "x", *seeds, code=2)
    assert f"{name} carries no headers; the admin address does: http://HOST:9600/TOPIC" in " ".join(said.split())
    assert ("--dialect document or 0.5 or v1" in " ".join(said.split())) is (name == "fujin")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9600", "http://127.0.0.1:9600/", "http:///x", "http://h/a?b"])
async def test_an_admin_address_needs_a_topic(url: str) -> None:
    assert "write http://127.0.0.1:9600/orders" in " ".join((await pub(url, "--data", "x", code=2)).split())
