"""Every page against a gateway with traffic in all five protocols: narrow and wide, light and dark, for everybody."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.console.conftest import House, Opened
from tests.console.traffic import flowing

PAGES = {
    "overview": ("/", "Overview"),
    "topics": ("/topics", "Topics"),
    "topic": ("/topic?name=orders.eu&partition=0", "orders.eu"),
    "message": ("/message?topic=alerts&partition=0&offset=0", "One message in five languages"),
    "routes": ("/routes", "Routes"),
    "consumers": ("/consumers", "Consumers"),
    "connections": ("/connections", "Connections"),
    "letters": ("/letters", "Dead letters"),
    "letter-list": ("/letters/of?topic=orders.eu.dlq", "orders.eu.dlq"),
    "upstreams": ("/upstreams", "Upstreams"),
    "tap": ("/tap", "Tap"),
}
IMAGES = Path("gateway/docs/images")
SERIOUS = {"serious", "critical"}
LARGEST = 150_000
"""Bytes of everything that a page is made of, beside what it shows."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_good_at_every_size_and_for_everybody(opened: Opened, name: str) -> None:
    path, title = PAGES[name]
    page = opened(path, width=360, height=720)
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    expect(page.locator("#lamp-audit")).to_have_text("0 unaccounted")
    for width, scheme in ((360, "light"), (1280, "dark"), (2560, "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in SERIOUS] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_worked_with_the_keyboard_alone(opened: Opened, name: str) -> None:
    page = opened(PAGES[name][0])
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    seen = set()
    for _ in range(8):
        page.keyboard.press("Tab")
        element, outline = page.evaluate(
            "[document.activeElement.outerHTML.slice(0, 200), getComputedStyle(document.activeElement).outlineStyle]"
        )
        if element.startswith("<body"):
            break  # behind the last one
        assert outline != "none", element
        seen.add(element)
    assert len(seen) > 2


def test_pages_are_made_of_little_and_of_nothing_from_elsewhere(opened: Opened, house: House) -> None:
    page = opened("/")
    sizes: dict[str, int] = {}
    page.on("response", lambda answer: sizes.setdefault(answer.url, 0))
    for path, _title in PAGES.values():
        page.goto(house.url + path)
        expect(page.locator("#lamp-audit")).to_have_text("0 unaccounted")
    assert all(url.startswith(house.url) for url in sizes)
    assert sum(len(file.read_bytes()) for file in Path("gateway/console/static").iterdir()) < LARGEST
    html = page.content()
    assert "<script>" not in html
    assert " style=" not in html
    assert " on" + "click=" not in html


def test_the_map_lives(opened: Opened, house: House) -> None:
    page = opened("/")
    edge = page.locator("[data-edge='listener:flymq>route:orders']")
    with flowing(house.senders):
        expect(edge).to_have_class("edge flows")
        expect(edge.locator(".rate")).to_contain_text("/s")
        for listener in ("blipmq", "rustlog", "felix", "fujin"):
            expect(page.locator(f"[data-edge^='listener:{listener}>'].flows").first).to_be_attached()
        expect(page.locator("[data-edge='topics:orders>target:felix']")).to_have_class("edge flows")
        expect(page.locator("#rate-in")).not_to_have_text("0")
    expect(edge).to_have_class("edge")
    expect(page.locator("[data-node='target:warehouse'] .alarm")).to_contain_text("down")
    page.locator("[data-node='route:orders'] a").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Routes")


def test_a_message_is_shown_in_five_languages_and_what_is_lost_is_struck_out(opened: Opened, house: House) -> None:
    (record,) = [one for partition in (0, 1) for one in house.records("orders.eu", partition, key="a")]
    page = opened(f"/message?topic=orders.eu&partition={record['partition']}&offset={record['offset']}")
    for name in ("blipmq", "felix", "flymq", "fujin", "rustlog"):
        section = page.locator(f"section[aria-labelledby=tongue-{name}]")
        frame = section.locator("details").first
        shown = "".join(frame.locator(".bytes span").all_inner_texts())
        assert b'{"amount": 100}' in bytes.fromhex("".join(shown.split()))
        assert frame.locator("tbody tr").count() >= 5
    blipmq = page.locator("section[aria-labelledby=tongue-blipmq]")
    expect(blipmq.locator("li.lost s").first).to_have_text("key a")
    assert "region" in " ".join(blipmq.locator("li.lost s").all_inner_texts())
    flymq = page.locator("section[aria-labelledby=tongue-flymq]")
    assert not any("key" in text for text in flymq.locator("li.lost s").all_inner_texts())


def test_what_is_not_there_is_said_on_a_page(opened: Opened, house: House) -> None:
    page = opened("/")
    for path, said in (
        ("/topic?name=missing", "there is no topic missing"),
        ("/message?topic=alerts&partition=0&offset=999999", "no offset 999999"),
        ("/message?topic=alerts&partition=0&offset=minus", "cannot be read"),
        ("/letters/of?topic=alerts", "holds no dead letters"),
    ):
        page.goto(house.url + path)
        expect(page.locator(".notice.bad p")).to_contain_text(said)


SHOTS = ("overview", "message", "topic", "connections", "tap")


@pytest.mark.parametrize("name", SHOTS)
def test_the_pictures_in_the_documentation_show_this(opened: Opened, house: House, name: str, tmp_path: Path) -> None:
    """With GATEWAY_PICTURES=1 they are written into the pages' folder; otherwise beside them, to see that they can be made."""
    page = opened("/", width=1200, height=760, scheme="dark" if name == "tap" else "light")
    with flowing(house.senders):
        page.goto(house.url + PAGES[name][0])
        expect(page.locator("#lamp-audit")).to_have_text("0 unaccounted")
        if name == "overview":
            expect(page.locator("[data-edge='topics:orders>target:felix']")).to_have_class("edge flows")
            # not by a function in the page: its policy lets nobody evaluate one
            expect(page.locator("#spark-in path.area")).to_have_attribute("d", re.compile(r"(L[^L]*){15}"))
        if name == "tap":
            page.fill("input[name=route]", "orders")
            page.click("button[name=start]")
            expect(page.locator(".tapped .badge.warn").first).to_be_visible()
        target = IMAGES if os.environ.get("GATEWAY_PICTURES") else tmp_path
        page.screenshot(path=target / f"{name}.png")
    made = (target / f"{name}.png").read_bytes()
    assert made.startswith(b"\x89PNG")
    assert len(made) < 300_000
    assert (IMAGES / f"{name}.png").exists()
