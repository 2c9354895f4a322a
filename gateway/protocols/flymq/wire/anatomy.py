"""A delivery taken apart: FETCH's answer with one record, in both orders (FlyMQ document, FETCH; wire 2.2)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import Run
from gateway.protocols.flymq.wire import codec_fetch
from gateway.protocols.flymq.wire.frames import Op, frame
from gateway.wire.anatomy import Carried, Dissection


def shown(run: Run, _address: str) -> Sequence[Carried]:
    """One record, as the document has it and as the shipped clients read it."""
    runs, following = codec_fetch.fit([run], run.next_offset)
    return [
        _taken_apart(frame(Op.FETCH, codec_fetch.encode(runs, following, server=server)), server=server)
        for server in (False, True)
    ]


def _taken_apart(raw: bytes, *, server: bool) -> Carried:
    it = Dissection(raw)
    it.word(1, "magic", "FlyMQ")
    it.number(1, "version")
    it.word(1, "operation", "FETCH", "The operation that is answered.")
    it.number(1, "flags", "1: binary, not compressed.", hexadecimal=True)
    it.number(4, "length", "Bytes of the payload.")
    it.number(4, "count", "Records in this answer.")
    if server:
        it.number(8, "next offset", "Where to read on.")
        it.number(8, "offset", "The record's own.", holds="offset")
    it.content(it.number(4, "key length"), "key", "key", "Nothing where the message has none.")
    it.content(it.number(4, "value length"), "value", "value")
    if not server:
        it.number(8, "offset", "The record's own.", holds="offset")
        it.number(8, "next offset", "Where to read on.")
    return it.carried("FETCH, as the shipped clients read it" if server else "FETCH, as the document has it")
