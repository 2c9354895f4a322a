"""What a route takes: the part that is decided once per address, and the part that looks at each message."""

from __future__ import annotations

import re

import attrs

from gateway import model
from gateway.envelope import Columns, Headers
from gateway.routing.glob import Captures, Glob, byte_glob, glob

ANY = "**"
"""The glob of a route that says nothing about the topic."""


@attrs.frozen(eq=False)
class Matcher:
    glob: Glob
    protocols: frozenset[str]
    listeners: frozenset[str]
    principal: Glob | None
    key: re.Pattern[bytes] | None
    headers: tuple[tuple[str, re.Pattern[bytes]], ...]

    def captures(self, protocol: str, listener: str, address: str) -> Captures | None:
        """What the glob takes of an address, or None if this is not the route's. All that reading looks at."""
        if self.protocols and protocol not in self.protocols:
            return None
        if self.listeners and listener not in self.listeners:
            return None
        return self.glob.match(address)

    def allows(self, principal: str) -> bool:
        return self.principal is None or self.principal.match(principal) is not None

    @property
    def conditional(self) -> bool:
        return self.key is not None or bool(self.headers)

    def takes(self, columns: Columns, index: int) -> bool:
        if self.key is not None:
            key = columns.keys[index] if columns.keys is not None else None
            if key is None or self.key.fullmatch(key) is None:
                return False
        return not self.headers or (columns.headers is not None and self._has_headers(columns.headers[index]))

    def _has_headers(self, headers: Headers) -> bool:
        return all(
            any(name == wanted and pattern.fullmatch(value) is not None for name, value in headers)
            for wanted, pattern in self.headers
        )


def compile_match(match: model.Match) -> Matcher:
    return Matcher(
        glob=glob(match.topic or ANY),
        protocols=frozenset(match.protocol),
        listeners=frozenset(match.listener),
        principal=glob(match.principal) if match.principal else None,
        key=byte_glob(match.key) if match.key else None,
        headers=tuple((name, byte_glob(value)) for name, value in match.header.items()),
    )
