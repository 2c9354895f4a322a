"""Dead letters that clients wrote themselves, in the original's JSON (FlyMQ wire 4, DLQ; 2.4, FETCH_DLQ)."""

from __future__ import annotations

import pytest

from gateway.envelope import Columns
from gateway.errors import NotFound
from gateway.protocols.flymq.wire.frames import Op
from gateway.requests import DeadLetter, DeadLetters, Publish, Published, ReadDeadLetters, ReplayDeadLetter
from tests.protocols.flymq.made import YES, array, b, fr, i32, s, server

WRITTEN = (
    b'{"id":"m-1","original_topic":"test","original_offset":7,"payload":"Ym9vbQ==","reason":"processing_error",'
    b'"error_message":"err!","retry_count":2,"first_failed_at":"2026-01-16T10:00:00Z",'
    b'"last_failed_at":"2026-01-16T10:00:01.5Z","headers":{"k":"v"}}'
)


def letter(value: bytes, reason: str = "") -> DeadLetter:
    return DeadLetter("0:3", Columns.of([value]), reason, 16 if reason else 0, "", "", "test")


def listed(*letters: DeadLetter) -> bytes:
    script = server().feed(fr(Op.FETCH_DLQ, s("test") + i32(10)))
    return script.answer(ReadDeadLetters, DeadLetters(letters)).sent()


def test_it_is_listed_as_the_original_lists_it() -> None:
    """The example: AF 01 20 01 0000001b, m-1, boom, err!, 2."""
    assert listed(letter(WRITTEN)) == bytes.fromhex(
        "af0120010000001b0000000100036d2d3100000004626f6f6d00046572722100000002"
    )


@pytest.mark.parametrize(
    "value", [b"no json", b"[]", b'"text"', b'{"id": 5}', b'{"payload": "%%"}', b"[" * 100_000, b"\xff", b""]
)
def test_what_is_no_letter_is_passed_over(value: bytes) -> None:
    ours = array([s("0:3") + b(b"{}") + s("size") + i32(16)])
    assert listed(letter(value), letter(b"{}", "size")) == fr(Op.FETCH_DLQ, ours)


def test_what_it_lacks_is_empty() -> None:
    assert listed(letter(b'{"id": null, "retry_count": 99999999999}')) == fr(
        Op.FETCH_DLQ, array([s("") + b(b"") + s("") + i32((1 << 31) - 1)])
    )


def test_it_goes_back_to_where_it_says_it_came_from() -> None:
    script = server().feed(fr(Op.REPLAY_DLQ, s("test") + s("m-1"))).answer(ReplayDeadLetter, NotFound(), letter="m-1")
    look = {"address": "test", "max_messages": 1000, "to_replay": True}
    script.answer(ReadDeadLetters, DeadLetters([letter(b"other"), letter(WRITTEN)]), **look)
    publish = script.expect(Publish)
    assert (publish.batch.address, publish.batch.columns.values()) == ("test", [b"boom"])
    script.complete(publish, Published("test", 0, 4)).sends(fr(Op.REPLAY_DLQ, YES + s("OK"))).quiet()
