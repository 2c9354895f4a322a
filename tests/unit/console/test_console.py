"""The pages without a browser: what they are sent with, what they are drawn from, where a login leads."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import trio

from gateway.admin.overview import GatewayMap, MapEdge, MapNode
from gateway.app import Gateway
from gateway.config.load import parse
from gateway.console import drawing
from gateway.console.pages import _inside, ago, short, size
from tests.unit.admin.api import serving_api
from tests.unit.admin.test_api import ORDER, publish

HTML = {"Accept": "text/html"}


async def test_pages_forbid_scripts_frames_and_caches_and_ask_who_it_is(tmp_path: Path) -> None:
    async with serving_api(tmp_path) as (served, client):
        await publish(served, "orders.eu", ORDER)
        http = client.http
        for path in ("/", "/topics", "/tap", "/letters/of?topic=x", "/nothing"):
            asked = await http.get(path, headers=HTML)
            assert (asked.status_code, asked.headers["location"].partition("?")[0]) == (303, "/login")
        assert (await http.get("/topics")).status_code == 401  # a program is not led about
        answer = await http.post("/login", data={"token": "look", "next": "/topics"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/topics")
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        page = await http.get("/topics", headers=HTML)
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["cache-control"] == "no-store"
        assert "orders.eu" in page.text
        for name in ("console.js", "console.css", "icon.svg"):
            assert (await http.get(f"/static/{name}")).status_code == 200
        for name in ("..%2fpages.py", "base.html", "%2e%2e/pages.py"):
            assert (await http.get(f"/static/{name}")).status_code in {401, 404}


async def test_over_tls_the_cookie_stays_there(tmp_path: Path) -> None:
    text = f'version: 1\nlisteners: {{flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}}}\nstorage: {{path: "{tmp_path}", free_space_floor: 1}}\n'
    text += 'admin: {bind: "127.0.0.1:0", token: root, tls: self-signed}\n'
    made = Gateway(parse(text))
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run, lambda _line: None)
        url = f"https://127.0.0.1:{made.ports['admin']}"
        async with httpx.AsyncClient(base_url=url, verify=False, trust_env=False, timeout=60) as http:
            answer = await http.post("/login", data={"token": "root"}, headers={"Origin": url})
            assert "Secure" in answer.headers["set-cookie"]
        made.drain()
        await made.stopped.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("path", "leads"),
    [
        ("/topics?search=a", "/topics?search=a"),
        ("//example.org", "/"),
        ("/\\example.org", "/"),
        ("https://example.org", "/"),
        ("/a\r\nSet-Cookie: x=1", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_a_page_of_ours(path: str, leads: str) -> None:
    assert _inside(path) == leads


def test_the_map_has_room_for_everything_and_no_arrow_is_on_another() -> None:
    nodes = [MapNode(f"listener:{n}", "listener", str(n), "") for n in range(9)]
    nodes += [MapNode(f"route:{n}", "route", "r" * 100, "x" * 100) for n in range(3)]
    edges = [MapEdge(f"listener:{n}", f"route:{n % 3}", "in") for n in range(9)]
    found = drawing.draw_map(GatewayMap(nodes, edges))
    assert len({(one.x, one.y) for one in found.nodes}) == 12
    assert max(one.y for one in found.nodes) + drawing.NODE_HEIGHT <= found.height
    assert len({one.path for one in found.edges}) == 9
    assert all(len(one.title) <= drawing.LONGEST_NAME for one in found.nodes)
    assert drawing.draw_map(GatewayMap([], [])).edges == []


def test_lines_and_bars_of_nothing_of_one_and_of_gaps() -> None:
    assert drawing.line([]) == drawing.line([None]) == ""
    assert drawing.line([0.0, 0.0]).startswith("M0.0 28.0")
    assert drawing.line([1.0, None, 2.0]).count("M") == 2
    assert drawing.bars([], 0, 60_000) == []
    assert [one.height for one in drawing.bars([0, 5, 10], 0, 60_000)] == [0, 45, 90]


def test_numbers_are_short() -> None:
    assert [short(one) for one in (0, 0.5, 12, 999, 1000, 12_345, 5e9)] == [
        "0",
        "0.5",
        "12",
        "999",
        "1.0k",
        "12.3k",
        "5.0G",
    ]
    assert [size(one) for one in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]
    assert [ago(one) for one in (None, 5, 600, 7200 * 2, 86_400 * 9)] == ["–", "5 s", "10 min", "4 h", "9 d"]
