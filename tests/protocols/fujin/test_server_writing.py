"""Transcripts of writing streams: every example and every error row of the document and of the wire notes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import Headers
from gateway.errors import Conflict, GatewayError, NotFound, NotRouted, StoreReadOnly, TooLarge
from gateway.protocols.fujin.server.session import MAX_INCOMPLETE, SEEDS
from gateway.protocols.fujin.settings import FujinSettings, WriteHeaders
from gateway.protocols.fujin.wire import codec
from gateway.protocols.fujin.wire.frames import Op
from gateway.requests import DONE, Begin, Begun, Commit, Publish, Published, Rollback
from gateway.settings import Dialect
from gateway.wire.session import Finish, StopSending
from tests.protocols.fujin.broker import CONNECT_WRITER, GOODBYE, fresh, sized, writer
from tests.protocols.script import Script, hexed

STORED = Published("pub", 1)
WRITE = hexed("03 00000001 00000003 707562 00000005 68656c6c6f")  # wire 1.4
WRITTEN = hexed("02 00000001 00")
BEGIN, BEGUN = hexed("04 00000001"), hexed("03 00000001 00")  # document, BEGIN TX
COMMIT, COMMITTED = hexed("05 00000001"), hexed("04 00000001 00")
ROLLBACK, ROLLED_BACK = hexed("06 00000001"), hexed("05 00000001 00")
INVALID_TX = hexed("01 00000010 696e76616c6964207478207374617465")
NOT_FOUND = hexed("01 00000010 777269746572206e6f7420666f756e64")


def ended(script: Script, channel: int = 0) -> None:
    """The stream's one end: FIN and STOP_SENDING."""
    script.output(Finish, channel=channel)
    script.output(StopSending, channel=channel, code=0)
    script.quiet()


# --- CONNECT WRITER (wire 1.4, 1.5 row 1) ---


@pytest.mark.parametrize(
    ("dialect", "connect"),
    [
        (Dialect.AUTO, "01 00000000"),
        (Dialect.AUTO, "01 00000001"),  # document: a u32
        (Dialect.AUTO, "01 00000002 6964"),  # stock: "id"
        (Dialect.STOCK, "01 00000002 6964"),
        (Dialect.STOCK, "01 00000001 03"),  # a stock id may look like an op code
        (Dialect.DOCUMENT, "01 00000000"),
        (Dialect.DOCUMENT, "01 00000001"),
    ],
)
def test_connect_writer(dialect: Dialect, connect: str) -> None:
    script = fresh(dialect, FujinSettings(write_headers=WriteHeaders.NEVER))
    script.feed(hexed(connect)).quiet()
    script.feed(WRITE).answer(Publish, STORED).sends(WRITTEN).quiet()


def test_a_literal_u32_id_in_stock_swallows_the_next_op() -> None:
    """As observed on the stock server: what follows is then no command, and the stream ends (wire 1.5 row 1)."""
    script = fresh(Dialect.STOCK).feed(hexed("01 00000001") + WRITE).sends(GOODBYE)
    ended(script)


def test_a_writer_id_that_is_too_long() -> None:
    script = fresh(Dialect.STOCK).feed(hexed("01 00010001"))
    ended(script)


# --- WRITE ---


def test_write() -> None:
    script = writer().feed(WRITE)
    request = script.expect(Publish, transaction="")
    assert (request.batch.address, request.batch.columns.values()) == ("pub", [b"hello"])
    script.complete(request, STORED).sends(WRITTEN).quiet()


def test_the_documents_example() -> None:
    """document, WRITE: [3, 0, 1, 1, 1, ...] -> [2, 0, 1, 1, 1, 0]; its example has no headers (wire 1.5 row 2)."""
    script = writer().feed(bytes([3, 0, 1, 1, 1, 0, 0, 0, 3, 112, 117, 98, 0, 0, 0, 5, 104, 101, 108, 108, 111]))
    script.answer(Publish, STORED).sends(bytes([2, 0, 1, 1, 1, 0])).quiet()


