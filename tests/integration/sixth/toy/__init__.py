"""A protocol of lines: `P address value` is answered with the offset, `G address offset` with the value there."""

from __future__ import annotations

from typing import Annotated

import attrs
from gateway.protocols.toy.client import ToyClient
from gateway.protocols.toy.server import ToyServer

from gateway.protocols.registry import Acknowledgement, Carries, Ordering, ProtocolSpec, Transport
from gateway.settings import Says


@attrs.frozen
class ToySettings:
    greeting: Annotated[str, Says("What a client is told when it connects.")] = ""


SPEC = ProtocolSpec(
    name="toy",
    transport=Transport.TCP,
    default_port=7777,
    carries=Carries(
        key=False,
        headers=False,
        partition=False,
        offset=True,
        time=False,
        expiry=False,
        ordering=Ordering.TOPIC,
        acknowledgement=Acknowledgement.STORED,
        max_value=1000,
        min_value=0,
        batch_atomic=False,
        consumer_acknowledges=False,
    ),
    server=ToyServer,
    client=ToyClient,
    settings=ToySettings,
)
