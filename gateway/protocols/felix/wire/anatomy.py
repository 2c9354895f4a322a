"""A delivery taken apart: an event, binary and in JSON (Felix wire 1.2, 2.6)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import Run
from gateway.protocols.felix.wire import codec
from gateway.protocols.felix.wire.binary import encode_events
from gateway.protocols.felix.wire.mapping import names_of
from gateway.wire.anatomy import Carried, Dissection

SUBSCRIPTION = 1
"""The id that an example's subscriber has."""
SCOPE = "t1/default"
"""What an address without a scope is in."""


def shown(run: Run, address: str) -> Sequence[Carried]:
    """One record, as the two kinds of subscribers get it."""
    size = len(run.columns.packed)
    (raw,) = encode_events(run.columns, SUBSCRIPTION, run.base_offset, most=1, most_bytes=size)
    it = Dissection(raw)
    _header(it, "EVENTS and OFFSETS")
    it.number(8, "subscription", "Whose events these are.")
    it.number(8, "first offset", "Of the first event, where the login announced that it is understood.", holds="offset")
    it.number(4, "count", "Events in this frame.")
    it.content(it.number(4, "event length"), "event", "value", "The value, as it lies in the log.")
    found = [it.carried("event batch, binary")]
    names = names_of(address, SCOPE)
    event = codec.Event(names.tenant, names.namespace, names.stream, run.columns.value(0))
    it = Dissection(codec.encode(event))
    _header(it, "JSON")
    it.base64_after(b'"payload":"', "payload", "value")
    found.append(it.carried("event, in JSON"))
    return found


def _header(it: Dissection, flags: str) -> None:
    it.word(4, "magic", "FLX1")
    it.number(2, "version")
    it.word(2, "flags", flags, "What the payload is.")
    it.number(4, "length", "Bytes of the payload.")