def test_neighbours_of_one_topic_are_one_batch() -> None:
    script = writer()
    writes = [(1, b"a", b"1"), (2, b"a", b"22"), (0, b"b", b"3"), (2**32 - 1, b"a", b"4"), (7, b"a", b"5")]
    script.feed(b"".join(codec.write(*each) for each in writes))
    requests = [script.expect(Publish) for _ in range(3)]
    assert [(each.batch.address, each.batch.columns.values()) for each in requests] == [
        ("a", [b"1", b"22"]),
        ("b", [b"3"]),
        ("a", [b"4", b"5"]),
    ]
    script.complete(requests[2], STORED).sends(hexed("02 ffffffff 00 02 00000007 00"))
    script.complete(requests[0], STORED).sends(hexed("02 00000001 00 02 00000002 00"))
    script.complete(requests[1], STORED).sends(hexed("02 00000000 00")).quiet()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotFound("topic not found: pub"), b"writer not found"),
        (NotRouted("no route"), b"writer not found"),
        (StoreReadOnly("disk full"), b"read only: disk full"),
    ],
)
def test_write_refused(error: GatewayError, text: bytes) -> None:
    """The stream stays open (wire 2)."""
    script = writer().feed(WRITE).answer(Publish, error).sends(hexed("02 00000001 01") + sized(text))
    script.feed(WRITE).answer(Publish, STORED).sends(WRITTEN).quiet()


def test_write_to_an_unknown_topic_is_the_example() -> None:
    writer().feed(WRITE).answer(Publish, NotRouted()).sends(hexed("02 00000001") + NOT_FOUND).quiet()


def test_members_refused_out_of_a_batch() -> None:
    script = writer().feed(codec.write(1, b"a", b"x") + codec.write(2, b"a", b"y"))
    script.answer(Publish, Published("a", 1, refused={1: TooLarge("too long")}))
    script.sends(hexed("02 00000001 00 02 00000002 01") + sized(b"too large: too long")).quiet()


def test_a_name_that_is_no_text_is_unknown() -> None:
    script = writer().feed(codec.write(1, b"\xff", b"x")).sends(hexed("02 00000001") + NOT_FOUND).quiet()
    script.feed(WRITE).answer(Publish, STORED).sends(WRITTEN)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("03 00000009 00000000", b"writer topic len arg not provided"),
        ("03 00000009 00000001 61 00000000", b"write size arg not provided"),
        ("03 00000009 00000001 61 01000001", b"write size arg too large"),
        ("03 00000009 00010001", b"write size arg too large"),
    ],
)
def test_a_write_that_ends_the_stream(command: str, text: bytes) -> None:
    """The error, then `0a` and FIN, with what was under way answered first (wire 2)."""
    script = writer().feed(WRITE + hexed(command)).sends(hexed("02 00000009 01") + sized(text))
    script.answer(Publish, STORED).sends(WRITTEN + GOODBYE)
    ended(script)


def test_large_messages_are_taken() -> None:
    value = bytes(range(256)) * 1024
    script = writer()
    data = codec.write(1, b"pub", value) * 2
    for at in range(0, len(data), 1200):
        script.feed(data[at : at + 1200])
    assert script.expect(Publish).batch.columns.values() == [value]
    assert script.expect(Publish).batch.columns.values() == [value]


# --- headers (wire 1.6) ---


HEADERED = hexed("03 00000001 00000003 707562 0002 00000001 6b 00000001 76 00000005 68656c6c6f")
NO_HEADERS = hexed("03 00000001 00000003 707562 0000 00000005 68656c6c6f")


@pytest.mark.parametrize(
    ("dialect", "setting"),
    [
        (Dialect.DOCUMENT, WriteHeaders.DIALECT),
        (Dialect.AUTO, WriteHeaders.ALWAYS),
        (Dialect.AUTO, WriteHeaders.AUTO),
    ],
)
def test_write_with_headers(dialect: Dialect, setting: WriteHeaders) -> None:
    script = writer(dialect, FujinSettings(write_headers=setting)).feed(HEADERED + NO_HEADERS)
    columns = script.expect(Publish).batch.columns
    assert columns.values() == [b"hello", b"hello"]
    assert [columns.headers_of(index) for index in range(2)] == [(("k", b"v"),), ()]


