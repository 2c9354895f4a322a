"""The routes over the API: the file as it is served, the way a message would take, a changed text and what it would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import msgspec
import trio

from gateway import model
from gateway.admin.access import Role
from gateway.admin.inside import Inside
from gateway.admin.operation import Asked, Nothing, operation
from gateway.admin.overview import show_match
from gateway.admin.ways import Checked, FidelityReport, WayAsked, WayTaken, checked, fidelity_report, way_of
from gateway.config.load import examine
from gateway.errors import Denied, InvalidRequest, NotFound, TooLarge
from gateway.reload import APPLIED, digest, plan

LONGEST_TEXT = 1 << 20
HIDDEN = "•" * 6
"""What stands for a secret where somebody looks who may not know it."""


class RouteShown(msgspec.Struct, frozen=True):
    name: str
    match: str
    transform: Sequence[str]
    targets: Sequence[str]


class RoutesShown(msgspec.Struct, frozen=True):
    """The routes in force, and the file they were read from; what is secret in it only for who may administer."""

    routes: Sequence[RouteShown]
    file: str
    text: str
    digest: str
    """What an `apply` of a changed text says to have seen."""
    in_force: bool
    """Whether the file still says what is in force."""


class TextSent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole configuration; without a text it is the file as it is now."""

    text: str | None = None


class TextApplied(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    seen: str
    """The `digest` of the text that was changed."""


class Applied(msgspec.Struct, frozen=True):
    """What became of it: `applied`, or `invalid`, `refused`, `failed` and nothing has changed."""

    outcome: str
    why: Sequence[str]


class Routing:
    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._ours = inside.reloads.ours

    @operation("GET", "/v1/routes", Role.READ)
    async def routes(self, asked: Asked[Nothing, None]) -> RoutesShown:
        """The routes in force, and the file."""
        config = self._inside.config
        try:
            raw = await trio.to_thread.run_sync(Path(config.file).read_bytes)
        except OSError:
            raw = b""
        text = raw.decode("utf-8-sig", "replace")
        current = await trio.to_thread.run_sync(examine, text, config.file) if raw else None
        same = current is not None and current.config is not None and self._ours(current.config) == config
        if asked.who.role < Role.ADMINISTER:
            known = [one for one in (config, current.config if current is not None else None) if one is not None]
            text = without_secrets(text, known) if current is None or current.config is not None else ""
        return RoutesShown([_route(one) for one in config.routes], config.file, text, digest(raw), same)

    @operation("POST", "/v1/explain", Role.READ)
    async def explain(self, asked: Asked[Nothing, WayAsked]) -> WayTaken:
        """The way a message would take, step by step, found by the code that routes."""
        return way_of(self._inside.config, self._inside.table, asked.body)

    @operation("GET", "/v1/fidelity", Role.READ)
    async def fidelity(self, asked: Asked[Nothing, None]) -> FidelityReport:
        """What becomes of every field between each two protocols, and by each bridge and forward of the routes."""
        return fidelity_report(self._inside.config)

    @operation("POST", "/v1/configuration/check", Role.OPERATE)
    async def check(self, asked: Asked[Nothing, TextSent]) -> Checked:
        """Everything that is wrong with a text, and what it would change; nothing is changed."""
        config, text = self._inside.config, asked.body.text
        if text is None:
            try:
                text = (await trio.to_thread.run_sync(Path(config.file).read_bytes)).decode("utf-8-sig", "replace")
            except OSError as error:
                raise NotFound(f"{config.file} cannot be read: {error.strerror or error}") from error
        if len(text) > LONGEST_TEXT:
            raise TooLarge(f"a configuration has at most {LONGEST_TEXT} characters")
        found = await trio.to_thread.run_sync(examine, text, config.file)
        changes = plan(config, self._ours(found.config)) if found.config is not None and not found.problems else ()
        return checked(config.file, found, changes)

    @operation("POST", "/v1/configuration/apply", Role.ADMINISTER)
    async def apply(self, asked: Asked[Nothing, TextApplied]) -> Applied:
        """Let the file say this from now on, and the gateway with it; if that cannot be, both stay as they are."""
        if len(asked.body.text) > LONGEST_TEXT:
            raise TooLarge(f"a configuration has at most {LONGEST_TEXT} characters")
        if HIDDEN in asked.body.text:
            raise InvalidRequest("secrets are hidden in this text: it cannot be what the file is to say")
        try:
            found = await self._inside.reloads.apply(asked.body.text, asked.body.seen)
        except OSError as error:
            raise Denied(f"{self._inside.config.file} cannot be written: {error.strerror or error}") from error
        return Applied(found.outcome, found.why if found.outcome != APPLIED else ())


def _route(route: model.Route) -> RouteShown:
    return RouteShown(
        route.name,
        show_match(route.match),
        [type(step).__name__ for step in route.transform],
        [_target(one) for one in route.targets],
    )


def _target(target: model.Target) -> str:
    match target:
        case model.StoreTarget():
            return f"store {target.topic}"
        case model.Bridge():
            return f"bridge {target.protocol} {target.address}"
        case model.Forward():
            return f"forward {target.upstream} {target.address}"
        case model.Mirror():
            return f"mirror {target.upstream} {target.address}, {target.percent:g} %"
        case model.Proxy():
            return f"proxy {target.upstream} {target.address}"


def without_secrets(text: str, configs: Sequence[model.Config]) -> str:
    """A text in which nothing is left of what those who may not administer must not know."""
    known = {secret for config in configs for secret in _secrets(config)}
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets(value: Any) -> Iterator[str]:
    # every text that a value does not show of itself
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _secrets(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _secrets(inner)
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            inner = getattr(value, field.name)
            if field.repr is False:
                yield from _texts(inner)
            else:
                yield from _secrets(inner)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, tuple | list | frozenset | set):
        for inner in value:
            yield from _texts(inner)
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            yield from _texts(getattr(value, field.name))
