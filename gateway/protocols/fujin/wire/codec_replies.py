"""Fujin replies read from a server's bytes (wire 1.4). Every function raises Incomplete while the reply goes on."""

from __future__ import annotations

import struct

import attrs

from gateway.errors import WireError
from gateway.protocols.fujin.wire.codec import need
from gateway.protocols.fujin.wire.frames import LARGEST_ERROR, LARGEST_MESSAGE

_U32 = struct.Struct(">I")

MOST_RESULTS = 65_536
"""Messages or results in one reply: far more than we ever ask for."""


@attrs.frozen
class Answer:
    """`op, cid, error`."""

    cid: int
    error: str | None
    end: int


@attrs.frozen
class Message:
    """A message and its id; empty with auto commit."""

    id: bytes
    value: bytes


def decode_string(data: bytes, at: int, largest: int = LARGEST_MESSAGE) -> tuple[bytes, int]:
    """`u32 length, bytes` and where it ends."""
    need(data, at + 4)
    size = _U32.unpack_from(data, at)[0]
    if size > largest:
        raise WireError(f"a string of {size} bytes")
    end = at + 4 + int(size)
    need(data, end)
    return data[at + 4 : end], end


def decode_error(data: bytes, at: int) -> tuple[str | None, int]:
    """`00`, or `01` and a string; and where it ends."""
    need(data, at + 1)
    if data[at] > 1:
        raise WireError(f"an error byte of {data[at]}")
    if not data[at]:
        return None, at + 1
    raw, end = decode_string(data, at + 1, LARGEST_ERROR)
    return raw.decode(errors="replace"), end


def decode_answer(data: bytes, at: int) -> Answer:
    need(data, at + 6)
    error, end = decode_error(data, at + 5)
    return Answer(_U32.unpack_from(data, at + 1)[0], error, end)


def decode_message(data: bytes, at: int, *, auto_commit: bool) -> tuple[Message, int]:
    """MSG, from behind its op byte; also what a FETCH reply holds."""
    raw_id = b""
    if not auto_commit:
        raw_id, at = decode_string(data, at)
    value, at = decode_string(data, at)
    return Message(raw_id, value), at


def decode_fetched(data: bytes, at: int, asked: int, most: int, *, auto_commit: bool) -> tuple[Answer, list[Message]]:
    """FETCH: the error before the count as real servers send it, or, where that reads as more than was asked for, the
    count before the error as in the document's example (wire 1.5, row 8). At most `most` bytes are waited for.
    """
    answer = decode_answer(data, at)
    if answer.error is not None:
        return answer, []
    need(data, answer.end + 4)
    count = _U32.unpack_from(data, answer.end)[0]
    position = answer.end + 4
    if count > asked:
        count = _U32.unpack_from(data, at + 5)[0]
        error, position = decode_error(data, at + 9)
        if error is not None:
            return Answer(answer.cid, error, position), []
    if count > MOST_RESULTS:
        raise WireError(f"{count} messages in one reply")
    need(data, position + 4 * count)
    found: list[Message] = []
    for _ in range(count):
        message, position = decode_message(data, position, auto_commit=auto_commit)
        found.append(message)
        if position - at > most:
            raise WireError(f"more than {most} bytes of messages in one reply")
    return Answer(answer.cid, None, position), found


def decode_settled(data: bytes, at: int) -> tuple[Answer, dict[bytes, str | None]]:
    """ACK or NACK: what became of each id. The order may differ from the request's (wire 4)."""
    answer = decode_answer(data, at)
    if answer.error is not None:
        return answer, {}
    need(data, answer.end + 4)
    count = _U32.unpack_from(data, answer.end)[0]
    if count > MOST_RESULTS:
        raise WireError(f"{count} results in one reply")
    position = answer.end + 4
    need(data, position + 5 * count)
    results: dict[bytes, str | None] = {}
    for _ in range(count):
        raw_id, position = decode_string(data, position)
        results[raw_id], position = decode_error(data, position)
    return Answer(answer.cid, None, position), results
