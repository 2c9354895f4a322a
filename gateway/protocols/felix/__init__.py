"""Felix: publish, subscribe and cache over QUIC streams, in JSON with binary batches beside it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import Run
from gateway.protocols.felix.client.session import FelixClient
from gateway.protocols.felix.server.session import FelixServer
from gateway.protocols.felix.server.subscriptions import BINARY_OVERHEAD
from gateway.protocols.felix.settings import FelixSettings
from gateway.protocols.felix.wire.frames import MAX_PAYLOAD
from gateway.protocols.felix.wire.mapping import FINAL_REFUSALS, address_of_path, local_address
from gateway.protocols.registry import Acknowledgement, Carries, Ordering, ProtocolSpec, ReaderPosition, Transport
from gateway.settings import DOCUMENT_OR_STOCK
from gateway.wire.anatomy import Carried


def shows(run: Run, address: str) -> Sequence[Carried]:
    # a record taken apart; what that needs is loaded when somebody asks
    from gateway.protocols.felix.wire.anatomy import shown

    return shown(run, address)


SPEC = ProtocolSpec(
    name="felix",
    transport=Transport.QUIC,
    default_port=5000,
    carries=Carries(
        key=False,
        headers=False,
        partition=False,
        offset=False,
        time=False,
        expiry=False,
        ordering=Ordering.TOPIC,
        acknowledgement=Acknowledgement.STORED,
        max_value=MAX_PAYLOAD - BINARY_OVERHEAD,
        min_value=0,
        batch_atomic=True,
        consumer_acknowledges=False,
        copies=True,
        final_refusals=FINAL_REFUSALS,
    ),
    server=FelixServer,
    shows=shows,
    client=FelixClient,
    settings=FelixSettings,
    dialects=DOCUMENT_OR_STOCK,
    address_of_path=address_of_path,
    local_address=local_address,
    reader_position=ReaderPosition.OWN,
)
