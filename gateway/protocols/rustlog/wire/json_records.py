"""The records of a Fetch answer as JSON, as many as a frame can hold: the same in both JSON dialects but for a record's form."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.envelope import Run
from gateway.protocols.rustlog.wire.frames import Records


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
