"""FETCH filters: what matches, what is refused, and that no pattern can stop the gateway (FlyMQ wire 1)."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import InvalidRequest
from gateway.protocols.flymq.server.filters import compile_filter
from gateway.protocols.flymq.server.patterns import Pattern
from gateway.protocols.flymq.wire.frames import Op
from gateway.requests import Fetch, Fetched
from gateway.settings import Dialect
from tests.protocols.flymq.made import b, fr, i32, s, server, u32, u64

NESTED = b'{"a": {"b": null, "list": [1, {"c": 2}]}, "x.y": 1}'


@pytest.mark.parametrize(
    ("text", "key", "value", "wanted"),
    [
        ("$.a", None, NESTED, True),
        ("$.a.b", None, NESTED, True),
        ("$.a.list.1.c", None, NESTED, True),
        ("$.a.list.2", None, NESTED, False),
        ("$.b", None, NESTED, False),
        ("$.a.b.c", None, NESTED, False),
        ("$.a", b"a", b"not json", False),
        ("$.a", None, b"[" * 100_000, False),
        ("$.a", None, b"\xff", False),
        ("ERROR", None, b"an error here", True),
        ("error", b"Error", b"", True),
        ("error", None, b"eror", False),
        ("ÄRGER", None, "viel ärger".encode(), True),
        ("a.c", None, b"abc", True),
        ("a.c", None, b"xA.C", True),
        ("^a.c$", None, b"abcd", False),
        ("^k[0-9]+$", b"k42", b"", True),
        ("a+", None, b"\xff\xfea", True),
    ],
)
def test_what_matches(text: str, key: bytes | None, value: bytes, wanted: bool) -> None:
    assert compile_filter(text)(key, value) is wanted


@pytest.mark.parametrize(
    "text",
    [
        "a(",
        "a)",
        "[a",
        "*a",
        "a**",
        "a{2",
        "a{3,2}",
        "a{,2}",
        "a{1001}",
        "(?P<n>a)",
        "(?=a)",
        r"\1",
        r"\b",
        r"\xg0",
        "\\",
        "[z-a]",
        "(" * 51 + ")" * 51,
        "((a{100}){100}){100}",
        "a{999}{999}",
        "(a{500}){500}",
        "x" * 1025,
    ],
)
def test_what_is_no_pattern_is_a_typed_refusal(text: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid filter"):
        compile_filter(text)


@pytest.mark.parametrize(
    "text", ["(a+)+b$", "(a|a)*b$", "(a*)*b", "(.*)(.*)(.*)(.*)x$", "(a|aa)+b$", "(x+x+)+y", "a{0,300}b"]
)
def test_no_pattern_costs_more_than_its_text(text: str) -> None:
    """Each of these takes a backtracking matcher longer than the age of the universe."""
    assert not Pattern(text).found("a" * 20_000 + "!")


def test_a_pattern_with_countless_states_is_given_up() -> None:
    pattern = Pattern("[ab]*a[ab]{300}c")
    text = "".join(random.Random(7).choices("ab", k=20_000))
    with pytest.raises(InvalidRequest, match="too costly"):
        pattern.found(text)


@given(
    pattern=st.from_regex(
        r"(?:[abc.]|\[\^?[ab]\]|\((?:a|b|ab)(?:\|[bc]+)?\))(?:[*+?]|\{[0-3](?:,[3-5])?\})?", fullmatch=True
    ),
    more=st.from_regex(r"(?:[abc]|\.|\\w|a\|b|\$|\^)*", fullmatch=True),
    text=st.text("abc\n", max_size=12),
)
@settings(max_examples=400, deadline=None)
def test_patterns_mean_what_they_mean_elsewhere(pattern: str, more: str, text: str) -> None:
    whole = (pattern + more)[:40]
    try:
        elsewhere = re.compile(whole.replace("$", r"\Z"))
    except re.error:
        return
    assert Pattern(whole).found(text) is (elsewhere.search(text) is not None)


def _run(base: int, *values: bytes) -> Run:
    meta = BatchMeta(b"", Origin("a", "b"))
    return Run("t", 0, base, Columns.of(values), [0] * len(values), ((0, 0, meta),))


def _fetch(text: str, most: int = 10) -> bytes:
    return fr(Op.FETCH, s("t") + i32(0) + u64(5) + i32(most) + s(text))


def _answer(*records: tuple[int, bytes], following: int) -> bytes:
    body = b"".join(u64(offset) + b(b"") + b(value) for offset, value in records)
    return fr(Op.FETCH, u32(len(records)) + u64(following) + body)


def test_the_next_offset_moves_past_what_does_not_match() -> None:
    script = server().feed(_fetch("yes"))
    script.answer(Fetch, Fetched([_run(5, b"no", b"yes", b"no")], 8, 0, 8), offset=5, max_messages=1000)
    script.sends(_answer((6, b"yes"), following=8)).quiet()


def test_a_full_answer_ends_behind_its_last_match() -> None:
    script = server().feed(_fetch("yes", most=2))
    script.answer(Fetch, Fetched([_run(5, b"yes", b"no", b"yes", b"yes")], 9, 0, 9))
    script.sends(_answer((5, b"yes"), (7, b"yes"), following=8)).quiet()


def test_a_long_stretch_without_a_match_is_crossed() -> None:
    """A shipped client moves on only when something matched (FlyMQ wire 3.1)."""
    script = server().feed(_fetch("yes"))
    for step in range(3):
        first = 5 + 1000 * step
        script.answer(Fetch, Fetched([_run(first, *[b"no"] * 1000)], first + 1000, 0, 9000), offset=first)
        assert not script.sent()
    script.answer(Fetch, Fetched([_run(3005, b"yes")], 3006, 0, 9000)).sends(
        _answer((3005, b"yes"), following=3006)
    ).quiet()


def test_one_fetch_does_not_read_a_whole_log() -> None:
    script = server().feed(_fetch("yes"))
    for step in range(20):
        first = 5 + 1000 * step
        script.answer(Fetch, Fetched([_run(first, *[b"no"] * 1000)], first + 1000, 0, 1 << 30))
    script.sends(_answer(following=20_005)).quiet()


def test_nothing_there_is_nothing_there() -> None:
    script = server().feed(_fetch("yes")).answer(Fetch, Fetched((), 5, 0, 5)).sends(_answer(following=5)).quiet()
    script.feed(fr(Op.FETCH_BINARY, s("t") + i32(0) + u64(5) + i32(1) + s("yes")))
    script.answer(Fetch, Fetched((), 5, 0, 5)).sends(fr(Op.FETCH_BINARY, u32(0) + u64(5))).quiet()


def test_matches_too_large_for_one_answer_are_left_for_the_next() -> None:
    big = b"yes" * (1 << 20)
    script = server(Dialect.STOCK).feed(_fetch("yes"))
    script.answer(Fetch, Fetched([_run(5, big, big, big, big)], 9, 0, 9))
    script.sends(_answer((5, big), (6, big), following=7)).quiet()
