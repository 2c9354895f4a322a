"""What gateways say to each other: what is written is read, and what is none is a typed error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.broker.consume.shared import ResetSubscription, UseSubscription
from gateway.envelope import BatchMeta, Columns, Delivery, Origin, Run
from gateway.errors import (
    AskedElsewhere,
    CorruptChunk,
    FrameTooLarge,
    GatewayError,
    InvalidRequest,
    OwnerAway,
    Status,
    StoreReadOnly,
    Throttled,
    UnknownSubscription,
    WireError,
)
from gateway.link.codec import (
    Answers,
    Asks,
    ClientCame,
    ClientLeft,
    EnoughTaken,
    LinkAnswer,
    LinkBeat,
    LinkFrames,
    LinkMessages,
    LinkQuestion,
    LinkRun,
    answer,
    encode,
    outcome_of,
)
from gateway.requests import (
    DONE,
    Begin,
    ConsumerMove,
    ConsumerMoved,
    ConsumerReset,
    Delivered,
    Published,
    Redelivery,
    ResetTo,
    Settle,
    Settled,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)

ROOM = 1 << 20
U64 = st.integers(0, (1 << 64) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SMALL = st.binary(max_size=20)
METAS = st.builds(
    BatchMeta,
    st.binary(min_size=16, max_size=16),
    st.builds(Origin, TEXT, TEXT, TEXT, TEXT, st.lists(TEXT, max_size=2).map(tuple)),
    TEXT,
    st.sampled_from(Delivery),
)
REDELIVERIES = st.builds(Redelivery, st.integers(1, 100), st.floats(0, 10), st.floats(0, 100), unanswered=st.booleans())
REQUESTS = st.one_of(
    st.builds(
        Subscribe,
        U64,
        TEXT,
        TEXT,
        st.sampled_from(Start) | st.integers(0, 1 << 60),
        st.booleans(),
        st.none() | REDELIVERIES,
        st.none() | st.floats(0, 1e6),
        largest_value=st.none() | st.integers(0, 1 << 40),
    ),
    st.builds(Take, U64, U64, st.integers(0, 1 << 20), hold_until=st.none() | st.floats(0, allow_nan=False)),
    st.builds(Settle, U64, U64, st.lists(U64, max_size=5), st.booleans(), st.booleans()),
    st.builds(Unsubscribe, U64, U64),
    st.builds(UseSubscription, U64, U64),
    st.builds(
        ResetSubscription,
        U64,
        U64,
        st.builds(
            ConsumerReset,
            topic=TEXT,
            to=st.sampled_from(ResetTo),
            value=U64,
            partition=st.none() | U64,
            dry_run=st.booleans(),
            force=st.booleans(),
            kind=TEXT,
            name=TEXT,
        ),
    ),
)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    values = draw(st.lists(SMALL, min_size=1, max_size=6))
    count = len(values)
    headers = st.lists(st.tuples(TEXT, SMALL), max_size=2).map(tuple)
    columns = Columns.of(
        values,
        draw(st.none() | st.lists(st.none() | SMALL, min_size=count, max_size=count)),
        draw(st.none() | st.lists(headers, min_size=count, max_size=count)),
        draw(st.none() | st.lists(U64, min_size=count, max_size=count)),
    )
    firsts = sorted({0, *draw(st.lists(st.integers(0, count - 1), max_size=2))})
    batches = [(first, draw(st.integers(0, 1000)), draw(METAS)) for first in firsts]
    times = draw(st.lists(st.integers(0, 1 << 50), min_size=count, max_size=count))
    return Run(draw(TEXT), draw(st.integers(0, 1000)), draw(st.integers(0, 1 << 60)), columns, times, batches)


def parsed(kind: Any, *pieces: bytes, largest: int = ROOM) -> list[Any]:
    frames = LinkFrames(kind, largest)
    return [frame for piece in pieces for frame in frames.feed(piece)]


def cut(data: bytes, at: int) -> tuple[bytes, bytes]:
    return data[: at % (len(data) + 1)], data[at % (len(data) + 1) :]


@given(REQUESTS, U64, U64, TEXT, st.integers(0))
def test_a_question_arrives_as_it_was_asked(request: Any, client: int, number: int, topic: str, at: int) -> None:
    frames = [ClientCame(client, "door", "toy", "ann"), LinkQuestion(client, number, topic, request)]
    frames += [EnoughTaken(client, number), LinkBeat(), ClientLeft(client)]
    found = parsed(Asks, *cut(b"".join(encode(one, ROOM) for one in frames), at))
    assert found == frames
    assert found[1].request == request


@given(st.lists(st.tuples(runs(), U64, st.integers(1, 1000)), max_size=3), TEXT, st.booleans(), st.integers(0))
def test_messages_arrive_as_they_were_handed_out(given_out: list[Any], address: str, yes: bool, at: int) -> None:
    taken = Taken([Delivered(*one) for one in given_out], ended=not yes, address=address, acknowledge=yes)
    (frame,) = parsed(Answers, *cut(encode(answer(7, taken), ROOM), at))
    found = outcome_of(frame)
    assert (frame.question, found.ended, found.address, found.acknowledge) == (7, not yes, address, yes)
    for one, other in zip(found.deliveries, taken.deliveries, strict=True):
        assert (one.first_tag, one.attempt) == (other.first_tag, other.attempt)
        assert list(one.run.envelopes()) == list(other.run.envelopes())
        assert one.run.columns.ends == other.run.columns.ends


ERRORS = [UnknownSubscription(), Throttled("too many"), OwnerAway(), AskedElsewhere(), StoreReadOnly("full"), None]


@given(st.lists(st.sampled_from(ERRORS), max_size=5))
def test_what_became_of_tags_arrives(results: list[GatewayError | None]) -> None:
    (frame,) = parsed(Answers, encode(answer(7, Settled(results)), ROOM))
    found = outcome_of(frame)
    assert [(type(one), one and one.message) for one in found.results] == [
        (type(one), one and one.message) for one in results
    ]


def test_the_other_answers_arrive() -> None:
    moved = ConsumerMoved([ConsumerMove(0, 5, 0, 0, 9, 0, 5, 9)])
    for outcome in (DONE, Subscribed(3, "orders", 9, True), moved):
        (frame,) = parsed(Answers, encode(answer(7, outcome), ROOM))
        assert outcome_of(frame) == outcome
    # an error that is made of more than a text arrives as one of its status
    (frame,) = parsed(Answers, encode(answer(7, CorruptChunk("orders", 0, 1, 2)), ROOM))
    found = outcome_of(frame)
    assert isinstance(found, GatewayError)
    assert found.status is Status.CORRUPT
    with pytest.raises(InvalidRequest):
        answer(7, Published("orders", 0))


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_frames_or_a_typed_error(data: bytes, asks: bool) -> None:
    try:
        found = parsed(Asks if asks else Answers, len(data).to_bytes(4, "big") + data)
        for frame in found:
            if isinstance(frame, LinkQuestion):
                assert frame.request
            elif isinstance(frame, (LinkMessages, LinkAnswer)):
                outcome_of(frame)
    except WireError:
        pass


@given(st.data())
def test_a_flipped_byte_is_a_frame_or_a_typed_error(data: st.DataObject) -> None:
    taken = Taken([Delivered(data.draw(runs()), 1)], address="orders")
    whole = bytearray(encode(answer(7, taken), ROOM))
    whole[data.draw(st.integers(4, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        for frame in parsed(Answers, bytes(whole)):
            if isinstance(frame, (LinkMessages, LinkAnswer)):
                outcome_of(frame)
    except WireError:
        pass


def test_a_length_is_looked_at_before_anything_else() -> None:
    frames = LinkFrames(Asks, 100)
    assert list(frames.feed((100).to_bytes(4, "big"))) == []
    with pytest.raises(FrameTooLarge):
        list(LinkFrames(Asks, 100).feed((101).to_bytes(4, "big")))
    with pytest.raises(FrameTooLarge):
        encode(ClientCame(1, "x" * 200, "", ""), 100)


RUN = LinkRun(1, 1, "orders", 0, 5, Columns.of([b"a", b"b"]).packed, [1, 2], [(0, 0, BatchMeta(b"", Origin("", "")))])
META = RUN.batches[0][2]


@pytest.mark.parametrize(
    "change",
    [
        {"times": []},
        {"times": [1]},
        {"times": [1, 2, 3]},
        {"keys": [b"k"]},
        {"headers": [()]},
        {"expires": [1, 2, 3]},
        {"batches": []},
        {"batches": [(1, 0, META)]},
        {"batches": [(0, 0, META), (2, 0, META)]},
        {"batches": [(0, 0, META), (0, 1, META)]},
        {"base_offset": -1},
        {"packed": b"\xff\xff\xff\xff"},
    ],
)
def test_columns_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    frame = LinkMessages(1, [msgspec.structs.replace(RUN, **change)], False, "orders", True)
    (found,) = parsed(Answers, encode(frame, ROOM))
    with pytest.raises(WireError):
        outcome_of(found)


@pytest.mark.parametrize("asked", [None, {}, {"type": "Begin", "id": 1}, {"type": "Take", "id": 1}, Begin(1)])
def test_a_question_for_what_no_gateway_asks_another_is_refused(asked: Any) -> None:
    body = msgspec.msgpack.encode(["ask", 1, 2, "", asked])
    with pytest.raises(WireError, match="a frame that is none"):
        parsed(Asks, len(body).to_bytes(4, "big") + body)
