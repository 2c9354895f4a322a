"""Keys that only a RustLog listener has."""

from __future__ import annotations

import enum
from typing import Annotated

import attrs

from gateway.settings import Says


class FreshGroup(enum.Enum):
    """What a binary Fetch answers for a group that never committed."""

    REQUESTED = "requested"
    """Read at the offset the client asked for; empty with next 0 only when the topic does not exist."""
    EMPTY = "empty"
    """Always empty with next 0, as the original server does (RustLog wire 1.4)."""


@attrs.frozen
class RustlogSettings:
    """Settings of a RustLog listener."""

    fresh_group: Annotated[
        FreshGroup,
        Says("What a group without a commit reads: `requested`, at the offset it asks for; `empty`, nothing."),
    ] = FreshGroup.REQUESTED
