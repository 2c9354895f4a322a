"""Every byte example there is for Fujin, written and read: section 1.4 of the wire notes (captured on the original server)
and the examples of the document, where they are wrong as rows 5 to 8 of section 1.5 say."""

from __future__ import annotations

import pytest

from gateway.envelope import Columns
from gateway.protocols.fujin.wire import codec
from gateway.protocols.fujin.wire.codec import Incomplete
from gateway.protocols.fujin.wire.codec_replies import (
    Answer,
    Message,
    decode_answer,
    decode_error,
    decode_fetched,
    decode_message,
    decode_settled,
)
from gateway.protocols.fujin.wire.frames import Op, ReaderKind, Reply
from tests.protocols.script import hexed

FIRST, SECOND, UNKNOWN = hexed("0000000174"), hexed("0000000274"), hexed("0000138874")


@pytest.mark.parametrize(
    ("example", "written"),
    [
        ("01 00000000", codec.connect_writer()),
        ("01 00000002 6964", codec.connect_writer(b"id")),
        ("03 00000001 00000003 707562 00000005 68656c6c6f", codec.write(1, b"pub", b"hello")),
        ("04 00000001", codec.command(Op.BEGIN, 1)),
        ("05 00000005", codec.command(Op.COMMIT, 5)),
        ("06 00000005", codec.command(Op.ROLLBACK, 5)),
        ("02 01 01 00000003 737562", codec.connect_reader(ReaderKind.PUSH, b"sub", auto_commit=True)),
        ("02 02 00 00000003 737562", codec.connect_reader(ReaderKind.PULL, b"sub", auto_commit=False)),
        ("08 00000001 00000001 00000005 0000000174", codec.settle(Op.ACK, 1, [FIRST])),
        ("08 00000002 00000002 00000005 0000000174 00000005 0000138874", codec.settle(Op.ACK, 2, [FIRST, UNKNOWN])),
        ("08 00000003 00000000", codec.settle(Op.ACK, 3, [])),
        ("07 00000001 00000002", codec.fetch(1, 2)),
    ],
)
def test_commands(example: str, written: bytes) -> None:
    assert written == hexed(example)


@pytest.mark.parametrize(
    ("example", "written"),
    [
        ("02 00000001 00", codec.write_replies(hexed("00000001"))),
        (
            "02 00000001 01 00000010 777269746572206e6f7420666f756e64",
            codec.reply(Reply.WRITE, 1, "writer not found"),
        ),
        ("03 00000001 00", codec.reply(Reply.BEGIN, 1)),
        ("04 00000005 00", codec.reply(Reply.COMMIT, 5)),
        ("05 00000005 00", codec.reply(Reply.ROLLBACK, 5)),
        ("03 00000004 01 00000010 696e76616c6964207478207374617465", codec.reply(Reply.BEGIN, 4, "invalid tx state")),
        ("01 00", codec.reader_reply(None)),
        ("01 01 00000010 726561646572206e6f7420666f756e64", codec.reader_reply("reader not found")),
        ("06 00000005 68656c6c6f", codec.messages(Columns.of([b"hello"]))),
        ("08 00000001 00 00000001 00000005 0000000174 00", codec.settled(Reply.ACK, 1, [(FIRST, None)])),
        (
            "08 00000002 00 00000002 00000005 0000000174 00 00000005 0000138874 01 0000000a 6e6f2073756368206964",
            codec.settled(Reply.ACK, 2, [(FIRST, None), (UNKNOWN, "no such id")]),
        ),
        ("08 00000003 00 00000000", codec.settled(Reply.ACK, 3, [])),
        ("09 00000003 00 00000000", codec.settled(Reply.NACK, 3, [])),
        ("08 00000004 01 0000000e 61636b2077656e742077726f6e67", codec.reply(Reply.ACK, 4, "ack went wrong")),
        (
            "07 00000001 00 00000002 00000005 68656c6c6f 00000001 77",
            codec.fetched(1, 2, [codec.string(b"hello"), codec.string(b"w")]),
        ),
        (
            "07 00000001 00 00000002 00000005 0000000174 00000005 68656c6c6f 00000005 0000000274 00000001 77",
            codec.fetched(1, 2, [codec.string(each) for each in (FIRST, b"hello", SECOND, b"w")]),
        ),
        ("07 00000003 00 00000000", codec.fetched(3, 0, [])),
        (
            "07 00000004 01 00000016 666574636820617267206e6f742070726f7669646564",
            codec.reply(Reply.FETCH, 4, "fetch arg not provided"),
        ),
    ],
)
def test_replies(example: str, written: bytes) -> None:
    assert written == hexed(example)