@pytest.mark.parametrize("dialect", [Dialect.AUTO, Dialect.STOCK])
def test_write_headers_never_is_the_default(dialect: Dialect) -> None:
    """As on the stock server: u16 0002 then reads as a message of 0x20000 bytes, u16 0000 as one without (wire 1.5 row 2)."""
    writer(dialect).feed(HEADERED).quiet()
    script = writer(dialect).feed(hexed("03 00000001 00000003 707562 0000 0000 0005 68656c6c6f"))
    script.sends(hexed("02 00000001 01") + sized(b"write size arg not provided") + GOODBYE)
    ended(script)


@pytest.mark.parametrize(
    ("after_topic", "headered"),
    [
        ("0002 00000001", True),
        ("0004 00000000", True),
        ("0001 0000", False),  # a stock message of 65 536 bytes
        ("0003 0001", False),  # a larger one
        ("0000 0005", False),
        ("0000 0000", True),  # zero headers
    ],
)
def test_telling_headers_apart(after_topic: str, *, headered: bool) -> None:
    assert codec.has_headers(hexed(after_topic), 0) is headered


def test_what_was_told_apart_is_kept_for_the_stream() -> None:
    """Sticky: the second message would look headered, were it the first."""
    settings = FujinSettings(write_headers=WriteHeaders.AUTO)
    script = writer(settings=settings).feed(WRITE).answer(Publish, STORED).sends(WRITTEN)
    large = bytes(0x20000)
    script.feed(codec.write(2, b"pub", large))
    assert script.expect(Publish).batch.columns.values() == [large]


@pytest.mark.parametrize(
    "headers", ["0001 00000001 6b", "0002 00000001 ff 00000001 76"], ids=["odd number of strings", "key is no text"]
)
def test_bad_headers_end_the_stream(headers: str) -> None:
    script = writer(Dialect.DOCUMENT).feed(hexed("03 00000001 00000001 61" + headers + "00000001 78"))
    script.sends(hexed("02 00000001 01") + sized(b"write headers arg invalid") + GOODBYE)
    ended(script)


# --- transactions (wire 3) ---


def test_commit() -> None:
    script = writer().feed(BEGIN)
    script.answer(Begin, Begun("tx9")).sends(BEGUN)
    script.feed(WRITE).answer(Publish, STORED, transaction="tx9").sends(WRITTEN)
    script.feed(COMMIT).answer(Commit, DONE, transaction="tx9").sends(COMMITTED)
    script.feed(WRITE).answer(Publish, STORED, transaction="").sends(WRITTEN).quiet()


def test_rollback() -> None:
    script = writer().feed(BEGIN).answer(Begin, Begun("tx9")).sends(BEGUN)
    script.feed(ROLLBACK).answer(Rollback, DONE, transaction="tx9").sends(ROLLED_BACK)
    script.feed(BEGIN).answer(Begin, Begun("tx10")).sends(BEGUN).quiet()


def test_pipelined_transaction_waits_for_each_step() -> None:
    script = writer().feed(BEGIN + WRITE + COMMIT + WRITE)
    begin = script.expect(Begin)
    script.quiet()
    script.complete(begin, Begun("tx")).sends(BEGUN)
    publish, commit = script.expect(Publish, transaction="tx"), script.expect(Commit)
    script.quiet()
    script.complete(publish, STORED).complete(commit, DONE).sends(WRITTEN + COMMITTED)
    script.expect(Publish, transaction="")


@pytest.mark.parametrize(("command", "op"), [(COMMIT, 4), (ROLLBACK, 5)])
def test_outside_a_transaction(command: bytes, op: int) -> None:
    """wire 1.4: `03 00000004 01 ... invalid tx state`, likewise for the others; the state does not change."""
    script = writer().feed(command).sends(bytes((op,)) + hexed("00000001") + INVALID_TX).quiet()
    script.feed(WRITE).answer(Publish, STORED).sends(WRITTEN)


def test_begin_inside_a_transaction() -> None:
    script = writer().feed(BEGIN).answer(Begin, Begun("tx")).sends(BEGUN)
    script.feed(hexed("04 00000004")).sends(hexed("03 00000004") + INVALID_TX).quiet()
    script.feed(WRITE).expect(Publish, transaction="tx")


