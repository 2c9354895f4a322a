"""The documentation over HTTP, on the admin address: the pages of the version that is running."""

from __future__ import annotations

import functools
import html
import itertools
import re
from collections.abc import Sequence

import trio
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.docs import INDEX, image, images, page_of, pages, text

PATH = "/docs"
HEADERS = {
    # our own text and no input of anybody; should that ever change, nothing in it runs or is fetched
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
MEDIA = {"png": "image/png", "svg": "image/svg+xml", "json": "application/json"}
STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
pre, code { font: 14px/1.4 ui-monospace, monospace; background: #8881; }
pre { padding: .6rem; overflow-x: auto; }
img { max-width: 100%; height: auto; border: 1px solid #8886; border-radius: .4rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid #8886; padding: .25rem .5rem; text-align: left; vertical-align: top; }
:root { color-scheme: light dark; }"""


def docs_routes() -> Sequence[BaseRoute]:
    """`/docs`, and each page under it."""
    return [Route(PATH, _index), Route(PATH + "/images/{name}", _image), Route(PATH + "/{page}", _page)]


async def _index(_request: Request) -> Response:
    return RedirectResponse(f"{PATH}/{INDEX}")


async def _page(request: Request) -> Response:
    name = request.path_params["page"]
    if name not in pages():
        return HTMLResponse(
            _whole("No such page", f'<p>There is no such page: <a href="{INDEX}">all pages</a>.</p>'), 404, HEADERS
        )
    # the first time takes tens of milliseconds, in which nothing else would be served
    return HTMLResponse(await trio.to_thread.run_sync(rendered, name), headers=HEADERS)


async def _image(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in images():
        return HTMLResponse(_whole("No such image", "<p>There is no such image.</p>"), 404, HEADERS)
    media = MEDIA[name.rpartition(".")[2]]
    return Response(await trio.to_thread.run_sync(image, name), headers=HEADERS, media_type=media)


@functools.cache
def rendered(page: str) -> str:
    """A page as HTML; only names of pages may come here, so the cache has a bound."""
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text(page))
    for token, following in itertools.pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(following.content))
    for token in tokens:
        for child in token.children or ():
            target = str(child.attrGet("href") or "")
            if page_of(target):
                child.attrSet("href", target.replace(".md", "", 1))
    body: str = markdown.renderer.render(tokens, markdown.options, {})
    back = "" if page == INDEX else f'<p><a href="{INDEX}">all pages</a></p>\n'
    return _whole(page, back + body)


def anchor(heading: str) -> str:
    """What a link names a heading by, as code hosts make it."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


def _whole(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>gateway: {html.escape(title)}</title>\n<style>\n{STYLE}\n</style></head>\n<body>\n{body}</body>\n</html>\n"
    )
