"""Transcripts of the client side against raw bytes of a broker (wire 1.4, 4)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import Batch, Columns
from gateway.errors import (
    Conflict,
    InvalidRequest,
    TargetLost,
    TargetRefused,
    TooLarge,
    UnknownSubscription,
    Unsupported,
    WireError,
)
from gateway.protocols.fujin.client.inbox import HIGH_WATER, NO_WAIT, ON_TOP
from gateway.protocols.fujin.client.reader import FIRST_FETCH
from gateway.protocols.fujin.client.session import FujinClient
from gateway.protocols.fujin.wire import codec
from gateway.protocols.fujin.wire.codec import Incomplete
from gateway.protocols.fujin.wire.codec_replies import decode_fetched
from gateway.requests import (
    Begin,
    Begun,
    Cancel,
    Commit,
    CreateTopic,
    Done,
    Publish,
    Published,
    Request,
    Rollback,
    Settle,
    Settled,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.settings import Dialect
from gateway.wire.session import CONNECTION, ClientContext, Close, Finish, Kind, Open, Withhold
from tests.protocols.fujin.broker import CONNECT_WRITER, GOODBYE, READER_OK, sized
from tests.protocols.script import ClientScript, hexed

STREAM = -1
"""The first stream that the client opens."""
ID = hexed("0000000174")  # as on a real server, wire 1.4


def dialled(dialect: Dialect = Dialect.AUTO) -> ClientScript:
    return ClientScript(FujinClient(ClientContext(dialect=dialect)), channel=CONNECTION)


def publish(number: int, *values: bytes, transaction: str = "") -> Publish:
    return Publish(number, Batch("pub", Columns.of(values)), transaction=transaction)


def subscribed(*, acknowledge: bool = True, dialect: Dialect = Dialect.AUTO) -> ClientScript:
    """Subscription 1 on `sub`, on stream -1."""
    script = dialled(dialect).submit(Subscribe(1, "sub", acknowledge=acknowledge))
    kind = 1 if dialect is Dialect.STOCK else 2
    script.sends(bytes((2, kind, not acknowledge)) + hexed("00000003 737562"), STREAM)
    script.output(Open, token=STREAM, kind=Kind.DUPLEX)
    script.feed(READER_OK, STREAM).expect(1, Subscribed, subscription=1, address="sub")
    return script.quiet()


# --- publishing ---


def test_requests_wait_for_the_connection() -> None:
    script = ClientScript(FujinClient(ClientContext()), channel=None).submit(publish(1, b"hello")).quiet()
    script.open(CONNECTION).output(Open, token=STREAM, kind=Kind.DUPLEX)
    script.sends(CONNECT_WRITER + hexed("03 00000001 00000003 707562 00000005 68656c6c6f"), STREAM)


def test_publish() -> None:
    script = dialled().submit(publish(1, b"hello", b"x")).submit(publish(2, b"y"))
    script.output(Open)
    script.sends(
        CONNECT_WRITER + b"".join(codec.write(n, b"pub", v) for n, v in ((1, b"hello"), (2, b"x"), (3, b"y"))), STREAM
    )
    script.feed(hexed("02 00000003 00 02 00000002 00"), STREAM)  # in any order
    script.expect(2, Published, topic_address="pub", refused={})
    script.feed(hexed("02 00000001 00"), STREAM).expect(1, Published)
    assert script.session.in_flight == 0
    script.quiet()


def test_publish_refused() -> None:
    script = dialled().submit(publish(1, b"a", b"b"))
    script.feed(hexed("02 00000002 01 00000010 777269746572206e6f7420666f756e64 02 00000001 00"), STREAM)
    refused = script.expect(1, Published).refused
    assert list(refused) == [1]
    assert refused[1].message == "writer not found"
    script.submit(publish(2, b"c")).feed(hexed("02 00000003 01 00000001 78"), STREAM).expect(
        2, TargetRefused, final=False
    )


def test_values_a_reader_could_not_get_never_leave() -> None:
    """wire 0 rule 6."""
    script = dialled().submit(publish(1, b"", b"ok", bytes(65_537))).feed(hexed("02 00000001 00"), STREAM)
    refused = script.expect(1, Published).refused
    assert isinstance(refused[0], InvalidRequest)
    assert isinstance(refused[2], TooLarge)
    script.submit(publish(2, b"")).expect(2, InvalidRequest)


def test_the_document_writes_headers() -> None:
    script = dialled(Dialect.DOCUMENT)
    columns = Columns.of([b"v"], headers=[(("k", b"h"),)])
    script.submit(Publish(1, Batch("a", columns)))
    script.sends(CONNECT_WRITER + hexed("03 00000001 00000001 61 0002 00000001 6b 00000001 68 00000001 76"), STREAM)


def test_a_stream_that_is_lost_is_replaced() -> None:
    script = dialled().submit(publish(1, b"a")).reset(STREAM)
    script.expect(1, TargetLost)
    script.sent(STREAM)
    script.submit(publish(2, b"b")).sends(CONNECT_WRITER + codec.write(1, b"pub", b"b"), -2)


@pytest.mark.parametrize(
    "request_",
    [
        CreateTopic(7, "a"),
        Publish(7, Batch("a", Columns.of([b"x"])), deliver_at_ms=4),
        Subscribe(7, "a", start=Start.EARLIEST),
    ],
    ids=["create", "delay", "earliest"],
)
def test_what_the_protocol_cannot_say(request_: Request) -> None:
    dialled().submit(request_).expect(7, Unsupported)


# --- transactions ---


def test_a_transaction_has_a_stream_of_its_own() -> None:
    script = dialled().submit(Begin(1)).sends(CONNECT_WRITER + hexed("04 00000001"), STREAM)
    script.output(Open)
    transaction = script.feed(hexed("03 00000001 00"), STREAM).expect(1, Begun).transaction
    script.submit(publish(2, b"x", transaction=transaction)).sends(codec.write(2, b"pub", b"x"), STREAM)
    script.feed(hexed("02 00000002 00"), STREAM).expect(2, Published)
    script.submit(Commit(3, transaction)).sends(hexed("05 00000003"), STREAM)
    script.feed(hexed("04 00000003 00"), STREAM).expect(3, Done)
    script.sends(GOODBYE, STREAM).feed(GOODBYE, STREAM).output(Finish, channel=STREAM)
    script.submit(Commit(4, transaction)).expect(4, Conflict)
    script.quiet()


def test_rollback() -> None:
    script = dialled().submit(Begin(1)).feed(hexed("03 00000001 00"), STREAM)
    transaction = script.expect(1, Begun).transaction
    script.submit(Rollback(2, transaction)).feed(hexed("05 00000002 00"), STREAM).expect(2, Done)


def test_a_failed_commit_can_be_rolled_back() -> None:
    script = dialled().submit(Begin(1)).feed(hexed("03 00000001 00"), STREAM)
    transaction = script.expect(1, Begun).transaction
    script.submit(Commit(2, transaction)).feed(hexed("04 00000002 01 00000001 78"), STREAM).expect(2, TargetRefused)
    script.submit(Rollback(3, transaction)).feed(hexed("05 00000003 00"), STREAM).expect(3, Done)


def test_begin_refused() -> None:
    script = dialled().submit(Begin(1)).feed(hexed("03 00000001 01 00000001 78"), STREAM)
    assert script.expect(1, TargetRefused).message == "x"
    dialled().submit(publish(2, b"x", transaction="none")).expect(2, Conflict)


# --- reading ---


def test_subscribe_refused() -> None:
    """wire 1.4."""
    script = dialled().submit(Subscribe(1, "sub"))
    script.feed(hexed("01 01 00000010 726561646572206e6f7420666f756e64"), STREAM)
    assert script.expect(1, TargetRefused).message == "reader not found"
    script.submit(Take(2, 1, 1)).expect(2, UnknownSubscription)


def test_take_fetches() -> None:
    """wire 1.4, FETCH manual."""
    script = subscribed().submit(Take(2, 1, 2, hold_until=200.0)).sends(hexed("07 00000001 00000002"), STREAM)
    script.feed(
        hexed("07 00000001 00 00000002 00000005 0000000174 00000005 68656c6c6f 00000005 0000000274 00000001 77"), STREAM
    )
    taken = script.expect(2, Taken, address="sub", acknowledge=True)
    (delivered,) = taken.deliveries
    assert (delivered.first_tag, delivered.run.columns.values()) == (1, [b"hello", b"w"])
    script.submit(Settle(3, 1, [1, 2])).sends(
        hexed("08 00000002 00000002 00000005 0000000174 00000005 0000000274"), STREAM
    )
    script.feed(
        hexed("08 00000002 00 00000002 00000005 0000000274 01 0000000a 6e6f2073756368206964 00000005 0000000174 00"),
        STREAM,
    )
    first, second = script.expect(3, Settled).results
    assert first is None
    assert isinstance(second, TargetRefused)
    script.quiet()


def test_take_with_auto_commit() -> None:
    """wire 1.4, FETCH auto."""
    script = subscribed(acknowledge=False).submit(Take(2, 1, 2, hold_until=200.0))
    script.feed(hexed("07 00000001 00 00000002 00000005 68656c6c6f 00000001 77"), STREAM)
    assert script.expect(2, Taken, acknowledge=False).deliveries[0].run.columns.values() == [b"hello", b"w"]
    script.sent(STREAM)
    script.submit(Settle(3, 1, [1, 2])).expect(3, Settled, results=[None, None])
    script.quiet()


def test_giving_back_is_a_nack() -> None:
    script = subscribed().submit(Take(2, 1, 1, hold_until=200.0))
    script.feed(hexed("07 00000001 00 00000001 00000005 0000000174 00000001 77"), STREAM).expect(2, Taken)
    script.sent(STREAM)
    script.submit(Settle(3, 1, [1], accepted=False)).sends(hexed("09 00000002 00000001 00000005 0000000174"), STREAM)
    script.feed(hexed("09 00000002 01 0000000d 6e6f7420737570706f72746564"), STREAM)
    (error,) = script.expect(3, Settled).results
    assert isinstance(error, TargetRefused)


def test_more_than_was_taken_waits_for_the_next_take() -> None:
    script = subscribed(acknowledge=False).submit(Take(2, 1, 1, hold_until=200.0))
    script.feed(hexed("07 00000001 00 00000001 00000001 61"), STREAM).expect(2, Taken)
    script.sent(STREAM)
    script.submit(Take(3, 1, 1)).sends(hexed("07 00000002 00000001"), STREAM)
    script.pass_time(NO_WAIT).expect(3, Taken, deliveries=())
    script.feed(hexed("07 00000002 00 00000001 00000001 62"), STREAM).quiet()
    assert script.submit(Take(4, 1, 1)).expect(4, Taken).deliveries[0].run.columns.values() == [b"b"]


def test_a_fetch_that_times_out_is_repeated_while_somebody_waits() -> None:
    script = subscribed().submit(Take(2, 1, 1, hold_until=112.0))
    script.sent(STREAM)
    script.pass_time(8).feed(hexed("07 00000001 01 00000001 78"), STREAM).sends(hexed("07 00000002 00000001"), STREAM)
    script.pass_time(5).expect(2, Taken, deliveries=())
    script.feed(hexed("07 00000002 01 00000001 78"), STREAM).quiet()


def test_a_fetch_that_is_refused_at_once_is_an_error() -> None:
    script = subscribed().submit(Take(2, 1, 1, hold_until=112.0))
    script.feed(hexed("07 00000001 01 0000000d 6e6f7420737570706f72746564"), STREAM)
    assert script.expect(2, TargetRefused).message == "not supported"


def test_stock_servers_push() -> None:
    """wire 1.4, MSG; what comes unasked waits for a Take."""
    script = subscribed(dialect=Dialect.STOCK).feed(hexed("06 00000005 0000000174 00000005 68656c6c6f"), STREAM).quiet()
    assert script.submit(Take(2, 1, 5)).expect(2, Taken).deliveries[0].run.columns.values() == [b"hello"]
    script.submit(Take(3, 1, 5, hold_until=200.0)).quiet()
    script.feed(hexed("06 00000005 0000000274 00000001 77"), STREAM).expect(3, Taken)


def test_a_stream_that_nobody_takes_from_is_not_read() -> None:
    pushed = hexed("06 00000001 01 0003ff00") + b"x" * 0x3FF00
    script = subscribed(dialect=Dialect.STOCK).feed(pushed * 4, STREAM).quiet()
    script.feed(pushed, STREAM).output(Withhold, channel=STREAM, on=True)
    script.submit(Take(2, 1, 3)).expect(2, Taken)
    script.quiet().submit(Take(3, 1, 1)).expect(3, Taken)
    script.output(Withhold, channel=STREAM, on=False)
    script.quiet()


def test_cancel() -> None:
    script = subscribed().submit(Take(2, 1, 1, hold_until=float("inf"))).submit(Cancel(3, 2))
    script.expect(2, Taken, deliveries=())
    script.expect(3, Done)
    assert script.session.timeout_at() is None


def test_unsubscribe_leaves_the_stream() -> None:
    script = subscribed().submit(Unsubscribe(2, 1)).sends(GOODBYE, STREAM).quiet()
    script.feed(GOODBYE, STREAM).expect(2, Done)
    script.output(Finish, channel=STREAM)
    script.submit(Take(3, 1, 1)).expect(3, UnknownSubscription)


def test_messages_without_bytes_count_too() -> None:
    """They take memory all the same."""
    script = subscribed(acknowledge=False, dialect=Dialect.STOCK)
    script.feed(hexed("06 00000000") * (HIGH_WATER // ON_TOP), STREAM).quiet()
    script.feed(hexed("06 00000000"), STREAM).output(Withhold, channel=STREAM, on=True)


def test_a_fetch_asks_for_as_much_as_is_wanted_at_once() -> None:
    """Few messages while nothing is known of their size."""
    script = subscribed(acknowledge=False).submit(Take(2, 1, 1000, hold_until=200.0))
    script.sends(hexed("07 00000001") + FIRST_FETCH.to_bytes(4, "big"), STREAM)
    script.feed(hexed("07 00000001 00 00000001") + sized(bytes(936)), STREAM).expect(2, Taken)
    script.submit(Take(3, 1, 1000, max_bytes=5_500, hold_until=200.0)).sends(hexed("07 00000002 00000005"), STREAM)


def test_a_fetch_that_brings_too_much_is_not_waited_for() -> None:
    reply = hexed("07 00000001 00 00000003") + sized(bytes(400)) * 2
    with pytest.raises(WireError):
        decode_fetched(reply, 0, 3, 800, auto_commit=True)
    with pytest.raises(Incomplete):
        decode_fetched(reply, 0, 3, 1_000, auto_commit=True)


# --- replies as the document writes them ---


@pytest.mark.parametrize(
    ("reply", "values"),
    [
        ([7, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 5, 104, 101, 108, 108, 111], [b"hello"]),
        ([7, 0, 0, 0, 1, 0, 0, 0, 0, 0], []),
    ],
)
def test_fetch_replies_of_the_document(reply: list[int], values: list[bytes]) -> None:
    """document, FETCH: the count before the error byte; its third example cannot be told apart (wire 1.5 row 8)."""
    answer, messages = decode_fetched(bytes(reply), 0, 1, len(reply), auto_commit=True)
    assert answer.error is None
    assert [message.value for message in messages] == values


def test_unknown_reply_bytes_are_passed_over() -> None:
    """As stock clients do (wire 2)."""
    script = dialled().submit(publish(1, b"a")).feed(hexed("00 63 ff 02 00000001 00"), STREAM)
    script.expect(1, Published)


def test_a_reply_that_cannot_be_ends_the_stream() -> None:
    script = dialled().submit(publish(1, b"a")).feed(hexed("02 00000001 07"), STREAM)
    script.expect(1, TargetLost)
    script.sent(STREAM)
    script.output(Open)
    script.output(Finish, channel=STREAM)


# --- the connection ---


@pytest.mark.parametrize("ping", [b"\x0b", b"", b"\x63"])
def test_pings_are_answered_once_with_their_end(ping: bytes) -> None:
    """wire 1.2: read to FIN, then `0b` and FIN."""
    script = dialled().open(1)
    if ping:
        script.feed(ping, 1).quiet()
    script.eof(1).sends(b"\x0b", 1).output(Finish, channel=1)
    script.quiet()


def test_stop_leaves_a_writer() -> None:
    script = dialled().submit(publish(1, b"a"))
    script.sent(STREAM)
    script.feed(b"\x0c", STREAM).sends(GOODBYE, STREAM)
    script.feed(hexed("02 00000001 00 0a"), STREAM).expect(1, Published)
    script.submit(publish(2, b"b")).sends(CONNECT_WRITER + codec.write(1, b"pub", b"b"), -2)


def test_stop_lets_a_reader_acknowledge() -> None:
    script = subscribed().submit(Take(2, 1, 1, hold_until=200.0))
    script.feed(hexed("07 00000001 00 00000001 00000005 0000000174 00000001 77"), STREAM).expect(2, Taken)
    script.sent(STREAM)
    script.submit(Take(3, 1, 1, hold_until=200.0)).feed(b"\x0c", STREAM).expect(3, Taken, deliveries=())
    script.sent(STREAM)
    script.submit(Settle(4, 1, [1])).sends(hexed("08 00000003 00000001") + sized(ID), STREAM)
    script.feed(hexed("08 00000003 00 00000001") + sized(ID) + b"\0", STREAM).expect(4, Settled, results=[None])
    script.sends(GOODBYE, STREAM)


def test_close_disconnects_every_stream() -> None:
    script = subscribed().submit(publish(2, b"a"))
    script.output(Open, token=-2)
    script.sent(-2)
    script.close().sends(GOODBYE, STREAM).sends(GOODBYE, -2).quiet()
    script.feed(GOODBYE, STREAM).output(Finish, channel=STREAM)
    script.feed(hexed("02 00000001 00 0a"), -2).expect(2, Published)
    script.output(Finish, channel=-2)
    script.output(Close, code=0)
    script.submit(publish(3, b"a")).expect(3, TargetLost)


def test_lost_ends_everything() -> None:
    script = subscribed().submit(publish(2, b"a")).submit(Take(3, 1, 1)).submit(Subscribe(4, "other"))
    script.lost()
    assert {number for number, _ in script.completions} == {2, 3, 4}
    assert all(isinstance(outcome, TargetLost) for _, outcome in script.completions)
    assert script.session.in_flight == 0


REPLIES = hexed("02 00000001 00 02 00000002 01 00000003 626164 02 00000003 00")


@given(st.lists(st.integers(1, len(REPLIES) - 1), max_size=5))
def test_any_chunking_is_understood_alike(cuts: list[int]) -> None:
    script = dialled().submit(publish(1, b"a", b"b", b"c"))
    borders = sorted({0, *cuts, len(REPLIES)})
    for start, stop in itertools.pairwise(borders):
        script.feed(REPLIES[start:stop], STREAM)
    assert list(script.expect(1, Published).refused) == [1]


@given(st.binary(max_size=100), st.booleans())
def test_garbage_from_a_server_never_escapes(garbage: bytes, acknowledge: bool) -> None:
    script = subscribed(acknowledge=acknowledge).submit(Take(2, 1, 3, hold_until=200.0))
    script.feed(garbage, STREAM).eof(STREAM)
    assert [number for number, _ in script.completions] == [2]
