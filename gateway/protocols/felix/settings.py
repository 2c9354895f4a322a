"""Keys that only a Felix listener has."""

from __future__ import annotations

import attrs

from gateway.settings import Seconds, Size


@attrs.frozen
class EventSettings:
    """How events are put into frames: a frame ends at the first of these bounds (Felix wire 2.6)."""

    count: int = 64
    bytes: Size = Size(256 * 1024)
    delay: Seconds = Seconds(250e-6)
    """The least time between two frames that are not full; a lone event never waits."""
    binary_single: bool = False
    """Binary events (flag 0x0002) to peers that showed no sign of them, too."""


@attrs.frozen
class FelixSettings:
    """Settings of a Felix listener."""

    scope: str = "t1/default"
    """tenant/namespace whose streams are the topics of the same name."""
    create: bool = True
    """Streams and caches come into being on first use."""
    events: EventSettings = attrs.Factory(EventSettings)
    durable_cache: bool = False
    """What is put into a cache is stored before it is answered, and is there after a restart."""
