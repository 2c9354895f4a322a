"""What a RustLog client session sends, and what it makes of the answers of real servers and of ours."""

from __future__ import annotations

import math

import pytest

from gateway import requests
from gateway.envelope import Batch, Columns
from gateway.errors import Status, TargetLost, TargetRefused, TooLarge, UnknownSubscription, Unsupported
from gateway.protocols.rustlog.client.session import RustlogClient
from gateway.protocols.rustlog.wire.frames import MAX_FRAME, MAX_VALUE
from gateway.settings import Dialect
from gateway.wire.session import ClientContext, Close
from tests.protocols.rustlog import vectors as v
from tests.protocols.rustlog.values import fetch, framed, produce, refusal
from tests.protocols.script import ClientScript, hexed


def client(dialect: Dialect = Dialect.AUTO) -> ClientScript:
    return ClientScript(RustlogClient(ClientContext(dialect=dialect)))


def publish(number: int, *values: bytes, topic: str = "demo", create: bool = False) -> requests.Publish:
    return requests.Publish(number, Batch(topic, Columns.of(values), partition=0), create=create)


def records(next_offset: int, *values: bytes) -> bytes:
    packed = b"".join(framed(value) for value in values)
    return framed(b"\x02" + len(values).to_bytes(4, "big") + packed + next_offset.to_bytes(8, "big"))


def described(*ends: int) -> bytes:
    states = b"".join(i.to_bytes(4, "big") + end.to_bytes(8, "big") for i, end in enumerate(ends))
    count = len(ends).to_bytes(4, "big")
    return framed(b"\x07\x00\x04demo" + count + count + states)


def test_publish():
    script = client().submit(publish(1, b"hello", b"from", b"rustlog")).sends(v.PRODUCE_THREE)
    script.feed(v.PRODUCED_THREE)
    assert script.expect(1, requests.Published, partition=0, base_offset=0).position(2) == (0, 2)
    script.quiet()


def test_topics_are_created_first_once():
    """RustLog wire, last paragraph: code 11 is success."""
    script = client().submit(publish(1, b"", create=True)).sends(v.CREATE_DEMO + v.PRODUCE_EMPTY)
    script.submit(publish(2, b"", create=True)).sends(v.PRODUCE_EMPTY)
    script.feed(v.CREATE_DEMO_AGAIN + v.PRODUCED_EMPTY + v.PRODUCED_EMPTY)
    script.expect(1, requests.Published, base_offset=3)
    script.expect(2, requests.Published)
    script.quiet()


def test_refused_publish_creates_its_topic_the_next_time():
    script = client().submit(publish(1, b"", create=True))
    script.sent()
    script.feed(v.CREATED + v.NOPE)
    refused = script.expect(1, TargetRefused, refusal=Status.NOT_FOUND, final=False)
    assert "does not exist" in refused.message
    script.submit(publish(2, b"", create=True)).sends(v.CREATE_DEMO + v.PRODUCE_EMPTY)


def test_batch_beyond_a_frame_goes_in_parts():
    values = [bytes(4_000_000)] * 4
    script = client().submit(publish(1, *values))
    sent = script.sent()
    assert int.from_bytes(sent[:4], "big") <= MAX_FRAME
    script.feed(framed(b"\x01" + (5).to_bytes(8, "big") + (2).to_bytes(4, "big"))).quiet()
    script.feed(framed(b"\x01" + (9).to_bytes(8, "big") + (2).to_bytes(4, "big")))
    reply = script.expect(1, requests.Published)
    assert [reply.position(i)[1] for i in range(4)] == [5, 6, 9, 10]


def test_record_beyond_a_frame_is_refused_here():
    script = client().submit(publish(1, b"a", bytes(MAX_VALUE + 100)))
    script.expect(1, TooLarge)
    script.quiet()


