"""Keys that only a Felix listener has."""

from __future__ import annotations

from typing import Annotated

import attrs

from gateway.settings import Says, Seconds, Size


@attrs.frozen
class EventSettings:
    """How events are put into frames: a frame ends at the first of these bounds (Felix wire 2.6)."""

    count: Annotated[int, Says("Events in a frame, at most.")] = 64
    bytes: Annotated[Size, Says("Bytes of a frame, at most.")] = Size(256 * 1024)
    delay: Annotated[
        Seconds,
        Says("The least time between two frames that are not full; a lone event never waits."),
    ] = Seconds(250e-6)
    binary_single: Annotated[
        bool,
        Says("Binary events (flag 0x0002) also to peers that showed no sign of them."),
    ] = False


@attrs.frozen
class FelixSettings:
    """Settings of a Felix listener."""

    scope: Annotated[str, Says("The tenant and namespace of topics that have none.")] = "t1/default"
    create: Annotated[bool, Says("Scopes and caches come into being on first use.")] = True
    events: Annotated[EventSettings, Says("How events are put together into frames.")] = attrs.Factory(EventSettings)
    durable_cache: Annotated[
        bool,
        Says("What is put into a cache is stored before it is answered, and is there after a restart."),
    ] = False
