"""Durations, sizes, ranges, addresses and `${NAME}`: what is taken, what is refused and how."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import notation
from gateway.errors import ConfigProblem


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250us", 250e-6), ("5ms", 0.005), ("2s", 2), ("1.5s", 1.5), ("10m", 600), ("1h", 3600), ("7d", 604_800),
        ("0s", 0), ("none", math.inf),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert notation.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "5 s", "-5s", "s", "5S", "1e3s", ".5s", "5sec", "inf", "٥s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigProblem, match="not a duration"):
        notation.duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("7B", 7),
        ("64KiB", 65_536),
        ("16MiB", 16 << 20),
        ("10GiB", 10 << 30),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert notation.size(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "1.5KiB", "64kb", "64 KiB", "-1", "0x10"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigProblem, match="not a size"):
        notation.size(text)


def test_a_size_beyond_what_a_column_holds_is_refused() -> None:
    with pytest.raises(ConfigProblem, match="too large"):
        notation.size("9999999999TiB")


def test_a_backoff_range() -> None:
    found = notation.backoff("100ms..30s")
    assert (found.first, found.longest) == (pytest.approx(0.1), 30)


@pytest.mark.parametrize("text", ["100ms", "30s..100ms", "0s..1s", "1s..none", "..1s", "1s...2s"])
def test_what_is_no_backoff_range(text: str) -> None:
    with pytest.raises(ConfigProblem):
        notation.backoff(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("[::1]:9092", ("::1", 9092)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("localhost:65535", ("localhost", 65_535)),
    ],
)
def test_endpoints(text: str, found: tuple[str, int]) -> None:
    assert notation.endpoint(text) == found
    assert notation.endpoint(notation.show_endpoint(*found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9092",
        ":9092",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "a:65536",
        "::1:9092",
        "a b:1",
        "a:-1",
        "a:+1",
        "a..b:1",
        ".:1",
        "x" * 64 + ":1",
    ],
)
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ConfigProblem):
        notation.endpoint(text)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain", "plain"),
        ("${A}", "one"),
        ("<${A}${B}>", "<onetwo>"),
        ("${EMPTY}", ""),
        ("${EMPTY:-default}", "default"),
        ("${MISSING:-}", ""),
        ("${MISSING:-a:-b}", "a:-b"),
        ("${A:-unused}", "one"),
        ("$${A}", "${A}"),
        ("$A and $", "$A and $"),
        ("${TRICKY}", "${A}"),
    ],
)
def test_substitution(text: str, filled: str) -> None:
    environ = {"A": "one", "B": "two", "EMPTY": "", "TRICKY": "${A}"}
    assert notation.substitute(text, environ) == filled


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${MISSING}", "MISSING is not set"),
        ("a ${", "without '}'"),
        ("${A", "without '}'"),
        ("${}", "not a variable"),
        ("${1A}", "not a variable"),
        ("${A B}", "not a variable"),
    ],
)
def test_what_cannot_be_filled_in(text: str, said: str) -> None:
    with pytest.raises(ConfigProblem, match=said):
        notation.substitute(text, {"A": "one"})


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


@given(st.lists(st.tuples(st.text(st.characters(exclude_characters="$")), names, st.text())))
def test_values_go_in_as_they_are(pieces: list[tuple[str, str, str]]) -> None:
    environ = {name: value for _, name, value in pieces}
    text = "".join(f"{before}${{{name}}}" for before, name, _ in pieces)
    assert notation.substitute(text, environ) == "".join(before + environ[name] for before, name, _ in pieces)


@given(st.text(), st.dictionaries(names, st.text()))
def test_substitution_is_total(text: str, environ: dict[str, str]) -> None:
    try:
        filled = notation.substitute(text, environ)
    except ConfigProblem:
        assert "${" in text
    else:
        assert "${" in text or filled == text


@pytest.mark.parametrize(
    ("host", "so"),
    [("0.0.0.0", True), ("::", True), ("[::]", True), ("", False), ("10.0.0.0", False), ("::1", False)],
)
def test_what_stands_for_all_addresses(host: str, so: bool) -> None:
    assert notation.is_everywhere(host) is so
