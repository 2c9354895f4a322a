"""Every byte example of the dialects that bind (wire 6.2, captured on the original server), written and read; and that what is
written is read again, whatever it is.
"""

from __future__ import annotations

import contextlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import Columns
from gateway.errors import Status, TargetLost, TargetRefused, WireError
from gateway.protocols.fujin.wire import bound_client as client
from gateway.protocols.fujin.wire import bound_codec as codec
from gateway.protocols.fujin.wire import bound_mapping
from gateway.protocols.fujin.wire.bound_codec import RefusedBound
from gateway.protocols.fujin.wire.bound_frames import Applied, BoundOp, BoundReply, Can, Code, Failure, RouteProfile
from gateway.protocols.fujin.wire.codec import Incomplete, write_replies
from tests.protocols.script import hexed

HELLO = "00 01 01 01 00000001 74 00000001 30"
PUB = RouteProfile("pub", Can.PRODUCE | Can.HEADERS | Can.TRANSACTIONS, 3, 0, 0)
SUB = RouteProfile("sub", Can.HEADERS | Can.SUBSCRIBE | Can.FETCH | Can.SETTLE, 0, 1, 1)
FIRST_ID = hexed("01 0000000200000001 00000006 74")
"""With an adapter's bytes behind it, as the original has them."""


@pytest.mark.parametrize(
    ("example", "written"),
    [
        (HELLO, client.hello("t", "0")),
        ("01 00000003 6d656d 0000 0000", client.bind("mem")),
        ("01 00000003 736563 0001 00000007 6170695f6b6579 00000001 6b 0000", client.bind("sec", [("api_key", "k")])),
        ("02 00000001 00000003 707562 00000005 68656c6c6f", client.produce(1, b"pub", b"hello")),
        (
            "03 00000002 00000003 707562 0002 00000001 6b 00000001 76 00000002 6869",
            client.produce(2, b"pub", b"hi", (("k", b"v"),)),
        ),
        ("04 00000004 00000003 707562", client.begin(4, b"pub")),
        ("0f 00000006 00000003 747831", client.tx_produce(6, b"tx1")),
        (
            "10 00000007 0002 00000001 61 00000001 62 00000003 747832",
            client.tx_produce(7, b"tx2", (("a", b"b"),)),
        ),
        ("05 00000008", client.bound_command(BoundOp.COMMIT, 8)),
        ("06 00000008", client.bound_command(BoundOp.ROLLBACK, 8)),
        ("0b 00000001 01 00000003 737562", client.subscribe(1, b"sub", auto=True, headered=False)),
        ("0c 00000003 00 00000003 737562", client.subscribe(3, b"sub", auto=False, headered=True)),
        ("0d 00000002 00", client.unsubscribe(2, 0)),
        ("09 00000005 00 00000000", client.bound_settle(BoundOp.ACK, 5, 0, [])),
        ("0a 00000005 00 00000000", client.bound_settle(BoundOp.NACK, 5, 0, [])),
    ],
)
def test_commands_are_written(example: str, written: bytes) -> None:
    assert written == hexed(example)


def test_commands_are_read() -> None:
    data = hexed(HELLO)
    assert codec.decode_hello(data, 0) == codec.Hello(b"\1", "t", "0", len(data))
    data = hexed("01 00000003 736563 0001 00000007 6170695f6b6579 00000001 6b 0000")
    assert codec.decode_bind(data, 0) == codec.Bind("sec", (("api_key", "k"),), (), len(data))
    data = hexed("04 00000004 00000003 707562")
    assert codec.decode_route(data, 0, BoundReply.BEGIN) == (4, b"pub", len(data))
    data = hexed("0c 00000003 00 00000003 737562")
    assert codec.decode_reader(data, 0) == codec.ReaderCommand(BoundReply.HSUBSCRIBE, 3, False, b"sub", 0, len(data))
    data = hexed("07 00000001 00 00000003 737562 00000002")
    assert codec.decode_reader(data, 0) == codec.ReaderCommand(BoundReply.FETCH, 1, False, b"sub", 2, len(data))
    data = hexed("08 00000001 00 00000003 737562 00000002")
    assert codec.decode_reader(data, 0) == codec.ReaderCommand(BoundReply.HFETCH, 1, False, b"sub", 2, len(data))
    assert codec.decode_unsubscribe(hexed("0d 00000002 00"), 0) == (2, 0, 6)
    assert codec.decode_bound_settle(hexed("09 00000005 00 00000000"), 0) == codec.SettleCommand(
        BoundReply.ACK, 5, 0, [], 10
    )


