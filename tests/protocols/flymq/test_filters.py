"""FETCH filters: what matches, what is refused, and that no pattern can stop the gateway (FlyMQ wire 1)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import InvalidRequest
from gateway.protocols.flymq.server.filters import MOST_STEPS, Sieve, compile_filter
from gateway.protocols.flymq.wire.frames import Op
from gateway.requests import Fetch, Fetched
from gateway.settings import Dialect
from tests.protocols.flymq.made import b, fr, i32, s, server, u32, u64
from tests.protocols.script import Script

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
    assert compile_filter(text).matches(key, value) is wanted


@pytest.mark.parametrize(
    "text", ["(gross", "k(e", "[", "*", "a{2", "\\", "a)", "a**", "(?=a)", r"\1", "[z-a]", "a{1001}"]
)
def test_what_is_no_pattern_is_only_a_text(text: str) -> None:
    """Each as the original answers: it compiles with RE2, and what it cannot compile it only looks for (FlyMQ wire 2.2)."""
    wanted = compile_filter(text)
    assert wanted.matches(None, f"cost {text.upper()} or so".encode())
    assert wanted.matches(text.encode(), b"")
    assert not wanted.matches(None, b"gross ke aa 1 z a")


@pytest.mark.parametrize(
    ("text", "value", "wanted"),
    [
        ("(?i)GROSS", b"so gross", True),
        ("GR?OSS", b"so gross", False),
        ("(?P<n>a)b", b"xab", True),
        (r"\bcat\b", b"a cat.", True),
        (r"\bcat\b", b"concatenate", False),
        (r"\pL{3}\pN", "größ1".encode(), True),
        ("$.5", b"cost $.5", True),
        ("$.5", b"cost 5", False),
        ("$.5", b"[0, 1, 2, 3, 4, null]", True),
        ("$.a", b'{"b": "$.A"}', True),
        ('$.a"b', b'{"a\\"b": 1}', False),
        ("a.c", b"\xffa\xfec", True),
        ("^.$", "ü".encode(), True),
        ("^..$", "ü".encode(), False),
        ("|", b"anything", True),
    ],
)
def test_patterns_and_paths_mean_what_they_mean_to_the_original(text: str, value: bytes, wanted: bool) -> None:
    assert compile_filter(text).matches(None, value) is wanted


@pytest.mark.parametrize("text", ["x" * 1025, r"\pL{300}", r"\pL{20}"])
def test_what_is_too_large_is_a_typed_refusal(text: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid filter"):
        compile_filter(text)


@pytest.mark.parametrize(
    "text", ["(a+)+b$", "(a|a)*b$", "(a*)*b", "(.*)(.*)(.*)(.*)x$", "(a|aa)+b$", "(x+x+)+y", "a{0,300}b"]
)
def test_no_pattern_costs_more_than_its_text(text: str) -> None:
    """Each of these takes a backtracking matcher longer than the age of the universe."""
    assert not compile_filter(text).matches(None, b"a" * 20_000_000 + b"!")


def test_the_states_of_a_pattern_bound_how_much_of_a_value_is_looked_at() -> None:
    """This one has more states than fit into any memory, so that RE2 follows each of its instructions by itself."""
    wanted = compile_filter("[ab]*a[ab]{300}c")
    reach = MOST_STEPS // wanted.steps
    beyond = b"!" * reach + b"a" * 301 + b"c"
    assert not wanted.matches(None, beyond)
    assert wanted.matches(None, beyond[400:])


def test_one_fetch_ends_when_it_has_cost_enough() -> None:
    sieve = Sieve(compile_filter("[ab]*a[ab]{300}c"), 10)
    sieve.left = 40 * sieve.wanted.steps
    found, ended = sieve([_run(5, *[b"b" * 19] * 10)])
    assert not found
    assert ended == 7


def _run(base: int, *values: bytes) -> Run:
    meta = BatchMeta(b"", Origin("a", "b"))
    return Run("t", 0, base, Columns.of(values), [0] * len(values), ((0, 0, meta),))


def _answered(script: Script, fetched: Fetched, **fields: object) -> Script:
    """Answer as the broker does, with what the request's sieve leaves."""
    request = script.expect(Fetch, **fields)
    assert request.sieve is not None
    runs, ended = request.sieve(fetched.runs)
    next_offset = fetched.next_offset if ended is None else ended
    return script.complete(request, replace(fetched, runs=runs, next_offset=next_offset))


def _fetch(text: str, most: int = 10) -> bytes:
    return fr(Op.FETCH, s("t") + i32(0) + u64(5) + i32(most) + s(text))


def _answer(*records: tuple[int, bytes], following: int) -> bytes:
    body = b"".join(u64(offset) + b(b"") + b(value) for offset, value in records)
    return fr(Op.FETCH, u32(len(records)) + u64(following) + body)


def test_the_next_offset_moves_past_what_does_not_match() -> None:
    script = server().feed(_fetch("yes"))
    _answered(script, Fetched([_run(5, b"no", b"yes", b"no")], 8, 0, 8), offset=5, max_messages=1000)
    script.sends(_answer((6, b"yes"), following=8)).quiet()


def test_a_full_answer_ends_behind_its_last_match() -> None:
    script = server().feed(_fetch("yes", most=2))
    _answered(script, Fetched([_run(5, b"yes", b"no", b"yes", b"yes")], 9, 0, 9))
    script.sends(_answer((5, b"yes"), (7, b"yes"), following=8)).quiet()


def test_a_long_stretch_without_a_match_is_crossed() -> None:
    """A shipped client moves on only when something matched (FlyMQ wire 3.1)."""
    script = server().feed(_fetch("yes"))
    for step in range(3):
        first = 5 + 1000 * step
        _answered(script, Fetched([_run(first, *[b"no"] * 1000)], first + 1000, 0, 9000), offset=first)
        assert not script.sent()
    _answered(script, Fetched([_run(3005, b"yes")], 3006, 0, 9000)).sends(
        _answer((3005, b"yes"), following=3006)
    ).quiet()


def test_one_fetch_does_not_read_a_whole_log() -> None:
    script = server().feed(_fetch("yes"))
    for step in range(20):
        first = 5 + 1000 * step
        _answered(script, Fetched([_run(first, *[b"no"] * 1000)], first + 1000, 0, 1 << 30))
    script.sends(_answer(following=20_005)).quiet()


def test_nothing_there_is_nothing_there() -> None:
    script = server().feed(_fetch("yes"))
    _answered(script, Fetched((), 5, 0, 5)).sends(_answer(following=5)).quiet()
    script.feed(fr(Op.FETCH_BINARY, s("t") + i32(0) + u64(5) + i32(1) + s("yes")))
    _answered(script, Fetched((), 5, 0, 5)).sends(fr(Op.FETCH_BINARY, u32(0) + u64(5))).quiet()


def test_matches_too_large_for_one_answer_are_left_for_the_next() -> None:
    big = b"yes" * (3 << 20)
    script = server(Dialect.STOCK).feed(_fetch("yes"))
    _answered(script, Fetched([_run(5, big, big, big, big)], 9, 0, 9))
    assert script.sent() == _answer((5, big), (6, big), following=7)
    script.quiet()
