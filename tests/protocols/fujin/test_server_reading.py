"""Transcripts of reading streams: every example and every error row of the document and of the wire notes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import Columns
from gateway.errors import Conflict, CorruptChunk, NotRouted, UnknownSubscription
from gateway.protocols.fujin.server.reader import (
    FETCH_MESSAGES,
    PUSH_BYTES,
    PUSH_DELAY,
    PUSH_MESSAGES,
)
from gateway.protocols.fujin.server.session import SEEDS
from gateway.protocols.fujin.server.stream import PUSH_WINDOW, UNREAD_BYTES
from gateway.protocols.fujin.settings import FujinSettings, ReaderSettings
from gateway.protocols.fujin.wire import codec
from gateway.protocols.fujin.wire.frames import LARGEST_PUSH, MOST_UNACKED, Op
from gateway.requests import (
    DONE,
    Cancel,
    Outcome,
    Redelivery,
    Request,
    Settle,
    Settled,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.settings import Dialect, Seconds
from gateway.wire.session import Finish, Send, StopSending
from tests.protocols.fujin.broker import GOODBYE, NOTHING, READER_OK, fresh, message_id, reader, sized, taken
from tests.protocols.script import Script, hexed

PUSH_AUTO = hexed("02 01 01 00000003 737562")  # wire 1.4
PULL_MANUAL = hexed("02 02 00 00000003 737562")
NOT_FOUND = hexed("01 01 00000010 726561646572206e6f7420666f756e64")
GOOD = [None]


def msg(value: bytes, tag: int = 0) -> bytes:
    return b"\x06" + (sized(message_id(tag)) if tag else b"") + sized(value)


# --- CONNECT READER ---


def test_connect_reader() -> None:
    script = fresh().feed(PUSH_AUTO)
    request = script.expect(
        Subscribe,
        address="sub",
        name="sub",
        start=Start.LATEST,
        acknowledge=False,
        redelivery=None,
        durable_grace=None,
        largest_value=LARGEST_PUSH,
        smallest_value=1,
    )
    script.complete(request, Subscribed(2, "sub"))
    assert script.history == [Send(0, READER_OK, alone=True)], "stock clients throw away what comes with it (rule 2)"


def test_the_documents_example() -> None:
    """document, CONNECT READER: [2, 1, 0, 0, 0, 0, 3, 112, 117, 98] -> [1, 0]."""
    script = fresh().feed(bytes([2, 1, 0, 0, 0, 0, 3, 112, 117, 98]))
    script.answer(Subscribe, Subscribed(2, "pub"), address="pub", acknowledge=True).sends(bytes([1, 0]))


def test_a_pull_reader_takes_values_of_any_size() -> None:
    fresh().feed(PULL_MANUAL).expect(Subscribe, acknowledge=True, largest_value=None)


def test_a_one_character_name() -> None:
    """The stock server hangs here (wire 2); this one does not."""
    fresh().feed(hexed("02 01 01 00000001 73")).expect(Subscribe, name="s")


def test_readers_of_the_listener() -> None:
    readers = {"sub": ReaderSettings("billing.invoices", Start.EARLIEST)}
    script = fresh(settings=FujinSettings(readers=readers))
    script.feed(PUSH_AUTO).expect(Subscribe, address="billing.invoices", name="sub", start=Start.EARLIEST)
    script.open(4).feed(hexed("02 01 01 00000005 6f74686572"), 4).sends(NOT_FOUND, 4)
    script.output(Finish, channel=4)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("02 00", b"invalid reader type"),  # already on that byte
        ("02 03", b"invalid reader type"),
        ("02 01 02", b"connect reader is auto commit arg invalid"),
        ("02 01 01 00000000", b"reader name size arg not provided"),
        ("02 01 01 00010001", b"reader not found"),
        ("02 01 01 00000001 ff", b"reader not found"),
    ],
)
def test_connect_reader_malformed(command: str, text: bytes) -> None:
    """The error, then FIN in another frame, no `0a` (wire 0 rule 9, wire 2)."""
    script = fresh().feed(hexed(command))
    assert script.history == [Send(0, hexed("01 01") + sized(text), alone=True), Finish(0), StopSending(0)]


def test_reader_not_found() -> None:
    """wire 1.4."""
    script = fresh().feed(PUSH_AUTO).answer(Subscribe, NotRouted())
    assert script.history == [Send(0, NOT_FOUND, alone=True), Finish(0), StopSending(0)]


def test_the_error_of_connect_reader_fits_one_read() -> None:
    """At most 506 bytes (rule 7)."""
    script = fresh().feed(PUSH_AUTO).answer(Subscribe, Conflict("x" * 1000))
    assert len(script.sent()) == 2 + 4 + 506


# --- pushing ---


def test_the_first_message_waits_a_moment() -> None:
    """rule 2."""
    script = fresh().feed(PUSH_AUTO).answer(Subscribe, Subscribed(2, "sub")).sends(READER_OK).quiet()
    script.pass_time(PUSH_DELAY * 0.9).quiet()
    script.pass_time(PUSH_DELAY * 0.2).expect(Take, subscription=2, hold_until=math.inf)


def test_push_with_auto_commit() -> None:
    """wire 1.4 and document, MSG: 06 00000005 68656c6c6f."""
    script = reader(push=True, auto=True)
    script.answer(Take, taken(b"hello"), max_messages=PUSH_MESSAGES).sends(hexed("06 00000005 68656c6c6f"))
    script.answer(Take, taken(b"a", b"bc")).sends(msg(b"a") + msg(b"bc"))
    script.expect(Take)
    script.quiet()
    assert script.session.in_flight == 0, "waiting for messages is not work under way"


def test_push_with_ids() -> None:
    script = reader(push=True, auto=False)
    script.answer(Take, taken(b"hello", b"w", first_tag=7), max_messages=MOST_UNACKED)
    script.sends(msg(b"hello", 7) + msg(b"w", 8))
    script.expect(Take, max_messages=MOST_UNACKED - 2)


def test_unacknowledged_messages_are_bounded() -> None:
    """rule 10."""
    script = reader(push=True, auto=False)
    script.answer(Take, taken(*[b"x"] * MOST_UNACKED))
    assert len(script.sent()) == MOST_UNACKED * (1 + 4 + 16 + 4 + 1)
    script.room().quiet()


def test_room_and_acks_let_it_go_on() -> None:
    script = reader(push=True, auto=False)
    script.answer(Take, taken(*[b"x"] * MOST_UNACKED))
    script.sent()
    script.room().quiet()
    script.feed(codec.settle(Op.ACK, 1, [message_id(1), message_id(2)]))
    script.answer(Settle, Settled([None, UnknownSubscription()]))
    script.sent()
    script.expect(Take, max_messages=1)


def test_a_client_that_does_not_read_is_not_sent_more() -> None:
    script = reader(push=True, auto=True)
    half = b"v" * (PUSH_WINDOW // 2)
    script.answer(Take, taken(half))
    assert isinstance(script.history[-1], Send)
    assert script.history[-1].notify
    script.answer(Take, taken(half))
    assert script.history[-1] == Send(0, msg(half))
    script.sent()
    script.quiet()
    script.room().expect(Take)


def test_damage_ends_the_stream() -> None:
    """`0a` and FIN instead of a second answer to CONNECT READER (wire 2)."""
    script = reader(push=True, auto=True)
    script.answer(Take, CorruptChunk("sub", 0, 1, 2)).answer(Unsubscribe, DONE, subscription=2)
    script.sends(GOODBYE).output(Finish)


def test_a_topic_that_is_deleted_ends_the_stream() -> None:
    script = reader(push=True, auto=True)
    script.answer(Take, Taken((), ended=True)).answer(Unsubscribe, UnknownSubscription())
    script.sends(GOODBYE).output(Finish)


def test_fetch_on_a_push_reader() -> None:
    """wire 2; the stream stays open."""
    script = reader(push=True, auto=True).feed(hexed("07 00000001 00000002"))
    script.sends(hexed("07 00000001 01") + sized(b"invalid reader type"))
    assert not script.others


# --- ACK and NACK (wire 1.4, 1.5 rows 5 to 7) ---


@pytest.mark.parametrize("push", [True, False])
def test_only_a_nack_is_a_delivery_that_failed(*, push: bool) -> None:
    script = fresh().feed(hexed("02 01 00" if push else "02 02 00") + sized(b"sub"))
    script.expect(Subscribe, redelivery=Redelivery(16, 0.1, 30.0, unanswered=False))
    script = fresh().feed(PUSH_AUTO)
    script.expect(Subscribe, redelivery=None)


def pushed(count: int, dialect: Dialect = Dialect.AUTO) -> Script:
    script = reader(push=True, auto=False, dialect=dialect)
    script.answer(Take, taken(*[b"x"] * count)).expect(Take)
    script.sent()
    return script


@pytest.mark.parametrize(("op", "accepted"), [(8, True), (9, False)])
@pytest.mark.parametrize("dialect", SEEDS)
def test_ack_and_nack(op: int, dialect: Dialect, *, accepted: bool) -> None:
    script = pushed(2, dialect).feed(bytes((op,)) + hexed("00000001 00000001") + sized(message_id(1)))
    script.answer(Settle, Settled(GOOD), subscription=2, tags=[1], accepted=accepted)
    script.sends(bytes((op,)) + hexed("00000001 00 00000001") + sized(message_id(1)) + b"\0")


def test_ack_with_an_unknown_id_among_others() -> None:
    """wire 1.4: ids that are not ours, as the example's `0000138874`, and ours that nobody knows."""
    strange = hexed("0000138874")
    ids = [message_id(1), strange, message_id(9), message_id(1, subscription=3)]
    script = pushed(2).feed(codec.settle(Op.ACK, 2, ids))
    script.answer(Settle, Settled([None, UnknownSubscription()]), tags=[1, 9])
    bad = hexed("01 0000000a 6e6f2073756368206964")
    script.sends(
        hexed("08 00000002 00 00000004")
        + sized(ids[0])
        + b"\0"
        + sized(strange)
        + bad
        + sized(ids[2])
        + bad
        + sized(ids[3])
        + bad
    )


