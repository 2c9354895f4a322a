"""FlyMQ: requests and answers in binary frames over TCP."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import Run
from gateway.protocols.flymq.client.session import FlymqClient
from gateway.protocols.flymq.server.operations import FlymqSettings
from gateway.protocols.flymq.server.session import FlymqServer
from gateway.protocols.flymq.wire.frames import MAGIC
from gateway.protocols.registry import Acknowledgement, Carries, Ordering, ProtocolSpec, Sniff, Transport
from gateway.settings import DOCUMENT_OR_STOCK
from gateway.wire.anatomy import Carried


def sniff(data: bytes) -> Sniff:
    """Every FlyMQ frame starts with 0xAF (FlyMQ document, Header Fields)."""
    if not data:
        return Sniff.MORE
    return Sniff.YES if data[0] == MAGIC else Sniff.NO


def shows(run: Run, address: str) -> Sequence[Carried]:
    # a record taken apart; what that needs is loaded when somebody asks
    from gateway.protocols.flymq.wire.anatomy import shown

    return shown(run, address)


SPEC = ProtocolSpec(
    name="flymq",
    transport=Transport.TCP,
    default_port=9092,
    carries=Carries(
        key=True,
        headers=False,
        partition=True,
        offset=True,
        time=False,
        expiry=True,  # PRODUCE_WITH_TTL
        ordering=Ordering.PARTITION,
        acknowledgement=Acknowledgement.STORED,
        max_value=(32 << 20) - (128 << 10),
        min_value=0,
        batch_atomic=False,  # each PRODUCE is for itself; a transaction is one here, and several messages further on
        consumer_acknowledges=True,
        hands_on_expiry=False,  # the operation with an expiry has no key and no partition
        final_refusals=(
            "topic not found",
            "partition not found",
            "unauthorized",
            "unknown opcode",
            "schema validation failed",
            "message too large",
        ),
    ),
    server=FlymqServer,
    shows=shows,
    client=FlymqClient,
    settings=FlymqSettings,
    dialects=DOCUMENT_OR_STOCK,
    sniff=sniff,
    shares_port_with=("rustlog", "blipmq"),
)
