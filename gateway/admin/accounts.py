"""Who asks, and where every message is: what the admin API answers before anything else."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import attrs
import msgspec

from gateway.admin.access import Role
from gateway.admin.operation import Asked, Nothing, operation
from gateway.recorder import GroupPosition, Snapshot
from gateway.slices import slices

AUDIT = "/v1/audit"


class Session(msgspec.Struct, frozen=True):
    """Who asks."""

    name: str
    role: str
    csrf: str = ""
    """What a change that a browser sends carries as `X-CSRF-Token`."""


class MessageAccounts(msgspec.Struct, frozen=True):
    """Where every message is: at each route's door at one instant, and of each durable consumer. Every account has what
    is `unaccounted` in it; consumer groups are beside them and no account of anything.
    """

    doors: Sequence[dict[str, Any]]
    consumers: Sequence[dict[str, Any]]
    groups: Sequence[GroupPosition] = ()


async def accounts_of(snapshot: Snapshot, groups: Iterable[GroupPosition] = ()) -> MessageAccounts:
    doors = [{**attrs.asdict(one), "unaccounted": one.unaccounted} for one in snapshot.doors]
    consumers: list[dict[str, Any]] = []
    async for some in slices(snapshot.consumers):
        consumers += [{**attrs.asdict(one), "unaccounted": one.unaccounted} for one in some]
    return MessageAccounts(doors, consumers, list(groups))


class Everybody:
    """What whoever is let in may ask first."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        positions: Callable[[Container[str]], Iterable[GroupPosition]],
        groups: Callable[[], Container[str]],
    ) -> None:
        self._snapshot = snapshot
        self._positions = positions
        self._groups = groups

    @operation("GET", "/v1/session", Role.READ)
    async def session(self, asked: Asked[Nothing, None]) -> Session:
        """Who this is, and what it may do."""
        return Session(asked.who.name, asked.who.role.name.lower(), asked.who.csrf)

    @operation("GET", AUDIT, Role.READ)
    async def audit(self, asked: Asked[Nothing, None]) -> MessageAccounts:
        """Every account, with what is unaccounted for in it, and where the groups of `metrics.groups` are."""
        return await accounts_of(self._snapshot(), self._positions(self._groups()))