def test_ack_of_nothing() -> None:
    """wire 1.4: the count is always there."""
    script = pushed(1).feed(hexed("08 00000003 00000000")).sends(hexed("08 00000003 00 00000000"))
    assert not script.asked


def test_the_documents_ack_waits_for_its_id() -> None:
    """document, ACK: [8, 0, 0, 0, 1, 0, 0, 0, 1] announces one id and has none (wire 1.5 row 5)."""
    script = pushed(1).feed(bytes([8, 0, 0, 0, 1, 0, 0, 0, 1])).quiet()
    script.feed(sized(message_id(1))).answer(Settle, Settled(GOOD))
    script.sends(hexed("08 00000001 00 00000001") + sized(message_id(1)) + b"\0")


def test_a_failure_of_all_is_told_for_each() -> None:
    """rule 4."""
    script = pushed(2).feed(codec.settle(Op.ACK, 1, [message_id(1), message_id(2)]))
    script.answer(Settle, CorruptChunk("t", 0, 1, 2))
    error = b"\x01" + sized(b"corrupt: damaged chunk: topic=t partition=0 offsets=[1, 2)")
    script.sends(hexed("08 00000001 00 00000002") + sized(message_id(1)) + error + sized(message_id(2)) + error)


def test_ack_on_an_auto_commit_reader() -> None:
    script = reader(push=True, auto=True)
    script.expect(Take)
    script.feed(hexed("08 00000001 00000001 00000001 78"))
    script.sends(hexed("08 00000001 00 00000001 00000001 78 01 0000000a 6e6f2073756368206964")).quiet()