@pytest.mark.parametrize(
    ("example", "answer"),
    [
        ("02 00000001 00", Answer(1, None, 6)),
        ("02 00000001 01 00000010 777269746572206e6f7420666f756e64", Answer(1, "writer not found", 26)),
        ("03 00000004 01 00000010 696e76616c6964207478207374617465", Answer(4, "invalid tx state", 26)),
        ("02 00010101 00", Answer(0x010101, None, 6)),  # document, WRITE
        ("04 00000001 00", Answer(1, None, 6)),  # document, COMMIT TX
        ("05 00000001 00", Answer(1, None, 6)),  # document, ROLLBACK TX
    ],
)
def test_answers_read(example: str, answer: Answer) -> None:
    assert decode_answer(hexed(example), 0) == answer


def test_connect_reader_replies_read() -> None:
    assert decode_error(hexed("01 00"), 1) == (None, 2)
    assert decode_error(hexed("01 01 00000010 726561646572206e6f7420666f756e64"), 1) == ("reader not found", 22)


def test_messages_read() -> None:
    auto, manual = hexed("06 00000005 68656c6c6f"), hexed("06 00000005 0000000174 00000005 68656c6c6f")
    assert decode_message(auto, 1, auto_commit=True) == (Message(b"", b"hello"), len(auto))
    assert decode_message(manual, 1, auto_commit=False) == (Message(FIRST, b"hello"), len(manual))


def test_ack_results_read() -> None:
    mixed = hexed("08 00000002 00 00000002 00000005 0000000174 00 00000005 0000138874 01 0000000a 6e6f2073756368206964")
    assert decode_settled(mixed, 0) == (Answer(2, None, len(mixed)), {FIRST: None, UNKNOWN: "no such id"})
    wrong = hexed("08 00000004 01 0000000e 61636b2077656e742077726f6e67")
    assert decode_settled(wrong, 0) == (Answer(4, "ack went wrong", len(wrong)), {})
    assert decode_settled(hexed("08 00000003 00 00000000"), 0) == (Answer(3, None, 10), {})


@pytest.mark.parametrize("op", [8, 9])
def test_the_documents_ack_replies_lack_their_count(op: int) -> None:
    """document, ACK and NACK: [8, 0, 0, 0, 1, 0]; the count is always there (wire 1.5 row 7)."""
    with pytest.raises(Incomplete) as caught:
        decode_settled(bytes([op, 0, 0, 0, 1, 0]), 0)
    assert caught.value.wanted == 10


def test_fetch_replies_read() -> None:
    auto = hexed("07 00000001 00 00000002 00000005 68656c6c6f 00000001 77")
    answer, messages = decode_fetched(auto, 0, 2, 100, auto_commit=True)
    assert (answer, [each.value for each in messages]) == (Answer(1, None, len(auto)), [b"hello", b"w"])
    assert decode_fetched(hexed("07 00000003 00 00000000"), 0, 1, 100, auto_commit=True) == (Answer(3, None, 10), [])
    error = hexed("07 00000004 01 00000016 666574636820617267206e6f742070726f7669646564")
    assert decode_fetched(error, 0, 1, 100, auto_commit=True) == (Answer(4, "fetch arg not provided", len(error)), [])
