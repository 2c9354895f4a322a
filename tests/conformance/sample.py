"""What a protocol gives the conformance suite."""

from __future__ import annotations

import attrs

from gateway.wire.session import Kind


@attrs.frozen
class Sample:
    """A client's side of a connection: for each channel, in order, what it sends. All of it is legal."""

    name: str
    steps: tuple[tuple[int, bytes], ...]
    kinds: tuple[tuple[int, Kind], ...] = ((0, Kind.DUPLEX),)
