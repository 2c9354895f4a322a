"""A delivery taken apart: MSG of the seed's dialect, with and without an id (wire 1.4); MSG, HMSG and the answer to HFETCH of
the dialects that bind (wire 6.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.envelope import Columns, Run
from gateway.protocols.fujin.wire import bound_codec, codec
from gateway.protocols.fujin.wire.bound_frames import BoundReply
from gateway.settings import Dialect
from gateway.wire.anatomy import Carried, Dissection

SUBSCRIPTION, TAG = 2, 1
"""What an example's message is known by."""
READER, INCARNATION, CID = 0, 1, 1
"""The same where a connector is bound, and what asked for it."""
VALUE = "The value, as it lies in the log."
BINDS = "0.5 and v1"


def shown(run: Run, _address: str) -> Sequence[Carried]:
    """One record, as all kinds of readers get it."""
    return [*_seeds(run), *_bound(run.columns)]


def _seeds(run: Run) -> Iterator[Carried]:
    it = Dissection(codec.messages_with_ids(run.columns, SUBSCRIPTION, TAG))
    it.word(1, "operation", "MSG")
    it.number(4, "id length")
    it.number(8, "id: subscription", "With the tag: what ACK and NACK name. Clients take it as it is.")
    it.number(8, "id: tag")
    it.content(it.number(4, "message length"), "message", "value", VALUE)
    yield it.carried("MSG, to a reader that acknowledges")
    it = Dissection(codec.messages(run.columns))
    it.word(1, "operation", "MSG")
    it.content(it.number(4, "message length"), "message", "value", VALUE)
    yield it.carried("MSG, to a reader with auto commit")


def _bound(columns: Columns) -> Iterator[Carried]:
    ids = [bound_codec.message_id(INCARNATION, TAG)]
    it = Dissection(bound_codec.pushed(BoundReply.HMSG, READER, bound_codec.bodies(columns, ids, headered=True)))
    it.word(1, "operation", "HMSG")
    it.number(1, "reader", "As the answer to HSUBSCRIBE named it.")
    _message(it, named=True, headered=True)
    yield it.carried(f"{BINDS}: HMSG, to a subscription with headers that acknowledges", Dialect.SESSION.value)
    it = Dissection(bound_codec.pushed(BoundReply.MSG, READER, bound_codec.bodies(columns, None, headered=False)))
    it.word(1, "operation", "MSG")
    it.number(1, "reader", "As the answer to SUBSCRIBE named it.")
    _message(it, named=False, headered=False)
    without = ("key", "headers", "expiry")
    yield it.carried(
        f"{BINDS}: MSG, to a subscription without headers, with auto commit", Dialect.SESSION.value, without=without
    )
    fetched = bound_codec.bodies(columns, ids, headered=True)
    it = Dissection(bound_codec.handed_out(BoundReply.HFETCH, CID, READER, fetched))
    it.word(1, "operation", "HFETCH")
    it.number(4, "cid", "The request's own: answers may come in any order.")
    it.word(1, "status", "done", "0; an error has a code, a reason and a message here.")
    it.number(1, "reader", "What ACK and NACK name.")
    it.number(4, "messages", "In this answer.")
    _message(it, named=True, headered=True)
    yield it.carried(f"{BINDS}: HFETCH, to who fetches with headers", Dialect.SESSION.value)


def _message(it: Dissection, *, named: bool, headered: bool) -> None:
    if headered:
        says = "Names and values in turn. A key and an expiry are headers of the gateway's own here."
        for _ in range(it.number(2, "header strings", says) // 2):
            it.text(it.number(4, "name length"), "header name", holds="headers")
            it.text(it.number(4, "value length"), "header value", holds="headers")
    if named:
        it.number(4, "id length")
        it.word(
            1, "id: form", "of this gateway's making", "Clients take an id as it is, and give it back with ACK or NACK."
        )
        it.number(4, "id: incarnation", "Of the reader: an id of an earlier one is worth nothing.")
        it.number(4, "id: sequence")
    it.content(it.number(4, "message length"), "message", "value", VALUE)
