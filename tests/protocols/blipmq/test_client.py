"""Transcripts of the client side against raw bytes of a broker (wire 7.2)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import Batch, Columns, Delivery
from gateway.errors import (
    LONGEST_TARGET_TEXT,
    Status,
    TargetLost,
    TargetRefused,
    TooLarge,
    UnknownSubscription,
    Unsupported,
)
from gateway.protocols.blipmq.client.exchange import FIRST_POLLS, LOCAL_TAG, MOST_HELD, MOST_POLLS, ROUND
from gateway.protocols.blipmq.client.session import BlipmqClient
from gateway.protocols.blipmq.wire import codec
from gateway.protocols.blipmq.wire.frames import LARGEST_PUBLISH
from gateway.protocols.blipmq.wire.mapping import NackText
from gateway.requests import (
    Cancel,
    CreateTopic,
    Done,
    Publish,
    Published,
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
from gateway.wire.session import ClientContext, Close, Credentials
from tests.protocols.blipmq import vectors
from tests.protocols.script import ClientScript, hexed

GREETING = vectors.HELLO + vectors.AUTH
"""cid 1 and 2: what follows begins at 3."""


def dialled() -> ClientScript:
    return ClientScript(BlipmqClient(ClientContext(Credentials(api_key="bench-key"))))


def ready() -> ClientScript:
    return dialled().sends(GREETING).feed(vectors.HELLO_DONE + vectors.AUTH_DONE)


def subscribed(*, acknowledge: bool = True) -> ClientScript:
    """With subscription 2 on `demo`; the next cid is 4."""
    script = ready().submit(Subscribe(1, "demo", acknowledge=acknowledge))
    script.sends(codec.subscribe(3, "demo", int(acknowledge))).feed(vectors.SUBSCRIBED)
    script.expect(1, Subscribed, subscription=2, address="demo")
    return script.quiet()


def publish(number: int, *values: bytes, delivery: Delivery = Delivery.AT_LEAST_ONCE) -> Publish:
    return Publish(number, Batch("demo", Columns.of(values), delivery))


def nack(cid: int, code: int, text: str) -> bytes:
    return codec.nack(cid, NackText(code, text))


def test_requests_wait_for_the_handshake() -> None:
    script = dialled().submit(publish(1, b"hi")).sends(GREETING)
    script.feed(vectors.HELLO_DONE).quiet()
    script.feed(vectors.AUTH_DONE).sends(codec.publish(3, 1, "demo", b"hi") + codec.ping(4)).quiet()


def test_a_refused_key_ends_everything() -> None:
    script = dialled().submit(publish(1, b"hi")).sends(GREETING)
    script.feed(vectors.HELLO_DONE + nack(2, 401, "invalid API key"))
    refused = script.expect(1, TargetRefused, refusal=Status.UNAUTHENTICATED, final=True)
    assert refused.message == "401 invalid API key"
    assert script.session.admitted is refused
    script.output(Close)
    script.submit(publish(2, b"hi")).expect(2, TargetRefused)
    script.lost().quiet()


def test_a_refused_version_is_final() -> None:
    script = dialled().submit(publish(1, b"hi")).sends(GREETING)
    script.feed(nack(1, 426, "unsupported protocol version") + nack(2, 400, "HELLO not performed"))
    script.expect(1, TargetRefused, final=True)
    script.output(Close)
    script.quiet()


def test_publish_is_confirmed_by_the_pong() -> None:
    script = ready().submit(publish(1, b"a", b"b", delivery=Delivery.AT_MOST_ONCE))
    script.sends(codec.publish(3, 0, "demo", b"a") + codec.publish(4, 0, "demo", b"b") + codec.ping(5)).quiet()
    script.feed(codec.pong(5)).expect(1, Published, topic_address="demo", refused={})
    script.quiet()


def test_publishes_overlap() -> None:
    script = ready().submit(publish(1, b"a")).submit(publish(2, b"b"))
    script.sends(codec.publish(3, 1, "demo", b"a") + codec.ping(4) + codec.publish(5, 1, "demo", b"b") + codec.ping(6))
    script.feed(codec.pong(4) + nack(5, 500, "durable publish failed: wal writer stopped") + codec.pong(6))
    script.expect(1, Published)
    error = script.expect(2, TargetRefused, final=False, refusal=Status.UNAVAILABLE)
    assert "wal writer stopped" in error.message
    script.quiet()


@pytest.mark.parametrize(
    ("code", "final"), [(400, True), (401, True), (404, False), (426, True), (500, False), (999, False)]
)
def test_which_refusals_are_final(code: int, *, final: bool) -> None:
    script = ready().submit(publish(1, b"a")).sends(codec.publish(3, 1, "demo", b"a") + codec.ping(4))
    script.feed(nack(3, code, "no") + codec.pong(4)).expect(1, TargetRefused, final=final)


def test_members_refused_out_of_a_batch() -> None:
    script = ready().submit(publish(1, b"a", b"b", b"c"))
    script.feed(nack(4, 500, "no") + codec.pong(6))
    refused = script.expect(1, Published).refused
    assert list(refused) == [1]
    assert isinstance(refused[1], TargetRefused)


def test_messages_that_fit_no_frame_never_leave() -> None:
    large = bytes(LARGEST_PUBLISH - 3)
    script = ready().submit(publish(1, large, b"b"))
    script.sent()  # GREETING and more
    script.feed(codec.pong(5))
    refused = script.expect(1, Published).refused
    assert isinstance(refused[0], TooLarge)
    assert list(refused) == [0]
    script.submit(publish(2, large)).sends(codec.ping(7)).feed(codec.pong(7)).expect(2, TooLarge)


@pytest.mark.parametrize(
    "request_",
    [
        CreateTopic(7, "demo"),
        Publish(7, Batch("demo", Columns.of([b"x"])), transaction="1"),
        Publish(7, Batch("demo", Columns.of([b"x"])), deliver_at_ms=5),
        Subscribe(7, "demo", start=Start.EARLIEST),
        Subscribe(7, "demo", start=12),
    ],
)
def test_what_the_protocol_cannot_say(request_: Request) -> None:
    script = ready()
    script.sent()
    script.submit(request_).expect(7, Unsupported)
    script.quiet()


def test_subscribe_refused() -> None:
    script = ready().submit(Subscribe(1, "demo"))
    script.sent()
    script.feed(nack(3, 400, "empty topic")).expect(1, TargetRefused, final=True)
    script.quiet()


def test_take_brackets_its_polls() -> None:
    script = subscribed().submit(Take(2, 2, 3))
    script.sends(codec.poll(4, 2) + codec.poll(5, 2) + codec.poll(6, 2) + codec.ping(7))
    script.feed(vectors.DELIVERY + codec.publish(2, 1, "demo", b"ho") + codec.pong(7))
    taken = script.expect(2, Taken, address="demo", acknowledge=True)
    (delivered,) = taken.deliveries
    assert delivered.first_tag == 1
    assert delivered.run.columns.values() == [b"hi", b"ho"]
    assert delivered.run.batches[0][2].delivery is Delivery.AT_LEAST_ONCE
    script.quiet()


def test_take_of_nothing() -> None:
    script = subscribed().submit(Take(2, 2, 1)).sends(codec.poll(4, 2) + codec.ping(5))
    script.feed(codec.pong(5)).expect(2, Taken, deliveries=[])
    script.quiet()


def test_take_asks_in_bounded_steps() -> None:
    """Few while nothing is known of the size of messages, then as many as `max_bytes` has room for."""
    script = subscribed()
    script.submit(Take(2, 2, 100_000))
    assert len(script.sent()) == FIRST_POLLS * 21 + 13
    script.feed(vectors.DELIVERY + codec.pong(4 + FIRST_POLLS)).expect(2, Taken)
    script.submit(Take(3, 2, 100_000))
    assert len(script.sent()) == MOST_POLLS * 21 + 13
    cid = 5 + FIRST_POLLS + MOST_POLLS
    script.feed(codec.publish(2, 1, "demo", bytes(1_000)) + codec.pong(cid)).expect(3, Taken)
    script.submit(Take(4, 2, 100_000, max_bytes=5_500))
    assert len(script.sent()) == 5 * 21 + 13


@pytest.mark.parametrize("start", [Start.EARLIEST, 7])
def test_a_subscription_cannot_begin_in_the_past(start: Start | int) -> None:
    script = ready().submit(Subscribe(1, "demo", start=start))
    script.expect(1, Unsupported)
    script.quiet()


def test_take_of_what_was_never_subscribed() -> None:
    ready().submit(Take(2, 9, 1)).expect(2, UnknownSubscription)


def test_gaps_in_the_tags_make_runs() -> None:
    """A redelivery, then qos 0 in between, which gets tags of our own."""
    script = subscribed().submit(Take(2, 2, 5))
    frames = [(1, 1, b"a"), (5, 1, b"b"), (6, 1, b"c"), (7, 0, b"d"), (8, 0, b"e")]
    script.feed(b"".join(codec.publish(cid, qos, "demo", value) for cid, qos, value in frames) + codec.pong(9))
    deliveries = script.expect(2, Taken).deliveries
    assert [(each.first_tag, each.run.columns.values()) for each in deliveries] == [
        (1, [b"a"]),
        (5, [b"b", b"c"]),
        (LOCAL_TAG, [b"d", b"e"]),
    ]
    script.sent()
    script.submit(Settle(3, 2, [5, LOCAL_TAG, LOCAL_TAG + 1])).sends(codec.ack(5, 2) + codec.ping(10))
    script.feed(codec.pong(10)).expect(3, Settled, results=[None, None, None])
    script.submit(Settle(4, 2, [LOCAL_TAG])).expect(4, Settled, results=[None])
    script.quiet()


def test_settle_with_a_tag_nobody_knows() -> None:
    script = subscribed().submit(Settle(2, 2, [1, 2])).sends(codec.ack(1, 2) + codec.ack(2, 2) + codec.ping(4))
    script.feed(vectors.UNKNOWN_TAG + codec.pong(4))
    first, second = script.expect(2, Settled).results
    assert isinstance(first, TargetRefused)
    assert first.refusal is Status.NOT_FOUND
    assert second is None


def test_giving_back_is_left_to_the_broker() -> None:
    script = subscribed().submit(Settle(2, 2, [1], accepted=False))
    script.expect(2, Settled, results=[None])
    script.quiet()


def test_a_take_that_waits_leaves_one_poll_open() -> None:
    script = subscribed()
    script.submit(Take(2, 2, 2, hold_until=script.now + 1)).sends(codec.poll(4, 2) + codec.poll(5, 2) + codec.ping(6))
    script.feed(codec.pong(6)).sends(codec.poll(7, 2)).quiet()
    script.feed(vectors.DELIVERY)
    assert script.expect(2, Taken).deliveries[0].run.columns.values() == [b"hi"]
    assert script.session.timeout_at() is None
    script.quiet()


def test_an_open_poll_is_ended_and_opened_again_until_time_is_up() -> None:
    script = subscribed()
    script.submit(Take(2, 2, 1, hold_until=script.now + 1.5 * ROUND)).sends(codec.poll(4, 2) + codec.ping(5))
    script.feed(codec.pong(5)).sends(codec.poll(6, 2)).quiet()
    script.pass_time(ROUND).sends(codec.ping(7)).feed(codec.pong(7)).sends(codec.poll(8, 2))
    script.pass_time(ROUND).sends(codec.ping(9)).feed(codec.pong(9)).expect(2, Taken, deliveries=[])
    script.quiet()


def test_whatever_follows_an_open_poll_stands_behind_its_ping() -> None:
    script = subscribed()
    script.submit(Take(2, 2, 1, hold_until=script.now + 1)).feed(codec.pong(5)).sent()
    script.submit(publish(3, b"x")).sends(codec.ping(7) + codec.publish(8, 1, "demo", b"x") + codec.ping(9))
    script.feed(vectors.DELIVERY + codec.pong(7) + codec.pong(9))
    script.expect(2, Taken)
    script.expect(3, Published)
    script.quiet()


def test_several_idle_takes_share_a_round() -> None:
    script = subscribed().submit(Subscribe(9, "other", acknowledge=True)).feed(codec.ack(4, 3))
    script.expect(9, Subscribed, subscription=3)
    until = script.now + 1
    script.submit(Take(2, 2, 1, hold_until=until)).submit(Take(3, 3, 1, hold_until=until)).sent()
    script.feed(
        codec.pong(6) + codec.pong(8)
    ).quiet()  # neither may leave a POLL open: nobody could tell whose answer came
    script.pass_time(ROUND).sends(codec.poll(9, 2) + codec.ping(10) + codec.poll(11, 3) + codec.ping(12))
    script.feed(codec.pong(10) + codec.publish(1, 1, "other", b"x") + codec.pong(12))
    assert script.expect(3, Taken, address="other").deliveries[0].run.topic == "other"


def test_cancel_ends_a_waiting_take() -> None:
    script = subscribed()
    script.submit(Take(2, 2, 1, hold_until=script.now + 1)).feed(codec.pong(5)).sent()
    script.submit(Cancel(3, 2)).sends(codec.ping(7)).expect(3, Done)
    script.feed(codec.pong(7)).expect(2, Taken, deliveries=[])
    script.quiet()


def test_cancel_of_an_idle_take_answers_at_once() -> None:
    script = subscribed()
    script.submit(Take(2, 2, 1, hold_until=script.now + 1)).submit(publish(3, b"x")).feed(codec.pong(5)).sent()
    script.submit(Cancel(4, 2)).expect(2, Taken, deliveries=())
    script.expect(4, Done)


def test_a_delivery_that_a_pong_overtook_is_kept_for_the_next_take() -> None:
    """Servers that hold POLLs may answer the PING first (wire 7.1)."""
    script = subscribed().submit(Take(2, 2, 1)).feed(codec.pong(5))
    script.expect(2, Taken, deliveries=[])
    script.feed(vectors.DELIVERY)
    script.sent()
    script.submit(Take(3, 2, 1))
    assert script.expect(3, Taken).deliveries[0].first_tag == 1
    script.quiet()


def test_a_delivery_nobody_asked_for_ends_the_connection() -> None:
    script = subscribed().submit(publish(2, b"x")).feed(vectors.DELIVERY)
    script.expect(2, TargetLost)
    script.sent()
    script.output(Close)


@pytest.mark.parametrize("frame", [vectors.PING, vectors.POLL, codec.pong(77), codec.ack(1, 1), hexed("00000000")])
def test_nonsense_ends_the_connection(frame: bytes) -> None:
    script = subscribed().feed(frame)
    script.output(Close)
    script.submit(publish(2, b"x")).expect(2, TargetLost)
    script.quiet()


def test_unsubscribe_is_local() -> None:
    script = subscribed().submit(Unsubscribe(2, 2))
    script.expect(2, Done)
    script.submit(Take(3, 2, 1)).expect(3, UnknownSubscription)
    script.quiet()


def test_lost_ends_what_is_under_way() -> None:
    script = subscribed().submit(publish(2, b"x")).submit(Take(3, 2, 1))
    script.lost().expect(2, TargetLost)
    script.expect(3, TargetLost)
    assert script.session.in_flight == 0


def test_close_finishes_what_is_under_way() -> None:
    script = subscribed().submit(publish(2, b"x"))
    script.sent()
    script.close().quiet()
    script.feed(codec.pong(5)).expect(2, Published)
    script.output(Close)
    script.submit(publish(3, b"x")).expect(3, TargetLost)


def test_close_before_the_handshake() -> None:
    script = dialled().submit(publish(1, b"x")).close()
    script.expect(1, TargetLost)
    script.output(Close)


ANSWERS = (
    vectors.HELLO_DONE
    + vectors.AUTH_DONE
    + codec.ack(3, 2)
    + nack(5, 500, "full")
    + codec.pong(6)
    + codec.publish(1, 1, "demo", b"hi")
    + codec.publish(8, 0, "demo", b"")
    + codec.pong(10)
)


@given(st.lists(st.integers(1, len(ANSWERS)), max_size=4))
def test_any_chunking_is_understood_alike(cuts: list[int]) -> None:
    script = dialled().submit(Subscribe(1, "demo", acknowledge=True)).submit(publish(2, b"a", b"b"))
    borders = sorted({0, *cuts, len(ANSWERS)})
    submitted = False
    for start, stop in itertools.pairwise(borders):
        for at in range(start, stop, max(1, (stop - start) // 3)):
            script.feed(ANSWERS[at : min(stop, at + max(1, (stop - start) // 3))])
            if not submitted and script.completions:
                submitted = True
                script.submit(Take(3, 2, 3))
    script.expect(1, Subscribed, subscription=2)
    assert list(script.expect(2, Published).refused) == [1]
    assert [each.run.columns.values() for each in script.expect(3, Taken).deliveries] == [[b"hi"], [b""]]


def test_nacks_without_end_end_the_connection() -> None:
    """Each is kept until the PONG: no more than there was anything to refuse."""
    script = ready().submit(publish(1, b"x"))
    script.feed(nack(3, 500, "n" * 60_000)).sent()
    script.feed(nack(7, 500, "n")).expect(1, TargetLost)
    script.output(Close)
    script.quiet()


def test_long_words_of_a_broker_are_cut() -> None:
    script = ready().submit(publish(1, b"x"))
    script.feed(nack(3, 500, "n" * 60_000) + codec.pong(4))
    assert len(script.expect(1, TargetRefused).message) == LONGEST_TARGET_TEXT


def test_deliveries_without_end_end_the_connection() -> None:
    """16 MiB each, to POLLs that were sent when messages were small."""
    script = subscribed()
    script.submit(Take(2, 2, 100)).feed(vectors.DELIVERY + codec.pong(4 + FIRST_POLLS)).expect(2, Taken)
    script.submit(Take(3, 2, 100)).sent()
    large = codec.publish(2, 1, "demo", bytes(16_000_000))
    for _ in range(MOST_HELD // 16_000_000):
        script.feed(large).quiet()
    script.feed(large).expect(3, TargetLost)


def test_late_deliveries_of_another_topic_are_not_kept() -> None:
    script = subscribed().submit(Take(2, 2, 2)).feed(codec.pong(6))
    script.expect(2, Taken, deliveries=[])
    script.feed(codec.publish(1, 1, "other", b"ho") + vectors.DELIVERY).sent()
    script.submit(Subscribe(3, "other")).feed(codec.ack(7, 5)).expect(3, Subscribed)
    script.submit(Take(4, 5, 1)).feed(codec.pong(9)).expect(4, Taken, deliveries=[])
