"""The listener keys of BlipMQ."""

from __future__ import annotations

import attrs

from gateway.settings import Backoff, Seconds


@attrs.frozen
class BlipmqSettings:
    """What `routes.yaml` can say about a BlipMQ listener."""

    poll_hold: Seconds = Seconds(0.04)
    """How long an empty POLL may be held. The stock client waits 50 ms for an answer (wire 4)."""
    max_deliveries: int = 16
    backoff: Backoff = Backoff(Seconds(0.1), Seconds(30.0))
    grace: Seconds = Seconds(600.0)
    """How long a subscription lives without a client."""
