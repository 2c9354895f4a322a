"""Headers, limits, compression, order, and the ways a connection stops reading or ends (FlyMQ wire 2.1)."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from gateway.envelope import Columns, Run
from gateway.errors import CommitFailed, Unauthenticated, UnknownPartition
from gateway.protocols.flymq import SPEC
from gateway.protocols.flymq.wire.frames import MAX_PAYLOAD, Op, frame
from gateway.protocols.registry import Sniff
from gateway.requests import (
    DONE,
    Authenticate,
    Cancel,
    CommitOffset,
    DescribeTopics,
    Fetch,
    Fetched,
    Identity,
    PartitionInfo,
    Pause,
    Publish,
    Published,
    TopicInfo,
    Topics,
)
from gateway.settings import DOCUMENT_OR_STOCK, Dialect, Limits, Size
from gateway.wire.session import Close, Send
from tests.protocols.flymq.made import b, error, fr, i32, produce, recorded, s, server, u32, u64

LIST = fr(Op.LIST_TOPICS)
NO_TOPICS = fr(Op.LIST_TOPICS, u32(0))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"\xae\x01\x01\x01\x00\x00\x00\x00", id="magic"),
        pytest.param(b"\xae", id="magic, one byte is enough"),
        pytest.param(b"\xaf\x02\x01\x01\x00\x00\x00\x00", id="version"),
        pytest.param(b"\xaf\x02", id="version, two bytes are enough"),
        pytest.param(b"\xaf\x01\x01\x01\x02\x00\x00\x01", id="one byte too long"),
        pytest.param(b"\xaf\x01\x63\x01\xff\xff\xff\xff", id="four gigabytes of an unknown operation"),
    ],
)
def test_what_closes_at_once_without_an_answer(header: bytes) -> None:
    script = server().feed(header)
    script.output(Close)
    script.quiet()
    script.feed(LIST).quiet()


def test_who_has_not_logged_in_is_told_so_by_the_header_of_a_long_frame_alone() -> None:
    login = fr(Op.AUTH, s("root") + s("right"))
    header = produce("test", b"v" * 70_000)[:8]
    script = server().feed(header).sends(error("authentication required"))
    script.output(Close)
    script = server().feed(login)
    script.answer(Authenticate, Unauthenticated("invalid username or password"))
    script.sent()
    script.feed(header).sends(error("authentication required"))
    script.output(Close)
    script = server().feed(login)
    assert not script.session.handshaken
    script.answer(Authenticate, Identity(authenticated=True, name="root"))
    script.sent()
    assert script.session.handshaken
    script.feed(header).quiet()


def test_before_a_login_a_compressed_payload_is_no_longer_than_an_uncompressed_one() -> None:
    squeezed = gzip.compress(s("test") + b(b"") + b(b"v" * 70_000) + i32(-1))
    sent = server().feed(fr(Op.PRODUCE, squeezed, flags=3)).sent()
    assert sent[2] == Op.ERROR
    assert b"message too large" in sent


def test_who_was_served_as_nobody_in_particular_has_arrived() -> None:
    """A public topic takes and gives without a login (FlyMQ wire 4)."""
    script = server().feed(produce("test", b"v"))
    assert not script.session.handshaken
    script.answer(Publish, Published("test", 1))
    assert script.session.handshaken


def test_the_longest_payload_is_read_and_its_bytes_are_not_copied_before_they_are_there() -> None:
    value = b"v" * (MAX_PAYLOAD - 14 - 4)
    whole = produce("test", value)
    assert len(whole) == MAX_PAYLOAD + 8
    script = server(auth=False)
    for start in range(0, len(whole), 1 << 20):
        script.feed(whole[start : start + (1 << 20)])
    asked = script.expect(Publish)
    assert asked.batch.columns.value(0) == value


def test_a_header_that_announces_too_much_allocates_nothing() -> None:
    script = server()
    tracemalloc.start()
    script.feed(b"\xaf\x01\x01\x01\xff\xff\xff\xff")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 16
    script.output(Close)


@pytest.mark.parametrize("dialect", DOCUMENT_OR_STOCK)
def test_an_unknown_operation_is_answered_and_the_connection_stays(dialect: Dialect) -> None:
    """FlyMQ document, Error Handling; the words are the shipped server's (FlyMQ wire 2.1)."""
    script = server(dialect)
    for code in (0x00, 0x0C, 0x54, 0x71, 0xFF):
        script.feed(fr(code, b"whatever")).sends(error(f"unknown opcode: {code}", dialect))
    script.feed(LIST).answer(DescribeTopics, Topics([])).sends(NO_TOPICS).quiet()


