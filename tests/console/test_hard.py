"""Hostile content, a gateway that goes away under an open page, a thousand topics."""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.conftest import CONFIG, TOKENS, House, Opened, free_port, log_in
from tests.console.traffic import Senders
from tests.integration.running import started

HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "'-window.hacked++-'",
    "{{7*7}}{% raw %}",
    "javascript:window.hacked=1",
    "<!--<svg onload=window.hacked=1>",
    "\u202egnp.exe\u0007",
)


def unharmed(page: Page) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, object, embed, main script").count() == 0


def test_whatever_is_in_a_message_is_text(opened: Opened, house: House) -> None:
    values = [one.encode() for one in HOSTILE] + [bytes(range(256)), b"\xff\xfe" * 20]
    house.senders.send("flymq", *values, address="hostile", keys=values)
    house.senders.send("flymq", *values, address="orders.hostile", keys=values)  # none is JSON: letters
    page = opened("/topic?name=hostile")
    unharmed(page)
    for text in HOSTILE[:-1]:
        expect(page.locator("td.value", has_text=text)).to_have_count(1)
    for offset in range(len(values)):
        page.goto(f"{house.url}/message?topic=hostile&partition=0&offset={offset}")
        unharmed(page)
    page.goto(f"{house.url}/letters/of?topic=orders.hostile.dlq")
    unharmed(page)
    page.locator("button[data-action=edit-letter]").first.click()  # those that are no text cannot be edited
    unharmed(page)
    expect(page.get_by_label("Value", exact=True)).to_have_value(HOSTILE[-2])
    page.goto(f"{house.url}/tap")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#report")).to_contain_text("0 seen")
    house.senders.send("flymq", *values[:6], address="hostile", keys=values[:6])
    expect(page.locator(".tapped")).to_have_count(6)
    unharmed(page)


@pytest.mark.parametrize(
    "name", ['x"><b onmouseover=1>', "a&b=c#d", "<script>alert(1)<!script>", "日本語.☃", "it's {{7*7}}"]
)
def test_whatever_a_topic_is_called_is_text(opened: Opened, house: House, name: str) -> None:
    house.senders.send("flymq", b"x", address=name)
    page = opened(f"/topics?search={quote(name)}")
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.get_by_role("link", name="in five languages").click()
    expect(page.locator(".head")).to_contain_text(name)
    unharmed(page)


def test_whatever_a_group_is_called_is_text(opened: Opened, house: House) -> None:
    house.senders.send("flymq", b"x", address="grouped.by-hostile")
    for name in HOSTILE[:3]:
        house.senders.commit("grouped.by-hostile", name, 1)
    page = opened("/consumers?search=by-hostile", role="operate")
    for name in HOSTILE[:3]:
        page.locator("#groups tr", has_text=name).get_by_role("button").click()
        form = page.locator("#place")
        expect(form.locator("[name=name]")).to_have_value(name)
        form.get_by_role("button", name="Preview").click()
        expect(form.locator("output p")).to_have_text(f"group {name} would be there on grouped.by-hostile:")
        unharmed(page)


def test_what_somebody_looks_for_is_text(opened: Opened, house: House) -> None:
    page = opened("/")
    for path in ("/topics", "/consumers", "/connections", "/letters"):
        for text in HOSTILE[:2]:
            page.goto(f"{house.url}{path}?search={quote(text)}")
            expect(page.locator("input[name=search]")).to_have_value(text)
            unharmed(page)


def test_a_gateway_that_is_restarted_under_an_open_page(browser: Browser, tmp_path: Path) -> None:
    config = CONFIG.format(data=tmp_path / "data", port=free_port(), nearby=9)
    with started(tmp_path, config) as served, browser.new_context() as context:
        url = f"http://127.0.0.1:{served.ports['admin']}"
        page = context.new_page()
        page.set_default_timeout(60_000)
        log_in(page, url, "/topics", TOKENS["administer"])
        expect(page.locator("#lamp-ready")).to_have_text("ready", timeout=60_000)
        served.end(signal.SIGTERM)
        expect(page.locator("#lost")).to_be_visible(timeout=60_000)
        served.start()
        with Senders(served.ports, tmp_path / "data/self-signed.crt") as senders:
            senders.send("flymq", b"x", address="after-the-restart")
            expect(page.locator("#lost")).to_be_hidden(timeout=60_000)
            expect(page.locator("#list")).to_contain_text("after-the-restart", timeout=60_000)
        # the session is the token's: it goes on
        page.goto(f"{url}/topic?name=after-the-restart")
        form = page.locator("form[data-action=publish]")
        form.locator("[name=value]").fill("still here")
        form.get_by_role("button").click()
        expect(form.locator("output")).to_contain_text("Stored")


EMPTY = """
version: 1
listeners: {{flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
"""


def test_the_first_look_at_an_empty_gateway_says_where_to_begin(browser: Browser, tmp_path: Path) -> None:
    with started(tmp_path, EMPTY.format(data=tmp_path / "data")) as served, browser.new_context() as context:
        url = f"http://127.0.0.1:{served.ports['admin']}"
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{url}/upstreams")
        example = EMPTY.format(data=tmp_path / "data") + page.locator("#list pre").inner_text()
        for link in page.locator("#list a").all():
            assert context.request.get(url + (link.get_attribute("href") or "")).ok
        page.goto(f"{url}/routes")
        page.locator("textarea[name=text]").fill(example)
        page.get_by_role("button", name="Check and plan").click()
        expect(page.locator("form[data-action=configuration] output .good")).to_have_text("Good.")
        page.goto(f"{url}/topics")
        flymq = f"127.0.0.1:{served.ports['flymq']}"
        expect(page.locator("#list li")).to_have_text(f"flymq at {flymq}")
        expect(page.locator("#list")).to_contain_text(f"gateway pub flymq://{flymq}/hello --data 'hello'")
        form = page.locator("form[data-action=publish]")
        form.locator("[name=address]").fill("hello")
        form.locator("[name=value]").fill("world")
        form.get_by_role("button").click()
        expect(form.locator("output")).to_contain_text("Stored")
        expect(page.locator("#list tbody tr")).to_contain_text("hello", timeout=60_000)


def test_a_thousand_topics(opened: Opened, house: House) -> None:
    for number in range(1000):
        house.senders.send("flymq", b"x", address=f"thousand.{number:04}")
    page = opened("/topics?search=thousand")
    expect(page.locator(".head")).to_contain_text("1000 of them")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody tr td").first).to_have_text("thousand.0050")
    page.fill("input[name=search]", "thousand.0777")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(house.url)
    expect(page.locator("#topics")).to_contain_text("10")
    assert len(page.content()) < 200_000
