"""The listener keys of BlipMQ."""

from __future__ import annotations

from typing import Annotated

import attrs

from gateway.settings import Backoff, Says, Seconds


@attrs.frozen
class BlipmqSettings:
    """What `routes.yaml` can say about a BlipMQ listener."""

    poll_hold: Annotated[Seconds, Says("How long an empty POLL is held.")] = Seconds(0.04)
    # the stock client waits 50 ms for an answer (wire 4)
    max_deliveries: Annotated[int, Says("Deliveries before a message goes to `<topic>.dlq`.")] = 16
    backoff: Annotated[
        Backoff,
        Says("First and longest wait before a redelivery."),
    ] = Backoff(Seconds(0.1), Seconds(30.0))
    grace: Annotated[Seconds, Says("How long a subscription lives without a client.")] = Seconds(600.0)