def test_fetch_counts_offsets_back():
    """RustLog wire 8: offset of record i is next_offset - count + i."""
    ask = requests.Fetch(1, "demo", 0, 0, max_messages=100, max_bytes=1 << 40, record_overhead=12)
    script = client().submit(ask).sends(fetch("demo", 0, 10_000_000))
    script.feed(v.FETCHED_FIVE)
    reply = script.expect(1, requests.Fetched, next_offset=5)
    assert [(r.base_offset, r.columns.values()) for r in reply.runs] == [
        (0, [b"hello", b"from", b"rustlog", b"", b"k"])
    ]
    script.submit(requests.Fetch(2, "demo", 0, 0, max_messages=2, max_bytes=100)).feed(v.FETCHED_FIVE)
    assert script.expect(2, requests.Fetched, next_offset=2).runs[0].count == 2


def test_groups_topics_and_metrics():
    script = client().submit(requests.CommitOffset(1, "demo", "g", 0, 2)).sends(v.COMMIT_2)
    script.feed(v.COMMITTED).expect(1, requests.Done)
    script.submit(requests.ReadOffset(2, "demo", "g", 0)).sends(v.OFFSET_FETCH).feed(v.OFFSET_2)
    script.expect(2, requests.GroupOffset, offset=2)
    script.submit(requests.ReadOffset(3, "demo", "g", 0)).sends(v.OFFSET_FETCH).feed(v.OFFSET_NONE)
    script.expect(3, requests.GroupOffset, offset=None)
    script.submit(requests.CreateTopic(4, "demo", 1)).sends(v.CREATE_DEMO).feed(v.CREATED)
    script.expect(4, requests.TopicCreated, created=True)
    script.submit(requests.CreateTopic(5, "demo", 1)).sends(v.CREATE_DEMO).feed(v.CREATE_DEMO_AGAIN)
    script.expect(5, requests.TopicCreated, created=False)
    script.submit(requests.DescribeTopics(6)).sends(v.LIST).feed(v.LISTED_FOUR)
    listed = script.expect(6, requests.Topics)
    assert [(t.address, len(t.partitions)) for t in listed.topics] == [("", 1), ("demo", 1), ("orders", 3), ("tr", 1)]
    script.submit(requests.DescribeTopics(7, "demo")).sends(v.DESCRIBE_DEMO).feed(v.DESCRIBED_DEMO)
    script.expect(7, requests.Topics)
    script.quiet()


def test_what_it_cannot_express():
    script = client().submit(requests.CachePut(1, "c", "k", b""))
    script.expect(1, Unsupported)
    script.quiet()


@pytest.mark.parametrize("dialect", [Dialect.AUTO, Dialect.DOCUMENT])
def test_answers_split_at_every_byte(dialect):
    script = client(dialect).submit(publish(1, b"hi", b""))
    script.sent()
    script.feed_each_byte(v.PRODUCED_THREE[:-1] + b"\x02" if dialect is Dialect.AUTO else v.J_PRODUCED)
    script.expect(1, requests.Published, base_offset=0)


@pytest.mark.parametrize("end", ["eof", "lost", "close"])
def test_what_was_under_way_ends_with_the_connection(end):
    script = client().submit(publish(1, b"a")).submit(requests.Fetch(2, "demo", 0, 0, 1, 1))
    script.sent()
    getattr(script, end)()
    script.expect(1, TargetLost)
    script.expect(2, TargetLost)
    if end != "lost":
        script.output(Close)
    script.submit(publish(3, b"a")).expect(3, TargetLost)
    script.quiet()


def test_eof_instead_of_records_says_why():
    """RustLog wire 1.3: an answer beyond 10 MiB cuts the connection."""
    script = client().submit(requests.Fetch(1, "demo", 0, 0, 1, 1))
    script.sent()
    assert "too large" in script.eof().expect(1, TargetLost).message


@pytest.mark.parametrize("data", [v.PONG, v.ZERO, v.OVERSIZE, v.COMMITTED, hexed("00 00 00 03 01 00 00")])
def test_server_that_breaks_the_protocol(data):
    script = client().submit(publish(1, b"a"))
    script.sent()
    script.feed(data).expect(1, TargetLost)
    script.output(Close)


