"""Who may do what in the browser, and what pages of others get: nothing."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect

from tests.console.conftest import TOKENS, House, Opened, log_in

CHANGES = ("Close", "Publish", "Apply", "Check and plan", "Send again", "Preview", "Drop all of them")
PATHS = ("/connections", "/topic?name=alerts", "/routes", "/letters/of?topic=orders.eu.dlq", "/consumers")


@pytest.mark.parametrize(
    ("role", "offered"),
    [
        ("read", set()),
        ("operate", {"Close", "Check and plan", "Send again", "Preview"}),
        ("administer", set(CHANGES)),
    ],
)
def test_a_page_offers_what_its_reader_may_do(opened: Opened, house: House, role: str, offered: set[str]) -> None:
    page = opened("/", role=role)
    found: set[str] = set()
    for path in PATHS:
        page.goto(house.url + path)
        for details in page.locator("details:not([open]) > summary").all():
            details.click()
        texts = page.locator("button").all_inner_texts()
        found |= {name for name in CHANGES if name in texts}
    assert found == offered
    expect(page.locator(".who")).to_contain_text(f"may {role}")


def test_what_a_page_does_not_offer_the_api_refuses(opened: Opened) -> None:
    page = opened("/", role="read")
    found = page.evaluate(
        """async () => {
            const { csrf } = await (await fetch("/v1/session")).json();
            const answer = await fetch("/v1/append", { method: "POST", headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
                body: JSON.stringify({ address: "alerts", producer: "p", values: ["eA=="] }) });
            return [answer.status, (await answer.json()).message];
        }"""
    )
    assert found[0] == 403
    assert "administer" in found[1]


def test_a_change_without_the_token_of_its_session_is_refused(opened: Opened) -> None:
    page = opened("/")
    for header in ("{}", '{"X-CSRF-Token": "wrong"}'):
        status = page.evaluate(
            f'async () => (await fetch("/v1/connections?id=1", {{ method: "DELETE", headers: {header} }})).status'
        )
        assert status == 403


def test_a_wrong_token_gets_no_session(browser: Browser, house: House) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{house.url}/topics?search=a")
        page.fill("input[name=token]", "guessed")
        page.click("button")
        expect(page.get_by_role("alert")).to_contain_text("not known here")
        assert context.cookies() == []
        page.fill("input[name=token]", TOKENS["read"])
        page.click("button")
        page.wait_for_url(f"{house.url}/topics?search=a")
        (cookie,) = context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert page.evaluate("document.cookie") == ""


def test_a_login_leads_to_our_own_pages_alone(browser: Browser, house: House) -> None:
    for there in ("https://example.org/", "//example.org/", "/\\example.org"):
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(f"{house.url}/login?next={there}")
            page.fill("input[name=token]", TOKENS["read"])
            page.click("button")
            page.wait_for_url(f"{house.url}/")


FOREIGN = """<!doctype html><title>elsewhere</title>
<form id="form" method="post" action="{url}/v1/append" enctype="text/plain"><input name='{{"address":"stolen","producer":"x","values":["eA=="],"a' value='":1}}'></form>
<img id="image" src="{url}/v1/topics"><iframe id="frame" src="{url}/topics"></iframe>
<script>
window.read = async (path, options) => {{ try {{ const answer = await fetch("{url}" + path, options); return [answer.type, await answer.text()]; }} catch (error) {{ return ["refused", ""]; }} }};
</script>"""


@contextmanager
def elsewhere(url: str) -> Iterator[str]:
    """A page of somebody else's, on this machine too."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = FOREIGN.format(url=url).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_page_of_somebody_elses_reads_nothing_and_changes_nothing(browser: Browser, house: House) -> None:
    with elsewhere(house.url) as there, browser.new_context() as context:
        page = context.new_page()
        log_in(page, house.url, "/", TOKENS["administer"])  # the browser holds a session
        page.goto("about:blank")
        statuses: dict[str, int] = {}
        page.on(
            "response",
            lambda answer: statuses.setdefault(
                f"{answer.request.method} {answer.url.removeprefix(house.url)}", answer.status
            ),
        )
        page.goto(there)
        assert page.evaluate("read('/v1/topics', { credentials: 'include' })") == ["refused", ""]
        assert page.evaluate("read('/v1/topics', { mode: 'no-cors', credentials: 'include' })")[1] == ""
        body = '{"address": "stolen", "producer": "x", "values": ["eA=="]}'
        page.evaluate(
            "body => read('/v1/append', { method: 'POST', mode: 'no-cors', credentials: 'include', body })", body
        )
        page.evaluate("document.getElementById('form').submit()")
        page.wait_for_url(f"{house.url}/v1/append")
        assert "somebody else" in page.inner_text("body")
        assert {key: status for key, status in statuses.items() if key.startswith(("GET /v1", "POST /v1"))} == {
            "GET /v1/topics": 403,
            "POST /v1/append": 403,
        }
        assert house.ask("/v1/topics", name="stolen")["topics"] == []


def test_a_link_from_elsewhere_shows_a_page_to_who_follows_it(browser: Browser, house: House) -> None:
    """A strict cookie does not travel with it: it is asked who follows."""
    with elsewhere(house.url) as there, browser.new_context() as context:
        page = context.new_page()
        page.goto(there)
        page.evaluate(f"location.href = '{house.url}/topics'")
        page.wait_for_url(f"{house.url}/login?next=/topics")
        expect(page.locator("input[name=token]")).to_be_visible()
