"""What holds for the client session of every protocol that has one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway import requests as r
from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError, TargetError, Unsupported
from gateway.protocols.registry import protocols
from tests.conformance.pair import Pair

NAMES = [name for name, spec in protocols().items() if spec.client is not None]
each = pytest.mark.parametrize("name", NAMES)


def batch(*values: bytes) -> Batch:
    return Batch("a/b/orders", Columns.of(list(values)))


def requests(subscription: int) -> list[r.Request]:
    """One of each kind that a broker elsewhere may be asked for; their ids are given when they are sent."""
    orders = "a/b/orders"
    return [
        r.Publish(0, batch(b"one", b"two")),
        r.DescribeTopics(0, orders),
        r.CreateTopic(0, orders, 1),
        r.Take(0, subscription, 2),
        r.Settle(0, subscription, [1]),
        r.Fetch(0, orders, 0, 0, 10, 1 << 20),
        r.CommitOffset(0, orders, "group", 0, 1),
        r.ReadOffset(0, orders, "group", 0),
        r.OffsetForTime(0, orders, 0, 0),
        r.CacheGet(0, "cache", "key"),
        r.RegisterSchema(0, "orders", "json", b"{}"),
        r.GetSchemas(0, "orders"),
        r.ReadDeadLetters(0, orders, 10),
        r.Authenticate(0, "alice", "secret"),
        r.WhoAmI(0),
        r.ListGroups(0),
        r.ClusterStatus(0),
        r.ReadTotals(0),
        r.Unsubscribe(0, subscription),
        r.DeleteTopic(0, orders),
    ]


def numbered(asked: list[r.Request]) -> list[r.Request]:
    return [replace(request, id=number) for number, request in enumerate(asked, 2)]


def conversation(pair: Pair) -> list[tuple[str, Any]]:
    """Everything, one after the other: what each ended with."""
    opened = pair.ask(r.Subscribe(1, "a/b/orders", "group", r.Start.LATEST))
    found: list[tuple[str, Any]] = [("Subscribe", opened)]
    number = opened.subscription if isinstance(opened, r.Subscribed) else 1
    return found + [(type(request).__name__, pair.ask(request)) for request in numbered(requests(number))]


def shown(found: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Messages by their values, and all else by its text: errors of one kind are not equal."""
    return [(name, values(outcome) or str(outcome)) for name, outcome in found]


def values(outcome: r.Outcome) -> list[bytes]:
    match outcome:
        case r.Fetched(runs):
            columns = [run.columns for run in runs]
        case r.Taken(deliveries):
            columns = [delivered.run.columns for delivered in deliveries]
        case r.DeadLetters(letters):
            columns = [letter.columns for letter in letters]
        case _:
            columns = []
    return [value for one in columns for value in one.values()]


@each
def test_every_request_ends_once_with_a_reply_or_an_error_that_says_why(name: str) -> None:
    found = conversation(Pair(name))
    assert all(outcome.message for _name, outcome in found if isinstance(outcome, GatewayError))
    assert "Publish" in [what for what, outcome in found if not isinstance(outcome, GatewayError)]


@each
@pytest.mark.parametrize("split", [1, 7])
def test_answers_in_pieces_are_the_same_answers(name: str, split: int) -> None:
    assert shown(conversation(Pair(name, split=split))) == shown(conversation(Pair(name)))


@each
def test_what_was_under_way_ends_with_the_connection(name: str) -> None:
    """Whether it was never sent, sent, or answered in part; and nothing ends a second time."""
    for heard in (False, True):
        pair = Pair(name)
        if heard:
            pair.exchange()
        for number in range(1, 6):
            pair.submit(r.Publish(number, batch(b"x")))
        pair.take_in(pair.client.lost())
        assert all(isinstance(pair.ended[number], TargetError) for number in range(1, 6))
        assert pair.client.in_flight == 0
        pair.take_in(pair.client.lost())


@each
def test_it_says_goodbye_when_it_is_told_to(name: str) -> None:
    pair = Pair(name)
    assert not isinstance(pair.ask(r.Publish(1, batch(b"x"))), GatewayError)
    assert pair.client.admitted is True
    pair.take_in(pair.client.close(pair.now))
    pair.exchange()
    assert pair.closed


@each
def test_what_the_protocol_has_no_words_for_is_refused_and_not_sent(name: str) -> None:
    pair = Pair(name)
    pair.ask(r.Publish(1, batch(b"x")))
    refused = 0
    for request in numbered(requests(1)):
        before = len(pair.server.asked)
        if isinstance(pair.ask(request), Unsupported):
            refused += 1
            assert len(pair.server.asked) == before, request
    assert refused


@each
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_garbage_from_the_broker_never_escapes(name: str, data: st.DataObject) -> None:
    """At any moment, on any channel: whatever the broker says, each request ends once, and what is left ends with the link."""
    pair = Pair(name)
    pair.submit(r.Publish(1, batch(b"x")))
    if data.draw(st.booleans()):
        pair.exchange()
    pair.submit(r.Subscribe(2, "a/b/orders", "group"))
    pair.submit(r.Publish(3, batch(b"y")))
    pair.take_in([])
    channels = [channel for channel in pair.known() if data.draw(st.booleans())] or pair.known()[:1]
    for channel in channels:
        pair.hear(channel, data.draw(st.binary(min_size=1, max_size=64)))
        for _ in pair.client.outputs():
            pass
    pair.take_in(pair.client.lost())
    assert set(pair.ended) == {1, 2, 3}


@each
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_byte_of_an_answer_never_escapes(name: str, data: st.DataObject) -> None:
    pair = Pair(name, flip=(data.draw(st.integers(0, 400)), data.draw(st.integers(1, 255))))
    for number in range(1, 4):
        pair.submit(r.Publish(number, batch(b"x")))
    pair.submit(r.DescribeTopics(4, "a/b/orders"))
    pair.exchange()
    pair.take_in(pair.client.lost())
    assert set(pair.ended) == {1, 2, 3, 4}
