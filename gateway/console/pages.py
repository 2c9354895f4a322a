"""The pages. Each asks the API's own operations, as whoever looks, and hands what they answer to a template.

    request ─► who (the guard) ─► operations ─► values ─► template (everything escaped) ─► HTML, with no script in it
                    └ nobody: to the login

Nothing here changes anything but the session: changes are requests of the page's script to the API, with the session's token.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import trio
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from gateway import __version__
from gateway.admin.access import SESSION_SECONDS, Access, Hand, Role, Who
from gateway.admin.operation import ApiOperation, Asked, body_of, check_role
from gateway.admin.overview import MapNode
from gateway.admin.records import MessageSent
from gateway.bulk import wire
from gateway.console import drawing
from gateway.errors import GatewayError, InvalidRequest, NotFound, Unauthenticated

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # not no-referrer: with that a browser says of our own forms that they come from nowhere
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC = "/static"
LOGIN = "/login"
OPEN_PATHS = (STATIC, LOGIN)
MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
LONGEST_FORM = 8 << 10
PER_PAGE = 50
MOST_FRAME = 768
"""Bytes of a frame that are written out."""

NAVIGATION = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/routes", "Routes"),
    ("/consumers", "Consumers"),
    ("/connections", "Connections"),
    ("/letters", "Dead letters"),
    ("/upstreams", "Upstreams"),
    ("/tap", "Tap"),
    ("/docs", "Documentation"),
)

HERE = Path(__file__).parent


class ApiCall:
    """The API's operations, as one who asks."""

    def __init__(self, operations: Mapping[str, ApiOperation], who: Who) -> None:
        self._operations = operations
        self._who = who

    async def __call__(self, operation: str, body: Any = None, /, **query: Any) -> Any:
        """What an operation answers. Raises GatewayError."""
        one = self._operations[operation]
        check_role(one.role, self._who)
        try:
            asked = msgspec.convert(query, one.query, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"the parameters cannot be read: {error}") from None
        return await one.call(Asked(asked, body, self._who, "console", ""))


Page = Callable[["Console", Request, ApiCall], Awaitable[tuple[str, Mapping[str, Any]]]]


