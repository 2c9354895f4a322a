"""A gateway with traffic, and a browser that complains of every error a page makes."""

from __future__ import annotations

import json
import shutil
import socket
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.console.traffic import Senders
from tests.integration.running import Served, started

CHROMIUM = shutil.which("chromium") or ""
TOKENS = {"read": "look-only", "operate": "may-operate", "administer": "may-everything"}
CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
  narrow:  {{protocol: flymq,   bind: "127.0.0.1:0", limits: {{in_flight: 1}}}}
admin:
  bind: "127.0.0.1:{port}"
  token: may-everything
  tokens: {{grafana: {{token: look-only, role: read}}, oncall: {{token: may-operate, role: operate}}}}
storage: {{path: "{data}", free_space_floor: 1, durability: none}}
upstreams:
  warehouse: {{protocol: flymq, address: ["127.0.0.1:9", "127.0.0.1:19"]}}
  nearby:
    protocol: flymq
    address: "127.0.0.1:{nearby}"
    ingest: [{{from: jobs, into: pulled.jobs, group: console}}]
topics:
  typed.avro:     {{schema: reading}}
  typed.protobuf: {{schema: visit}}
routes:
  - name: orders
    match: {{protocol: flymq, topic: "orders.*"}}
    transform:
      - {{set_header: {{region: eu}}}}
      - {{filter: "value.amount > 10"}}
    to:
      - store:   {{topic: "orders.{{1}}", partitions: 2}}
      - bridge:  {{protocol: felix, address: "acme/shop/orders-{{1}}", accept_loss: all}}
      - forward: {{upstream: warehouse, address: "orders.{{1}}", accept_loss: all}}
  - name: sensors
    match: {{protocol: felix}}
    to: [{{store: {{topic: "{{topic}}"}}}}]
  - name: sent
    match: {{topic: "sent.*"}}
    to:
      - store:   {{topic: "{{topic}}"}}
      - forward: {{upstream: nearby, address: "{{topic}}", accept_loss: all}}
      - mirror:  {{upstream: nearby, address: "copy.{{topic}}"}}
  - name: everything-else
    match: {{}}
    to: [{{store: {{topic: "{{topic}}"}}}}]
"""
NEARBY = """
version: 1
listeners: {{flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}}}
storage: {{path: "{data}", free_space_floor: 1, durability: none}}
"""
"""A broker elsewhere that is there."""
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SLOW = 60_000
"""Milliseconds: the machine may be busy."""
expect.set_options(timeout=SLOW)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class House:
    """A gateway that runs, and what a test asks of it beside the browser."""

    def __init__(self, served: Served, senders: Senders) -> None:
        self.served = served
        self.senders = senders

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.served.ports['admin']}"

    def ask(self, path: str, token: str = TOKENS["administer"], **query: Any) -> Any:
        """The API's answer, to hold a page against."""
        url = f"{self.url}{path}?{urlencode(query)}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def records(self, topic: str, partition: int = 0, **query: Any) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self.ask("/v1/records", topic=topic, partition=partition, **query)["records"]
        return found


@pytest.fixture(scope="package")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    directory, elsewhere = tmp_path_factory.mktemp("console"), tmp_path_factory.mktemp("nearby")
    with ExitStack() as stack:
        nearby = stack.enter_context(started(elsewhere, NEARBY.format(data=elsewhere / "data")))
        config = CONFIG.format(data=directory / "data", port=free_port(), nearby=nearby.ports["flymq"])
        served = stack.enter_context(started(directory, config))
        senders = stack.enter_context(Senders(served.ports, directory / "data/self-signed.crt"))
        made = House(served, senders)
        senders.subscribe("felix", "acme/shop/orders-eu")
        senders.subscribe("blipmq", "alerts", acknowledge=True)
        senders.subscribe("fujin", "clicks", reader="billing")
        senders.send("flymq", b'{"amount": 100}', b'{"amount": 5}', b"no json", keys=[b"a", b"b", b"c"])
        for name, value in (("blipmq", b"disk full"), ("rustlog", b"a click"), ("felix", b"21.5"), ("fujin", b"{}")):
            senders.send(name, value)
        yield made


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("no Chromium here: on Debian `apt-get install chromium`")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield launched
        launched.close()


Opened = Callable[..., Page]


@pytest.fixture
def opened(house: House, browser: Browser) -> Iterator[Opened]:
    """Pages of somebody who is logged in: `opened("/topics", role="read", width=360)`. No page may make an error."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def complain(message: ConsoleMessage) -> None:
        # a refused or broken request is an answer that the page has to show, not an error of its script
        if message.type == "error" and "Failed to load resource" not in message.text:
            wrong.append(message.text)

    def make(
        path: str, *, role: str = "administer", width: int = 1280, height: int = 900, scheme: str = "light"
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
            accept_downloads=True,
        )
        context.set_default_timeout(SLOW)
        contexts.append(context)
        page = context.new_page()
        page.on("console", complain)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        log_in(page, house.url, path, TOKENS[role])
        return page

    yield make
    for context in contexts:
        context.close()
    assert wrong == []


def log_in(page: Page, url: str, path: str, token: str) -> None:
    page.goto(url + path)
    page.fill("input[name=token]", token)
    page.click("button")
    page.wait_for_url(url + path)
