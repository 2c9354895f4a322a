"""Between two gateways a publish says which messages of the other's log it copies: offered at login, never seen elsewhere."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import requests
from gateway.envelope import Batch, Columns, Copies
from gateway.protocols.felix.client.publisher import some
from gateway.protocols.felix.client.session import FelixClient
from gateway.protocols.felix.wire import binary
from gateway.settings import Dialect
from gateway.wire.session import CONNECTION, ClientContext, Credentials, Open
from tests.protocols.felix.values import IDENTITY, PUBLISHED, batch, framed, js, serving, split_frames
from tests.protocols.script import ClientScript

ALL = 63
FLAG = 0x4000
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
    assert login == js(type="auth", tenant_id="t1", token="x", client_flags=ALL | FLAG)
    script.feed(js(type="auth_ok", server_flags=ALL | FLAG), -1).sends(sent(1), -1)


@pytest.mark.parametrize("answer", [js(type="auth_ok", server_flags=ALL)])
def test_a_client_does_not_say_it_to_others(answer: bytes):
    script, _login = dialled()
    script.feed(answer, -1).sends(batch(b"a", b"b", request=(1, 2)), -1)


def test_the_stock_dialect_and_plain_tools_do_not_offer_it():
    for script_and_login in (dialled(Dialect.STOCK), dialled(says=False)):
        assert script_and_login[1] == js(type="auth", tenant_id="t1", token="x", client_flags=ALL)


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
    assert binary.encoded_size(copies) == len(said)
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


@given(st.binary(min_size=16, max_size=16), ranges, st.data())
def test_round_trip_and_slices(source, all_ranges, data):
    copies = Copies(source, tuple(all_ranges))
    raw = binary.encode_copies(copies)
    assert len(raw) == binary.encoded_size(copies)
    assert binary.decode_copies(raw, 0, len(raw)) == (copies, len(raw))
    start = data.draw(st.integers(0, copies.count))
    stop = data.draw(st.integers(start, copies.count))
    assert _flat(some(copies, start, stop)) == _flat(copies)[start:stop]


def _flat(copies: Copies) -> list[tuple[int, bytes, int]]:
    return [
        (offset + step, batch_id, index + step)
        for offset, batch_id, index, count in copies.ranges
        for step in range(count)
    ]