# --- subscriptions ---


def subscribed(*ends: int, start: requests.Start | int = requests.Start.LATEST, **fields: object) -> ClientScript:
    script = client().submit(requests.Subscribe(1, "demo", start=start, **fields)).sends(v.DESCRIBE_DEMO)
    return script.feed(described(*ends))


def test_subscription_from_now_on_reads_to_the_end_first():
    """Real servers say 0 for every log end (RustLog wire 1.4)."""
    script = subscribed(0).sends(fetch("demo", 0, 10_000_000))
    script.feed(records(2, b"a", b"b")).sends(fetch("demo", 2, 10_000_000)).quiet()
    script.feed(records(2))
    number = script.expect(1, requests.Subscribed, next_offset=2).subscription
    script.submit(requests.Take(2, number, 10, max_bytes=500)).sends(fetch("demo", 2, 500)).feed(records(3, b"c"))
    taken = script.expect(2, requests.Taken)
    assert taken.deliveries[0].run.base_offset == 2
    assert taken.deliveries[0].run.columns.values() == [b"c"]


def test_take_waits_by_asking_again():
    script = subscribed(5, start=5)
    number = script.expect(1, requests.Subscribed, next_offset=5).subscription
    script.submit(requests.Take(2, number, 10, max_bytes=9, hold_until=script.now + 0.05))
    script.sends(fetch("demo", 5, 9)).feed(records(5)).quiet()
    script.pass_time(0.02).sends(fetch("demo", 5, 9)).feed(records(5)).quiet()
    script.pass_time(0.02).sends(fetch("demo", 5, 9)).feed(records(5)).quiet()
    script.pass_time(0.01).expect(2, requests.Taken, deliveries=())
    script.quiet()
    script.submit(requests.Take(3, number, 10, max_bytes=9)).sends(fetch("demo", 5, 9)).feed(records(5))
    script.expect(3, requests.Taken, deliveries=())


def test_take_can_be_cancelled():
    script = subscribed(5, start=5)
    number = script.expect(1, requests.Subscribed).subscription
    script.submit(requests.Take(2, number, 10, hold_until=math.inf))
    script.sent()
    script.feed(records(5)).submit(requests.Cancel(3, 2))
    script.expect(2, requests.Taken, deliveries=())
    script.expect(3, requests.Done)
    assert script.session.timeout_at() is None


def test_partitions_take_turns():
    script = subscribed(5, 7, start=0)
    number = script.expect(1, requests.Subscribed).subscription
    ask = requests.Take(2, number, 10, max_bytes=9)
    script.submit(ask).sends(fetch("demo", 0, 9)).feed(records(0)).sends(fetch("demo", 0, 9, partition=1))
    script.feed(records(1, b"x"))
    taken = script.expect(2, requests.Taken)
    assert taken.deliveries[0].run.partition == 1


def test_first_offset_is_found_by_halving():
    """A gateway with retention refuses offsets below its start, and no operation tells where that is."""
    script = subscribed(8, start=requests.Start.EARLIEST)
    asked = []
    while not script.completions:
        offset = int.from_bytes(script.sent()[17:25], "big")
        asked.append(offset)
        script.feed(refusal(4, "Fetch failed: offset out of range") if offset < 5 else records(offset + 1, b"x"))
    script.expect(1, requests.Subscribed, next_offset=5)
    assert asked[0] == 0
    assert len(asked) <= 5


