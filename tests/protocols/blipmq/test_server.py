"""Transcripts of the serving side: what each frame asks for, what goes out, in which order, and what closes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import Delivery
from gateway.errors import (
    CorruptChunk,
    Denied,
    NotRouted,
    StoreReadOnly,
    Throttled,
    TooLarge,
    Unauthenticated,
    UnknownSubscription,
)
from gateway.protocols.blipmq import SPEC
from gateway.protocols.blipmq.server.session import BlipmqServer
from gateway.protocols.blipmq.settings import BlipmqSettings
from gateway.protocols.blipmq.states import REFUSALS, TABLE, Event, State
from gateway.protocols.blipmq.wire import codec, mapping
from gateway.protocols.registry import Sniff
from gateway.requests import (
    DONE,
    Authenticate,
    Cancel,
    Identity,
    Publish,
    Published,
    Redelivery,
    Settle,
    Settled,
    Start,
    Subscribe,
    Subscribed,
    Take,
)
from gateway.settings import Backoff, Limits, Seconds
from gateway.wire.session import Close, Send, SessionContext
from tests.protocols.blipmq import vectors
from tests.protocols.blipmq.broker import NOTHING, fresh, qos0, qos1, ready, subscribed, taken
from tests.protocols.blipmq.vectors import LENGTHS_THAT_CLOSE, REFUSED, Refused
from tests.protocols.script import Script, hexed

IDENTITY = Identity(authenticated=True)
STORED = Published("demo", 1)


def nack(cid: int, refusal: mapping.NackText) -> bytes:
    return codec.nack(cid, refusal)


# --- handshake (wire 1.2) ---


def test_handshake_step_by_step() -> None:
    script = fresh()
    script.feed(vectors.HELLO).sends(vectors.HELLO_DONE)
    assert not script.session.handshaken
    script.feed(vectors.AUTH)
    script.answer(Authenticate, IDENTITY, api_key="bench-key").sends(vectors.AUTH_DONE).quiet()
    assert script.session.handshaken


def test_handshake_and_more_in_one_read() -> None:
    """What follows AUTH waits until the key is checked."""
    script = fresh()
    script.feed(vectors.HELLO + vectors.AUTH + vectors.PING + vectors.PUBLISH).sends(vectors.HELLO_DONE)
    login = script.expect(Authenticate)
    script.quiet()
    script.complete(login, IDENTITY).sends(vectors.AUTH_DONE + vectors.PONG)
    script.answer(Publish, STORED).quiet()


def test_nothing_is_read_while_a_key_is_checked() -> None:
    session = BlipmqServer(SessionContext("blipmq", BlipmqSettings(), auth_required=True))
    script = Script(session)
    script.feed(vectors.HELLO + vectors.AUTH)
    assert not session.held
    script.feed(vectors.PING * 5000)
    assert not session.held
    script.feed(vectors.PING)
    script.feed(vectors.PING * 50)
    assert session.held
    assert session.in_flight < 7, "it is no limit"
    script.answer(Authenticate, IDENTITY).sends(vectors.HELLO_DONE + vectors.AUTH_DONE + vectors.PONG * 5051)
    assert (session.held, session.in_flight) == (False, 0)


def test_without_keys_any_key_is_good() -> None:
    script = Script(BlipmqServer(SessionContext("blipmq", BlipmqSettings(), auth_required=False)))
    script.feed(vectors.HELLO + vectors.AUTH + vectors.PING)
    script.sends(vectors.HELLO_DONE + vectors.AUTH_DONE + vectors.PONG).quiet()


def test_a_wrong_version_may_be_corrected() -> None:
    script = fresh()
    script.feed(vectors.answer_to("1.7, HELLO v2")).sends(vectors.answer_to("1.7, NACK 426"))
    script.feed(vectors.HELLO).sends(vectors.HELLO_DONE).quiet()


def test_hello_twice() -> None:
    script = fresh()
    again = hexed("00 00 00 0b 01 00 00 00 00 00 00 00 0e 00 01")
    script.feed(vectors.HELLO).sends(vectors.HELLO_DONE)
    script.feed(again).sends(vectors.answer_to("1.7, HELLO twice"))
    empty = hexed("00 00 00 09 01 00 00 00 00 00 00 00 0e")  # the payload is not even parsed
    script.feed(empty).sends(vectors.answer_to("1.7, HELLO twice")).quiet()


def test_hello_empty() -> None:
    fresh().feed(hexed("00 00 00 09 01 00 00 00 00 00 00 00 0b")).sends(vectors.answer_to("1.7, HELLO empty")).quiet()


def test_auth_before_hello() -> None:
    fresh().feed(vectors.answer_to("1.7, AUTH")).sends(vectors.answer_to("1.7, AUTH before HELLO")).quiet()


def test_auth_wrong_may_be_repeated() -> None:
    script = fresh()
    script.feed(vectors.HELLO).sends(vectors.HELLO_DONE)
    for _ in range(3):
        script.feed(vectors.answer_to("1.7, AUTH wrong"))
        script.answer(Authenticate, Unauthenticated(), api_key="nope")
        script.sends(vectors.answer_to("1.7, NACK of a wrong AUTH"))
    script.feed(vectors.AUTH)
    script.answer(Authenticate, IDENTITY).sends(vectors.AUTH_DONE).quiet()


def test_auth_malformed() -> None:
    script = fresh()
    script.feed(vectors.HELLO).sends(vectors.HELLO_DONE)
    script.feed(hexed("00 00 00 09 02 00 00 00 00 00 00 00 10"))
    script.sends(vectors.answer_to("1.7, NACK of a malformed AUTH")).quiet()


def test_auth_twice() -> None:
    script = ready()
    script.feed(hexed("00 00 00 09 02 00 00 00 00 00 00 00 13")).sends(vectors.answer_to("1.7, AUTH twice")).quiet()


@pytest.mark.parametrize("kind", range(3, 10))
@pytest.mark.parametrize("greeted", [False, True])
def test_everything_else_needs_auth(kind: int, *, greeted: bool) -> None:
    """PONG, NACK and ACK too (wire 1.2)."""
    script = fresh()
    if greeted:
        script.feed(vectors.HELLO).sends(vectors.HELLO_DONE)
    script.feed(hexed("00 00 00 09") + bytes((kind,)) + hexed("00 00 00 00 00 00 00 09"))
    script.sends(vectors.answer_to("1.7, PING before auth")).quiet()


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", [Event.HELLO, Event.AUTH, Event.OPERATION])
def test_the_ladder_is_total(state: State, event: Event) -> None:
    """Every frame in every state in which frames are parsed is either allowed or refused with words."""
    if state is not State.CHECKING:
        assert ((state, event) in TABLE) != ((state, event) in REFUSALS)


# --- requests and replies (wire 1.3) ---


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.origin)
def test_refused_payloads(case: Refused) -> None:
    ready().feed(case.data).sends(case.nack).quiet()


def test_a_ping_is_answered_empty() -> None:
    ready().feed(vectors.PING).sends(vectors.PONG).feed(hexed("0000000a 07 0000000000000015 ff")).sends(
        vectors.PONG
    ).quiet()


def test_pong_and_nack_from_a_client_are_not_looked_at() -> None:
    ready().feed(hexed("0000000a 08 0000000000000015 ff 0000000a 06 0000000000000015 ff")).quiet()


def test_subscribe_asks_for_all_that_the_protocol_promises() -> None:
    settings = BlipmqSettings(max_deliveries=5, backoff=Backoff(Seconds(0.2), Seconds(7.0)), grace=Seconds(60.0))
    script = ready(settings)
    script.feed(vectors.SUBSCRIBE)
    request = script.expect(
        Subscribe,
        address="demo",
        name="",
        start=Start.LATEST,
        acknowledge=True,
        redelivery=Redelivery(5, 0.2, 7.0),
        durable_grace=60.0,
        largest_value=16_777_216 - 9 - 3 - 4,
    )
    script.complete(request, Subscribed(2, "demo")).sends(vectors.SUBSCRIBED).quiet()


def test_subscribe_qos0() -> None:
    script = ready()
    script.feed(vectors.SUBSCRIBE[:-1] + b"\x00").expect(Subscribe, acknowledge=False)


def test_subscribe_refused() -> None:
    script = ready()
    script.feed(vectors.SUBSCRIBE).answer(Subscribe, NotRouted("no route for demo"))
    script.sends(nack(3, mapping.NackText(404, "no route for demo")))


def test_publish_has_no_reply() -> None:
    script = ready()
    request = script.feed(vectors.PUBLISH).expect(Publish)
    assert request.batch.address == "demo"
    assert request.batch.columns.values() == [b"hi"]
    assert request.batch.delivery is Delivery.AT_LEAST_ONCE
    script.complete(request, STORED).quiet()
    assert script.session.in_flight == 0


def test_neighbours_of_one_topic_and_qos_are_one_batch() -> None:
    script = ready()
    sent = [(1, "a", b"1"), (1, "a", b"2"), (0, "a", b"3"), (0, "b", b"4"), (0, "b", b"5"), (1, "a", b"6")]
    script.feed(b"".join(codec.publish(n, *message) for n, message in enumerate(sent)))
    batches = [script.expect(Publish).batch for _ in range(4)]
    assert [(batch.address, int(batch.delivery), batch.columns.values()) for batch in batches] == [
        ("a", 1, [b"1", b"2"]),
        ("a", 0, [b"3"]),
        ("b", 0, [b"4", b"5"]),
        ("a", 1, [b"6"]),
    ]
    script.quiet()


def test_an_empty_message_is_a_message() -> None:
    script = ready()
    assert script.feed(codec.publish(1, 0, "a", b"")).expect(Publish).batch.columns.values() == [b""]


def test_a_refused_batch_is_refused_message_by_message() -> None:
    script = ready()
    script.feed(codec.publish(0xBF1B, 1, "demo", b"x") + codec.publish(7, 1, "demo", b"y"))
    script.answer(Publish, Throttled("wal overload: wal channel full"))
    script.sends(
        vectors.answer_to("1.7, overload")
        + nack(7, mapping.NackText(500, "durable publish failed: wal overload: wal channel full"))
    ).quiet()


def test_members_refused_out_of_a_batch() -> None:
    script = ready()
    script.feed(b"".join(codec.publish(cid, 1, "demo", b"x") for cid in (10, 11, 12)))
    script.answer(Publish, Published("demo", 1, refused={2: TooLarge("too long"), 1: Denied("not you")}))
    script.sends(nack(11, mapping.NackText(401, "not you")) + nack(12, mapping.NackText(400, "too long"))).quiet()


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (NotRouted("no route"), mapping.NackText(404, "no route")),
        (Denied("unauthorized"), mapping.NackText(401, "unauthorized")),
        (TooLarge("too large"), mapping.NackText(400, "too large")),
        (StoreReadOnly("disk full"), mapping.NackText(500, "durable publish failed: disk full")),
        (Throttled("é" * 2000), mapping.NackText(500, "durable publish failed: " + "é" * 500)),
    ],
)
def test_what_a_publisher_is_told(error: Exception, refusal: mapping.NackText) -> None:
    script = ready()
    script.feed(vectors.PUBLISH).answer(Publish, error).sends(nack(4, refusal)).quiet()  # type: ignore[arg-type]


def test_ack_settles_and_is_silent() -> None:
    script = subscribed()
    script.feed(vectors.ACK).answer(Settle, Settled([None]), subscription=2, tags=[1], accepted=True).quiet()


def test_ack_of_what_nobody_knows() -> None:
    script = subscribed()
    script.feed(vectors.ACK).answer(Settle, Settled([UnknownSubscription()])).sends(vectors.UNKNOWN_TAG)
    script.feed(vectors.ACK).answer(Settle, UnknownSubscription()).sends(vectors.UNKNOWN_TAG).quiet()


def test_neighbouring_acks_are_settled_together() -> None:
    script = subscribed()
    script.feed(codec.ack(5, 2) + codec.ack(6, 2) + codec.ack(7, 3) + codec.ack(8, 2) + vectors.PING + codec.ack(9, 2))
    requests = [script.expect(Settle) for _ in range(4)]
    assert [(request.subscription, list(request.tags)) for request in requests] == [
        (2, [5, 6]),
        (3, [7]),
        (2, [8]),
        (2, [9]),
    ]
    for request in reversed(requests):
        script.complete(request, Settled([UnknownSubscription() if tag in {6, 9} else None for tag in request.tags]))
    script.sends(nack(6, mapping.UNKNOWN_TAG) + vectors.PONG + nack(9, mapping.UNKNOWN_TAG)).quiet()


def test_an_ack_in_a_later_read_does_not_join_one_that_was_handed_over() -> None:
    script = subscribed()
    first = script.feed(codec.ack(5, 2)).expect(Settle)
    second = script.feed(codec.ack(6, 2)).expect(Settle)
    assert (list(first.tags), list(second.tags)) == ([5], [6])


# --- order (wire 1.5) ---


def test_a_pong_is_the_publish_barrier() -> None:
    script = ready()
    script.feed(codec.publish(1, 1, "a", b"1") + codec.publish(2, 1, "b", b"2") + vectors.PING)
    first, second = script.expect(Publish), script.expect(Publish)
    script.complete(second, STORED).quiet()
    script.complete(first, STORED).sends(vectors.PONG).quiet()


def test_refusals_stand_before_the_pong() -> None:
    script = ready()
    script.feed(vectors.PUBLISH + vectors.PING)
    script.answer(Publish, StoreReadOnly("disk full"))
    script.sends(nack(4, mapping.NackText(500, "durable publish failed: disk full")) + vectors.PONG).quiet()


def test_a_bad_publish_does_not_spoil_its_neighbours() -> None:
    script = ready()
    script.feed(vectors.PUBLISH + REFUSED[3].data + vectors.PUBLISH + vectors.PING)
    first, second = script.expect(Publish), script.expect(Publish)
    script.complete(first, STORED).sends(REFUSED[3].nack)
    script.complete(second, STORED).sends(vectors.PONG).quiet()


def test_one_segment_is_answered_in_its_order() -> None:
    """SUBSCRIBE, PUBLISH a, PUBLISH b, POLL, POLL, POLL, PING -> ACK, a, b, PONG; the third POLL is silent (wire 1.5)."""
    script = ready()
    polls = b"".join(codec.poll(cid, 2) for cid in (60, 61, 62))
    published = codec.publish(40, 1, "demo", b"a") + codec.publish(41, 1, "demo", b"b")
    script.feed(vectors.SUBSCRIBE + published + polls + vectors.PING)
    script.answer(Subscribe, Subscribed(2, "demo")).answer(Publish, STORED)
    script.answer(Take, taken(*qos1(b"a", b"b")), subscription=2, max_messages=3, hold_until=None)
    script.sends(vectors.SUBSCRIBED + codec.publish(1, 1, "demo", b"a") + codec.publish(2, 1, "demo", b"b"))
    script.answer(Take, NOTHING, max_messages=1, hold_until=None).sends(vectors.PONG).quiet()


# --- polling (wire 1.4, 7.1) ---


def test_poll_delivers_with_the_tag() -> None:
    script = subscribed()
    script.feed(vectors.POLL)
    take = script.expect(Take, subscription=2, max_messages=1, hold_until=script.now + 0.04)
    script.complete(take, taken(*qos1(b"hi"))).sends(vectors.DELIVERY).quiet()
    assert script.session.in_flight == 0


def test_the_topic_of_a_delivery_is_the_subscribers_address() -> None:
    script = subscribed()
    script.feed(vectors.POLL).answer(Take, taken(*qos1(b"hi"), address="view/of it", first_tag=9))
    script.sends(codec.publish(9, 1, "view/of it", b"hi"))


def test_qos_is_the_lower_of_both() -> None:
    """Subscription 1, message 0: cid of the POLL, settled here as nobody will acknowledge it (wire 1.4, 2)."""
    script = subscribed()
    poll = codec.poll(0x47, 2)
    script.feed(poll).answer(Take, taken(*qos0(b"zero"), first_tag=7))
    script.sends(vectors.answer_to("1.7, qos0 delivery"))
    script.answer(Settle, Settled([None]), subscription=2, tags=[7], accepted=True).quiet()


def test_what_is_settled_as_it_was_handed_out_is_not_settled_again() -> None:
    """The broker is told that nobody will acknowledge QoS 0, and says whether it has seen to that."""
    script = subscribed()
    script.feed(b"".join(codec.poll(cid, 2) for cid in (0x47, 0x48, 0x49)))
    take = script.expect(Take, max_messages=3, at_most_once_settled=True)
    script.complete(take, taken(*qos0(b"zero"), first_tag=7, settled=True)).sends(
        vectors.answer_to("1.7, qos0 delivery")
    )
    script.answer(Take, taken(*qos0(b"a", b"b"), first_tag=8, settled=True), max_messages=2)
    script.sends(codec.publish(0x48, 0, "demo", b"a") + codec.publish(0x49, 0, "demo", b"b")).quiet()


def test_a_qos0_subscription_never_settles() -> None:
    script = subscribed(qos=0)
    script.feed(codec.poll(0x47, 2)).answer(Take, taken(*qos1(b"zero"), acknowledge=False))
    script.sends(vectors.answer_to("1.7, qos0 delivery")).quiet()


def test_mixed_qos_in_one_take() -> None:
    script = subscribed()
    script.feed(b"".join(codec.poll(cid, 2) for cid in range(50, 54)))
    messages = [*qos1(b"a"), *qos0(b"b", b"c"), *qos1(b"d")]
    script.answer(Take, taken(*messages, first_tag=20), max_messages=4)
    script.sends(
        codec.publish(20, 1, "demo", b"a")
        + codec.publish(51, 0, "demo", b"b")
        + codec.publish(52, 0, "demo", b"c")
        + codec.publish(23, 1, "demo", b"d")
    )
    script.answer(Settle, Settled([None, None]), tags=[21, 22]).quiet()


def test_an_empty_poll_is_silent() -> None:
    script = subscribed()
    script.feed(vectors.POLL).answer(Take, NOTHING).quiet()
    assert script.session.in_flight == 0


def test_a_poll_of_an_unknown_subscription_is_silent() -> None:
    script = ready()
    script.feed(codec.poll(1, 99) + vectors.PING).answer(Take, UnknownSubscription()).sends(vectors.PONG).quiet()


def test_a_poll_that_meets_damage_says_so() -> None:
    script = subscribed()
    script.feed(vectors.POLL).answer(Take, CorruptChunk("demo", 0, 3, 9))
    script.sends(nack(60, mapping.NackText(500, "damaged chunk: topic=demo partition=0 offsets=[3, 9)"))).quiet()


def test_a_held_poll_does_not_hold_up_a_pong() -> None:
    script = subscribed()
    take = script.feed(vectors.POLL).expect(Take)
    script.feed(vectors.PING)
    script.answer(Cancel, DONE, request=take.id)
    script.complete(take, NOTHING).sends(vectors.PONG).quiet()


def test_what_a_given_up_poll_still_got_is_delivered_first() -> None:
    script = subscribed()
    take = script.feed(vectors.POLL).expect(Take)
    cancel = script.feed(vectors.PING).expect(Cancel)
    script.complete(take, taken(*qos1(b"hi"))).complete(cancel, DONE).sends(vectors.DELIVERY + vectors.PONG).quiet()


def test_a_poll_is_given_up_once_the_publishes_before_it_are_done() -> None:
    script = subscribed()
    script.feed(vectors.PUBLISH + vectors.POLL)
    publish, take = script.expect(Publish), script.expect(Take)
    script.feed(vectors.PING).quiet()  # the Take may not even have begun
    script.complete(publish, STORED)
    script.expect(Cancel, request=take.id)
    script.complete(take, taken(*qos1(b"hi"))).sends(vectors.DELIVERY + vectors.PONG).quiet()


def test_a_held_poll_does_not_hold_up_another_subscriptions_poll() -> None:
    script = subscribed()
    first = script.feed(vectors.POLL).expect(Take)
    script.feed(codec.poll(61, 3)).expect(Cancel, request=first.id)
    script.complete(first, NOTHING)
    second = script.expect(Take, subscription=3, hold_until=script.now + 0.04)
    script.complete(second, taken(*qos1(b"x"), first_tag=5)).sends(codec.publish(5, 1, "demo", b"x")).quiet()


def test_polls_that_find_too_little_are_held_on() -> None:
    script = subscribed()
    script.feed(codec.poll(60, 2) + codec.poll(61, 2))
    until = script.now + 0.04
    script.answer(Take, taken(*qos1(b"a")), max_messages=2, hold_until=until).sends(codec.publish(1, 1, "demo", b"a"))
    script.answer(Take, taken(*qos1(b"b"), first_tag=2), max_messages=1, hold_until=until)
    script.sends(codec.publish(2, 1, "demo", b"b")).quiet()


def test_polls_of_later_reads_join_the_ones_that_wait() -> None:
    script = subscribed()
    first = script.feed(codec.poll(60, 2)).expect(Take)
    script.now += 0.03
    script.feed(codec.poll(61, 2)).quiet()
    script.now += 0.01
    script.complete(first, NOTHING)
    script.answer(Take, taken(*qos0(b"x")), max_messages=1, hold_until=script.now + 0.03)
    script.sends(codec.publish(61, 0, "demo", b"x"))


def test_many_polls_take_in_bounded_steps_and_wait_for_the_reader() -> None:
    limits = Limits(output=4096)  # type: ignore[arg-type]
    session = BlipmqServer(SessionContext("blipmq", BlipmqSettings(), limits=limits))
    script = Script(session)
    script.feed(vectors.HELLO + vectors.AUTH).sent()
    script.feed(b"".join(codec.poll(cid, 2) for cid in range(2000)))
    assert session.in_flight >= 2000, "the driver must see them and stop reading"
    take = script.expect(Take, max_messages=1024)
    script.complete(take, taken(*qos1(*[b"v" * 100] * 10)))
    assert script.history[-1] == Send(0, script.sent(), notify=True)
    script.quiet()  # the peer has not read these yet: nothing more is taken
    script.room()
    script.answer(Take, NOTHING, max_messages=1024)
    script.answer(Take, NOTHING, max_messages=2000 - 10 - 1024).quiet()
    assert session.in_flight == 0


def test_each_poll_of_many_is_answered_with_its_cid() -> None:
    """QoS 0, and the lower QoS of both: whatever stands between them, and however little there is at a time."""
    script = subscribed(qos=0)
    polls = [struct.pack(">IBQQ", 17, 9, cid, 2) for cid in range(1 << 32, (1 << 32) + 300)]
    values = [b"%03d" % number for number in range(300)]
    expected = [
        struct.pack(">IBQBH", 19, 3, cid, 0, 4) + b"demo" + value
        for cid, value in zip(range(1 << 32, (1 << 32) + 300), values, strict=True)
    ]
    script.feed(b"".join(polls[:200]) + codec.pong(1) + b"".join(polls[200:])[:-1])
    script.answer(Take, taken(*qos0(*values[:120]), acknowledge=False), max_messages=299)
    script.sends(b"".join(expected[:120]))
    script.feed(polls[-1][-1:])
    script.answer(Take, taken(*qos0(*values[120:299]), acknowledge=False), max_messages=179)
    script.sends(b"".join(expected[120:299]))
    script.answer(Take, taken(*qos0(values[299]), acknowledge=False), max_messages=1)
    script.sends(expected[299]).quiet()
    assert script.session.in_flight == 0


# --- framing and closing (wire 1.6) ---


def test_good_frames_before_a_bad_one_are_answered() -> None:
    """PING + bad type + PING -> one PONG, then the end."""
    bad = hexed("00 00 00 09 0a 00 00 00 00 00 00 00 00")
    script = ready().feed(vectors.PING + bad + vectors.PING).sends(vectors.PONG)
    script.output(Close)
    script.feed(vectors.PING).quiet()


def test_a_bad_type_closes_only_once_its_frame_is_whole() -> None:
    bad = hexed("00 00 00 0a 0a 00 00 00 00 00 00 00 00 ff")
    script = ready().feed(bad[:-1]).quiet().feed(bad[-1:])
    script.output(Close)
    script.quiet()


@pytest.mark.parametrize("length", LENGTHS_THAT_CLOSE)
def test_bad_lengths_close_at_once(length: int) -> None:
    script = fresh().feed(length.to_bytes(4))
    script.output(Close)
    script.quiet()


@pytest.mark.parametrize("greeting", [b"", vectors.HELLO])
def test_before_the_login_a_frame_is_no_longer_than_a_login_can_be(greeting: bytes) -> None:
    longest = 9 + 2 + 65_535
    script = fresh().feed(greeting)
    script.sent()
    script.feed(longest.to_bytes(4)).quiet()
    script = fresh().feed(greeting)
    script.sent()
    script.feed((longest + 1).to_bytes(4))
    script.output(Close)
    script.quiet()


def test_the_largest_frame_is_accepted() -> None:
    """16 MiB of length: a PUBLISH that fills it (wire 1.1)."""
    script = ready()
    frame = codec.publish(1, 0, "a", bytes(16_777_216 - 9 - 4))
    assert frame[:4] == hexed("01 00 00 00")
    for at in range(0, len(frame), 1 << 20):
        script.feed(frame[at : at + (1 << 20)])
    assert script.expect(Publish).batch.columns.value_bytes == 16_777_216 - 9 - 4


def test_closing_waits_for_the_publishes_before_it() -> None:
    script = ready().feed(vectors.PUBLISH + vectors.PING + bytes(4))
    publish = script.expect(Publish)
    script.quiet()
    script.complete(publish, STORED).sends(vectors.PONG).output(Close)
    script.quiet()


def test_half_closed_is_answered_and_closed() -> None:
    """Wire 1.5."""
    script = ready().feed(vectors.PUBLISH + vectors.PING)
    publish = script.expect(Publish)
    script.eof().quiet()
    script.complete(publish, STORED).sends(vectors.PONG).output(Close)


def test_half_closed_while_the_key_is_checked() -> None:
    script = fresh().feed(vectors.HELLO + vectors.AUTH + vectors.PING).eof()
    script.answer(Authenticate, IDENTITY).sends(vectors.HELLO_DONE + vectors.AUTH_DONE + vectors.PONG).output(Close)


def test_eof_gives_up_a_held_poll() -> None:
    script = subscribed()
    take = script.feed(vectors.POLL).expect(Take)
    script.eof().expect(Cancel, request=take.id)
    script.complete(take, NOTHING).output(Close)
    script.quiet()


def test_drain_of_an_idle_connection_closes_at_once() -> None:
    script = ready().drain()
    script.output(Close)
    script.quiet()


def test_drain_finishes_what_is_in_flight() -> None:
    script = subscribed()
    script.feed(vectors.PUBLISH + vectors.PING + vectors.POLL)
    publish, take = script.expect(Publish), script.expect(Take)
    script.drain().feed(vectors.PING).quiet()
    script.complete(publish, STORED).sends(vectors.PONG)
    script.expect(Cancel, request=take.id)
    script.complete(take, NOTHING).output(Close)
    script.quiet()


def test_lost_gives_back_what_a_held_poll_would_get() -> None:
    script = subscribed()
    take = script.feed(vectors.POLL).expect(Take)
    script.lost().expect(Cancel, request=take.id)
    script.complete(take, taken(*qos1(b"hi"))).quiet()


DIALOGUE = (
    vectors.HELLO
    + vectors.AUTH
    + vectors.SUBSCRIBE
    + b"".join(codec.publish(cid, cid % 2, "demo", b"x" * (cid % 5)) for cid in range(40))
    + b"".join(case.data for case in REFUSED)
    + vectors.POLL
    + vectors.ACK
    + vectors.PING
)


def serve(script: Script) -> bytes:
    """Answer everything; returns what went out."""

    def broker(request: object) -> object:
        match request:
            case Authenticate():
                return IDENTITY
            case Subscribe():
                return Subscribed(2, "demo")
            case Publish():
                messages.extend(request.batch.columns.values())
                return Published("demo", 1)
            case Take():
                return NOTHING
            case Settle():
                return Settled([UnknownSubscription()])
            case _:
                return DONE

    messages: list[bytes] = []
    script.serve(broker)  # type: ignore[arg-type]
    script.messages = [*getattr(script, "messages", []), *messages]  # type: ignore[attr-defined]
    return script.sent()


def whole_dialogue() -> tuple[bytes, list[bytes]]:
    script = fresh()
    sent = serve(script.feed(DIALOGUE))
    return sent, script.messages  # type: ignore[attr-defined]


def test_split_at_every_byte() -> None:
    sent, messages = whole_dialogue()
    assert len(messages) == 40
    for cut in range(1, len(DIALOGUE)):
        script = fresh()
        first = serve(script.feed(DIALOGUE[:cut]))
        assert first + serve(script.feed(DIALOGUE[cut:])) == sent, f"cut at {cut}"
        assert script.messages == messages  # type: ignore[attr-defined]


@given(st.lists(st.integers(1, 97), min_size=1))
def test_any_chunking_says_the_same(sizes: list[int]) -> None:
    script = fresh()
    sent = b""
    at = turn = 0
    while at < len(DIALOGUE):
        size = sizes[turn % len(sizes)]
        sent += serve(script.feed(DIALOGUE[at : at + size]))
        at, turn = at + size, turn + 1
    assert (sent, script.messages) == whole_dialogue()  # type: ignore[attr-defined]


@given(st.binary(max_size=300), st.booleans())
def test_garbage_harms_nobody(garbage: bytes, logged_in: bool) -> None:
    script = ready() if logged_in else fresh()
    serve(script.feed(garbage))
    serve(script.eof())
    assert isinstance(script.history[-1], Close)


@pytest.mark.parametrize(
    ("head", "verdict"),
    [
        (b"", Sniff.MORE),
        (b"\x00", Sniff.YES),
        (vectors.HELLO, Sniff.YES),
        (hexed("01 00 00 00 03"), Sniff.YES),
        (hexed("01 00 00 01"), Sniff.NO),
        (b"\xaf", Sniff.NO),
        (b"\x16\x03\x01", Sniff.NO),
    ],
)
def test_sniffing(head: bytes, verdict: Sniff) -> None:
    assert SPEC.sniff is not None
    assert SPEC.sniff(head) is verdict


ALONE = (
    vectors.POLL,
    vectors.ACK,
    vectors.PING,
    vectors.PUBLISH,
    codec.poll(61, 3),
    codec.ack(8, 3),
    codec.poll(62, 0),
)
"""Frames that come one by one, the last of which is refused."""
TAKEN = (
    NOTHING,
    UnknownSubscription(),
    taken(*qos1(b"hi"), first_tag=7),
    taken(*qos0(b"hi"), first_tag=8),
    taken(*qos1(b"hi"), acknowledge=False),
)


@given(st.lists(st.tuples(st.sampled_from(ALONE), st.none() | st.sampled_from(TAKEN))))
def test_a_frame_in_one_read_is_what_it_is_byte_by_byte(steps: list[tuple[bytes, object]]) -> None:
    """Whatever is under way before it: nothing, or what is answered later."""
    scripts = subscribed(), subscribed()

    def answer(outcome: object, request: object) -> object:
        if isinstance(request, Take):
            return outcome
        return {Publish: STORED, Settle: Settled([UnknownSubscription()]), Cancel: DONE}[type(request)]

    for frame, outcome in [*steps, (vectors.PING, NOTHING)]:
        scripts[0].feed(frame)
        scripts[1].feed_each_byte(frame)
        first, second = ([one for one in script.asked if not isinstance(one, Publish)] for script in scripts)
        assert first == second
        assert len(scripts[0].asked) == len(scripts[1].asked)
        if outcome is not None:
            for script in scripts:
                script.serve(lambda request, outcome=outcome: answer(outcome, request))
        assert scripts[0].sent() == scripts[1].sent()
        assert scripts[0].session.in_flight == scripts[1].session.in_flight
