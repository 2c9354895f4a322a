"""A delivery taken apart: Fetch's answer with one record, in each of the three dialects (RustLog wire 1.2, 3)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import Run
from gateway.protocols.rustlog.wire import binary, json_seed, json_typed
from gateway.protocols.rustlog.wire.frames import Records
from gateway.wire.anatomy import Carried, Dissection


def shown(run: Run, _address: str) -> Sequence[Carried]:
    """One record, as each dialect has it."""
    answer = Records([run], run.next_offset)
    it = Dissection(binary.encode_answer(answer))
    it.number(4, "length", "Bytes of everything that follows.")
    it.word(1, "type", "Fetch", "The request that is answered.")
    it.number(4, "count", "Records in this answer.")
    it.content(it.number(4, "record length"), "record", "value", "The value, as it lies in the log.")
    it.number(
        8,
        "next offset",
        "The one behind the last record; clients number the records backwards from it.",
        holds="offset",
    )
    found = [it.carried("Fetch, binary")]
    for title, encode in (("document's JSON", json_seed.encode_answer), ("typed JSON", json_typed.encode_answer)):
        it = Dissection(encode(answer))
        it.number(4, "length", "Bytes of everything that follows.")
        it.text(it.left, "json", "Numbers for bytes, or base64, as the dialect has it.", holds="value")
        found.append(it.carried(f"Fetch, in the {title}"))
    return found
