"""Globs and templates, both ways."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.errors import ConfigProblem
from gateway.routing.glob import Wild, bind, byte_glob, glob, template, whole
from gateway.routing.patterns import ambiguous

MATCHES = [
    ("orders", "orders", ()),
    ("orders", "orders2", None),
    ("orders.*", "orders.eu", ("eu",)),
    ("orders.*", "orders.", None),
    ("orders.*", "orders.eu.x", None),
    ("orders.*", "orders.eu/x", None),
    ("orders.*", "orders.a\nb", ("a\nb",)),
    ("*.*", "a.b", ("a", "b")),
    ("**", "", ("",)),
    ("**", "a/b.c", ("a/b.c",)),
    ("a.**", "a.", ("",)),
    ("a.**", "a", None),
    ("**.x.*", "a.x.b.x.c", ("a.x.b", "c")),
    ("a+b(c)*", "a+b(c)d", ("d",)),
    ("a?", "ab", None),
    ("{x}*", "{x}y", ("y",)),
]


@pytest.mark.parametrize(("text", "address", "captures"), MATCHES)
def test_what_a_glob_takes(text: str, address: str, captures: tuple[str, ...] | None) -> None:
    assert glob(text).match(address) == captures


@pytest.mark.parametrize("text", ["", "***", "a****b"])
def test_what_is_no_glob(text: str) -> None:
    with pytest.raises(ConfigProblem, match="glob"):
        glob(text)


def test_globs_over_bytes() -> None:
    assert byte_glob("eu-*").fullmatch(b"eu-\xff")
    assert not byte_glob("eu-*").fullmatch(b"eu-")
    assert byte_glob("ü*").fullmatch("ü1".encode())
    assert not byte_glob("*").fullmatch(b"a.b")


TEMPLATES = [
    ("orders.*", "t/o/orders-{1}", "orders.eu", "t/o/orders-eu"),
    ("*.*", "{2}/{1}/{2}", "a.b", "b/a/b"),
    ("*.*", "x.{topic}", "a.b", "x.a.b"),
    ("**", "{1}", "a.b", "a.b"),
    ("a", "{{{topic}}}", "a", "{a}"),
    ("*", "same", "a", "same"),
]


@pytest.mark.parametrize(("pattern", "text", "address", "name"), TEMPLATES)
def test_a_template_makes_names(pattern: str, text: str, address: str, name: str) -> None:
    compiled = glob(pattern)
    captures = compiled.match(address)
    assert captures is not None
    bound = bind(template(text), compiled)
    assert bound.expand(captures) == name
    inverse = bound.invert(name)
    assert inverse == {number: captures[number] for number in bound.used}


@pytest.mark.parametrize(
    ("pattern", "text", "name"),
    [
        ("orders.*", "x-{1}", "x-a.b"),
        ("orders.*", "x-{1}", "y-a"),
        ("*", "{1}/{1}", "a/b"),
        ("*.*", "{topic}", "ab"),
        ("*", "x", "x "),
    ],
)
def test_a_name_that_a_template_could_not_have_made(pattern: str, text: str, name: str) -> None:
    assert bind(template(text), glob(pattern)).invert(name) is None


@pytest.mark.parametrize("text", ["", "{", "}", "{a}", "{0}", "{1", "1}", "{}", "{-1}", "{100}", "{ 1}", "{١}"])
def test_what_is_no_template(text: str) -> None:
    with pytest.raises(ConfigProblem):
        template(text)


def test_a_template_may_use_only_captures_that_there_are() -> None:
    with pytest.raises(ConfigProblem, match="there are only 2 wildcards"):
        bind(template("{3}"), glob("*.*"))


alphabet = "ab./-"
literals = st.text(alphabet, min_size=1, max_size=3)
wilds = st.sampled_from(["*", "**"])


@st.composite
def globs(draw: st.DrawFn) -> str:
    """Wildcards with something between them (two in a row would be another wildcard)."""
    pieces: list[str] = []
    for _ in range(draw(st.integers(0, 3))):
        pieces += [draw(literals), draw(wilds)]
    pieces.append(draw(literals))
    return "".join(pieces)


@st.composite
def matched(draw: st.DrawFn) -> tuple[str, str]:
    """A glob and an address it takes."""
    text = draw(globs())
    pieces = []
    for part in glob(text).parts:
        if isinstance(part, str):
            pieces.append(part)
        elif part is Wild.SEGMENT:
            pieces.append(draw(st.text("ab-", min_size=1, max_size=4)))
        else:
            pieces.append(draw(st.text(alphabet, max_size=4)))
    return text, "".join(pieces)


@given(matched())
def test_captures_put_back_give_the_address(pair: tuple[str, str]) -> None:
    compiled = glob(pair[0])
    captures = compiled.match(pair[1])
    assert captures is not None
    assert whole(compiled).expand(captures) == pair[1]


@given(matched(), st.lists(st.one_of(literals, st.integers(0, 2)), min_size=1, max_size=5))
def test_a_name_read_backwards_makes_the_same_name(pair: tuple[str, str], parts: list[str | int]) -> None:
    compiled = glob(pair[0])
    captures = compiled.match(pair[1])
    assert captures is not None
    text = "".join(part if isinstance(part, str) else f"{{{part}}}" if part else "{topic}" for part in parts)
    assume(all(part <= len(captures) for part in parts if isinstance(part, int)))
    bound = bind(template(text), compiled)
    name = bound.expand(captures)
    inverse = bound.invert(name)
    assert inverse is not None
    assert bound.expand(inverse) == name
    if ambiguous(bound.symbols) is None:
        assert inverse == {number: captures[number] for number in bound.used}


@given(matched(), matched())
def test_a_name_is_inverted_only_if_it_could_have_been_made(one: tuple[str, str], two: tuple[str, str]) -> None:
    """The template of a glob's own address takes exactly what the glob takes."""
    bound = whole(glob(one[0]))
    assert (bound.invert(two[1]) is not None) == (glob(one[0]).match(two[1]) is not None)