@pytest.mark.parametrize(
    ("example", "kind", "route", "value", "headers"),
    [
        ("02 00000001 00000003 707562 00000005 68656c6c6f", BoundReply.PRODUCE, b"pub", b"hello", ()),
        (
            "03 00000002 00000003 707562 0002 00000001 6b 00000001 76 00000002 6869",
            BoundReply.HPRODUCE,
            b"pub",
            b"hi",
            (("k", b"v"),),
        ),
        ("0f 00000006 00000003 747831", BoundReply.TX_PRODUCE, b"", b"tx1", ()),
        (
            "10 00000007 0002 00000001 61 00000001 62 00000003 747832",
            BoundReply.TX_HPRODUCE,
            b"",
            b"tx2",
            (("a", b"b"),),
        ),
    ],
)
def test_produces_are_read(example: str, kind: BoundReply, route: bytes, value: bytes, headers: object) -> None:
    data = hexed(example)
    run = codec.scan_produces(data * 3, 0)
    assert (run.kind, run.route, run.end, run.cids) == (kind, route, 3 * len(data), data[1:5] * 3)
    assert run.columns.values() == [value] * 3
    assert run.columns.headers_of(2) == headers


@pytest.mark.parametrize(
    ("example", "written"),
    [
        ("13 00 01 01 00000003 646576", codec.hello_done("dev")),
        ("10 00 00000002  00000003 707562 07 03 00 00   00000003 737562 3a 00 01 01", codec.bind_done([SUB, PUB])),
        ("03 00000001 00", write_replies(hexed("00000001"), BoundReply.PRODUCE)),
        ("04 00000002 00", codec.done(BoundReply.HPRODUCE, 2)),
        ("05 00000004 00", codec.done(BoundReply.BEGIN, 4)),
        ("06 00000008 00", codec.done(BoundReply.COMMIT, 8)),
        ("07 00000008 00", codec.done(BoundReply.ROLLBACK, 8)),
        ("11 00000006 00", codec.done(BoundReply.TX_PRODUCE, 6)),
        ("12 00000007 00", codec.done(BoundReply.TX_HPRODUCE, 7)),
        ("01 00000001 00 00", codec.done(BoundReply.SUBSCRIBE, 1, b"\0")),
        ("02 00000003 00 00", codec.done(BoundReply.HSUBSCRIBE, 3, b"\0")),
        ("0e 00000002 00", codec.done(BoundReply.UNSUBSCRIBE, 2)),
        (
            "08 00 00000002 6d31",
            codec.pushed(BoundReply.MSG, 0, codec.bodies(Columns.of([b"m1"]), None, headered=False)),
        ),
        (
            "09 00 0002 00000001 6b 00000001 76 0000000e 01 0000000200000001 00000006 74 00000002 6d32",
            codec.pushed(
                BoundReply.HMSG,
                0,
                codec.bodies(Columns.of([b"m2"], None, [(("k", b"v"),)]), [FIRST_ID], headered=True),
            ),
        ),
        (
            "0a 00000001 00 00 00000001 0000000e 01 0000000200000001 00000006 74 00000005 68656c6c6f",
            codec.handed_out(BoundReply.FETCH, 1, 0, codec.bodies(Columns.of([b"hello"]), [FIRST_ID], headered=False)),
        ),
        ("0a 00000001 00 03 00000000", codec.handed_out(BoundReply.FETCH, 1, 3, [])),
        ("0c 00000005 00 00000000", codec.bound_settled(BoundReply.ACK, 5, [])),
        ("0d 00000005 00 00000000", codec.bound_settled(BoundReply.NACK, 5, [])),
        (
            "03 00000003 05 01 0000000f 524f5554455f4e4f545f464f554e44 00000015 726f757465206e6f7420666f756e643a206e6f6e65 0000",
            codec.failed(BoundReply.PRODUCE, 3, bound_mapping.unknown_route("none")),
        ),
        ("0f", bytes((BoundReply.DISCONNECT,))),
        ("62", bytes((BoundReply.STOP,))),
        ("63", bytes((BoundReply.PING,))),
    ],
)
def test_replies_are_written(example: str, written: bytes) -> None:
    assert written == hexed(example)


