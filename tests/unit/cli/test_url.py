"""URLs of places: every protocol, every mistake."""

from __future__ import annotations

import contextlib

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.url import PlaceType, UrlTarget, parse
from gateway.protocols.registry import protocols


@pytest.mark.parametrize("name", sorted(protocols()))
def test_every_protocol_is_a_scheme_with_its_own_port(name: str) -> None:
    place = parse(f"{name}://example.org/a/b/c")
    assert place.spec.name == name
    assert (place.host, place.port) == ("example.org", protocols()[name].default_port)
    assert place.address == protocols()[name].address_of_path("a/b/c")


@pytest.mark.parametrize(
    ("text", "host", "port", "address", "shown"),
    [
        ("blipmq://127.0.0.1:5555/orders", "127.0.0.1", 5555, "orders", "blipmq://127.0.0.1:5555/orders"),
        ("blipmq://[::1]:7/orders", "::1", 7, "orders", "blipmq://[::1]:7/orders"),
        ("blipmq://h:0/a/b.c", "h", 0, "a/b.c", "blipmq://h:0/a/b.c"),
        ("blipmq://h:1", "h", 1, "", "blipmq://h:1/"),
        ("blipmq://h:1/", "h", 1, "", "blipmq://h:1/"),
        ("blipmq://h:1/na%C3%AFve%20name", "h", 1, "naïve name", "blipmq://h:1/naïve name"),
        ("blipmq://h:1/what%3F", "h", 1, "what?", "blipmq://h:1/what?"),
        ("blipmq://h:1/a%2Fb%25c", "h", 1, "a%2Fb%25c", "blipmq://h:1/a%2Fb%25c"),
    ],
)
def test_host_port_and_address(text: str, host: str, port: int, address: str, shown: str) -> None:
    place = parse(text)
    assert (place.host, place.port, place.address) == (host, port, address)
    assert str(place) == shown


def test_a_user_in_the_url_is_taken_and_its_password_not_shown() -> None:
    place = parse("blipmq://al%40home:se%2Fcret@h:1/t")
    assert (place.username, place.password) == ("al@home", "se/cret")
    assert "cret" not in repr(place)
    assert "cret" not in str(place)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("orders", "is not a URL: write "),
        ("blimpq://h/t", "did you mean blipmq://?"),
        ("kafka-ish://h/t", "is not a protocol: "),
        ("blipmq:///orders", "names no host: write blipmq://127.0.0.1:5555/orders"),
        ("blipmq://h:port/t", "blipmq://h:port/t"),
        ("blipmq://h:70000/t", "out of range"),
        ("blipmq://[::1/t", "Invalid IPv6"),
        ("blipmq://h/what?", None),
        ("blipmq://h/what?now", "%3F"),
        ("blipmq://h/t#1", "%23"),
    ],
)
def test_a_mistake_says_how_to_write_it(text: str, said: str | None) -> None:
    if said is None:
        assert parse(text).address == "what"
        return
    with pytest.raises(click.BadParameter) as caught:
        parse(text)
    assert said in caught.value.message


def test_where_something_must_be_named_a_bare_host_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="does not say what"):
        PlaceType().convert("blipmq://h", None, None)
    assert PlaceType(address_needed=False).convert("blipmq://h", None, None).address == ""


@given(st.text())
def test_any_text_is_a_place_or_a_mistake(text: str) -> None:
    for candidate in (text, f"blipmq://{text}", f"blipmq://h/{text}"):
        with contextlib.suppress(click.BadParameter):
            assert isinstance(parse(candidate), UrlTarget)