def test_begin_refused() -> None:
    script = writer().feed(BEGIN).answer(Begin, StoreReadOnly("full"))
    script.sends(hexed("03 00000001 01") + sized(b"read only: full"))
    script.feed(WRITE).expect(Publish, transaction="")


def test_a_failed_commit_leaves_the_transaction_open() -> None:
    script = writer().feed(BEGIN).answer(Begin, Begun("tx")).sends(BEGUN)
    script.feed(COMMIT).answer(Commit, StoreReadOnly("full")).sends(hexed("04 00000001 01") + sized(b"read only: full"))
    script.feed(ROLLBACK).answer(Rollback, NotFound("tx")).sends(hexed("05 00000001") + INVALID_TX)
    script.feed(WRITE).expect(Publish, transaction="")


def test_unknown_bytes_inside_a_transaction_are_passed_over() -> None:
    """wire 2: silently, one by one."""
    script = writer().feed(BEGIN).answer(Begin, Begun("tx")).sends(BEGUN)
    script.feed(hexed("63 00 ff 0b") + WRITE).answer(Publish, STORED).sends(WRITTEN).quiet()


@pytest.mark.parametrize("how", ["disconnect", "fin", "reset", "stopped", "protocol error"])
def test_a_transaction_ends_with_its_stream(how: str) -> None:
    """wire 3."""
    script = writer().feed(BEGIN).answer(Begin, Begun("tx")).sends(BEGUN)
    actions: Mapping[str, object] = {
        "disconnect": lambda: script.feed(GOODBYE),
        "fin": script.eof,
        "reset": lambda: script.reset(0),
        "stopped": lambda: script.stopped(0),
        "protocol error": lambda: script.feed(hexed("03 00000001 00000000")),
    }
    actions[how]()  # type: ignore[operator]
    script.sent()
    rollback = script.expect(Rollback, transaction="tx")
    assert not script.others, "the end waits for the rollback"
    script.complete(rollback, DONE).sends(GOODBYE)
    script.output(Finish, channel=0)


def test_a_transaction_that_begins_too_late_is_rolled_back() -> None:
    script = writer().feed(BEGIN)
    begin = script.expect(Begin)
    script.reset(0)
    script.complete(begin, Begun("tx")).answer(Rollback, DONE, transaction="tx")
    script.sends(BEGUN + GOODBYE)


def test_a_lost_connection_rolls_back() -> None:
    script = writer().feed(BEGIN).answer(Begin, Begun("tx")).sends(BEGUN)
    script.lost().answer(Rollback, Conflict("gone"), transaction="tx").quiet()


# --- the end of a stream ---


def test_disconnect_waits_for_every_write() -> None:
    """Exactly 6 bytes a write and one more (wire 1.4)."""
    script = writer().feed(codec.write(1, b"a", b"x") + codec.write(2, b"b", b"y") + GOODBYE)
    first, second = script.expect(Publish), script.expect(Publish)
    script.complete(second, STORED).sends(hexed("02 00000002 00"))
    script.complete(first, STORED).sends(hexed("02 00000001 00") + GOODBYE)
    ended(script)
    script.feed(WRITE).quiet()


def test_a_fin_ends_like_a_disconnect() -> None:
    script = writer().feed(WRITE + WRITE[:-1]).eof()
    script.answer(Publish, STORED).sends(WRITTEN + GOODBYE)
    script.output(Finish)
    script.quiet()


def test_a_fin_behind_a_begin_waits_for_what_is_still_to_be_parsed() -> None:
    script = writer().feed(BEGIN + WRITE + COMMIT).eof()
    script.answer(Begin, Begun("tx")).answer(Publish, STORED).answer(Commit, DONE)
    script.sends(BEGUN + WRITTEN + COMMITTED + GOODBYE).output(Finish)


@pytest.mark.parametrize("op", ["01", "02", "07", "08", "09", "0b", "0c", "63", "00"])
def test_ops_a_writer_does_not_know(op: str) -> None:
    """`0a` and FIN, no error reply (wire 2)."""
    script = writer().feed(hexed(op)).sends(GOODBYE)
    ended(script)