def test_named_subscription_keeps_its_place_in_a_group():
    script = subscribed(8, name="g", acknowledge=True).sends(v.OFFSET_FETCH).feed(v.OFFSET_2)
    script.sends(fetch("demo", 2, 1)).feed(records(2))
    number = script.expect(1, requests.Subscribed, next_offset=2).subscription
    script.submit(requests.Take(2, number, 10)).feed(records(5, b"a", b"b", b"c"))
    script.sent()
    first = script.expect(2, requests.Taken).deliveries[0].first_tag
    script.submit(requests.Settle(3, number, [first, first + 1])).sends(v.COMMIT_2[:-1] + b"\x04")
    assert not script.completions  # nobody may count on it before the broker has said so
    script.feed(v.COMMITTED).expect(3, requests.Settled, results=[None, None])
    script.submit(requests.Settle(4, number, [first + 2], accepted=False)).expect(4, requests.Settled)
    script.submit(requests.Take(5, number, 10, max_bytes=9)).sends(fetch("demo", 4, 9)).feed(records(5, b"c"))
    script.submit(requests.Settle(6, number, [script.expect(5, requests.Taken).deliveries[0].first_tag])).sent()
    (refused,) = script.feed(refusal(4, "no")).expect(6, requests.Settled).results
    assert isinstance(refused, TargetRefused)


def test_a_group_whose_next_record_is_gone_goes_on_with_what_is_left():
    script = subscribed(8, name="g", start=requests.Start.EARLIEST).sends(v.OFFSET_FETCH).feed(v.OFFSET_2)
    script.sends(fetch("demo", 2, 1)).feed(refusal(4, "Fetch failed: offset out of range"))
    for probe in (0, 4, 6):  # halving what is left, until 7 is the first that answers
        script.sends(fetch("demo", probe, 1)).feed(refusal(4, "Fetch failed: offset out of range"))
    script.sends(fetch("demo", 7, 1)).feed(records(8, b"h"))
    script.expect(1, requests.Subscribed, next_offset=7)


def test_unknown_subscription():
    script = client().submit(requests.Take(1, 99, 1))
    script.expect(1, UnknownSubscription)


def test_subscription_to_what_is_not_there():
    script = client().submit(requests.Subscribe(1, "nope"))
    script.sent()
    script.feed(v.DESCRIBED_NOPE).expect(1, TargetRefused, refusal=Status.NOT_FOUND)


# --- the document's JSON ---


def test_document_dialect():
    script = client(Dialect.DOCUMENT).submit(publish(1, b"hi", b"")).sends(v.J_PRODUCE).feed(v.J_PRODUCED)
    script.expect(1, requests.Published, base_offset=0)
    script.submit(requests.Fetch(2, "demo", 0, 0, 100, 1024)).sends(v.J_FETCH).feed(v.J_FETCHED)
    assert script.expect(2, requests.Fetched, next_offset=2).runs[0].columns.values() == [b"hi", b""]
    script.submit(requests.CommitOffset(3, "demo", "g", 0, 2)).sends(v.J_COMMIT).feed(v.J_COMMITTED)
    script.expect(3, requests.Done)
    script.submit(requests.ReadOffset(4, "demo", "g", 0)).sends(v.J_OFFSET_FETCH).feed(v.J_OFFSET_NONE)
    script.expect(4, requests.GroupOffset, offset=None)
    script.submit(requests.ReadOffset(5, "demo", "g", 0)).sends(v.J_OFFSET_FETCH).feed(v.J_NOPE)
    script.expect(5, TargetRefused)
    script.submit(requests.CreateTopic(6, "demo")).expect(6, Unsupported)
    script.quiet()


def test_document_dialect_reads_across_gaps():
    answer = framed(b'{"Fetch":{"records":[{"offset":3,"payload":[97]},{"offset":9,"payload":[98]}],"next_offset":10}}')
    script = client(Dialect.DOCUMENT).submit(requests.Fetch(1, "demo", 0, 0, 100, 9)).feed(answer)
    script.sent()
    assert [run.base_offset for run in script.expect(1, requests.Fetched, next_offset=10).runs] == [3, 9]


def test_client_and_server_agree_on_a_batch():
    script = client().submit(publish(1, b"a", b"b"))
    script.sends(produce("demo", 0, b"a", b"b"))
