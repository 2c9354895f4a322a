"""Fujin: streams of commands over QUIC; writers and readers, pushed or pulled, with transactions (Fujin document)."""

from collections.abc import Sequence

import attrs

from gateway.envelope import Run
from gateway.protocols.fujin.client.session import FujinClient
from gateway.protocols.fujin.server.session import FujinServer
from gateway.protocols.fujin.settings import FujinSettings
from gateway.protocols.fujin.wire.bound_frames import BoundOp
from gateway.protocols.fujin.wire.frames import ALPN, LARGEST_MESSAGE, LARGEST_PUSH, V1_ALPN
from gateway.protocols.registry import Acknowledgement, Carries, Ordering, ProtocolSpec, Sniff, Transport
from gateway.settings import DOCUMENT_OR_STOCK, Dialect
from gateway.wire.anatomy import Carried


def shows(run: Run, address: str) -> Sequence[Carried]:
    # a record taken apart; what that needs is loaded when somebody asks
    from gateway.protocols.fujin.wire.anatomy import shown

    return shown(run, address)


def sniff(data: bytes) -> Sniff:
    """Over a byte stream a session begins with HELLO or with BIND (wire 6.1)."""
    if not data:
        return Sniff.MORE
    return Sniff.YES if data[0] in (BoundOp.HELLO, BoundOp.BIND) else Sniff.NO


SEED = Carries(
    key=False,
    headers=False,
    partition=False,
    offset=False,
    time=False,
    expiry=False,
    ordering=Ordering.PARTITION,
    acknowledgement=Acknowledgement.STORED,
    max_value=LARGEST_PUSH,
    min_value=1,
    batch_atomic=False,
    consumer_acknowledges=True,
)
BOUND = attrs.evolve(SEED, key=True, headers=True, expiry=True, max_value=LARGEST_MESSAGE)
"""Where a connector is bound. A key and an expiry are headers of ours there."""

SPEC = ProtocolSpec(
    name="fujin",
    transport=Transport.QUIC,
    default_port=4848,
    carries=SEED,
    dialect_carries={Dialect.SESSION: BOUND, Dialect.V1: BOUND},
    server=FujinServer,
    shows=shows,
    client=FujinClient,
    settings=FujinSettings,
    dialects=(*DOCUMENT_OR_STOCK, Dialect.SESSION, Dialect.V1),
    headered=(Dialect.DOCUMENT, Dialect.SESSION, Dialect.V1),
    other_transports={Transport.TCP: 4850, Transport.WEBSOCKET: 4851, Transport.UNIX: 0},
    tried=(Dialect.SESSION, Dialect.V1),
    sniff=sniff,
    shares_port_with=("flymq",),
    alpns=(ALPN, V1_ALPN),
    alpns_of={
        Dialect.DOCUMENT: (ALPN,),
        Dialect.STOCK: (ALPN,),
        Dialect.SESSION: (ALPN,),
        Dialect.V1: (V1_ALPN,),
    },
)
"""What the house knows about Fujin."""