@pytest.mark.parametrize("first", ["03", "07", "0a", "0b", "ff"])
def test_first_bytes_that_are_no_role(first: str) -> None:
    """FIN and STOP_SENDING, no bytes (wire 2)."""
    script = fresh().feed(hexed(first))
    ended(script)


def test_a_stream_that_never_connected() -> None:
    """FIN only (wire 1.4)."""
    script = fresh().feed(hexed("01 0000")).eof()
    script.output(Finish, channel=0)
    script.quiet()


DIALOGUE = (
    CONNECT_WRITER
    + WRITE
    + codec.write(2, b"pub", b"x" * 40)
    + codec.write(3, b"other", b"y")
    + BEGIN
    + WRITE
    + COMMIT
    + ROLLBACK
    + GOODBYE
)


def serve(script: Script) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []

    def broker(request: object) -> object:
        match request:
            case Publish():
                found.extend((request.transaction, value) for value in request.batch.columns.values())
                return Published("pub", 1)
            case Begin():
                return Begun("tx")
            case _:
                return DONE

    script.serve(broker)  # type: ignore[arg-type]
    return found


def test_split_at_every_byte() -> None:
    whole = fresh().feed(DIALOGUE)
    found = serve(whole)
    sent = whole.sent()
    assert len(found) == 4
    for cut in range(1, len(DIALOGUE)):
        script = fresh().feed(DIALOGUE[:cut])
        parts = serve(script)
        script.feed(DIALOGUE[cut:])
        assert parts + serve(script) == found
        assert script.sent() == sent, f"cut at {cut}"


def test_byte_by_byte() -> None:
    script = fresh()
    found: list[tuple[str, bytes]] = []
    for index in range(len(DIALOGUE)):
        script.feed(DIALOGUE[index : index + 1])
        found += serve(script)
    assert found == [("", b"hello"), ("", b"x" * 40), ("", b"y"), ("tx", b"hello")]


@given(st.binary(max_size=200), st.sampled_from(SEEDS), st.booleans())
def test_garbage_ends_only_its_stream(garbage: bytes, dialect: Dialect, connected: bool) -> None:
    script = writer(dialect) if connected else fresh(dialect)
    script.open(4)
    script.feed(garbage).eof()
    serve(script)
    assert Finish(0) in script.others
    script.sent()
    script.feed(CONNECT_WRITER, 4).feed(codec.command(Op.BEGIN, 1), 4)
    script.expect(Begin)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**32 - 1),
            st.sampled_from([b"a", b"b", b"\xc3\xa9"]),
            st.binary(min_size=1, max_size=60),
            st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=20,
    ),
    st.booleans(),
)
def test_what_is_written_is_read(writes: list[tuple[int, bytes, bytes, Headers]], headered: bool) -> None:
    script = writer(Dialect.DOCUMENT if headered else Dialect.STOCK)
    script.feed(b"".join(codec.write(c, t, v, h if headered else None) for c, t, v, h in writes))
    found: list[tuple[str, bytes, Headers]] = []
    while script.asked:
        request = script.expect(Publish)
        columns = request.batch.columns
        found += [(request.batch.address, columns.value(i), columns.headers_of(i)) for i in range(columns.count)]
        script.complete(request, STORED)
    assert found == [(t.decode(), v, h if headered else ()) for _, t, v, h in writes]
    assert script.sent() == b"".join(b"\x02" + c.to_bytes(4) + b"\0" for c, *_ in writes)


def test_commands_that_are_not_whole_have_a_bound_over_all_streams() -> None:
    """A stream may wait for 16 MiB, and a client may open a thousand streams."""
    script = writer()
    part = hexed("03 00000001 00000003 707562 01000000") + bytes(MAX_INCOMPLETE // 4)
    for channel in range(0, 12, 4):
        if channel:
            script.open(channel).feed(CONNECT_WRITER, channel)
        script.feed(part, channel).quiet()
    script.open(12).feed(CONNECT_WRITER + part, 12).sends(GOODBYE, 12)
    script.output(Finish, channel=12)
    script.output(StopSending, channel=12)
    script.feed(bytes(1000)).quiet()  # the others go on
    script.reset(0).sends(GOODBYE)
    script.open(16).feed(CONNECT_WRITER + part, 16)  # and what one gives back another may have
    assert not script.sent(16)
