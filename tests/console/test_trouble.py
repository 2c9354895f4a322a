"""What the pages say when something is really wrong: an upstream that answers nothing, a message that is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import attrs
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.conftest import NEARBY, SLOW
from tests.console.cost import publish
from tests.integration.running import Served, started
from tests.integration.test_audit import lose_a_message

CONFIG = """
version: 1
listeners: {{flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1, durability: none}}
upstreams: {{far: {{protocol: flymq, address: "127.0.0.1:{port}", timeout: 1s}}}}
routes:
  - name: orders
    match: {{}}
    to:
      - store:   {{topic: "{{topic}}"}}
      - forward: {{name: copy, upstream: far, address: "{{topic}}", accept_loss: all}}
"""


@attrs.frozen
class Trouble:
    """A gateway without a token, one that it forwards to, and a page of the first."""

    near: Served
    far: Served
    page: Page

    def show(self, path: str) -> None:
        self.page.goto(f"http://127.0.0.1:{self.near.ports['admin']}{path}")

    def publish(self, *values: bytes) -> None:
        publish(self.near.ports["flymq"], "orders", values)


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Trouble]:
    near, far = tmp_path_factory.mktemp("near"), tmp_path_factory.mktemp("far")
    with ExitStack() as stack:
        there = stack.enter_context(started(far, NEARBY.format(data=far / "data")))
        config = CONFIG.format(data=near / "data", port=there.ports["flymq"])
        here = stack.enter_context(started(near, config))
        page = stack.enter_context(browser.new_context(reduced_motion="reduce")).new_page()
        page.set_default_timeout(SLOW)
        yield Trouble(here, there, page)


def test_a_circuit_that_opens_and_closes_again(trouble: Trouble) -> None:
    """The upstream takes everything and answers nothing, as a machine does that hangs."""
    page = trouble.page
    trouble.publish(b"1")
    trouble.show("/upstreams")
    head, strip = page.locator("#up-far"), page.locator("[aria-labelledby=up-far] .strip rect")
    expect(head).to_contain_text("circuit closed")
    expect(strip.first).to_be_attached()
    trouble.far.send_signal(signal.SIGSTOP)
    try:
        trouble.publish(*[b"%d" % number for number in range(2, 40)])
        expect(head.locator(".badge.bad", has_text="circuit open")).to_be_visible()
        facts = page.locator("[aria-labelledby=up-far] dl")
        expect(facts).to_contain_text("38 messages")
        expect(page.locator("[aria-labelledby=up-far] .strip rect.bad, .strip rect.warn").first).to_be_attached()
        trouble.show("/")
        alarm = page.locator("[data-node='target:far'] .alarm")
        expect(alarm).not_to_be_empty()
        expect(page.locator("[data-node='target:far']")).to_have_class("node bad")
    finally:
        trouble.far.send_signal(signal.SIGCONT)
    expect(alarm).to_be_empty()
    trouble.show("/upstreams")
    expect(head).to_contain_text("circuit closed")
    expect(head.locator(".badge.good")).to_have_count(2)
    expect(facts).to_contain_text("0 messages")
    # that it was open, and that it is not any more
    expect(strip.locator("xpath=self::*[@class='bad' or @class='warn']").first).to_be_attached()
    expect(strip.last).to_have_attribute("class", "")
    expect(page.locator("[aria-labelledby=up-far] ul li").last).to_be_visible()


def test_a_message_that_is_lost_puts_the_lamp_out(trouble: Trouble) -> None:
    """Of one that is settled and was never sent, the sum says so."""
    page = trouble.page
    trouble.show("/")
    expect(page.locator("#lamp-audit")).to_have_class("lamp good")
    trouble.far.end(signal.SIGKILL)
    trouble.publish(b"lost")
    assert trouble.near.end(signal.SIGTERM) == 0
    lose_a_message(trouble.near.data, 39, forward="copy")
    trouble.near.start()
    trouble.show("/")
    lamp = page.locator("#lamp-audit")
    expect(lamp).to_have_text("1 unaccounted")
    expect(lamp).to_have_class("lamp bad")
    expect(page.locator("#unaccounted")).to_have_text("1")
    expect(page.locator("#health .bad").first).to_have_text("Does not add up: forward copy of orders/0: 1")
    trouble.show("/consumers")
    expect(page.locator("#durable .badge.bad")).to_have_text("1 unaccounted")
    expect(lamp).to_have_text("1 unaccounted")