class Console:
    def __init__(self, operations: Sequence[ApiOperation], access: Access) -> None:
        self._operations = {one.name: one for one in operations}
        self._access = access
        self._templates = templates()

    def routes(self) -> Sequence[BaseRoute]:
        pages: Mapping[str, Page] = {
            "/": Console.overview,
            "/topics": Console.topics,
            "/topic": Console.topic,
            "/message": Console.message,
            "/routes": Console.routing,
            "/consumers": Console.consumers,
            "/connections": Console.connections,
            "/letters": Console.letters,
            "/letters/of": Console.letters_of,
            "/upstreams": Console.upstreams,
            "/tap": Console.tap,
        }
        return [
            *[Route(path, functools.partial(self._answer, page), methods=["GET"]) for path, page in pages.items()],
            Route("/message", self._translate, methods=["POST"]),
            Route(LOGIN, self._login_page, methods=["GET"]),
            Route(LOGIN, self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route(STATIC + "/{name}", _static, methods=["GET"]),
        ]

    async def refuse(self, request: Request, error: GatewayError) -> Response | None:
        """For people: who is not known is asked who they are, who may not is told so on a page."""
        hand: Hand = request.state.hand
        if not _is_for_people(hand):
            return None
        if isinstance(error, Unauthenticated):
            there = urllib.parse.quote(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
            return RedirectResponse(f"{LOGIN}?next={there}", 303, HEADERS)
        return self._problem(error, None)

    # --- pages ---

    async def overview(self, _request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        pulse, history = await call("pulse"), await call("history")
        found = await call("map")
        return "overview.html", {
            "map": drawing.draw_map(found),
            "left_out": found.left_out,
            "pulse": pulse,
            "history": history,
        }

    async def topics(self, request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        search, after = _text(request, "search"), _text(request, "after")
        found = await call("topics", search=search, after=after, limit=PER_PAGE)
        listeners: Sequence[MapNode] = ()
        if not found.total and not search:  # somebody's first look: where to begin
            listeners = [
                one for one in (await call("map")).nodes if one.kind == "listener" and "ingest" not in one.notes
            ]
        return "topics.html", {
            "found": found,
            "search": search,
            "after": after,
            "listeners": listeners,
            "example": next((_example(one) for one in listeners if one.label == "flymq"), ""),
        }

    async def topic(self, request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        name = _text(request, "name")
        found = await call("topics", name=name)
        if not found.topics:
            raise NotFound(f"there is no topic {name}")
        asked = {key: _text(request, key) for key in ("partition", "offset", "key", "time")}
        query: dict[str, Any] = {"topic": name, "partition": asked["partition"] or "0"}
        if asked["offset"]:
            query["offset"] = asked["offset"]
        elif asked["time"]:
            query["time_ms"] = _milliseconds(asked["time"])
        if asked["key"]:
            query["key"] = asked["key"]
        records = await call("records", **query)
        volume = await call("volume", topic=name)
        return "topic.html", {
            "topic": found.topics[0],
            "dense": found.dense_offsets,
            "records": records,
            "asked": asked,
            "partition": int(query["partition"]),
            "volume": volume,
            "bars": drawing.bars(volume.messages, volume.start_ms, volume.step_ms),
        }

    async def message(self, request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        query = {name: _text(request, name) for name in ("topic", "partition", "offset")}
        found = await call("languages", **query)
        return "message.html", {"found": found, "stored": True}

    async def routing(self, _request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        return "routes.html", {"found": await call("routes"), "map": await call("map")}

    async def consumers(self, request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        search, skip = _text(request, "search"), _text(request, "skip") or "0"
        found = await call("consumers", search=search, skip=skip, limit=PER_PAGE)
        groups = await call("groups")
        history = await call("history")
        lags = {(one.kind, one.name, one.topic, one.partition): one.backlog for one in history.lags}
        wanted = search.casefold()
        positions = [
            one for one in groups.positions if wanted in one.group.casefold() or wanted in one.topic.casefold()
        ]
        return "consumers.html", {
            "found": found,
            "groups": positions[:200],
            "more_groups": len(positions) > 200 or bool(groups.following),
            "lags": lags,
            "search": search,
            "skip": int(skip),
            "per_page": PER_PAGE,
        }

    async def connections(self, request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        search, after = _text(request, "search"), _text(request, "after")
        query: dict[str, Any] = {"search": search, "limit": PER_PAGE}
        if after:
            query["after"] = after
        return "connections.html", {"found": await call("connections", **query), "search": search, "after": after}

    async def letters(self, request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        search = _text(request, "search")
        found = await call("letters", search=search, after=_text(request, "after"))
        return "letters.html", {"found": found, "search": search}

    async def letters_of(self, request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        topic, reason = _text(request, "topic"), _text(request, "reason")
        return "letter_list.html", {
            "found": await call("letter_list", topic=topic, reason=reason),
            "topic": topic,
            "reason": reason,
        }

    async def upstreams(self, _request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        found, history = await call("upstreams"), await call("history")
        return "upstreams.html", {
            "found": found,
            "past": {one.name: one for one in history.upstreams},
            "times": history.times_ms,
        }

    async def tap(self, request: Request, call: ApiCall) -> tuple[str, Mapping[str, Any]]:
        return "tap.html", {"map": await call("map"), "route": _text(request, "route")}

    # --- answering ---

    async def _answer(self, page: Page, request: Request) -> Response:
        who: Who = request.state.who
        fresh: Who | None = None
        if not self._access.asks_for_a_token and not who.session:
            who = fresh = self._access.local_session()
        try:
            template, values = await page(self, request, ApiCall(self._operations, who))
        except GatewayError as error:
            return self._problem(error, who)
        answer = await self._page(request, template, who, values)
        if fresh is not None:
            _set_cookie(answer, request, fresh)
        return answer

    async def _page(self, request: Request, template: str, who: Who, values: Mapping[str, Any]) -> Response:
        here = "/" + request.url.path.strip("/").partition("/")[0]
        here = {"/topic": "/topics", "/message": "/topics"}.get(here, here)
        page = self._templates.get_template(template)
        # large pages take milliseconds to write: nobody else waits for that
        text = await trio.to_thread.run_sync(
            lambda: page.render(
                **values,
                who=who,
                may={role.name.lower(): who.role >= role for role in Role},
                logged_in=self._access.asks_for_a_token,
                here=here,
                navigation=NAVIGATION,
                version=__version__,
                now=dt.datetime.now(dt.UTC),
            )
        )
        return HTMLResponse(text, headers=HEADERS)

    def _problem(self, error: GatewayError, who: Who | None) -> Response:
        page = self._templates.get_template("problem.html")
        text = page.render(
            error=error, who=who, here="", navigation=NAVIGATION, logged_in=False, may={}, version=__version__
        )
        return HTMLResponse(text, wire.HTTP[error.status], HEADERS)

    async def _translate(self, request: Request) -> Response:
        # a message that is nowhere in the log, in every language; the page's own part alone
        who: Who = request.state.who
        try:
            body = msgspec.json.decode(await body_of(request), type=MessageSent)
            found = await ApiCall(self._operations, who)("translate", body)
        except msgspec.DecodeError as error:
            return self._problem(InvalidRequest(f"the body cannot be read: {error}"), who)
        except GatewayError as error:
            return self._problem(error, who)
        return await self._page(request, "tongues.html", who, {"found": found, "stored": False})

    # --- the session ---

    async def _login_page(self, request: Request) -> Response:
        if not self._access.asks_for_a_token:
            return RedirectResponse("/", 303, HEADERS)
        return self._login_form(_inside(_text(request, "next")))

    def _login_form(self, there: str, problem: str = "", status: int = 200) -> Response:
        page = self._templates.get_template("login.html")
        return HTMLResponse(page.render(there=there, problem=problem, version=__version__), status, HEADERS)

    async def _log_in(self, request: Request) -> Response:
        try:
            self._access.check_origin(request.state.hand)
            text = (await body_of(request, LONGEST_FORM)).decode("utf-8", "replace")
        except GatewayError as error:
            return self._problem(error, None)
        form = dict(urllib.parse.parse_qsl(text, max_num_fields=10))
        there = _inside(form.get("next", ""))
        try:
            who = self._access.log_in(form.get("token", ""), request.state.hand.peer)
        except Unauthenticated as error:
            return self._login_form(there, error.message, 401)
        answer = RedirectResponse(there, 303, HEADERS)
        _set_cookie(answer, request, who)
        return answer

    async def _log_out(self, request: Request) -> Response:
        # asked for by the page's script, with the session's token
        hand: Hand = request.state.hand
        answer = Response(b"{}", media_type=wire.JSON, headers=HEADERS)
        answer.delete_cookie(hand.cookie_name, path="/")
        return answer


def _set_cookie(answer: Response, request: Request, who: Who) -> None:
    hand: Hand = request.state.hand
    answer.set_cookie(
        hand.cookie_name,
        who.session,
        max_age=SESSION_SECONDS,
        path="/",
        secure=hand.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _is_for_people(hand: Hand) -> bool:
    return (
        hand.method == "GET"
        and not hand.path.startswith(("/v1/", "/metrics", "/openapi", STATIC))
        and "text/html" in (hand.headers.get("accept", ""))
    )


def _inside(path: str) -> str:
    # a path of our own, or the first page: a login leads nowhere else
    return path if re.fullmatch(r"/(?![/\\])[^\x00-\x20\\]*", path) else "/"


def _text(request: Request, name: str) -> str:
    return request.query_params.get(name, "").strip()


def _example(listener: MapNode) -> str:
    # an address to publish to
    return f"{listener.label}://{listener.notes[0].rpartition(' ')[2]}/hello"


def _milliseconds(text: str) -> int:
    # a time as a form writes it, in UTC
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"a time like 2026-01-31T12:00, not {text[:60]!r}") from None
    return int((when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)).timestamp() * 1000)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    found = _files().get(name)
    if found is None:
        return Response("there is no such file\n", 404, headers=HEADERS, media_type="text/plain")
    media = MEDIA[Path(name).suffix]
    return Response(found, headers={**HEADERS, "Cache-Control": "max-age=300"}, media_type=media)


@functools.cache
def _files() -> Mapping[str, bytes]:
    # what pages are made of: so little that it stays in memory
    return {file.name: file.read_bytes() for file in (HERE / "static").iterdir() if file.suffix in MEDIA}


# --- how values are written ---


def templates() -> jinja2.Environment:
    """Everything that is written into a page is escaped, and what is not there is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "short": short,
        "size": size,
        "when": when,
        "ago": ago,
        "shown": shown,
        "hex": spaced_hex,
        "line": drawing.line,
        "query": lambda values: urllib.parse.urlencode({k: v for k, v in values.items() if v not in ("", None)}),
        "b64": lambda data: msgspec.json.encode(data).decode().strip('"'),
    }
    made.globals |= {"colours": 8, "most_frame": MOST_FRAME}
    return made


def short(value: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if abs(value) < 999.95 or unit == "T":
            return (
                f"{value:.0f}{unit}" if unit == "" and (value == int(value) or value >= 100) else f"{value:.1f}{unit}"
            )
        value /= 1000
    return ""


def size(count: float) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def when(timestamp_ms: int) -> str:
    if not timestamp_ms:
        return "–"
    try:
        return dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)


def ago(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for limit, unit, each in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / each:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def shown(content: Any, most: int = 2_000) -> str:
    """Bytes of a message for people: as JSON that its schema makes of it, as text, or in hex."""
    text: str | None = content.decoded if content.decoded is not None else content.text
    if text is None:
        text = spaced_hex(content.data[: most // 3])
        return text + (" …" if content.size > most // 3 else "")
    return text[:most] + ("…" if len(text) > most or content.size > len(content.data) else "")


def spaced_hex(data: bytes) -> str:
    return data.hex(" ")