@pytest.mark.parametrize("command", ["08 00000001 00ffffff", "08 00000001 00000001 00ffffff"])
def test_an_impossible_ack_ends_the_stream(command: str) -> None:
    script = pushed(1).feed(hexed(command)).answer(Unsubscribe, DONE)
    assert script.sent() in (GOODBYE, b"")


def test_an_ack_in_small_pieces() -> None:
    ids = [message_id(tag) for tag in range(1, 500)]
    script = reader(push=True, auto=False).answer(Take, taken(*[b"x"] * 499))
    script.expect(Take)
    script.sent()
    data = codec.settle(Op.ACK, 1, ids)
    for at in range(0, len(data), 7):
        script.feed(data[at : at + 7])
    assert list(script.expect(Settle).tags) == list(range(1, 500))


# --- FETCH (wire 0 rule 3, 1.4, 1.5 rows 8 and 9) ---


def test_fetch_with_auto_commit() -> None:
    """07 cid 00 count values; settled here as they go out."""
    script = reader(push=False, auto=True).feed(hexed("07 00000001 00000002"))
    take = script.expect(Take, subscription=2, max_messages=2, hold_until=script.now + 8)
    script.complete(take, taken(b"hello", b"world"))
    script.sends(hexed("07 00000001 00 00000002 00000005 68656c6c6f 00000005 776f726c64"))
    script.answer(Settle, Settled([None, None]), tags=[1, 2], accepted=True).quiet()


def test_fetch_with_ids() -> None:
    script = reader(push=False, auto=False).feed(hexed("07 00000001 00000002"))
    script.answer(Take, taken(b"hello", b"world", first_tag=5))
    script.sends(
        hexed("07 00000001 00 00000002")
        + sized(message_id(5))
        + sized(b"hello")
        + sized(message_id(6))
        + sized(b"world")
    )
    script.feed(codec.settle(Op.ACK, 1, [message_id(6)])).answer(Settle, Settled(GOOD), tags=[6])


