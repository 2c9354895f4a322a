"""Between two gateways a publish says which messages of the other's log it copies: offered at login, never seen elsewhere."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import requests
from gateway.envelope import Batch, Columns, Copies
from gateway.errors import OutOfTurn, TargetOutOfTurn
from gateway.protocols.felix.client.publisher import some
from gateway.protocols.felix.client.session import FelixClient
from gateway.protocols.felix.wire import binary
from gateway.settings import Dialect
from gateway.wire.session import CONNECTION, ClientContext, Credentials, Open
from tests.protocols.felix.values import IDENTITY, PUBLISHED, batch, framed, js, serving, split_frames
from tests.protocols.script import ClientScript

ALL = 63
FLAG, AFTER = 0x4000, 0x2000
BOTH = FLAG | AFTER
SOURCE, ID = b"S" * 16, b"I" * 16
COPIES = Copies(SOURCE, [(7, ID, 0, 2)])
SAID = SOURCE + struct.pack(">I", 1) + struct.pack(">Q16sII", 7, ID, 0, 2)
NAMES = b"\0\2t1\0\7default\0\4demo"
BODY = NAMES + struct.pack(">I", 2) + b"\0\0\0\1a\0\0\0\1b"


def sent(number: int) -> bytes:
    """A batch of `a` and `b` with what they copy, as bytes."""
    return framed(struct.pack(">QB", number, 2) + SAID + BODY, 1 | 8 | FLAG)


def dialled(dialect: Dialect = Dialect.AUTO, *, says: bool = True) -> tuple[ClientScript, bytes]:
    context = ClientContext(Credentials(token="x"), dialect, says_copies=says)
    script = ClientScript(FelixClient(context), channel=CONNECTION)
    script.submit(requests.Publish(1, Batch("demo", Columns.of([b"a", b"b"]), copies=COPIES)))
    token = script.output(Open).token
    login = script.sent(token)
    script.open(token)
    return script, login


def test_a_client_says_it_to_who_understands_it():
    script, login = dialled()
    assert login == js(type="auth", tenant_id="t1", token="x", client_flags=ALL | BOTH)
    assert not script.session.keeps_turns
    script.feed(js(type="auth_ok", server_flags=ALL | FLAG), -1).sends(sent(1), -1)
    assert not script.session.keeps_turns


@pytest.mark.parametrize("answer", [js(type="auth_ok", server_flags=ALL)])
def test_a_client_does_not_say_it_to_others(answer: bytes):
    script, _login = dialled()
    script.feed(answer, -1).sends(batch(b"a", b"b", request=(1, 2)), -1)


def test_the_stock_dialect_and_plain_tools_do_not_offer_it():
    for script_and_login in (dialled(Dialect.STOCK), dialled(says=False)):
        assert script_and_login[1] == js(type="auth", tenant_id="t1", token="x", client_flags=ALL)


def turned(number: int, after: bytes, first: int = 7) -> bytes:
    """The same, from offset `first` on, behind another one."""
    said = SOURCE + struct.pack(">I", 1) + after + struct.pack(">Q16sII", first, ID, first - 7, 2)
    return framed(struct.pack(">QB", number, 2) + said + BODY, 1 | 8 | BOTH)


BEFORE = struct.pack(">Q16sI", 6, b"B" * 16, 3)
FIRST = struct.pack(">Q16sI", 8, ID, 1)
"""The second message of `sent`."""


def test_a_client_says_what_comes_before_to_who_keeps_turns():
    script, _login = dialled()
    script.feed(js(type="auth_ok", server_flags=ALL | BOTH), -1).sends(sent(1), -1)
    assert script.session.keeps_turns
    copies = Copies(SOURCE, [(9, ID, 2, 2)], after=COPIES.last)
    assert COPIES.last == (8, ID, 1)
    script.submit(requests.Publish(2, Batch("demo", Columns.of([b"a", b"b"]), copies=copies)))
    script.sends(turned(2, FIRST, 9), -1)
    script.feed(framed(struct.pack(">BQH", 0, 1, 0), 16), -1)
    assert isinstance(dict(script.completions)[1], requests.Published)
    text = b"out of turn: what it comes after is not here"
    script.feed(framed(struct.pack(">BQH", 1, 2, len(text)) + text, 16), -1)
    assert isinstance(dict(script.completions)[2], TargetOutOfTurn)


def test_what_has_its_turn_is_not_sent_to_who_keeps_none():
    script, _login = dialled()
    script.feed(js(type="auth_ok", server_flags=ALL | FLAG), -1).sends(sent(1), -1)
    copies = Copies(SOURCE, [(9, ID, 2, 2)], after=COPIES.last)
    script.submit(requests.Publish(2, Batch("demo", Columns.of([b"a", b"b"]), copies=copies)))
    assert isinstance(dict(script.completions)[2], TargetOutOfTurn)
    assert script.sent(-1) == b""


def test_parts_of_a_batch_come_one_after_the_other():
    values = [bytes(9 << 20), bytes(9 << 20)]
    for flags, after in ((BOTH, (7, ID, 0)), (FLAG, None)):
        script, _login = dialled()
        script.feed(js(type="auth_ok", server_flags=ALL | flags), -1).sends(sent(1), -1)
        script.submit(requests.Publish(2, Batch("demo", Columns.of(values), copies=COPIES)))
        both = [
            binary.decode_copies(payload, binary.REQUEST_SIZE, len(payload), after=bool(said & AFTER))[0]
            for said, payload in split_frames(script.sent(-1))
        ]
        assert [copies.ranges for copies in both] == [((7, ID, 0, 1),), ((8, ID, 1, 1),)]
        assert [copies.after for copies in both] == [None, after]


def logged_in(flags: int):
    script = serving().feed(js(type="auth", tenant_id="t1", token="x", client_flags=flags))
    return script.answer(requests.Authenticate, IDENTITY).sends(js(type="auth_ok", server_flags=flags))


def test_a_server_hands_it_on_and_keeps_what_plain_clients_send_apart():
    script = logged_in(ALL | FLAG).feed(sent(1) + sent(2) + batch(b"c", request=(3, 2)))
    request = script.expect(requests.Publish)
    assert request.batch.columns.values() == [b"a", b"b", b"a", b"b"]
    assert request.batch.copies == Copies(SOURCE, [(7, ID, 0, 2)] * 2)
    script.complete(request, PUBLISHED)
    assert script.expect(requests.Publish).batch.copies is None


def test_a_server_refuses_the_flag_of_who_has_not_named_it():
    script = logged_in(ALL).feed(sent(1))
    script.sends(js(type="error", message="unsupported frame flags"))


def test_a_server_hands_on_what_comes_before_a_batch_as_a_whole():
    script = logged_in(ALL | BOTH)
    script.feed(turned(1, BEFORE) + turned(2, FIRST, 9) + turned(3, FIRST, 11) + sent(4))
    batches = []
    while len(batches) < 2:
        request = script.expect(requests.Publish)
        batches.append(request.batch.copies)
        script.complete(request, PUBLISHED)
    assert batches == [
        Copies(SOURCE, [(7, ID, 0, 2), (9, ID, 2, 2)], after=(6, b"B" * 16, 3)),
        Copies(SOURCE, [(11, ID, 4, 2), (7, ID, 0, 2)], after=(8, ID, 1)),
    ]


def test_a_server_says_what_is_out_of_turn():
    script = logged_in(ALL | BOTH).feed(turned(1, BEFORE))
    script.complete(script.expect(requests.Publish), OutOfTurn("what it comes after is not here"))
    ((flags, payload),) = split_frames(script.sent())
    assert flags == 16
    assert binary.decode_ack(payload) == (1, "out of turn: what it comes after is not here")


def test_a_server_refuses_turns_of_who_has_not_named_them():
    script = logged_in(ALL | FLAG).feed(turned(1, BEFORE))
    script.sends(js(type="error", message="unsupported frame flags"))


def test_a_turn_that_is_cut_off_is_refused():
    payload = struct.pack(">QB", 1, 2) + SOURCE + struct.pack(">I", 0) + BEFORE[:-1]
    script = logged_in(ALL | BOTH).feed(framed(payload, 1 | 8 | BOTH))
    ((flags, said),) = split_frames(script.sent())
    assert flags == 16
    assert binary.decode_ack(said)[1]


@pytest.mark.parametrize("said", [SAID[:10], SAID[:-1], SOURCE + b"\xff\xff\xff\xff", SOURCE + bytes(4)])
def test_what_does_not_fit_the_messages_is_refused(said: bytes):
    script = logged_in(ALL | FLAG).feed(framed(struct.pack(">QB", 1, 2) + said + BODY, 1 | 8 | FLAG))
    ((flags, payload),) = split_frames(script.sent())
    assert flags == 16
    assert binary.decode_ack(payload)[1]


def test_by_which_gateways_they_came_is_a_range_of_no_messages():
    path = (b"1" * 16, b"2" * 16)
    said = SOURCE + struct.pack(">I", 3) + b"".join(struct.pack(">Q16sII", 0, one, 0, 0) for one in path)
    said += struct.pack(">Q16sII", 7, ID, 0, 2)
    copies = Copies(SOURCE, ((7, ID, 0, 2),), path)
    assert binary.encode_copies(copies) == said
    assert binary.encoded_size(copies) >= len(said)
    assert some(copies, 0, 1).path == path
    script = logged_in(ALL | FLAG)
    script.feed(sent(1) + framed(struct.pack(">QB", 2, 2) + said + BODY, 1 | 8 | FLAG))
    first = script.expect(requests.Publish)
    assert first.batch.copies.path == ()
    script.complete(first, PUBLISHED)
    assert script.expect(requests.Publish).batch.copies == Copies(SOURCE, [(7, ID, 0, 2)], path)


ranges = st.lists(
    st.tuples(st.integers(0, 1 << 62), st.binary(min_size=16, max_size=16), st.integers(0, 1 << 30), st.integers(1, 9))
)


before = st.none() | st.tuples(
    st.integers(0, 1 << 62), st.binary(min_size=16, max_size=16), st.integers(0, (1 << 32) - 1)
)


@given(st.binary(min_size=16, max_size=16), ranges, before, st.data())
def test_round_trip_and_slices(source, all_ranges, after, data):
    copies = Copies(source, tuple(all_ranges), after=after)
    raw = binary.encode_copies(copies)
    assert len(raw) <= binary.encoded_size(copies)
    assert binary.decode_copies(raw, 0, len(raw), after=after is not None) == (copies, len(raw))
    start = data.draw(st.integers(0, copies.count))
    stop = data.draw(st.integers(start, copies.count))
    assert _flat(some(copies, start, stop)) == _flat(copies)[start:stop]


def _flat(copies: Copies) -> list[tuple[int, bytes, int]]:
    return [
        (offset + step, batch_id, index + step)
        for offset, batch_id, index, count in copies.ranges
        for step in range(count)
    ]
