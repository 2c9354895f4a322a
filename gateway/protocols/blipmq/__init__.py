"""BlipMQ: length-prefixed frames over TCP; publish without replies, subscriptions that are polled (BlipMQ document)."""

from collections.abc import Sequence

from gateway.envelope import Run
from gateway.protocols.blipmq.client.session import BlipmqClient
from gateway.protocols.blipmq.server.session import BlipmqServer
from gateway.protocols.blipmq.settings import BlipmqSettings
from gateway.protocols.blipmq.wire import mapping
from gateway.protocols.blipmq.wire.frames import LARGEST_PUBLISH
from gateway.protocols.registry import (
    Acknowledgement,
    Carries,
    Ordering,
    ProtocolSpec,
    ReaderPosition,
    Sniff,
    Transport,
)
from gateway.wire.anatomy import Carried

LONGEST_TOPIC = 512
"""Bytes of a topic's name, which shares a frame with the message."""


def sniff(head: bytes) -> Sniff:
    """A frame's length is at most 2**24, so its first byte is 0, or 1 with nothing behind it (wire 1.1)."""
    if not head:
        return Sniff.MORE
    return Sniff.YES if head[0] == 0 or b"\x01\x00\x00\x00".startswith(head[:4]) else Sniff.NO


def shows(run: Run, address: str) -> Sequence[Carried]:
    # a record taken apart; what that needs is loaded when somebody asks
    from gateway.protocols.blipmq.wire.anatomy import shown

    return shown(run, address)


SPEC = ProtocolSpec(
    name="blipmq",
    transport=Transport.TCP,
    default_port=5555,
    carries=Carries(
        key=False,
        headers=False,
        partition=False,
        offset=False,
        time=False,
        expiry=False,
        ordering=Ordering.TOPIC,
        acknowledgement=Acknowledgement.BARRIER,
        max_value=LARGEST_PUBLISH - LONGEST_TOPIC,
        min_value=0,
        batch_atomic=False,
        consumer_acknowledges=True,
        final_refusals=tuple(str(code) for code in mapping.FINAL),
    ),
    server=BlipmqServer,
    shows=shows,
    client=BlipmqClient,
    settings=BlipmqSettings,
    sniff=sniff,
    shares_port_with=("flymq",),
    api_key_required=True,
    reader_position=ReaderPosition.NUMBERED,
)
"""What the house knows about BlipMQ."""