def test_fetch_never_answers_empty() -> None:
    """rule 3: a typed error in time instead; the document's empty reply is for others to read (row 8)."""
    script = fresh(settings=FujinSettings(fetch_wait=Seconds(3.0))).feed(PULL_MANUAL)
    script.answer(Subscribe, Subscribed(2, "sub")).sends(READER_OK)
    script.feed(hexed("07 00000003 00000001"))
    script.answer(Take, NOTHING, hold_until=script.now + 3)
    script.sends(hexed("07 00000003 01") + sized(b"no message in time")).quiet()


def test_fetch_of_nothing() -> None:
    """wire 1.4: `fetch arg not provided`; the stream stays open."""
    script = reader(push=False, auto=True).feed(hexed("07 00000004 00000000"))
    script.sends(hexed("07 00000004 01 00000016 666574636820617267206e6f742070726f7669646564")).quiet()


def test_fetch_refused() -> None:
    script = reader(push=False, auto=True).feed(hexed("07 00000001 00000001"))
    script.answer(Take, CorruptChunk("t", 0, 1, 2))
    script.sends(hexed("07 00000001 01") + sized(b"corrupt: damaged chunk: topic=t partition=0 offsets=[1, 2)")).quiet()


def test_fetches_overlap() -> None:
    script = reader(push=False, auto=False).feed(codec.fetch(1, 1) + codec.fetch(2, 1_000_000))
    first, second = script.expect(Take, max_messages=1), script.expect(Take, max_messages=FETCH_MESSAGES)
    script.complete(second, taken(b"bb", first_tag=2))
    script.sends(hexed("07 00000002 00 00000001") + sized(message_id(2)) + sized(b"bb"))
    script.complete(first, taken(b"aa")).sends(hexed("07 00000001 00 00000001") + sized(message_id(1)) + sized(b"aa"))


def test_values_of_one_byte_go_alone() -> None:
    """rule 6; the rest waits for the next FETCH."""
    script = reader(push=False, auto=False).feed(codec.fetch(1, 5))
    script.answer(Take, taken(b"aa", b"bb", b"c", b"dd"))
    script.sends(
        hexed("07 00000001 00 00000002") + sized(message_id(1)) + sized(b"aa") + sized(message_id(2)) + sized(b"bb")
    )
    script.feed(codec.fetch(2, 5)).sends(hexed("07 00000002 00 00000001") + sized(message_id(3)) + sized(b"c"))
    script.feed(codec.fetch(3, 5)).sends(hexed("07 00000003 00 00000001") + sized(message_id(4)) + sized(b"dd"))
    script.quiet()


def test_the_document_knows_no_lonely_values() -> None:
    script = reader(push=False, auto=True, dialect=Dialect.DOCUMENT).feed(codec.fetch(1, 5))
    script.answer(Take, taken(b"aa", b"c")).sends(hexed("07 00000001 00 00000002") + sized(b"aa") + sized(b"c"))


# --- the end of a reader ---


def test_disconnect_of_a_push_reader() -> None:
    script = reader(push=True, auto=False)
    take = script.expect(Take)
    script.feed(GOODBYE)
    leave = script.expect(Unsubscribe, subscription=2)
    script.complete(take, Taken((), ended=True)).quiet()
    script.complete(leave, DONE).sends(GOODBYE)
    script.output(Finish)
    script.output(StopSending)
    script.quiet()


@pytest.mark.parametrize("push", [True, False])
def test_what_comes_too_late_is_given_back(*, push: bool) -> None:
    """By Unsubscribe, or here where another stream of the connection goes on with the reader."""
    script = reader(push=push, auto=False)
    if not push:
        script.feed(codec.fetch(1, 1))
    take = script.expect(Take)
    script.open(4).feed(PULL_MANUAL, 4).answer(Subscribe, Subscribed(2, "sub"))
    script.feed(GOODBYE).expect(Cancel)
    script.complete(take, taken(b"x", first_tag=4))
    assert list(script.expect(Settle, subscription=2, accepted=False, tried=False).tags) == [4]


def test_the_last_stream_leaves_giving_back_to_unsubscribe() -> None:
    script = reader(push=True, auto=False)
    take = script.expect(Take)
    leave = script.feed(GOODBYE).expect(Unsubscribe)
    script.complete(take, taken(b"x", first_tag=4)).complete(leave, DONE).sends(GOODBYE)
    assert not script.asked


