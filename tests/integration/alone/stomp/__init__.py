"""STOMP 1.2, served and not dialled: a protocol that nothing in the gateway knows of."""

from __future__ import annotations

import attrs
from gateway.protocols.stomp.server import StompServer
from gateway.protocols.stomp.wire import LARGEST_BODY

from gateway.protocols.registry import Acknowledgement, Carries, Ordering, ProtocolSpec, Transport
from gateway.settings import Seconds


@attrs.frozen
class StompSettings:
    """Its listener key."""

    heart_beat: Seconds = Seconds(10.0)
    """How often this side can send a beat and wants one."""


SPEC = ProtocolSpec(
    name="stomp",
    transport=Transport.TCP,
    default_port=61613,
    carries=Carries(
        key=False,
        headers=True,
        partition=False,
        offset=False,
        time=False,
        expiry=False,
        ordering=Ordering.PARTITION,
        acknowledgement=Acknowledgement.STORED,
        max_value=LARGEST_BODY,
        min_value=0,
        batch_atomic=False,
        consumer_acknowledges=True,
    ),
    server=StompServer,
    settings=StompSettings,
)