def test_replies_are_read() -> None:
    data = hexed("13 00 01 01 00000003 646576")
    assert client.decode_greeted(data, 0) == (None, len(data))
    data = hexed("10 00 00000002  00000003 707562 07 03 00 00   00000003 737562 3a 00 01 01")
    assert client.decode_bound(data, 0) == (None, (PUB, SUB), len(data))
    data = hexed("03 00000003 05 01 0000000f 524f5554455f4e4f545f464f554e44 00000000 0000")
    failure = Failure(5, 1, "ROUTE_NOT_FOUND", "")
    assert client.decode_bound_answer(data, 0) == client.BoundAnswer(3, failure, len(data))
    data = hexed("09 00 0002 00000001 6b 00000001 76 0000000e 01 0000000200000001 00000006 74 00000002 6d32")
    message = client.BoundMessage(FIRST_ID, b"m2", (("k", b"v"),))
    assert client.decode_bound_message(data, 2, auto=False, headered=True) == (message, len(data))
    assert client.decode_bound_settled(hexed("0c 00000005 00 00000000"), 0)[1] == {}


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ("00 02", "HELLO_FORMAT_UNSUPPORTED"),
        ("00 01 00", "INVALID_HELLO"),
        ("00 01 11", "INVALID_HELLO"),
        ("00 01 02 0100", "INVALID_HELLO"),
        ("00 01 01 01 00000000", "INVALID_HELLO"),
        ("00 01 01 01 00000101", "INVALID_HELLO"),
        ("00 01 01 01 00000001 74 00000000", "INVALID_HELLO"),
        ("00 01 02 0203 00000001 74 00000001 30", "PROTOCOL_VERSION_UNSUPPORTED"),
    ],
)
def test_a_bad_hello_is_told_what_is_spoken_here(sent: str, reason: str) -> None:
    with pytest.raises(RefusedBound) as caught:
        codec.decode_hello(hexed(sent), 0)
    failure, end = client.decode_greeted(caught.value.reply, 0)
    assert end == len(caught.value.reply)
    assert failure is not None
    assert (failure.reason, failure.applied) == (reason, Applied.NO)
    assert failure.details == (("server_protocol_version", "fujin/1"),)


@pytest.mark.parametrize(
    ("sent", "answer", "ends"),
    [
        ("02 00000001 00000003 707562 00000000", (Code.UNKNOWN, Applied.NO, "UNKNOWN"), True),
        ("02 00000001 00000000", (Code.UNKNOWN, Applied.NO, "UNKNOWN"), True),
        ("0f 00000001 01000001", (Code.UNKNOWN, Applied.NO, "UNKNOWN"), True),
        (
            "03 00000001 00000003 707562 0001 00000001 6b 00000001 78",
            (Code.INVALID_ARGUMENT, Applied.NO, "INVALID_HEADERS"),
            False,
        ),
        (
            "03 00000001 00000003 707562 0002 00000000 00000000 00000001 78",
            (Code.INVALID_ARGUMENT, Applied.NO, "INVALID_HEADERS"),
            False,
        ),
        (
            "10 00000001 0002 00000001 ff 00000000 00000001 78",
            (Code.INVALID_ARGUMENT, Applied.NO, "INVALID_HEADERS"),
            False,
        ),
    ],
)
def test_bad_produces_are_answered(sent: str, answer: tuple[Code, Applied, str], ends: bool) -> None:
    data = hexed(sent)
    with pytest.raises(RefusedBound) as caught:
        codec.scan_produces(data, 0)
    failure = client.decode_bound_answer(caught.value.reply, 0).failure
    assert failure is not None
    assert (failure.code, failure.applied, failure.reason) == answer
    assert caught.value.end == (None if ends else len(data))


@pytest.mark.parametrize(
    "sent",
    [
        "01 00020000",  # a name
        "01 00000001 78 ffff",  # pairs
        "01 00000001 78 0001 00010000 00000000",
        "09 00000001 00 ffffffff",
        "09 00000001 00 00000001 7fffffff",
        "0b 00000001 02",
        "0b 00000001 01 00000000",
        "0b 00000001 01 00020000",
    ],
)
def test_what_is_announced_is_bounded_before_it_is_waited_for(sent: str) -> None:
    data = hexed(sent)
    read = {1: codec.decode_bind, 9: codec.decode_bound_settle, 11: codec.decode_reader}[data[0]]
    with pytest.raises(RefusedBound):
        read(data, 0)


