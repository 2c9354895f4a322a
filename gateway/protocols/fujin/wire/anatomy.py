"""A delivery taken apart: MSG, with and without an id (wire 1.4)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import Run
from gateway.protocols.fujin.wire import codec
from gateway.wire.anatomy import Carried, Dissection

SUBSCRIPTION, TAG = 2, 1
"""What an example's message is known by."""


def shown(run: Run, _address: str) -> Sequence[Carried]:
    """One record, as both kinds of readers get it."""
    it = Dissection(codec.messages_with_ids(run.columns, SUBSCRIPTION, TAG))
    it.word(1, "operation", "MSG")
    it.number(4, "id length")
    it.number(8, "id: subscription", "With the tag: what ACK and NACK name. Clients take it as it is.")
    it.number(8, "id: tag")
    it.content(it.number(4, "message length"), "message", "value", "The value, as it lies in the log.")
    found = [it.carried("MSG, to a reader that acknowledges")]
    it = Dissection(codec.messages(run.columns))
    it.word(1, "operation", "MSG")
    it.content(it.number(4, "message length"), "message", "value", "The value, as it lies in the log.")
    found.append(it.carried("MSG, to a reader with auto commit"))
    return found
