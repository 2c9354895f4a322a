"""Kafka as a broker elsewhere: reached by its own client library (librdkafka), and not served."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from gateway.protocols.kafka.wire.mapping import FINAL_REFUSALS
from gateway.protocols.registry import Acknowledgement, Carries, Ordering, ProtocolSpec, Reach, Remote, Transport


def reach(where: Reach) -> AbstractAsyncContextManager[Remote]:
    """Loaded with the first upstream that needs it: the library is an extra."""
    from gateway.protocols.kafka.client.remote import reach_kafka

    return reach_kafka(where)


SPEC = ProtocolSpec(
    name="kafka",
    transport=Transport.TCP,
    default_port=9092,
    carries=Carries(
        key=True,
        headers=True,
        partition=True,
        offset=True,
        time=True,
        expiry=False,
        ordering=Ordering.PARTITION,
        acknowledgement=Acknowledgement.STORED,
        max_value=64 << 20,  # what a broker or a topic takes is its own setting: beyond that it refuses for good
        min_value=0,
        batch_atomic=True,
        consumer_acknowledges=True,
        copies=True,
        copies_where="whoever reads there reads committed records only (`isolation.level`)",
        final_refusals=FINAL_REFUSALS,
    ),
    server=None,
    reach=reach,
    library=("confluent_kafka", "kafka"),
    one_cluster=True,
)