TRUNCATED = [
    (Op.PRODUCE, s("t") + b(b"") + b(b"v")),
    (Op.PRODUCE, s("t") + u32(0xFFFFFFFF) + b"k"),
    (Op.PRODUCE, s("t") + b(b"") + u32(1 << 31) + b"v" + i32(0)),
    (Op.PRODUCE, b"\x00"),
    (Op.CONSUME, s("t") + i32(0)),
    (Op.FETCH, b""),
    (Op.USER_CREATE, s("a") + s("b") + s("") + u32(0xFFFFFFFF)),
    (Op.ACL_SET, s("t") + b"\x01" + u32(1)),
    (Op.SUBSCRIBE, s("t") + s("g") + i32(0)),
    (Op.RESET_OFFSET, s("t") + s("g") + i32(0) + b"\x06offset"),
    (Op.AUTH, s("only a name")),
]


@pytest.mark.parametrize("dialect", DOCUMENT_OR_STOCK)
@pytest.mark.parametrize(("op", "payload"), TRUNCATED)
def test_a_payload_cut_off_is_answered_and_the_connection_stays(op: Op, payload: bytes, dialect: Dialect) -> None:
    script = server(dialect).feed(fr(op, payload)).sends(error("buffer too small", dialect))
    script.feed(LIST).answer(DescribeTopics, Topics([])).sends(NO_TOPICS).quiet()


@pytest.mark.parametrize(
    ("op", "payload"),
    [
        (Op.PRODUCE, b"\x00\x02\xff\xfe" + b(b"") + b(b"v") + i32(-1)),
        (Op.METADATA, b"\x00\x02\xff\xfe"),
        (Op.PRODUCE_WITH_SCHEMA, s("t") + b"\x00"),
        (Op.SUBSCRIBE, s("t") + s("g") + i32(0) + b"\x02\xff\xfe"),
    ],
)
def test_what_is_no_text_is_an_invalid_format(op: Op, payload: bytes) -> None:
    script = server().feed(fr(op, payload))
    assert b"invalid binary format" in script.sent()
    script.feed(LIST).answer(DescribeTopics, Topics([])).sends(NO_TOPICS).quiet()


# --- compression ---


def test_gzip_payloads() -> None:
    payload = gzip.compress(s("test") + b(b"k") + b(b"hello") + i32(2))
    script = server().feed(
        fr(Op.PRODUCE, payload, flags=3) + fr(Op.METADATA, gzip.compress(s("test"), mtime=0), flags=3)
    )
    asked = script.expect(Publish)
    assert asked.batch.columns.values() == [b"hello"]
    assert asked.batch.columns.keys == [b"k"]
    assert asked.batch.partition == 2
    script.expect(DescribeTopics, address="test")
    script.complete(asked, Published("test", 5, 2, 9)).sends(fr(Op.PRODUCE, recorded("test", 2, 9, 5, 1, 5))).quiet()


@pytest.mark.parametrize(("flags", "name"), [(5, "lz4"), (7, "zstd"), (9, "snappy"), (0x0B, "0x0a")])
def test_other_compressions_are_refused(flags: int, name: str) -> None:
    """FlyMQ wire 1: they have a number, but nobody ever spoke them."""
    script = server().feed(fr(Op.PRODUCE, b"\x04\x22\x4d\x18", flags=flags))
    script.sends(error(f"unsupported compression: {name}")).quiet()


