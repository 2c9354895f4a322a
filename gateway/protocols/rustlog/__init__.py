"""RustLog: a partitioned log over length-prefixed requests, in binary or two kinds of JSON."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import Run
from gateway.protocols.registry import Acknowledgement, Carries, Ordering, ProtocolSpec, Sniff, Transport
from gateway.protocols.rustlog.client.session import RustlogClient
from gateway.protocols.rustlog.server.session import RustlogServer
from gateway.protocols.rustlog.settings import RustlogSettings
from gateway.protocols.rustlog.wire.frames import MAX_VALUE
from gateway.protocols.rustlog.wire.mapping import FINAL_REFUSALS
from gateway.wire.anatomy import Carried


def sniff(data: bytes) -> Sniff:
    """RustLog begins with a big-endian length below 10 MiB, so with a zero byte (RustLog wire 1.1)."""
    if not data:
        return Sniff.MORE
    return Sniff.YES if data[0] == 0 else Sniff.NO


def shows(run: Run, address: str) -> Sequence[Carried]:
    # a record taken apart; what that needs is loaded when somebody asks
    from gateway.protocols.rustlog.wire.anatomy import shown

    return shown(run, address)


SPEC = ProtocolSpec(
    name="rustlog",
    transport=Transport.TCP,
    default_port=9092,
    carries=Carries(
        key=False,
        headers=False,
        partition=True,
        offset=True,
        time=False,
        expiry=False,
        ordering=Ordering.PARTITION,
        acknowledgement=Acknowledgement.STORED,
        max_value=MAX_VALUE,
        min_value=0,
        batch_atomic=True,
        consumer_acknowledges=True,
        final_refusals=FINAL_REFUSALS,
    ),
    server=RustlogServer,
    shows=shows,
    client=RustlogClient,
    settings=RustlogSettings,
    sniff=sniff,
    shares_port_with=("flymq",),
)
