"""The admin address as one application: the API, metrics and health, and what else is mounted beside them.

Everything asks who it is (`gateway.admin.access`) but the two health probes, since an orchestrator's probe carries nothing, and
the documentation, since there is nothing in it that is not in the package. Metrics are as open as their address where no token
is configured. Of a web page of somebody else's nothing is answered, whatever it asks for, but that the process lives.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import model
from gateway.admin.access import Access, Hand, Role, Who, headers_of
from gateway.admin.openapi import PATH as OPENAPI
from gateway.admin.openapi import document
from gateway.admin.operation import ApiOperation, Room, check_role, json_of, problem_response, routes_of
from gateway.errors import GatewayError
from gateway.observe.health import Health
from gateway.observe.prometheus import PrometheusRecorder
from gateway.observe.workers import Others

LIVE = "/livez"
PROBES = (LIVE, "/readyz")
METRICS = "/metrics"
RELOAD = "/v1/worker/reload"
WORKER = "worker"
OPEN = (*PROBES, "/docs")

Refuse = Callable[[Request, GatewayError], Awaitable[Response | None]]
"""An answer for people instead of the API's, where it is people who asked."""


class Guard:
    """Lets through what may be asked, with who asks it in the request's state."""

    def __init__(self, app: ASGIApp, access: Access, open_paths: Sequence[str], refuse: Refuse | None) -> None:
        self._app = app
        self._access = access
        self._open = open_paths
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host, port = scope.get("client") or ("", 0)
        peer = f"{host}:{port}"
        hand = Hand(scope["method"], scope["path"], headers_of(scope["headers"]), scope["scheme"], peer)
        state = scope.setdefault("state", {})
        state["hand"] = hand
        path = scope["path"]
        try:
            if path != LIVE:  # which says nothing of anything, by whatever name somebody probes
                self._access.check_origin(hand)
            if path == METRICS and not self._access.asks_for_a_token:
                state["who"] = Who("", Role.READ)
            elif not any(path == one or path.startswith(one + "/") for one in self._open):
                state["who"] = self._access.admit(hand)
        except GatewayError as error:
            answer = await self._refuse(Request(scope), error) if self._refuse is not None else None
            await (answer or problem_response(error))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def watching_routes(recorder: PrometheusRecorder, health: Health, others: Others | None = None) -> Sequence[BaseRoute]:
    """`/metrics`, `/livez` and `/readyz`, for other processes of this gateway too."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        await recorder.prepare()
        shown: Any = recorder.registry if others is None else await others.joined(recorder.registry.collect)
        return Response(encode(shown), headers={"Content-Type": content_type})

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        problems = [*health.problems(), *(await others.problems() if others is not None else ())]
        body = {
            "ready": not problems,
            "phase": health.phase.value,
            "problems": problems,
            "waiting": list(health.waiting()),
        }
        return JSONResponse(body, 503 if problems else 200)

    return [Route(METRICS, metrics), Route(LIVE, livez), Route("/readyz", readyz)]


def admin_app(
    recorder: PrometheusRecorder,
    health: Health,
    access: Access,
    operations: Sequence[ApiOperation] = (),
    *,
    pages: Sequence[BaseRoute] = (),
    open_paths: Sequence[str] = (),
    refuse: Refuse | None = None,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
    others: Others | None = None,
    room: Room | None = None,
) -> Starlette:
    """Everything on the admin address. `open_paths`: those of `pages` that nobody has to be known for. `room`: what bodies are
    charged to.
    """
    described = document(operations)

    async def openapi(request: Request) -> Response:
        check_role(Role.READ, request.state.who)
        return json_of(described)

    return Starlette(
        routes=[
            *watching_routes(recorder, health, others),
            Route(OPENAPI, openapi),
            *routes_of(operations, room),
            *pages,
        ],
        middleware=[Middleware(Guard, access=access, open_paths=(*OPEN, *open_paths), refuse=refuse)],
        lifespan=lifespan,
    )


class Within:
    """Lets everybody in: whoever reaches the socket is another process of the same gateway, which has asked who wants to know."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on."""
        scope.setdefault("state", {})["who"] = Who(WORKER, Role.ADMINISTER)
        await self._app(scope, receive, send)


def worker_app(
    recorder: PrometheusRecorder,
    health: Health,
    operations: Sequence[ApiOperation],
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]],
    reload: Callable[[], None],
) -> Starlette:
    """What another process of this gateway is asked by the one with the admin address."""

    async def read_again(_request: Request) -> Response:
        reload()
        return json_of({})

    routes = [*watching_routes(recorder, health), Route(RELOAD, read_again, methods=["POST"]), *routes_of(operations)]
    return Starlette(routes=routes, middleware=[Middleware(Within)], lifespan=lifespan)


def metrics_app(
    recorder: PrometheusRecorder, health: Health, others: Others | None = None, host: str = ""
) -> Starlette:
    """Metrics and probes alone, on an address of their own. `host`: which that is; empty for a socket that is no address."""
    access = Access(model.Admin(host=host), now=time.time)
    return Starlette(
        routes=list(watching_routes(recorder, health, others)),
        middleware=[Middleware(Guard, access=access, open_paths=PROBES, refuse=None)],
    )