def test_a_gzip_bomb_stops_at_the_frame_limit() -> None:
    bomb = gzip.compress(bytes(1 << 28), 1, mtime=0)
    script = server(auth=False)
    tracemalloc.start()
    script.feed(fr(Op.PRODUCE, bomb, flags=3))
    for _ in range(MAX_PAYLOAD >> 20):  # a slice of a MiB each, and others have the loop in between
        script.answer(Pause, DONE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MAX_PAYLOAD
    assert b"message too large" in script.sent()
    script.feed(LIST).answer(DescribeTopics, Topics([])).sends(NO_TOPICS).quiet()


def test_a_long_gzip_payload_is_inflated_in_slices_and_keeps_its_place() -> None:
    value = bytes(range(256)) * 10_000
    long = gzip.compress(s("test") + b(b"k") + b(value) + i32(2))
    script = server(auth=False).feed(fr(Op.PRODUCE, long, flags=3) + LIST)
    script.answer(Pause, DONE).answer(Pause, DONE)
    publish = script.expect(Publish)
    assert publish.batch.columns.values() == [value]
    script.complete(publish, Published("test", 5, 2, 7)).sends(fr(Op.PRODUCE, recorded("test", 2, 7, 5, 1, len(value))))
    script.answer(DescribeTopics, Topics([])).sends(NO_TOPICS).quiet()


@pytest.mark.parametrize("payload", [b"", b"no gzip", gzip.compress(bytes(1000), mtime=0)[:-9]])
def test_broken_gzip_is_an_invalid_format(payload: bytes) -> None:
    script = server().feed(fr(Op.METADATA, payload, flags=3))
    assert b"invalid binary format" in script.sent()
    script.quiet()


def test_after_a_thousand_operations_others_have_the_loop() -> None:
    refused = fr(Op.METADATA)
    script = server().feed(refused * 1_500)
    answer = error("buffer too small")
    script.sends(answer * 1_000)
    script.answer(Pause, DONE).sends(answer * 500).quiet()


# --- runs of PRODUCE ---


def test_one_read_to_one_topic_and_partition_is_one_publish() -> None:
    read = b"".join(produce("test", value, key) for value, key in [(b"a", b""), (b"bb", b"k"), (b"", b""), (b"d", b"")])
    script = server().feed(read)
    asked = script.expect(Publish)
    assert asked.batch.columns.values() == [b"a", b"bb", b"", b"d"]
    assert asked.batch.columns.keys == [None, b"k", None, None]
    assert asked.batch.partition is None
    assert asked.batch.round_robin, "FlyMQ wire 4: without a key the partitions take turns"
    places = [(1, 7), (0, 3), (1, 8), (1, 9)]
    sizes = [(-1, 1), (1, 2), (-1, 0), (-1, 1)]
    script.complete(asked, Published("test", 77, scattered=places)).sends(
        b"".join(fr(Op.PRODUCE, recorded("test", *place, 77, *size)) for place, size in zip(places, sizes, strict=True))
    ).quiet()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(produce("tesu", b"a"), id="topic"),
        pytest.param(produce("test2", b""), id="longer topic"),
        pytest.param(produce("test", b"a", partition=1), id="partition"),
        pytest.param(produce("test", b"a", flags=0), id="flags"),
    ],
)
@pytest.mark.parametrize("before", [1, 2, 3, 7])
def test_another_target_is_another_publish(other: bytes, before: int) -> None:
    script = server(Dialect.DOCUMENT).feed(produce("test", b"a") * before + other + produce("test", b"z") * 2)
    assert script.expect(Publish).batch.columns.values() == [b"a"] * before
    assert script.expect(Publish).batch.columns.count == 1
    assert script.expect(Publish).batch.columns.values() == [b"z", b"z"]
    script.quiet()


def test_a_malformed_frame_in_a_run_is_refused_alone() -> None:
    bad = fr(Op.PRODUCE, s("test") + b(b"") + u32(99) + b"v" + i32(-1))
    script = server().feed(produce("test", b"a") * 3 + bad + produce("test", b"b"))
    first, second = script.expect(Publish), script.expect(Publish)
    script.complete(second, Published("test", 1, 0, 3)).sends(b"")
    script.complete(first, Published("test", 1, 0, 0))
    answers = [fr(Op.PRODUCE, recorded("test", 0, offset, 1, -1, 1)) for offset in range(4)]
    script.sends(b"".join(answers[:3]) + error("buffer too small") + answers[3]).quiet()


def test_bytes_behind_a_payload_are_ignored() -> None:
    """FlyMQ wire, Notation: trailing ok."""
    longer = fr(Op.PRODUCE, s("test") + b(b"") + b(b"v") + i32(-1) + b"more")
    script = server().feed(longer * 3)
    assert script.expect(Publish).batch.columns.values() == [b"v"] * 3


def test_a_refused_run_is_answered_frame_by_frame() -> None:
    script = server().feed(produce("test", b"a", partition=9) * 3)
    script.answer(Publish, UnknownPartition()).sends(error("partition 9 out of range") * 3).quiet()


def test_refused_members_of_a_run_are_told_from_the_others() -> None:
    script = server().feed(produce("test", b"a") + produce("test", b"b"))
    published = Published("test", 5, scattered=[(0, 1), (-1, 0)], refused={1: CommitFailed("disk")})
    script.answer(Publish, published).sends(
        fr(Op.PRODUCE, recorded("test", 0, 1, 5, -1, 1)) + error("storage is read-only: disk")
    ).quiet()


# --- order, and reading no further ---


