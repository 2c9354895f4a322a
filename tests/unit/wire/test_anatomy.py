"""Frames taken apart: the bytes are those of the documents' layouts, and every byte is explained once."""

from __future__ import annotations

import pytest

from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import Truncated
from gateway.protocols.registry import protocols
from gateway.wire.anatomy import Dissection

KEY = "0000000d 782d676174657761792d6b6579"
"""The name of the header that a key is, where Fujin binds."""
FRAMES = {
    # u32 length, type 3, u64 cid, qos, str topic, message (BlipMQ wire 1.4)
    "blipmq": ["0000000f 03 0000000000000002 01 0001 74 6869"],
    # FLX1, version 1, flags EVENTS and OFFSETS, u32 length, u64 subscription, u64 offset, u32 count, bytes (Felix wire 1.2)
    "felix": ["464c5831 0001 0022 0000001a 0000000000000001 0000000000000011 00000001 00000002 6869"],
    # header, u32 count, bytes key, bytes value, u64 offset, u64 next offset; and in the shipped order (FlyMQ wire 2.2)
    "flymq": [
        "af010701 0000001f 00000001 00000001 6b 00000002 6869 0000000000000011 0000000000000012",
        "af010701 0000001f 00000001 0000000000000012 0000000000000011 00000001 6b 00000002 6869",
    ],
    # MSG, [id: u32 length, u64, u64], u32 length, message (Fujin wire 1.4); HMSG, reader, headers, id, message; MSG; the
    # answer to HFETCH: cid, status, reader, count, and the same (Fujin wire 6.2)
    "fujin": [
        "06 00000010 0000000000000002 0000000000000001 00000002 6869",
        "06 00000002 6869",
        f"09 00 0002 {KEY} 00000001 6b 00000009 01 00000001 00000001 00000002 6869",
        "08 00 00000002 6869",
        f"0b 00000001 00 00 00000001 0002 {KEY} 00000001 6b 00000009 01 00000001 00000001 00000002 6869",
    ],
    # u32 length, type 2, u32 count, bytes, u64 next offset (RustLog wire 1.2)
    "rustlog": ["00000013 02 00000001 00000002 6869 0000000000000012"],
}
RUN = Run("t", 0, 17, Columns.of([b"hi"], [b"k"]), [1], [(0, 0, BatchMeta(bytes(16), Origin("flymq", "l")))])


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_is_the_documents(name: str) -> None:
    shows = protocols()[name].shows
    assert shows is not None
    frames = [one.frame for one in shows(RUN, "t")]
    assert frames[: len(FRAMES[name])] == [bytes.fromhex(one) for one in FRAMES[name]]


@pytest.mark.parametrize("name", FRAMES)
def test_every_byte_is_explained_once(name: str) -> None:
    shows = protocols()[name].shows
    assert shows is not None
    for value in (b"", b"hi", b'"payload":"', bytes(300)):
        run = Run("t", 0, 17, Columns.of([value]), [1], RUN.batches)
        for one in shows(run, "acme/shop/t"):
            assert [part.start for part in one.parts] == [0, *(part.end for part in one.parts[:-1])]
            assert one.parts[-1].end == len(one.frame)
            assert sum(part.holds == "value" for part in one.parts) == 1


def test_what_is_left_over_or_missing_is_noticed() -> None:
    it = Dissection(b"\x00\x01\x02")
    it.number(2, "first")
    with pytest.raises(Truncated, match="1 bytes of a frame"):
        it.carried("short")
    with pytest.raises(Truncated, match="ends before second"):
        it.number(2, "second")
