"""A delivery taken apart: the PUBLISH with which a POLL is answered (BlipMQ wire 1.4)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import Delivery, Run
from gateway.protocols.blipmq.wire import codec
from gateway.wire.anatomy import Carried, Dissection

TAG = 2
"""What an example is tagged with: the first that a subscription gives out."""


def shown(run: Run, address: str) -> Sequence[Carried]:
    """One record as a subscriber at this address gets it."""
    qos = 1 if run.meta_of(0)[0].delivery is Delivery.AT_LEAST_ONCE else 0
    frame = codec.publish(TAG, qos, address, run.columns.value(0))
    it = Dissection(frame)
    it.number(4, "length", "Bytes of everything that follows.")
    it.word(1, "type", "PUBLISH", "In both directions the frame with a message in it.")
    it.number(8, "cid", "At QoS 1 the tag that an ACK names; at QoS 0 that of the POLL.")
    it.number(1, "qos", "0: at most once; 1: again until it is acknowledged.")
    it.text(it.number(2, "topic length"), "topic", "The address, as the subscriber wrote it.")
    it.content(it.left, "message", "value", "The value: all that is left of the frame.")
    return [it.carried("PUBLISH, in answer to a POLL")]