def test_answers_leave_in_the_order_of_their_requests() -> None:
    script = server().feed(LIST + produce("t", b"v") + fr(Op.METADATA, s("x")) + LIST)
    one, two, three, four = (script.asked.popleft() for _ in range(4))
    for request in (four, three, two):
        outcome = Published("t", 1, 0, 5) if request is two else Topics([TopicInfo("x", [])])
        script.complete(request, outcome).quiet()
    script.complete(one, Topics([]))
    script.sends(
        NO_TOPICS
        + fr(Op.PRODUCE, recorded("t", 0, 5, 1, -1, 1))
        + fr(Op.METADATA, s("x") + u32(0))
        + fr(Op.LIST_TOPICS, u32(1) + s("x"))
    ).quiet()


def test_nothing_behind_a_login_is_read_before_it_is_over() -> None:
    script = server().feed(fr(Op.AUTH, s("u") + s("p")) + LIST)
    login = script.expect(Authenticate)
    script.feed(LIST).quiet()
    script.complete(login, Identity(True, "u"))
    script.expect(DescribeTopics)
    script.expect(DescribeTopics)


def test_nothing_behind_an_operation_of_several_steps_overtakes_it() -> None:
    reset = fr(Op.RESET_OFFSET, s("t") + s("g") + i32(0) + b"\x06latest")
    script = server().feed(reset + fr(Op.GET_OFFSET, s("t") + s("g") + i32(0)))
    script.answer(DescribeTopics, Topics([TopicInfo("t", [PartitionInfo(0, 2, 8)])]))
    commit = script.expect(CommitOffset, offset=8)
    script.quiet()
    script.complete(commit, DONE)
    assert len(script.asked) == 1


def test_parsing_stops_at_the_bound_on_requests_and_goes_on_below_it() -> None:
    script = server(limits=Limits(in_flight=2)).feed(LIST * 5)
    assert [len(script.asked), script.session.in_flight] == [2, 2]
    for _ in range(5):
        assert script.session.in_flight <= 2
        script.answer(DescribeTopics, Topics([])).sends(NO_TOPICS)
    script.quiet()


def test_a_connection_that_waits_and_sends_on_is_not_read() -> None:
    script = server().feed(fr(Op.AUTH, s("u") + s("p")))
    assert (script.session.in_flight, script.session.held) == (1, False)
    script.feed(bytes(2 << 20))
    assert (script.session.in_flight, script.session.held) == (1, True)


def test_parsing_stops_while_answers_are_not_taken() -> None:
    script = server(limits=Limits(output=Size(10))).feed(LIST)
    script.answer(DescribeTopics, Topics([]))
    assert script.history == [Send(0, NO_TOPICS, notify=True)]
    script.feed(LIST).sends(NO_TOPICS).quiet()
    script.room().expect(DescribeTopics)


def test_what_is_known_and_waits_for_its_turn_is_held_against_the_bound_on_output() -> None:
    """A FETCH that filters may take long; meanwhile those behind it must not bring all of the log into memory."""
    fetch = fr(Op.FETCH, s("t") + i32(0) + u64(0) + i32(1))
    script = server(limits=Limits(output=Size(10_000))).feed(fetch * 20)
    late = script.expect(Fetch)
    known = 0
    while script.asked:
        script.answer(Fetch, Fetched([Run("t", 0, 0, Columns.of([bytes(5_000)]), [0], ())], 1, 0, 1))
        known += 1
    assert known == 4  # with one known one more is asked for; with two known none is, but those under way end
    script.complete(late, Fetched((), 0, 0, 0))
    script.room()
    assert script.asked


def test_reads_under_way_are_few() -> None:
    script = server().feed(fr(Op.FETCH, s("t") + i32(0) + u64(0) + i32(1)) * 9)
    assert len(script.asked) == 4
    script.answer(Fetch, Fetched((), 0, 0, 0))
    assert len(script.asked) == 4


def test_a_held_fetch_ends_when_something_comes_behind_it() -> None:
    script = server(fetch_hold=5.0).feed(fr(Op.FETCH, s("t") + i32(0) + u64(7) + i32(1)))
    held = script.expect(Fetch, hold_until=105.0)
    script.feed(produce("t", b"v"))
    script.answer(Cancel, DONE, request=held.id)
    published = script.expect(Publish)
    script.complete(published, Published("t", 1, 0, 7)).quiet()
    script.complete(held, Fetched((), 7, 0, 7)).sends(
        fr(Op.FETCH, u32(0) + u64(7)) + fr(Op.PRODUCE, recorded("t", 0, 7, 1, -1, 1))
    ).quiet()


