"""Transcripts of our client in the dialects that bind: every byte of the server's is from wire 6.2."""

from __future__ import annotations

import attrs
import pytest

from gateway.envelope import Batch, Columns
from gateway.errors import Conflict, InvalidRequest, Status, TargetLost, TargetRefused, Unsupported
from gateway.protocols.fujin.client.inbox import HIGH_WATER
from gateway.protocols.fujin.client.session import FujinClient
from gateway.protocols.fujin.wire import bound_client as wire
from gateway.protocols.fujin.wire.bound_headers import EXPIRES, KEY
from gateway.requests import (
    Begin,
    Begun,
    Commit,
    CreateTopic,
    Done,
    Publish,
    Published,
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
from gateway.settings import Dialect, Transport
from gateway.wire.session import CONNECTION, ClientContext, Close, Credentials, Finish, Kind, Open, Withhold
from tests.protocols.script import ClientScript, hexed

HELLO = hexed("00 01 01 01 00000007 67617465776179 00000001 31")
BIND = hexed("01 00000007 67617465776179 0000 0000")
GREETED = hexed("13 00 01 01 00000003 646576")
ROUTES = hexed("10 00 00000002  00000003 707562 07 03 00 00   00000003 737562 3a 00 01 01")
ID = hexed("0000000e 01 0000000200000001 00000006 74")  # with an adapter's bytes, as captured


def dialled(
    dialect: Dialect = Dialect.SESSION, transport: Transport = Transport.TCP, alpn: str | None = None, **known: str
) -> ClientScript:
    context = ClientContext(Credentials(**known), dialect=dialect, transport=transport, alpn=alpn)
    return ClientScript(FujinClient(context), channel=0 if transport is Transport.TCP else CONNECTION)


def bound(routes: bytes = ROUTES) -> ClientScript:
    return dialled().sends(HELLO).feed(GREETED).sends(BIND).feed(routes)


def publish(number: int, *values: bytes, transaction: str = "", address: str = "pub", **columns: object) -> Publish:
    return Publish(number, Batch(address, Columns.of(values, **columns)), transaction=transaction)  # type: ignore[arg-type]


def test_hello_and_bind() -> None:
    script = dialled().sends(HELLO)
    assert script.session.admitted is False
    script.feed_each_byte(GREETED).sends(BIND).feed_each_byte(ROUTES).quiet()
    assert script.session.admitted is True


def test_v1_begins_with_bind() -> None:
    script = dialled(Dialect.V1, api_key="k", connector="shop")
    script.sends(hexed("01 00000004 73686f70 0001 00000007 6170695f6b6579 00000001 6b 0000"))


def test_publishes_wait_for_bind_and_carry_what_they_have() -> None:
    script = dialled().submit(publish(1, b"hello"))
    script.sends(HELLO).feed(GREETED).sends(BIND).feed(ROUTES)
    script.sends(hexed("02 00000001 00000003 707562 00000005 68656c6c6f"))
    script.feed(hexed("03 00000001 00")).expect(1, Published, refused={})
    script.submit(publish(2, b"x", keys=[b"K"], headers=[(("k", b"v"),)], expires=[7]))
    script.sends(wire.produce(2, b"pub", b"x", (("k", b"v"), (KEY, b"K"), (EXPIRES, b"7"))))
    script.feed(hexed("04 00000002 00")).expect(2, Published)
    script.quiet()


def test_a_route_without_headers_gets_none() -> None:
    script = bound(hexed("10 00 00000001 00000003 707562 01 01 00 00")).submit(
        publish(1, b"x", headers=[(("k", b"v"),)])
    )
    script.sends(hexed("02 00000001 00000003 707562 00000001 78"))


def test_some_of_a_batch_fail_and_what_has_happened_is_done() -> None:
    script = bound().submit(publish(1, b"a", b"", b"c", b"d"))
    script.sent()
    failed = "00000009 524553484f555443 41 00000001 78 0000"
    script.feed(hexed(f"03 00000001 08 01 {failed} 03 00000002 06 02 {failed} 03 00000003 00"))
    refused = script.expect(1, Published).refused
    assert sorted(refused) == [0, 1]
    assert isinstance(refused[0], TargetRefused)
    assert refused[0].refusal is Status.THROTTLED
    assert isinstance(refused[1], InvalidRequest)


def test_an_outcome_that_is_unknown_is_a_loss() -> None:
    script = bound().submit(publish(1, b"a"))
    script.sent()
    script.feed(hexed("03 00000001 02 03 00000007 554e4b4e4f574e 00000001 78 0000")).expect(1, TargetLost)


def test_a_login_that_is_refused() -> None:
    script = dialled().submit(publish(1, b"a")).feed(GREETED)
    script.feed(hexed("10 10 01 00000003 4b4559 00000002 6e6f 0000"))
    refusal = script.expect(1, TargetRefused)
    assert refusal.refusal is Status.UNAUTHENTICATED
    assert script.session.admitted is refusal


def test_a_transaction_is_about_one_route() -> None:
    script = bound().submit(Begin(1))
    transaction = script.expect(1, Begun).transaction
    script.quiet()  # nothing is said before it is known what it is about
    script.submit(publish(2, b"tx1", transaction=transaction))
    script.sends(hexed("04 00000001 00000003 707562 0f 00000002 00000003 747831"))
    script.feed(hexed("05 00000001 00 11 00000002 00")).expect(2, Published)
    script.submit(publish(3, b"x", address="sub", transaction=transaction)).expect(3, Unsupported)
    script.submit(publish(4, b"later")).quiet()  # a plain one waits for its end
    script.submit(Commit(5, transaction)).sends(hexed("05 00000003"))
    script.feed(hexed("06 00000003 00")).expect(5, Done)
    script.sends(hexed("02 00000004 00000003 707562 00000005 6c61746572"))
    script.submit(Rollback(6, transaction)).expect(6, Conflict)


def test_a_transaction_of_nothing_is_no_bytes() -> None:
    script = bound().submit(Begin(1))
    transaction = script.expect(1, Begun).transaction
    script.submit(Rollback(2, transaction)).expect(2, Done)
    script.quiet()


def test_a_commit_whose_outcome_is_unknown() -> None:
    script = bound().submit(Begin(1))
    transaction = script.expect(1, Begun).transaction
    script.submit(publish(2, b"x", transaction=transaction)).submit(Commit(3, transaction))
    script.sent()
    script.feed(hexed("05 00000001 00 11 00000002 00")).expect(2, Published)
    script.feed(hexed("06 00000003 02 03 00000001 55 00000001 78 0000")).expect(3, TargetLost)


def subscribed(acknowledge: bool = True) -> ClientScript:
    script = bound().submit(Subscribe(1, "sub", acknowledge=acknowledge))
    script.sends(hexed("0c 00000001") + bytes((not acknowledge,)) + hexed("00000003 737562"))
    script.feed(hexed("02 00000001 00 00")).expect(1, Subscribed, address="sub")
    return script


def test_what_is_pushed_is_taken_and_settled() -> None:
    script = subscribed().submit(Take(2, 1, 10, hold_until=float("inf")))
    script.feed(hexed("09 00 0002 00000001 6b 00000001 76") + ID + hexed("00000002 6d32"))
    (delivered,) = script.expect(2, Taken, acknowledge=True).deliveries
    assert delivered.run.columns.values() == [b"m2"]
    assert delivered.run.columns.headers == [(("k", b"v"),)]
    script.submit(Settle(3, 1, [delivered.first_tag])).sends(hexed("09 00000002 00 00000001") + ID)
    script.feed(hexed("0c 00000002 00 00000001") + ID + b"\0").expect(3, Settled, results=[None])
    script.submit(Unsubscribe(4, 1)).sends(hexed("0d 00000003 00"))
    script.feed(hexed("0e 00000003 00")).expect(4, Done)


def test_key_and_expiry_come_back_as_what_they_are() -> None:
    script = subscribed(acknowledge=False)
    key, expires = KEY.encode(), EXPIRES.encode()
    head = b"\x09\0\0\4" + b"".join(len(one).to_bytes(4) + one for one in (key, b"K", expires, b"99"))
    script.feed(head + hexed("00000001 78")).submit(Take(2, 1, 10))
    (delivered,) = script.expect(2, Taken).deliveries
    columns = delivered.run.columns
    assert (columns.keys, columns.headers, columns.expires) == ([b"K"], None, [99])


def test_a_whole_ack_that_fails() -> None:
    script = subscribed().feed(hexed("09 00 0000") + ID + hexed("00000001 78")).submit(Take(2, 1, 10))
    (delivered,) = script.expect(2, Taken).deliveries
    script.submit(Settle(3, 1, [delivered.first_tag], accepted=False)).sends(hexed("0a 00000002 00 00000001") + ID)
    script.feed(hexed("0d 00000002 03 01 00000001 49 00000001 78 0000"))
    (result,) = script.expect(3, Settled).results
    assert isinstance(result, TargetRefused)


def test_what_nobody_takes_stops_the_reading() -> None:
    script = subscribed(acknowledge=False)
    value = bytes(HIGH_WATER)
    script.feed(hexed("09 00 0000") + len(value).to_bytes(4) + value).output(Withhold, channel=0, on=True)
    script.submit(Take(2, 1, 10)).expect(2, Taken)
    script.output(Withhold, channel=0, on=False)


def test_a_take_in_vain_and_what_is_not_for_this_protocol() -> None:
    script = subscribed().submit(Take(2, 1, 1)).pass_time(1)
    assert not script.expect(2, Taken).deliveries
    script.submit(CreateTopic(3, "t")).expect(3, Unsupported)
    script.submit(Subscribe(4, "sub", start=Start.EARLIEST)).expect(4, Unsupported)
    script.submit(Subscribe(5, "pub")).expect(5, Unsupported)  # its profile says so


def test_pings_in_band_and_the_end() -> None:
    script = bound().feed(hexed("63")).sends(hexed("63"))
    script.close().sends(hexed("0e")).feed(hexed("0f"))
    script.output(Finish, channel=0)
    script.output(Close)


def test_stop_is_heard() -> None:
    bound().feed(hexed("62")).sends(hexed("0e"))


def test_what_is_lost_ends_everything() -> None:
    script = subscribed().submit(publish(2, b"x")).submit(Take(3, 1, 1, hold_until=float("inf")))
    script.lost().expect(2, TargetLost)
    script.expect(3, TargetLost)


# --- over QUIC ---


def test_over_quic_each_reader_and_transaction_has_a_session() -> None:
    script = dialled(transport=Transport.QUIC, alpn="fujin").sends(HELLO, -1)
    script.output(Open, token=-1, kind=Kind.DUPLEX)
    script.feed(GREETED + ROUTES, -1).sends(BIND, -1)
    script.submit(Subscribe(1, "sub")).sends(HELLO, -2).output(Open, token=-2)
    script.feed(GREETED + ROUTES, -2).sends(BIND + hexed("0c 00000001 01 00000003 737562"), -2)
    script.feed(hexed("02 00000001 00 00"), -2).expect(1, Subscribed)
    script.open(1).feed(hexed("63"), 1).eof(1).sends(hexed("63"), 1).output(Finish, channel=1)
    script.submit(Unsubscribe(2, 1)).sends(hexed("0d 00000002 00"), -2)
    script.feed(hexed("0e 00000002 00"), -2).expect(2, Done)
    script.sends(hexed("0e"), -2).feed(hexed("0f"), -2).output(Finish, channel=-2)
    script.quiet()


def test_auto_is_the_seeds_where_hello_is_no_first_byte() -> None:
    """It ends such a stream without a word (wire 2); what was asked meanwhile goes on in its dialect."""
    script = dialled(Dialect.AUTO, Transport.QUIC, "fujin").submit(publish(1, b"x")).sends(HELLO, -1)
    script.output(Open, token=-1)
    assert script.session.admitted is False
    script.eof(-1)
    assert script.session.admitted is True
    script.sends(hexed("01 00000000 03 00000001 00000003 707562 00000001 78"), -2).output(Open, token=-2)
    script.feed(hexed("02 00000001 00"), -2).expect(1, Published)


def test_auto_is_v1_where_quic_agreed_upon_that() -> None:
    script = dialled(Dialect.AUTO, Transport.QUIC, "fujin/1").sends(BIND, -1)
    script.output(Open, token=-1)
    script.eof(-1).output(Close)


@pytest.mark.parametrize("dialect", [Dialect.DOCUMENT, Dialect.STOCK])
def test_the_seeds_dialects_bind_nothing(dialect: Dialect) -> None:
    dialled(dialect, Transport.QUIC, "fujin").quiet()


def test_secrets_are_in_no_text() -> None:
    assert "secret" not in repr(attrs.asdict(ClientContext()))
    assert "secret" not in repr(Credentials(api_key="secret", token="secret", password="secret"))
