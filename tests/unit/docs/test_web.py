"""The pages over HTTP, at the admin address."""

from __future__ import annotations

import re

import pytest

from gateway import docs
from gateway.docs.web import docs_routes
from tests.unit.admin.test_app import admin


@pytest.mark.parametrize("token", ["", "secret"])
async def test_every_page_is_served_with_links_that_lead_to_pages(token: str) -> None:
    async with admin(token, routes=docs_routes()) as it:
        index = await it.client.get("/docs", follow_redirects=True)
        assert index.status_code == 200
        for page in docs.pages():
            answer = await it.client.get(f"/docs/{page}")
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            for name, heading in re.findall(r'href="([\w-]*)(?:#([\w-]+))?"', answer.text):
                there = await it.client.get(f"/docs/{name or page}")
                assert there.status_code == 200
                assert not heading or f'id="{heading}"' in there.text


async def test_what_is_not_a_page_is_not_found() -> None:
    async with admin(routes=docs_routes()) as it:
        for path in ("/docs/nothing", "/docs/..%2f__init__", "/docs/flymq.md", "/docsx"):
            assert (await it.client.get(path)).status_code == 404


async def test_with_a_token_only_what_is_open_goes_without() -> None:
    async with admin("secret", routes=docs_routes()) as it:
        assert (await it.client.get("/docsx")).status_code == 401
        assert (await it.client.get("/docs/../metrics")).status_code == 401


async def test_markup_becomes_html_and_nothing_else_does() -> None:
    async with admin(routes=docs_routes()) as it:
        text = (await it.client.get("/docs/flymq")).text
        assert "<table>" in text
        assert "<pre><code" in text
        assert "```" not in text
        assert "&lt;topic&gt;.dlq" in (await it.client.get("/docs/routing")).text


KINDS = {
    "png": ("image/png", b"\x89PNG"),
    "svg": ("image/svg+xml", b"<svg "),
    "json": ("application/json", b"{"),
}


async def test_pictures_are_served_with_the_pages() -> None:
    async with admin(routes=docs_routes()) as it:
        named = set(re.findall(r'<img src="images/([\w-]+\.png)"', (await it.client.get("/docs/console")).text))
        assert named <= set(docs.images())
        assert len(named) > 2
        for name in docs.images():
            answer = await it.client.get(f"/docs/images/{name}")
            kind, begins = KINDS[name.rpartition(".")[2]]
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
            assert answer.content.startswith(begins)
        for name in ("none.png", "..%2fconsole.md"):
            assert (await it.client.get(f"/docs/images/{name}")).status_code == 404