def test_holding_stays_below_the_ten_seconds_of_shipped_clients() -> None:
    script = server(fetch_hold=60.0).feed(fr(Op.FETCH, s("t") + i32(0) + u64(7) + i32(1)))
    script.expect(Fetch, hold_until=109.0)


# --- the end ---


def test_an_idle_connection_closes_at_once_when_drained() -> None:
    script = server().drain()
    script.output(Close)
    script.quiet()


def test_what_is_under_way_is_answered_before_the_close() -> None:
    script = server(fetch_hold=5.0).feed(produce("t", b"v") + fr(Op.FETCH, s("t") + i32(0) + u64(7) + i32(1)))
    script.drain()
    published, held = script.expect(Publish), script.expect(Fetch)
    script.answer(Cancel, DONE, request=held.id)
    script.feed(LIST)
    script.complete(held, Fetched((), 7, 0, 7)).quiet()
    script.complete(published, Published("t", 1, 0, 0))
    script.sends(fr(Op.PRODUCE, recorded("t", 0, 0, 1, -1, 1)) + fr(Op.FETCH, u32(0) + u64(7))).output(Close)
    script.quiet()


def test_a_client_that_has_said_all_gets_its_answers() -> None:
    script = server().feed(produce("t", b"v")).eof()
    script.answer(Publish, Published("t", 1, 0, 0)).sends(fr(Op.PRODUCE, recorded("t", 0, 0, 1, -1, 1))).output(Close)
    script.quiet()


def test_completions_behind_a_lost_connection_do_no_harm() -> None:
    script = server().feed(produce("t", b"v"))
    asked = script.expect(Publish)
    script.lost().complete(asked, Published("t", 1, 0, 0)).quiet()
    assert script.session.in_flight == 0


def test_what_is_too_large_to_be_framed_never_is() -> None:
    from gateway.errors import FrameTooLarge

    with pytest.raises(FrameTooLarge):
        frame(Op.FETCH, bytes(MAX_PAYLOAD + 1))


def test_the_first_byte_tells_flymq() -> None:
    assert SPEC.sniff is not None
    assert SPEC.sniff(b"") is Sniff.MORE
    assert SPEC.sniff(b"\xaf") is Sniff.YES
    assert SPEC.sniff(b"\x00\x00") is Sniff.NO
    assert SPEC.sniff(b"\x16\x03") is Sniff.NO


# --- one PRODUCE a read, to where the one before it went ---


def test_what_is_alone_in_its_read_is_answered_in_its_turn_whatever_comes_behind_it() -> None:
    script = server(auth=False)
    script.feed(produce("orders", b"first")).answer(Publish, Published("orders", 5))
    script.sends(fr(1, recorded("orders", 0, 0, 5, -1, 5)))
    alone = script.feed(produce("orders", b"alone", partition=2)).expect(Publish)
    assert (alone.batch.partition, alone.batch.columns.values()) == (2, [b"alone"])
    behind = script.feed(produce("orders", b"be")).feed(produce("orders", b"hind")[:20]).expect(Publish)
    script.feed(LIST)  # in the midst of a frame: it is part of that
    script.complete(behind, Published("orders", 5, base_offset=8)).quiet()
    script.complete(alone, Published("orders", 5, 2, base_offset=7))
    script.sends(fr(1, recorded("orders", 2, 7, 5, -1, 5)) + fr(1, recorded("orders", 0, 8, 5, -1, 2)))


@pytest.mark.parametrize("short", [False, True])
def test_what_is_alone_in_its_read_may_be_refused_or_be_the_last(short: bool) -> None:
    script = server(auth=False)
    script.shortly = short
    script.feed(produce("orders", b"first")).answer(Publish, Published("orders", 5))
    script.sent()
    refused = script.feed(produce("orders", b"refused")).expect(Publish)
    script.complete(refused, Published("orders", 5, refused={0: UnknownPartition()}))
    assert script.sent()[2] == Op.ERROR
    last = script.feed(produce("orders", b"last")).expect(Publish)
    script.eof().quiet()
    script.complete(last, Published("orders", 5, base_offset=1)).sends(fr(1, recorded("orders", 0, 1, 5, -1, 4)))
    script.output(Close)


def test_what_is_alone_in_its_read_may_be_lost() -> None:
    script = server(auth=False)
    script.feed(produce("orders", b"first")).answer(Publish, Published("orders", 5))
    script.sent()
    lost = script.feed(produce("orders", b"lost")).expect(Publish)
    script.lost()
    script.complete(lost, Published("orders", 5)).quiet()
