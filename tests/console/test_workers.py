"""A gateway of two processes in the browser: its pages are those of both, and one that dies takes nothing of the past along."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import attrs
import confluent_kafka
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.conftest import NEARBY, SLOW
from tests.console.cost import publish
from tests.console.test_actions import confirm, until
from tests.console.traffic import again_and_again
from tests.integration.running import Served, started
from tests.kafka.foreign import make
from tests.kafka.node import Kafka

CONFIG = """
version: 1
listeners: {{flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}", kafka: {{brokers: ["{brokers}"], prefix: "console.", replication: 1}}}}
upstreams: {{far: {{protocol: flymq, address: "127.0.0.1:{port}"}}}}
routes:
  - name: orders
    match: {{}}
    to:
      - store:   {{topic: "{{topic}}", partitions: 8}}
      - forward: {{name: copy, upstream: far, address: "{{topic}}", accept_loss: all}}
"""


@attrs.frozen
class Crew:
    served: Served
    page: Page

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.served.ports['admin']}"

    def show(self, path: str) -> None:
        self.page.goto(self.url + path)

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def publish(self) -> None:
        """Eight keys, over a connection that the system gives to one of the processes."""
        publish(self.served.ports["flymq"], "orders", [b"%d" % number for number in range(8)])

    def publish_or_be_cut(self) -> None:
        """For while a process dies: what it had in its hands is cut off, and the next one goes to another."""
        with suppress(ConnectionError):
            self.publish()

    def consumers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("/v1/consumers?search=copy")["consumers"]
        assert [one["unaccounted"] for one in found] == [0] * len(found)
        return found


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory, browser: Browser, kafka: Kafka) -> Iterator[Crew]:
    both, far = tmp_path_factory.mktemp("both"), tmp_path_factory.mktemp("far")
    with ExitStack() as stack:
        there = stack.enter_context(started(far, NEARBY.format(data=far / "data")))
        config = CONFIG.format(data=both / "data", brokers=kafka.brokers, port=there.ports["flymq"])
        served = stack.enter_context(started(both, config, "--workers", "2"))
        page = stack.enter_context(browser.new_context(reduced_motion="reduce")).new_page()
        page.set_default_timeout(SLOW)
        yield Crew(served, page)


def partitions(history: dict[str, Any]) -> set[int]:
    return {one["partition"] for one in history["lags"] if one["name"] == "copy"}


def test_pages_are_those_of_all_processes(crew: Crew) -> None:
    page = crew.page
    crew.show("/")
    with again_and_again(crew.publish):
        expect(page.locator("[data-edge='listener:flymq>route:orders']")).to_have_class("edge flows")
        expect(page.locator("[data-edge='topics:orders>target:far']")).to_have_class("edge flows")
        crew.show("/upstreams")
        far = page.locator("[aria-labelledby=up-far]")
        expect(far.locator("dl")).to_contain_text(" ms")
        expect(far.locator(".strip rect").first).to_be_attached()
        # each process looks at its own part every few seconds
        history = until(
            lambda: len(partitions(found := crew.ask("/v1/history"))) == 8 and max(found["received"]) > 0 and found
        )
    expect(far.locator("h2")).to_contain_text("circuit closed")
    expect(far.locator("dl")).to_contain_text("0 messages")
    assert {one["name"] for one in crew.ask("/v1/upstreams")["upstreams"]} == {"far"}
    assert "topics:orders>target:far" in {f"{one['source']}>{one['target']}" for one in crew.ask("/v1/map")["edges"]}
    assert len(history["upstreams"][0]["circuit"]) == len(history["times_ms"])


def test_a_forward_is_put_elsewhere_at_every_process_that_has_a_part_of_it(crew: Crew) -> None:
    """Its partitions are shared out between them."""
    crew.publish()
    until(lambda: len(found := crew.consumers()) == 8 and not sum(one["backlog"] for one in found))
    sent = sum(one["acknowledged"] for one in crew.consumers())
    page = crew.page
    crew.show("/consumers?search=copy")
    page.locator("#durable tbody tr").first.get_by_role("button").click()
    form = page.locator("#place")
    form.get_by_role("button", name="Preview").click()
    rows = form.locator("output tbody tr")
    expect(rows).to_have_count(8)
    assert [row.locator("td").first.inner_text() for row in rows.all()] == [str(number) for number in range(8)]
    again = sum(int(row.locator("td").nth(4).inner_text()) for row in rows.all())
    form.get_by_role("button", name="Do it").click()
    expect(form.locator("output .good")).to_contain_text("is there")
    until(lambda: not sum(one["backlog"] for one in crew.consumers()))
    found = crew.consumers()
    assert sum(one["repeated"] for one in found) == again > 0
    assert sum(one["acknowledged"] for one in found) == sent + again


def test_a_process_that_dies_is_named_and_its_past_stays(crew: Crew) -> None:
    page = crew.page
    crew.show("/")
    expect(page.locator("#lamp-ready")).to_have_text("ready")
    with again_and_again(crew.publish_or_be_cut):
        before = until(lambda: len((found := crew.ask("/v1/history"))["times_ms"]) > 3 and found)
        victim = crew.served.children[-1]
        os.kill(victim, signal.SIGKILL)
        expect(page.locator("#health .bad", has_text="worker ").first).to_contain_text("does not answer")
        expect(page.locator("#lamp-ready")).to_have_class("lamp bad")
        expect(page.locator("#lamp-ready")).to_have_text("ready")
        # what was seen before is what it was: of both
        after = until(lambda: len((found := crew.ask("/v1/history"))["times_ms"]) > len(before["times_ms"]) and found)
        moments = dict(zip(after["times_ms"], after["received"], strict=True))
        kept = [moments[at] for at in before["times_ms"] if at in moments]
        assert len(kept) > 1
        assert kept == before["received"][-len(kept) :]
        expect(page.locator("[data-edge='listener:flymq>route:orders']")).to_have_class("edge flows")
    assert len(crew.served.children) == 2
    assert victim not in crew.served.children


def test_letters_of_a_log_on_kafka_go_out_again(crew: Crew, kafka: Kafka) -> None:
    """The number of such a topic's life has more digits than a number has in a browser."""
    make(kafka, "console.broken.dlq")
    died = [("x-dead-letter-reason", b"refused"), ("x-dead-letter-topic", b"broken")]
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.brokers})
    producer.produce("console.broken.dlq", b"letter", headers=died)
    assert producer.flush(60) == 0
    until(lambda: crew.ask("/v1/letters?search=broken")["topics"])
    page = crew.page
    crew.show("/letters?search=broken")
    page.locator("main").get_by_role("link", name="refused").click()
    form = page.locator("form[data-action=redrive]")
    form.locator("[name=letter]").check()
    form.get_by_label("To another address").fill("mended")
    form.get_by_role("button", name="Dry run").click()
    expect(form.locator("output")).to_contain_text("would be sent")
    form.get_by_role("button", name="Send again").click()
    confirm(page)
    expect(form.locator("output tbody")).to_contain_text("sent again")
    page.get_by_role("button", name="Edit letter").click()
    dialog = page.locator("#dialog")
    dialog.get_by_label("To an address").fill("mended")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.locator("output")).to_contain_text("It was sent again before.")
    dialog.get_by_role("button", name="Close").click()
    form.get_by_role("button", name="Drop all").click()
    confirm(page)
    page.wait_for_url(f"{crew.url}/letters")
    assert crew.ask("/v1/letters?search=broken")["topics"] == []


def test_traffic_that_fails_says_so_where_it_was_waited_for() -> None:
    """Or whoever looks for what comes of it looks in vain, and does not hear why."""

    tried = threading.Event()

    def cut() -> None:
        tried.set()
        raise ConnectionResetError("in somebody's hands who died")

    with pytest.raises(ConnectionResetError), again_and_again(cut):
        tried.wait(60)
