"""Transcripts of what belongs to the connection: pings, STOP, the end, back-pressure, settings."""

from __future__ import annotations

import pytest

from gateway.errors import Status
from gateway.protocols.fujin import SPEC
from gateway.protocols.fujin.server.stream import MOST_HELD
from gateway.protocols.fujin.settings import FujinSettings, PingSettings
from gateway.protocols.fujin.states import EVENTS, TABLE, Event, State
from gateway.protocols.fujin.wire import mapping
from gateway.requests import DONE, Begin, Begun, Publish, Published, Rollback, Subscribe, Subscribed, Take, Unsubscribe
from gateway.settings import Dialect, Limits, Seconds
from gateway.wire.session import LISTENER, Close, Finish, Kind, Open, Send, Spoken, StopSending
from tests.protocols.fujin.broker import CONNECT_WRITER, GOODBYE, READER_OK, fresh, reader, taken, writer
from tests.protocols.script import Script, hexed

WRITE = hexed("03 00000001 00000003 707562 00000005 68656c6c6f")
PING = b"\x0b"
STOP = b"\x0c"


def pinged(script: Script, token: int) -> Script:
    """A ping went out on a stream of its own, its byte and its end together (wire 0 rule 1)."""
    script.output(Open, token=token, kind=Kind.DUPLEX)
    script.sends(PING, token).output(Finish, channel=token)
    return script.quiet()


# --- PING (wire 1.2) ---


def test_pings_wait_for_the_first_byte() -> None:
    """Which generation the client is of shows only then (wire 6.1)."""
    script = fresh().pass_time(60).quiet()
    pinged(script.feed(CONNECT_WRITER).pass_time(2), -1)


def test_one_stream_per_ping() -> None:
    script = pinged(writer().pass_time(2), -1)
    script.feed(PING, -1).eof(-1).quiet()
    pinged(script.pass_time(2), -2)
    script.eof(-2)  # an empty stream is a pong as well
    pinged(script.pass_time(2), -3)
    script.feed(b"whatever", -3).eof(-3)
    pinged(script.pass_time(2), -4)


def test_pings_are_sequential() -> None:
    """The next one waits for the pong, and follows it at once when it is overdue."""
    script = pinged(writer().pass_time(2), -1)
    script.pass_time(4).quiet()
    pinged(script.eof(-1).pass_time(0), -2)


def test_a_client_that_does_not_answer_is_closed() -> None:
    script = pinged(writer().pass_time(2), -1)
    script.pass_time(4.9).quiet()
    script.pass_time(0.2).output(Close, code=3, reason="read: deadline exceeded")
    assert script.session.timeout_at() is None
    script.quiet()


@pytest.mark.parametrize("how", ["reset", "stopped"])
def test_a_refused_ping_closes(how: str) -> None:
    """RESET on the pong's side, a stream limit that is used up, STOP_SENDING: code 3."""
    script = pinged(writer().pass_time(2), -1)
    (script.reset if how == "reset" else script.stopped)(-1)
    script.output(Close, code=3)
    script.quiet()


def test_ping_settings() -> None:
    settings = FujinSettings(ping=PingSettings(interval=Seconds(10.0), timeout=Seconds(1.0)))
    script = pinged(writer(settings=settings).pass_time(10), -1)
    script.pass_time(1).output(Close, code=3)


# --- by which sign a dialect is known ---


@pytest.mark.parametrize(
    ("sent", "dialect", "sign"),
    [
        ("", "", "no sign yet"),
        # CONNECT WRITER: its id is a u32 in the document, a string in stock clients (wire 1.5, row 1)
        ("01 00000000", "seed's", "a stream that begins with CONNECT WRITER"),
        ("01 00000007 03", "document", "a CONNECT WRITER whose id is a number"),
        ("01 00000003 707562", "stock", "a CONNECT WRITER whose id is a text"),
        ("02 01 01 00000003 737562", "seed's", "a stream that begins with CONNECT READER"),
    ],
)
def test_a_dialect_is_told_with_its_sign(sent: str, dialect: str, sign: str) -> None:
    script = fresh().feed(hexed(sent))
    assert script.session.spoken == Spoken(dialect, sign)


def test_where_a_listener_says_the_dialect_there_is_no_other_sign() -> None:
    script = fresh(dialect=Dialect.STOCK)
    assert script.session.spoken == Spoken("stock", LISTENER)
    assert script.feed(hexed("01 00000000")).session.spoken == Spoken("stock", LISTENER)


# --- streams ---