def test_a_reader_that_two_streams_share_stays_until_the_last_leaves() -> None:
    script = reader(push=True, auto=False)
    take = script.expect(Take)
    script.complete(take, taken(b"a", b"b"))
    take = script.expect(Take)
    script.open(4).feed(hexed("02 02 00 00000003 737562"), 4).answer(Subscribe, Subscribed(2, "sub")).sends(
        READER_OK, 4
    )
    script.sent()
    script.feed(GOODBYE).expect(Cancel, request=take.id)
    settle = script.expect(Settle, subscription=2, accepted=False, tried=False)
    assert sorted(settle.tags) == [1, 2]
    script.complete(take, NOTHING).complete(settle, Settled([None, None])).sends(GOODBYE)
    script.feed(GOODBYE, 4).answer(Unsubscribe, DONE).sends(GOODBYE, 4)


def test_a_reader_that_is_abandoned_while_it_connects() -> None:
    script = fresh().feed(PUSH_AUTO)
    subscribe = script.expect(Subscribe)
    script.reset(0).quiet()
    script.complete(subscribe, Subscribed(2, "sub")).answer(Unsubscribe, DONE).sends(GOODBYE)


def test_a_fetch_under_way_is_answered_before_the_end() -> None:
    script = reader(push=False, auto=False).feed(codec.fetch(1, 1))
    take = script.expect(Take)
    script.feed(GOODBYE).answer(Unsubscribe, DONE)
    script.complete(take, Taken((), ended=True))
    script.sends(hexed("07 00000001 01") + sized(b"no message in time") + GOODBYE)


def test_lost_leaves_every_reader() -> None:
    script = reader(push=True, auto=False)
    script.expect(Take)
    script.lost().expect(Unsubscribe, subscription=2)
    script.quiet()


@pytest.mark.parametrize("op", ["01", "02", "03", "04", "05", "06", "0b", "0c", "63"])
@pytest.mark.parametrize("push", [True, False])
def test_ops_a_reader_does_not_know(op: str, *, push: bool) -> None:
    script = reader(push=push, auto=False)
    script.asked.clear()
    script.feed(hexed(op)).answer(Unsubscribe, DONE)
    assert script.session.in_flight == 0


DIALOGUE = PULL_MANUAL + codec.fetch(1, 3) + codec.settle(Op.ACK, 1, [message_id(1)]) + codec.fetch(2, 1)


def broker(request: Request) -> Outcome:
    match request:
        case Subscribe():
            return Subscribed(2, "sub")
        case Take():
            return taken(b"one", b"two")
        case Settle():
            return Settled([None] * len(request.tags))
        case _:
            return DONE


def test_split_at_every_byte() -> None:
    whole = fresh().feed(DIALOGUE).serve(broker).sent()
    for cut in range(1, len(DIALOGUE)):
        script = fresh().feed(DIALOGUE[:cut]).serve(broker)
        assert script.feed(DIALOGUE[cut:]).serve(broker).sent() == whole


@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_garbage_ends_only_its_stream(garbage: bytes, push: bool, auto: bool) -> None:
    script = reader(push=push, auto=auto)
    script.asked.clear()
    script.feed(garbage).eof()
    while script.asked:
        request = script.asked.popleft()
        script.complete(request, NOTHING if isinstance(request, Take) else DONE)
    script.open(4).feed(PUSH_AUTO, 4).expect(Subscribe)


def test_many_readers_share_what_may_wait_for_a_client() -> None:
    script = reader(push=True, auto=True)
    script.expect(Take, max_bytes=PUSH_BYTES)
    for channel in range(4, 4 * 64, 4):
        script.open(channel)
    script.open(256).feed(PUSH_AUTO, 256).answer(Subscribe, Subscribed(3, "sub"))
    script.pass_time(PUSH_DELAY)
    take = script.expect(Take, subscription=3, max_bytes=UNREAD_BYTES // 65)
    script.complete(take, taken(b"v" * (UNREAD_BYTES // 65)))
    script.sends(READER_OK + msg(b"v" * (UNREAD_BYTES // 65)), 256).quiet()
    script.room(256).expect(Take, subscription=3)


@given(
    st.lists(st.binary(max_size=5), max_size=10),
    st.integers(0, 2),
    st.integers(0, 3),
    st.binary(min_size=1, max_size=40),
)
def test_pushed_messages_are_each_an_op_and_a_sized_value(
    some: list[bytes], blocks: int, more: int, alike: bytes
) -> None:
    for values in (some, [alike] * (64 * blocks + more), [alike] * 64 + some):
        expected = b"".join(b"\6" + len(value).to_bytes(4, "big") + value for value in values)
        assert codec.messages(Columns.of(values)) == expected