TEXT = st.text(min_size=1, max_size=20)
HEADERS = st.lists(st.tuples(TEXT, st.binary(max_size=20)), max_size=4).map(tuple)
VALUE = st.binary(min_size=1, max_size=60)


@given(
    route=TEXT,
    values=st.lists(st.tuples(VALUE, HEADERS), min_size=1, max_size=6),
    headered=st.booleans(),
    cut=st.data(),
)
def test_produces_that_were_written_are_read(route: str, values: list, headered: bool, cut: st.DataObject) -> None:
    name = route.encode()
    written = [
        client.produce(cid, name, value, pairs if headered else None) for cid, (value, pairs) in enumerate(values)
    ]
    run = codec.scan_produces(b"".join(written) + b"\x0e", 0)
    assert run.route == name
    assert run.columns.values() == [value for value, _ in values]
    assert [run.columns.headers_of(i) for i in range(len(values))] == [p if headered else () for _, p in values]
    assert list(array("I", run.columns.ends)) == list(run.columns.ends)
    end = cut.draw(st.integers(1, len(written[0]) - 1))
    with pytest.raises(Incomplete) as caught:
        codec.scan_produces(written[0][:end], 0)
    assert end < caught.value.wanted <= len(written[0])


@given(
    code=st.integers(1, 16), applied=st.integers(0, 3), reason=TEXT, message=st.text(max_size=40),
    details=st.dictionaries(TEXT, TEXT, max_size=3), cut=st.data(),
)  # fmt: skip
def test_failures_that_were_written_are_read(
    code: int, applied: int, reason: str, message: str, details: dict[str, str], cut: st.DataObject
) -> None:
    failure = Failure(code, applied, reason, message, tuple(sorted(details.items())))
    data = codec.failed(BoundReply.COMMIT, 7, failure)
    assert client.decode_bound_answer(data, 0) == client.BoundAnswer(7, failure, len(data))
    end = cut.draw(st.integers(0, len(data) - 1))
    with pytest.raises(Incomplete):
        client.decode_bound_answer(data[:end], 0)


@given(data=st.binary(max_size=80), op=st.integers(0, 16))
def test_garbage_is_incomplete_or_refused(data: bytes, op: int) -> None:
    command = bytes((op,)) + data
    readers = {
        0: codec.decode_hello,
        1: codec.decode_bind,
        **dict.fromkeys((2, 3, 15, 16), codec.scan_produces),
        **dict.fromkeys((7, 8, 11, 12), codec.decode_reader),
        **dict.fromkeys((9, 10), codec.decode_bound_settle),
        13: codec.decode_unsubscribe,
    }
    if op in readers:
        with contextlib.suppress(WireError):
            assert readers[op](command, 0)
    for read in (client.decode_greeted, client.decode_bound, client.decode_bound_answer, client.decode_bound_settled):
        with contextlib.suppress(WireError):
            read(command, 0)


@given(incarnation=st.integers(0, 2**32 - 1), sequence=st.integers(0, 2**32 - 1), raw=st.binary(max_size=12))
def test_message_ids(incarnation: int, sequence: int, raw: bytes) -> None:
    assert codec.decode_message_id(codec.message_id(incarnation, sequence)) == (incarnation, sequence)
    found = codec.decode_message_id(raw)
    assert found is None or codec.message_id(*found) == raw


@pytest.mark.parametrize("status", Status, ids=lambda status: status.value)
def test_every_status_is_said_with_its_outcome(status: Status) -> None:
    code, applied, reason = bound_mapping.SAID[status]
    assert 1 <= code <= 16
    assert applied is not Applied.UNSPECIFIED
    assert reason
    unknown = status in (Status.UNKNOWN_OUTCOME, Status.TIMEOUT, Status.INTERNAL)
    assert (applied is Applied.UNKNOWN) is unknown


def test_a_failure_elsewhere_is_an_answer_or_a_loss() -> None:
    lost = bound_mapping.refused(Failure(2, Applied.UNKNOWN, "COMMIT_OUTCOME_UNKNOWN", "x"))
    assert isinstance(lost, TargetLost)
    no = bound_mapping.refused(Failure(Code.UNAUTHENTICATED, Applied.NO, "UNAUTHENTICATED", "x"))
    assert isinstance(no, TargetRefused)
    assert no.refusal is Status.UNAUTHENTICATED
