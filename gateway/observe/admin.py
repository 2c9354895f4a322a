"""The admin application: metrics and health over HTTP. What else is served there mounts beside them.

With a token configured everything asks for it but the two health probes, since an orchestrator's probe carries none, and the
documentation, since a browser carries none either and there is nothing in it that is not in the package.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.observe.health import Health
from gateway.observe.prometheus import PrometheusRecorder
from gateway.recorder import Recorder

OPEN_PATHS = ("/livez", "/readyz", "/docs")


class TokenRequired:
    """Refuses what does not carry the token (`Authorization: Bearer ...`)."""

    def __init__(self, app: ASGIApp, token: str, recorder: Recorder) -> None:
        self._app = app
        self._token = token.encode()
        self._recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what carries the token or needs none."""
        if scope["type"] == "http" and not _is_open(scope["path"]) and not self._admits(scope):
            host, port = scope.get("client") or ("", 0)
            self._recorder.login_failed("admin", "token", f"{host}:{port}", "")
            refusal = JSONResponse({"error": "a bearer token is required"}, 401, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, token = value.partition(b" ")
                return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)
        return False


def _is_open(path: str) -> bool:
    return any(path == open_path or path.startswith(open_path + "/") for open_path in OPEN_PATHS)


def admin_app(
    recorder: PrometheusRecorder, health: Health, *, token: str = "", routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """`/metrics`, `/livez`, `/readyz`, and the routes given."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(recorder.registry), headers={"Content-Type": content_type})

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        problems = health.problems()
        body = {
            "ready": not problems,
            "phase": health.phase.value,
            "problems": list(problems),
            "waiting": list(health.waiting()),
        }
        return JSONResponse(body, 503 if problems else 200)

    return Starlette(
        routes=[Route("/metrics", metrics), Route("/livez", livez), Route("/readyz", readyz), *routes],
        middleware=[Middleware(TokenRequired, token=token, recorder=recorder)] if token else [],
    )
