"""What may be a topic's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.routing.address import check_topic, complaint, is_reserved

GOOD = ["a", "orders.eu", "t1/default/x", "a b", "ünï", "." * 3, "..a/b.", "x" * 512, "é" * 256, "_x", "a__b", "%2F"]
BAD = {
    "": "empty",
    "x" * 513: "512 bytes",
    "é" * 257: "512 bytes",
    "a\x00": "control",
    "a\n": "control",
    "a\x7f": "control",
    "a\x85": "control",
    "a\\b": "backslash",
    "/a": "segment",
    "a/": "segment",
    "a//b": "segment",
    ".": "segment",
    "..": "segment",
    "a/./b": "segment",
    "../a": "segment",
    "/": "segment",
    "a\ud800": "control",
}


@pytest.mark.parametrize("name", GOOD)
def test_good_names(name: str) -> None:
    assert complaint(name) == ""
    assert check_topic(name) == name


@pytest.mark.parametrize(("name", "why"), BAD.items())
def test_bad_names(name: str, why: str) -> None:
    assert why in complaint(name)
    with pytest.raises(InvalidRequest, match=why):
        check_topic(name)


def test_reserved_names_are_names_but_not_for_clients() -> None:
    assert complaint("__stats") == ""
    assert is_reserved("__stats")
    with pytest.raises(InvalidRequest, match="reserved"):
        check_topic("__stats")


@given(st.text(max_size=600))
def test_the_rules_one_by_one(name: str) -> None:
    """Against the rules spelt out slowly."""
    controls = any(ord(c) < 32 or 127 <= ord(c) < 160 or c == "\\" or 0xD800 <= ord(c) <= 0xDFFF for c in name)
    good = not controls and 1 <= len(name.encode(errors="replace")) <= 512
    good = good and all(segment not in ("", ".", "..") for segment in name.split("/"))
    assert (complaint(name) == "") == good
