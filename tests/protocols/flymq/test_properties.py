"""Round trips for every codec, whatever the values; any chunking gives the same; garbage never gets out as an exception."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.envelope import Batch, BatchMeta, Columns, Origin, Run
from gateway.errors import GatewayError, InvalidRequest
from gateway.protocols.flymq.client.publish import PublishedRun
from gateway.protocols.flymq.wire import codec, codec_fetch, dialect, layout
from gateway.protocols.flymq.wire.codec_produce import LONGEST_KEPT, Collector
from gateway.protocols.flymq.wire.frames import Op, frame
from gateway.protocols.flymq.wire.layout import Layout, LayoutField
from gateway.requests import Publish, Published
from gateway.settings import DOCUMENT_OR_STOCK, Dialect
from gateway.wire.ordering import Pieces
from gateway.wire.session import Close
from tests.protocols.flymq.made import b, fr, i32, produce, s, server, u32, u64

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
SHORT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
ATOMS: dict[int, st.SearchStrategy[Any]] = {
    id(layout.BOOL): st.booleans(),
    id(layout.I32): st.integers(-(1 << 31), (1 << 31) - 1),
    id(layout.U32): st.integers(0, (1 << 32) - 1),
    id(layout.I64): st.integers(-(1 << 63), (1 << 63) - 1),
    id(layout.U64): st.integers(0, (1 << 64) - 1),
    id(layout.STR): TEXT,
    id(layout.STR8): SHORT,
    id(layout.BYTES): st.binary(max_size=60),
    id(layout.NAMES): st.lists(TEXT, max_size=4),
    id(codec.SOME_NAMES): st.lists(TEXT, max_size=4),
    # a first byte of zero would be half of a u16: words begin with a letter
    id(codec.WORD): st.from_regex(r"[a-z]{1,20}", fullmatch=True),
}
PLAIN = {
    "request-" + op.name: table for op, table in codec.REQUESTS.items() if all(id(f) in ATOMS for f in table.fields)
} | {"reply-" + op.name: table for op, table in codec.REPLIES.items() if all(id(f) in ATOMS for f in table.fields)}


@pytest.mark.parametrize("table", PLAIN.values(), ids=PLAIN.keys())
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_table_reads_what_it_writes(table: Layout, data: st.DataObject) -> None:
    values = tuple(data.draw(ATOMS[id(field)]) for field in table.fields)
    payload = table.encode(*values)
    assert table.decode(payload) == values
    assert table.exact(payload) == values
    assert table.decode(payload + b"trailing") == values
    for cut in range(len(payload)):
        with pytest.raises(GatewayError):
            table.decode(payload[:cut])


NESTED: list[tuple[str, Layout, st.SearchStrategy[Any]]] = [
    (
        "groups",
        codec.REPLIES[Op.LIST_GROUPS],
        st.lists(
            st.tuples(
                TEXT,
                TEXT,
                ATOMS[id(layout.U32)],
                st.lists(st.tuples(ATOMS[id(layout.I32)], ATOMS[id(layout.U64)]), max_size=3),
            ),
            max_size=3,
        ),
    ),
    ("schemas", codec.SCHEMA_LIST, st.lists(st.tuples(TEXT, SHORT, ATOMS[id(layout.U32)]), max_size=3)),
    (
        "letters",
        codec.REPLIES[Op.FETCH_DLQ],
        st.lists(st.tuples(TEXT, ATOMS[id(layout.BYTES)], TEXT, ATOMS[id(layout.I32)]), max_size=3),
    ),
    ("members", codec.MEMBERS, st.lists(st.tuples(TEXT, TEXT, st.booleans(), st.booleans()), max_size=3)),
    (
        "roles",
        codec.REPLIES[Op.ROLE_LIST],
        st.lists(st.tuples(TEXT, st.lists(TEXT, max_size=3), TEXT), max_size=3),
    ),
]


@pytest.mark.parametrize(("table", "values"), [row[1:] for row in NESTED], ids=[row[0] for row in NESTED])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_table_of_tables_reads_what_it_writes(
    table: Layout, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    assert table.decode(table.encode(value)) == (value,)


def test_every_field_of_every_table_has_a_round_trip() -> None:
    assert len(PLAIN) > 70
    assert all(isinstance(field, LayoutField) for table in PLAIN.values() for field in table.fields)


def test_a_name_longer_than_its_field_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        Layout(layout.STR).encode("x" * 65_536)
    with pytest.raises(InvalidRequest):
        Layout(layout.STR8).encode("x" * 256)


# --- PRODUCE ---

MESSAGE = st.tuples(
    st.sampled_from(["t", "test", "tést", "x" * 300]),
    st.one_of(st.just(b""), st.binary(max_size=8)),
    st.one_of(st.just(b"same"), st.binary(max_size=40)),
    st.sampled_from([-1, -1, -1, 0, 3]),
)


def _naive(frame: bytes) -> tuple[str, bytes, bytes, int]:
    """A PRODUCE frame read step by step with struct alone."""
    at = 8
    (size,) = struct.unpack_from(">H", frame, at)
    topic = frame[at + 2 : at + 2 + size].decode()
    at += 2 + size
    (size,) = struct.unpack_from(">I", frame, at)
    key = frame[at + 4 : at + 4 + size]
    at += 4 + size
    (size,) = struct.unpack_from(">I", frame, at)
    value = frame[at + 4 : at + 4 + size]
    (partition,) = struct.unpack_from(">i", frame, at + 4 + size)
    return topic, key, value, partition


@given(messages=st.lists(MESSAGE, min_size=1, max_size=30), copies=st.integers(1, 5), data=st.data())
@settings(max_examples=200, deadline=None)
def test_runs_are_what_single_frames_say(
    messages: list[tuple[str, bytes, bytes, int]], copies: int, data: st.DataObject
) -> None:
    frames = [produce(topic, value, key, part) for topic, key, value, part in messages for _ in range(copies)]
    whole = b"".join(frames)
    extra = data.draw(st.integers(0, len(frames[0]) - 1))  # an incomplete frame behind them
    whole_and_more = whole + frames[0][:extra]
    collector = Collector()
    position = 0
    read: list[tuple[str, bytes, bytes, int]] = []
    runs = 0
    while position < len(whole):
        run, position = collector.collect(whole_and_more, position)
        assert run is not None
        runs += 1
        columns = run.batch().columns
        assert columns.ends[-1] == len(columns.packed)
        assert run.sizes() == [len(value) for value in columns.values()]
        read += [
            (run.target.address, columns.key(index) or b"", columns.value(index), run.partition)
            for index in range(columns.count)
        ]
    assert read == [_naive(frame) for frame in frames]
    changes = sum(first[0] != second[0] or first[3] != second[3] for first, second in itertools.pairwise(messages))
    assert runs == changes + 1, "frames to one topic and partition are one run"


@pytest.mark.parametrize(("size", "kept"), [(LONGEST_KEPT - 2, True), (LONGEST_KEPT - 1, False)])
def test_what_is_known_of_a_topic_is_kept_for_all_connections_unless_its_name_is_long(size: int, kept: bool) -> None:
    whole = produce("x" * size, b"value", b"", 0)
    runs = [collector.collect(whole, 0)[0] for collector in (Collector(), Collector())]
    one, other = (run.target for run in runs if run is not None)
    assert one.address == other.address == "x" * size
    assert (one is other) is kept


@given(first=MESSAGE, second=MESSAGE, same=st.booleans(), flags=st.integers(0, 3), data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_frame_that_is_read_at_a_glance_is_what_it_is_otherwise(
    first: tuple[str, bytes, bytes, int],
    second: tuple[str, bytes, bytes, int],
    same: bool,
    flags: int,
    data: st.DataObject,
) -> None:
    def made(topic: str, key: bytes, value: bytes, partition: int, flags: int = 1) -> bytes:
        return produce(topic, value, key, partition, flags)

    collector = Collector()
    collector.collect(made(*first), 0)
    topic, key, value, partition = second
    frame = bytearray(made(first[0] if same else topic, key, value, partition, flags))
    for _ in range(data.draw(st.integers(0, 2))):  # and whatever else a peer may send
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    whole = bytes(frame[: data.draw(st.integers(0, len(frame) + 10))])
    glanced = collector.lone(whole)
    run, end = collector.collect(whole, 0) if len(whole) >= 8 and whole[:3] == b"\xaf\x01\x01" else (None, 0)
    if glanced is not None:
        assert run is not None
        assert end == len(whole)
        assert (glanced.target, glanced.partition, glanced.pieces, glanced.keys) == (
            run.target,
            run.partition,
            run.pieces,
            run.keys,
        )
        assert glanced.partition >= -1
    untouched = whole == made(first[0], b"", value, partition)
    assert glanced is not None or not untouched


@given(
    values=st.lists(st.binary(max_size=30), min_size=1, max_size=20),
    keys=st.none() | st.lists(st.none() | st.binary(min_size=1, max_size=5), min_size=20, max_size=20),
    partition=st.none() | st.integers(0, 7),
)
@settings(max_examples=100, deadline=None)
def test_the_server_reads_what_the_client_writes(
    values: list[bytes], keys: list[bytes | None] | None, partition: int | None
) -> None:
    batch = Batch("orders", Columns.of(values, keys[: len(values)] if keys else None), partition=partition)
    run = PublishedRun(Publish(9, batch))
    script = server().feed(run.data)
    asked = script.expect(Publish)
    assert asked.batch.columns.values() == values
    assert [asked.batch.columns.key(i) for i in range(len(values))] == [
        batch.columns.key(i) for i in range(len(values))
    ]
    assert asked.batch.partition == partition
    script.complete(asked, Published("orders", 123, 2, 40))
    answers = script.sent()
    size = len(answers) // len(values)
    done = [run.answered(answers[at + 8 : at + size], None) for at in range(0, len(answers), size)]
    assert done == [False] * (len(values) - 1) + [True]
    assert run.outcome() == Published("orders", 123, 2, 40)


# --- FETCH ---


@st.composite
def runs_of_records(draw: st.DrawFn) -> list[Run]:
    runs = []
    offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(0, 3))):
        values = draw(st.lists(st.binary(max_size=30), min_size=1, max_size=8))
        keys = draw(st.none() | st.just([b"k", None, b"key", b"", None, b"x", None, None][: len(values)]))
        meta = BatchMeta(b"", Origin("a", "b"))
        runs.append(Run("t", 0, offset, Columns.of(values, keys), [0] * len(values), ((0, 0, meta),)))
        offset += len(values) + draw(st.integers(0, 3))
    return runs


def _records(runs: Sequence[Run]) -> list[tuple[int, bytes | None, bytes]]:
    return [
        (run.base_offset + index, run.columns.key(index) or None, run.columns.value(index))
        for run in runs
        for index in range(run.count)
    ]


@given(runs=runs_of_records(), order=st.booleans())
@settings(max_examples=200, deadline=None)
def test_both_orders_of_fetch_are_read_back(runs: list[Run], order: bool) -> None:
    start = runs[0].base_offset if runs else 5
    following = runs[-1].next_offset if runs else 5
    wanted = _records(runs)
    payload = codec_fetch.encode(runs, following, server=order)
    assert codec_fetch.decode(payload, start) == (wanted, following)


@given(
    count=st.sampled_from([1, 63, 64, 65, 200, 2048, 2100]),
    size=st.sampled_from([0, 1, 100, 1020, 1021, 4100]),
    base=st.sampled_from([0, 1 << 32, (1 << 63) - 5000]),
    other=st.none() | st.integers(0, 2099),
    keys=st.booleans(),
    order=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_records_of_one_size_go_out_as_any_others(
    count: int, size: int, base: int, other: int | None, keys: bool, order: bool
) -> None:
    values = [bytes((index & 0xFF,)) * size for index in range(count)]
    if other is not None and other < count:
        values[other] += b"longer"
    columns = Columns.of(values, [None] * (count - 1) + [b"k"] if keys else None)
    run = Run("t", 0, base, columns, [0] * count, ((0, 0, BatchMeta(b"", Origin("a", "b"))),))
    payload = codec_fetch.encode([run], run.next_offset, server=order)
    records = [(u64(offset), b(key or b"") + b(value)) for offset, key, value in _records([run])]
    if order:
        by_hand = u32(count) + u64(run.next_offset) + b"".join(offset + body for offset, body in records)
    else:
        by_hand = u32(count) + b"".join(body + offset for offset, body in records) + u64(run.next_offset)
    assert payload == by_hand


@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize("key", [None, b"key"])
def test_large_records_are_sent_from_where_they_lie(server: bool, key: bytes | None) -> None:
    values = [bytes((index,)) * (100_000 + index) for index in range(5)]
    columns = Columns.of(values, [key] * 5 if key else None)
    run = Run("t", 0, 7, columns, [0] * 5, ((0, 0, BatchMeta(b"", Origin("a", "b"))),))
    answer = codec_fetch.answer(Op.FETCH, [run], 12, server=server)
    assert isinstance(answer, Pieces)
    whole = b"".join(answer.pieces)
    assert len(whole) == answer.size
    assert whole == frame(Op.FETCH, codec_fetch.encode([run], 12, server=server))
    assert codec_fetch.decode(whole[8:], 7) == (_records([run]), 12)
    assert sum(piece.obj is columns.packed for piece in answer.pieces if isinstance(piece, memoryview)) == 5


@given(runs=runs_of_records(), limit=st.integers(30, 400))
@settings(max_examples=200, deadline=None)
def test_an_answer_stays_below_its_limit_and_says_where_to_go_on(runs: list[Run], limit: int) -> None:
    total = runs[-1].next_offset if runs else 5
    fitting, following = codec_fetch.fit(runs, total, limit)
    taken = _records(fitting)
    every = _records(runs)
    assert taken == every[: len(taken)]
    assert bool(taken) == bool(every), "the first record goes out, however long"
    payload = codec_fetch.encode(fitting, following, server=True)
    assert len(payload) <= limit or len(taken) == 1
    if len(taken) < len(every):
        size = len(every[len(taken)][2]) + len(every[len(taken)][1] or b"") + codec_fetch.OVERHEAD
        assert len(payload) + size > limit, "a record was left out that fits"
        assert taken[-1][0] < following <= every[len(taken)][0]
    else:
        assert following == total


# --- words ---


@given(text=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=300))
@settings(max_examples=100, deadline=None)
def test_an_error_is_read_in_any_shape(text: str) -> None:
    for speech in (dialect.Speech(Dialect.DOCUMENT), dialect.Speech(Dialect.STOCK)):
        got = dialect.read_error(speech.error(text)[8:])
        assert text.startswith(got)
        assert got == text or len(got.encode()) > 123
    newer = dialect.Speech(Dialect.STOCK)
    newer.sign(newer=True)
    assert dialect.read_error(newer.error(text)[8:]) == text


@given(name=TEXT, roles=st.lists(st.sampled_from(["admin", "producer"]), max_size=2), ok=st.booleans())
@settings(max_examples=100, deadline=None)
def test_who_am_i_is_read_in_every_dialect(name: str, roles: list[str], ok: bool) -> None:
    for mode in DOCUMENT_OR_STOCK:
        payload = dialect.Speech(mode).identity(ok, name, roles, ["read"])[8:]
        assert dialect.read_identity(payload) == (ok, name, roles, ["read"])


# --- the session ---

STREAM = (
    produce("t", b"v") * 3
    + fr(Op.LIST_TOPICS)
    + produce("t", b"w" * 50, b"key", 2)
    + fr(0x99, b"unknown")
    + fr(Op.PRODUCE, b"\x00")
    + fr(Op.CREATE_TOPIC, s("t") + i32(-4))
    + fr(Op.VALIDATE_SCHEMA, s("n") + b(b"{}"))
)


def _dialogue(chunks: list[bytes]) -> tuple[list[tuple[object, ...]], bytes]:
    """What was asked, message by message, and what was answered at once."""
    script = server()
    asked: list[tuple[object, ...]] = []
    sent = b""
    for chunk in chunks:
        script.feed(chunk)
        while script.asked:
            request = script.asked.popleft()
            if isinstance(request, Publish):
                columns = request.batch.columns
                asked += [(columns.value(i), columns.key(i), request.batch.partition) for i in range(columns.count)]
                script.complete(request, Published("t", 1, 0, 0))
            else:
                asked.append((type(request),))
                script.complete(request, InvalidRequest("no"))
        sent += script.sent()
    return asked, sent


def test_split_at_every_byte() -> None:
    whole = _dialogue([STREAM])
    publishes = whole[0]
    assert len(publishes) == 6
    one_by_one = _dialogue([STREAM[i : i + 1] for i in range(len(STREAM))])
    assert one_by_one[0] == whole[0]
    assert len(one_by_one[1]) == len(whole[1])
    for cut in range(1, len(STREAM)):
        asked, sent = _dialogue([STREAM[:cut], STREAM[cut:]])
        assert asked == whole[0]
        assert len(sent) == len(whole[1])


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_garbage_is_answered_or_closes_and_never_raises(data: st.DataObject) -> None:
    """Any operation with any payload, in any dialect: an answer, requests, or a close."""
    script = server(data.draw(st.sampled_from(DOCUMENT_OR_STOCK)))
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            op = data.draw(st.sampled_from([int(op) for op in Op] + [0, 0x60]))
            flags = data.draw(st.sampled_from([0, 1, 3, 255]))
            script.feed(fr(op, data.draw(st.binary(max_size=40)), flags))
        else:
            script.feed(data.draw(st.binary(max_size=40)))
        while script.asked:
            script.complete(script.asked.popleft(), InvalidRequest("no"))
    assert script.session.in_flight == 0
    assert all(isinstance(output, Close) for output in script.others)
    assert len(script.others) <= 1


@given(op=st.sampled_from(sorted(set(Op) - {Op.ERROR, Op.AUTH_RESPONSE})), data=st.data())
@settings(max_examples=300, deadline=None)
def test_every_frame_gets_exactly_one_answer(op: Op, data: st.DataObject) -> None:
    """Well formed or not, by a table or by hand: one frame in, one frame out, in every dialect."""
    table = codec.REQUESTS[op]
    payload = table.encode(*[data.draw(ATOMS[id(field)]) for field in table.fields]) + data.draw(st.binary(max_size=12))
    script = server(data.draw(st.sampled_from(DOCUMENT_OR_STOCK))).feed(fr(op, payload))
    while script.asked:
        script.complete(script.asked.popleft(), InvalidRequest("no"))
    sent = script.sent()
    assert len(sent) >= 8
    assert int.from_bytes(sent[4:8], "big") == len(sent) - 8
    assert sent[2] in {op, Op.ERROR, Op.AUTH_RESPONSE}
