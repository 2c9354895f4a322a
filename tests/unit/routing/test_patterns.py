"""Overlap, cover and ambiguity of patterns, against every short text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing import patterns
from gateway.routing.glob import glob
from gateway.routing.patterns import ambiguous, covers, overlap

LETTERS = "ab."
TEXTS = ["".join(letters) for size in range(6) for letters in itertools.product(LETTERS, repeat=size)]


@st.composite
def globs(draw: st.DrawFn) -> str:
    pieces = draw(st.lists(st.sampled_from(["a", "b", ".", "*", "**"]), min_size=1, max_size=4))
    text = ""
    for piece in pieces:
        text += piece if not (piece.startswith("*") and text.endswith("*")) else f".{piece}"
    return text


def language(text: str) -> set[str]:
    compiled = glob(text)
    return {each for each in TEXTS if compiled.match(each) is not None}


@given(globs(), globs())
def test_overlap(one: str, two: str) -> None:
    example = overlap(glob(one).symbols, glob(two).symbols)
    common = language(one) & language(two)
    if example is None:
        assert not common
    else:
        assert glob(one).match(example) is not None
        assert glob(two).match(example) is not None
        assert all(len(example) <= len(text) for text in common)


@given(globs(), globs())
def test_cover(wide: str, narrow: str) -> None:
    if covers(glob(wide).symbols, glob(narrow).symbols):
        assert language(narrow) <= language(wide)
    elif len(wide) + len(narrow) <= 4:  # short globs show their difference in short texts
        assert language(narrow) - language(wide) or any(
            glob(narrow).match(text) is not None and glob(wide).match(text) is None
            for text in ("x", "xx", "x.x", "axb", "x/x")
        )


@given(globs())
def test_ambiguity(text: str) -> None:
    """A text has two readings if two different splits of it give the same text: count them all."""
    example = ambiguous(glob(text).symbols)
    if example is not None:
        assert readings(text, example) > 1
    else:
        assert all(readings(text, each) <= 1 for each in language(text))


def readings(text: str, address: str) -> int:
    """In how many ways a glob takes an address, by trying them."""

    def count(parts: tuple[object, ...], rest: str) -> int:
        if not parts:
            return not rest
        head, tail = parts[0], parts[1:]
        if isinstance(head, str):
            return count(tail, rest[len(head) :]) if rest.startswith(head) else 0
        least = 0 if head.value == ".*" else 1  # type: ignore[attr-defined]
        most = len(rest)
        if least:
            most = next((index for index, letter in enumerate(rest) if letter in "./"), len(rest))
        return sum(count(tail, rest[size:]) for size in range(least, most + 1))

    return count(glob(text).parts, address)


@pytest.mark.parametrize(
    ("wide", "narrow", "answer"),
    [
        ("**", "a/b.*", True),
        ("*", "ü", True),
        ("*", "**", False),
        ("a.**", "a.*.b", True),
        ("*.*", "**.**", False),
        ("**.**", "*.*", True),
        ("a*", "a", False),
        ("a**", "a", True),
    ],
)
def test_some_covers(wide: str, narrow: str, answer: bool) -> None:
    assert covers(glob(wide).symbols, glob(narrow).symbols) is answer


def test_a_question_that_would_take_too_long_is_answered_with_no(monkeypatch: pytest.MonkeyPatch) -> None:
    assert covers(glob("a.**.b").symbols, glob("a.*.b").symbols)
    monkeypatch.setattr(patterns, "_BOUND", 3)
    assert not covers(glob("a.**.b").symbols, glob("a.*.b").symbols)