def test_streams_are_independent() -> None:
    script = writer()
    script.open(4).feed(hexed("02 01 01 00000003 737562"), 4).answer(Subscribe, Subscribed(2, "sub")).sends(
        READER_OK, 4
    )
    script.feed(hexed("ff")).sends(GOODBYE).output(Finish, channel=0)
    script.output(StopSending, channel=0)
    script.pass_time(0.1).answer(Take, taken(b"x")).sends(hexed("06 00000001 78"), 4)


def test_unidirectional_streams_are_not_for_this_protocol() -> None:
    """wire 1.1."""
    script = fresh(limits=Limits())
    script.open(2, Kind.READ_ONLY).output(StopSending, channel=2)
    script.feed(CONNECT_WRITER, 2).quiet()


def test_bytes_for_a_stream_that_is_gone_are_nothing() -> None:
    script = writer().feed(GOODBYE).sends(GOODBYE)
    script.others.clear()
    script.feed(WRITE).eof().reset(0).stopped(0).room(0).quiet()


def test_a_flood_behind_a_waiting_command_stops_the_reading() -> None:
    script = fresh().feed(CONNECT_WRITER + hexed("04 00000001"))
    begin = script.expect(Begin)
    assert (script.session.in_flight, script.session.held) == (1, False)
    script.feed(WRITE * (MOST_HELD // len(WRITE) + 1))
    assert (script.session.in_flight, script.session.held) == (1, True)
    script.complete(begin, Begun("tx")).expect(Publish)
    assert (script.session.in_flight, script.session.held) == (1, False)


def test_pushing_is_not_work_in_flight() -> None:
    script = reader(push=True, auto=True)
    script.expect(Take)
    assert script.session.in_flight == 0


# --- STOP and the end (document, STOP; wire 1.4) ---


def test_drain_without_streams_closes_at_once() -> None:
    script = writer().feed(GOODBYE)
    script.sent()
    script.others.clear()
    script.drain().output(Close, code=0)
    script.quiet()


def test_drain_asks_every_stream_to_disconnect() -> None:
    script = writer().open(4)
    script.drain()
    assert script.history[-2:] == [Send(0, STOP, alone=True), Send(4, STOP, alone=True)]
    script.sent(0)
    script.sent(4)
    script.feed(WRITE).answer(Publish, Published("pub", 1)).sends(hexed("02 00000001 00"))  # still served
    script.feed(GOODBYE).sends(GOODBYE).output(Finish, channel=0)
    script.output(StopSending)
    script.eof(4).output(Finish, channel=4)
    script.output(Close, code=0)
    script.quiet()


def test_a_stream_that_opens_while_draining_hears_it() -> None:
    script = writer().drain().sends(STOP)
    script.open(4).sends(STOP, 4)


def test_a_client_that_ignores_stop_is_cut() -> None:
    """After the time of a pong: rollback, `0a`, FIN (wire 1.4)."""
    script = writer().feed(hexed("04 00000001")).answer(Begin, Begun("tx"))
    script.sent()
    script.drain().sends(STOP)
    script.pass_time(5)
    rollback = script.expect(Rollback, transaction="tx")
    script.sent(-1)
    script.others.clear()
    script.complete(rollback, DONE).sends(GOODBYE).output(Finish, channel=0)
    script.output(StopSending)
    script.output(Close, code=0)


def test_after_the_connection_is_lost_nothing_is_sent() -> None:
    script = writer().feed(WRITE)
    publish = script.expect(Publish)
    script.lost().complete(publish, Published("pub", 1)).quiet()
    assert script.session.timeout_at() is None


def test_a_closed_connection_still_gives_back_its_readers() -> None:
    script = reader(push=True, auto=False)
    script.expect(Take)
    script.pass_time(10)
    script.others.clear()
    script.sent(-1)
    script.lost().answer(Unsubscribe, DONE)


# --- the rest ---


def test_every_command_byte_is_an_event_of_the_table() -> None:
    assert set(EVENTS) == set(range(1, 11))
    assert {event for _, event in TABLE} == set(Event)
    assert all((state, Event.END) in TABLE for state in State if state is not State.ENDING)


@pytest.mark.parametrize("status", Status)
def test_every_status_can_be_said(status: Status) -> None:
    """Never empty, never too long (wire 0 rule 7)."""
    assert 0 < len(mapping.WORDS[status].encode()) < 100


def test_what_the_house_knows() -> None:
    assert (SPEC.name, SPEC.alpns, SPEC.default_port) == ("fujin", ("fujin", "fujin/1"), 4848)
    assert (SPEC.carries.min_value, SPEC.carries.max_value) == (1, 65_536)
