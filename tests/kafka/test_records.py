"""Records as runs: reading many at a time, without a look at the headers of most, finds what reading each alone finds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from gateway.envelope import BatchMeta, Columns, Envelope, Origin, Run
from gateway.store.interface import Append
from gateway.store.kafka.records import EXPIRES, RUN, KafkaRecord, RunReader, records

ORIGINS = [Origin("flymq", "flymq", "", "127.0.0.1:1"), Origin("felix", "felix", "alice")]
HOSTILE = [b"-5", b"9" * 5000, b"x", b"", b"4", b"40", b"4294967296", b"99999999999999999999"]


def appended(batch: int, count: int, *, first: int = 0, headed: bool = False, keyed: bool = False) -> list[KafkaRecord]:
    columns = Columns.of(
        [b"%d/%d" % (batch, number) for number in range(count)],
        [b"k%d" % number for number in range(count)] if keyed else None,
        [(("h", b"%d" % number),) if number % 3 else () for number in range(count)] if headed else None,
    )
    meta = BatchMeta(batch.to_bytes(16, "big"), ORIGINS[batch % 2], "route")
    return list(records(Append("t", 0, columns, meta, first), 1000 + batch))


def messages(placed: Sequence[tuple[int, KafkaRecord]]) -> list[Message]:
    return [
        Message(topic="gw.t", partition=0, offset=offset, key=key, value=value, headers=headers, timestamp=(1, time_ms))
        for offset, (value, key, headers, time_ms) in placed
    ]


def envelopes(runs: Sequence[Run]) -> list[Envelope]:
    return [one for run in runs for one in run.envelopes()]


def alone(stored: Sequence[Message]) -> list[Envelope]:
    return [one for message in stored for one in envelopes(RunReader("t", 0, 7).take([message])[0])]


def announced(stored: Sequence[KafkaRecord]) -> int:
    return sum(name == RUN for _value, _key, headers, _time in stored for name, _said in headers or ())


piece = st.one_of(
    st.tuples(st.just("own"), st.integers(1, 40), st.integers(0, 3)),
    st.tuples(st.just("long"), st.integers(490, 1100), st.just(0)),
    st.tuples(st.just("cut"), st.integers(2, 39), st.just(0)),
    st.tuples(st.just("foreign"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("gap"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("forged"), st.integers(0, len(HOSTILE) - 1), st.just(0)),
)


@given(st.lists(piece, max_size=8), st.lists(st.integers(1, 700), min_size=1, max_size=30))
def test_however_it_is_cut_the_same_is_read(pieces: list[tuple[str, int, int]], cuts: list[int]) -> None:
    placed: list[tuple[int, KafkaRecord]] = []
    offset = 0
    for batch, (kind, number, how) in enumerate(pieces):
        found: list[KafkaRecord] = []
        if kind in {"own", "long"}:
            found = appended(batch, number, headed=bool(how & 1), keyed=bool(how & 2))
        elif kind == "cut":
            found = appended(batch, 40)[:number]  # and whoever sends it again does so under the same name
            found += [(b"theirs", None, None, 1000 + batch)] * (number % 3) + appended(batch, 40)
        elif kind == "foreign":
            found = [(b"x", None, [("a", b"b")] if number % 2 else None, 5)] * number
        elif kind == "forged":
            (first, *rest) = appended(batch, 30)
            value, key, headers, time_ms = first
            assert headers is not None
            found = [(value, key, [*headers[:2], (RUN, HOSTILE[number])], time_ms), *rest[:number]]
            found.append((b"theirs", None, [("a", b"b")], 5))
        else:
            offset += number
        placed += zip(range(offset, offset + len(found)), found, strict=True)
        offset += len(found)
    stored = messages(placed)
    reader = RunReader("t", 0, 7)
    taken: list[Run] = []
    at = 0
    while at < len(stored):
        size = cuts[at % len(cuts)]
        runs, unreadable = reader.take(stored[at : at + size])
        assert not unreadable
        taken += runs
        at += size
    assert envelopes(taken) == alone(stored)
    assert all(run.base_offset >= before.next_offset for before, run in itertools.pairwise(taken))


def test_what_lies_between_is_not_looked_at() -> None:
    """Which is the point of it: a header there that nobody reads shows that nobody reads it."""
    found = appended(1, 1000)
    assert announced(found) == 2
    value, key, headers, time_ms = found[700]
    assert headers is not None
    found[700] = value, key, [*headers, ("own", b"x")], time_ms
    (run,), _unreadable = RunReader("t", 0, 7).take(messages(list(enumerate(found))))
    assert run.count == 1000
    assert run.columns.headers is None


def test_what_was_announced_and_is_not_so_is_read_one_by_one() -> None:
    whole = appended(1, 30)
    other = (b"theirs", None, [("a", b"b")], 1001)
    for stored in (
        [*whole[:10], other, *whole[10:]],
        [*whole[:29], other],
        [*whole[:10], (b"5", None, whole[10][2], 9), *whole[11:]],  # another time
        [*whole[:10], (None, None, whole[10][2], 1001), *whole[11:]],  # no value
        [*whole[:29], (b"x", None, [*(whole[29][2] or ()), ("a", b"b")], 1001)],
    ):
        sent = messages(list(enumerate(stored)))
        assert envelopes(RunReader("t", 0, 7).take(sent)[0]) == alone(sent)
    compacted = messages([(offset, one) for offset, one in enumerate(whole) if offset % 7])
    assert envelopes(RunReader("t", 0, 7).take(compacted)[0]) == alone(compacted)


@pytest.mark.parametrize("expires", [b"9" * 17, b"9" * 16, b"-5", b" 5", b"5_0", b"", b"x"])
def test_an_expiry_that_is_no_time_is_a_header_of_somebody_else(expires: bytes) -> None:
    """More than a column of times holds would end whoever reads it."""
    ((value, key, headers, time_ms),) = appended(1, 1)
    assert headers is not None
    (run,), _unreadable = RunReader("t", 0, 7).take(
        messages([(0, (value, key, [*headers, (EXPIRES, expires)], time_ms))])
    )
    (found,) = envelopes([run])
    assert (found.route, found.expires_ms) == ("kafka", 0)
    assert (EXPIRES, expires) in found.headers
    (run,), _unreadable = RunReader("t", 0, 7).take(
        messages([(0, (value, key, [*headers, (EXPIRES, b"9" * 15)], time_ms))])
    )
    assert envelopes([run])[0].expires_ms == 10**15 - 1


def test_a_header_without_a_value_is_empty_behind_those_of_a_gateway_too() -> None:
    ((value, key, headers, time_ms),) = appended(1, 1)
    assert headers is not None
    (run,), _unreadable = RunReader("t", 0, 7).take(messages([(0, (value, key, [*headers, ("a", None)], time_ms))]))
    assert envelopes([run])[0].headers == (("a", b""),)


def test_a_copy_and_what_has_headers_announce_nothing() -> None:
    assert not announced(appended(1, 100, headed=True))
    assert not announced(appended(1, 8))
    run = Run("t", 0, 0, Columns.of([b"x"] * 100), [5] * 100, [(0, 0, BatchMeta(bytes(16), ORIGINS[0], "r"))])
    copied = Append("t", 0, run.columns, run.batches[0][2], as_read=run)
    assert not announced(list(records(copied, 9)))
