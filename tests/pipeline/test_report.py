"""One page about a log or an archive: its numbers are those of the log, and it is a page in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from gateway.broker.letters import Facts
from gateway.errors import InvalidRequest
from gateway.pipeline.archive import archive
from gateway.pipeline.audit import Audited
from gateway.pipeline.frames import messages_at
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.report import NAMED, OTHERS, ROWS, LogReport, TopicSizes, Traffic, audit_between, report
from gateway.pipeline.report_page import page, shown, shown_key
from gateway.store import stats
from tests.console.conftest import browser
from tests.pipeline.stored import Log, filled

__all__ = ["browser"]
HOSTILE = '<script>document.title="owned"</script>"\' onload=x \u202egnp.\x07'
MINUTE = 1_700_000_040


async def shop(log: Log) -> None:
    await log.create("orders", partitions=2)
    await log.create("orders.dlq")
    await log.create(HOSTILE.replace("\x07", ""))
    await log.create("__stats")
    for number in range(10):
        await log.append("orders", [b"x" * 100] * 9 + [b"y" * 4_000], number % 2, [b"eu", b"us"] * 5)
        await log.append("orders.dlq", [b"dead"], headers=[Facts(reason="schema", topic="orders").headers()])
        log.clock.ms += 60_000
    await log.append("orders.dlq", [b"written by hand"])
    await log.append(HOSTILE.replace("\x07", ""), [b""], 0, [HOSTILE.encode()], expires=[log.clock.ms - 1])
    for minute, counts in ((MINUTE, {1: 90, 21: 10}), (MINUTE + 60, {4: 4})):
        await log.append("__stats", [stats.encode(stats.Deliveries(minute, "orders", "orders", "flymq", counts))])


async def many_topics(log: Log) -> None:
    for number in range(NAMED + 5):
        await log.create(f"t{number:02}")
        await log.append(f"t{number:02}", [b"1"] * (100 - number), keys=[b"k%d" % (number % 3)] * (100 - number))


def made(spark: Any, place: Path | str, **more: Any) -> LogReport:
    return report(spark, messages_at(str(place)), str(place), now_s=MINUTE + 86_400, **more)


def test_what_is_counted(spark: Any, tmp_path: Path) -> None:
    filled(tmp_path / "store", shop)
    found = made(spark, tmp_path / "store")
    assert (found.messages, found.letters, found.expired) == (112, 10, 1)
    assert found.value_bytes == 10 * (900 + 4_000) + 10 * 4 + 15
    assert found.step_s == 60
    orders = found.traffic["topic"]
    assert orders.names == ["orders", "orders.dlq", HOSTILE.replace("\x07", "")]
    assert sum(orders.messages["orders"].values()) == 100
    assert set(orders.messages["orders"].values()) == {10}
    assert orders.sizes["orders"] == 49_000
    assert [found.traffic[one].names for one in ("route", "protocol")] == [["orders"], ["flymq"]]
    assert found.topics[0] == TopicSizes("orders", 100, 49_000, [100, 4_000, 4_000], 4_000)
    assert found.sizes == {0: 1, 3: 10, 4: 1, 7: 90, 12: 10}
    assert found.keys[:2] == [("orders", b"eu", 2, 50), ("orders", b"us", 2, 50)]
    assert found.dead == [("orders", "schema", 10)]
    count, shares = found.delivered["orders", "flymq"]
    assert (count, shares[0] < 2, shares[2] > 1_000) == (104, True, True)
    assert list(found.latency) == [MINUTE, MINUTE + 60]
    assert (found.removed, found.gaps, found.audit) == ([], [], None)


def test_an_archive_and_what_the_audit_says(spark: Any, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    filled(store, shop)
    archive(str(store), out, topics=TopicSelection(("orders",)))
    messages = messages_at(str(out))
    audited = audit_between(messages, str(store), topics=TopicSelection(("orders",)))
    found = made(spark, out, audited=audited)
    assert (found.messages, found.letters, audited.findings) == (100, 0, ())
    assert "Clean: 100 of 100 archived records" in page(found)
    again = audit_between(messages_at(str(store)), str(out))
    assert again.findings
    assert "findings; 100 of 100" in page(made(spark, out, audited=again))
    with pytest.raises(InvalidRequest, match="an audit compares a log with an archive"):
        audit_between(messages_at(str(store)), "http://127.0.0.1:9600")


def test_what_comes_back_has_a_bound(spark: Any, tmp_path: Path) -> None:
    filled(tmp_path / "store", many_topics)
    found = made(spark, tmp_path / "store")
    topics = found.traffic["topic"]
    assert len(topics.names) == NAMED + 1
    assert (topics.names[-1], topics.kinds) == (OTHERS, NAMED + 5)
    assert sum(topics.messages[OTHERS].values()) == sum(100 - number for number in range(NAMED, NAMED + 5))
    assert sum(topics.sizes.values()) == found.messages
    assert len(found.keys) <= ROWS


def test_nothing_at_all(spark: Any, tmp_path: Path) -> None:
    async def empty(log: Log) -> None:
        await log.create("none")

    filled(tmp_path / "store", empty)
    assert "There is no message in it." in page(made(spark, tmp_path / "store"))


# --- the page


def facts() -> LogReport:
    """One with everything in it, and names as nobody should give them."""
    hour = MINUTE - MINUTE % 3_600
    steps = {hour + 3_600 * number: number % 7 * 100 for number in range(90)}
    names = [HOSTILE, *(f"name {number}" for number in range(7)), OTHERS]
    traffic = Traffic(names, dict.fromkeys(names, steps), dict.fromkeys(names, 5_000_000), 1_000)
    audited = Audited(
        10, 11, {}, tuple(f"gap: {HOSTILE}/0 [{number}, {number + 1}) is not archived" for number in range(300))
    )
    return LogReport(
        HOSTILE,
        MINUTE,
        3_600,
        MINUTE,
        MINUTE + 89 * 3_600,
        123_456,
        7_890_123_456,
        1,
        2,
        {"route": traffic, "protocol": traffic, "topic": traffic},
        {0: 3, 7: 1_000, 21: 2},
        [TopicSizes(HOSTILE, 10, 100, [1, 2, 3], 4)] * 25,
        [(HOSTILE, HOSTILE.encode(), 300, 50), ("orders", b"\xff\x00", 2, 7)],
        [(HOSTILE, HOSTILE, 5)],
        {(HOSTILE, HOSTILE): (100, [0.5, 20.0, 3_000.0])},
        dict.fromkeys(steps, 12.5),
        [(HOSTILE, 0, 0, 500)],
        [f"{HOSTILE}: removed"],
        audited,
    )


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Page:
    """Opened from the disk, by a browser that reaches nothing."""
    (tmp_path / "report.html").write_text(page(facts()))
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 800})
    shows = context.new_page()
    said: list[str] = []
    shows.on("console", lambda message: said.append(message.text))
    shows.on("pageerror", lambda error: said.append(str(error)))
    shows.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
    shows.goto((tmp_path / "report.html").as_uri())
    assert said == []
    return shows


def test_in_a_browser_names_are_text(opened: Page) -> None:
    assert opened.title() == f"Report of {shown(HOSTILE)}"
    assert opened.locator("h1").inner_text() == shown(HOSTILE)
    assert opened.locator("script").count() == 0
    assert opened.locator("[onload]").count() == 0
    assert opened.locator("svg").count() == 5
    assert opened.locator("svg").first.locator("rect").count() > 500
    assert opened.locator("h2").all_inner_texts() == [
        "Audit",
        "Losses",
        "Traffic",
        "Sizes",
        "From receipt to delivery",
        "Dead letters",
        "Keys",
    ]
    assert opened.get_by_text("… and 100 more.").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_everybody_can_read_it(opened: Page, scheme: Any) -> None:
    opened.emulate_media(color_scheme=scheme)
    found = Axe().run(opened).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []


@pytest.mark.parametrize("width", [360, 768, 2560])
def test_in_a_browser_of_any_width(opened: Page, width: int) -> None:
    opened.set_viewport_size({"width": width, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_without_anything_of_what_there_can_be() -> None:
    bare = attrs.evolve(
        facts(),
        traffic={one: Traffic([], {}, {}, 0) for one in ("route", "protocol", "topic")},
        first_s=None,
        last_s=None,
        sizes={},
        topics=[],
        keys=[],
        dead=[],
        delivered={},
        latency={},
        removed=[],
        gaps=[],
        audit=None,
        messages=0,
    )
    text = page(bare)
    for said in ("There is no message in it", "Nothing is known to be missing", "Not known here", "No message has one"):
        assert said in text
    assert "<svg" not in text


def test_names_that_nobody_can_see() -> None:
    assert shown("a\u202eb\x00c\n") == "a\\u202eb\\x00c\\n"
    assert shown("x" * 200) == "x" * 160 + "…"
    assert shown_key((b"\xff\x00", 2)) == "0xff00"
    assert shown_key((b"abc", 300)) == "abc…"
