"""Records in JSON, as far as both dialects are the same: how many a request may have, and as many as an answer can hold."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.envelope import MOST_MESSAGES, Run
from gateway.protocols.rustlog.wire.frames import U64_MAX, Records, Undecodable, check_count


def check_size(payload: bytes, most_commas: int = MOST_MESSAGES) -> None:
    """Refuse what decoding would make too much of, by the characters there are for it: in JSON an empty record takes three.
    Text has some of them too, but not so many.
    """
    check_count(max(payload.count(b"["), payload.count(b"{"), payload.count(b":")))
    if (commas := payload.count(b",")) > most_commas:
        raise Undecodable(f"too many values: {commas} (max: {most_commas})")


def u64(value: int) -> int:
    """A number that fits the document's u64."""
    if value > U64_MAX:
        raise Undecodable(f"{value} is too large for u64")
    return value


def fitting(answer: Records, left: int, record: Callable[[Run, int, bytes], object]) -> tuple[bytes, int]:
    """(the records, joined; the next offset). `record` makes one of (run, index, value); `left` bytes are there for all."""
    pieces: list[bytes] = []
    for run in answer.runs:
        for index, value in enumerate(run.columns.values()):
            piece = msgspec.json.encode(record(run, index, value))
            left -= len(piece) + 1
            if left < 0:
                return b",".join(pieces), run.base_offset + index
            pieces.append(piece)
    return b",".join(pieces), answer.next_offset
