"""The conservation of messages as an answer over HTTP: every route's door and every durable consumer at one instant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.recorder import GroupPosition, Snapshot

PATH = "/v1/audit"


def report(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as plain values, each account with what is unaccounted for in it."""
    return {
        "doors": [{**attrs.asdict(one), "unaccounted": one.unaccounted} for one in snapshot.doors],
        "consumers": [{**attrs.asdict(one), "unaccounted": one.unaccounted} for one in snapshot.consumers],
    }


def audit_route(snapshot: Callable[[], Snapshot], groups: Callable[[], Iterable[GroupPosition]]) -> Route:
    """`GET /v1/audit`: the accounts, and the positions of these groups beside them, which are no account of anything."""

    async def audit(_request: Request) -> JSONResponse:
        return JSONResponse({**report(snapshot()), "groups": [attrs.asdict(one) for one in groups()]})

    return Route(PATH, audit)
