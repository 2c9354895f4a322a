"""What a token's permissions cover, and key sets that cannot be used."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.broker.administration.tokens import Tokens, covers
from gateway.errors import ConfigProblem
from gateway.model import AuthJwt


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("stream.publish:stream:t1/default/*", "stream.publish:stream:t1/default/orders", True),
        ("stream.publish:stream:t1/default/*", "stream.publish:stream:t1/other/orders", False),
        ("stream.publish:stream:t1/default/*", "stream.subscribe:stream:t1/default/orders", False),
        ("stream.publish:stream:t1/default/orders", "stream.publish:stream:t1/default/orders", True),
        ("stream.publish:stream:t1/default/orders", "stream.publish:stream:t1/default/orders2", False),
        ("stream.publish:stream:t1/*", "stream.publish:stream:t10/default/orders", False),
        ("*", "anything", True),
        ("a*a", "a", False),
        ("", "", True),
    ],
)
def test_covering(pattern: str, text: str, expected: bool) -> None:
    assert covers(pattern, text) is expected


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_stars_mean_what_they_mean_elsewhere(pattern: str, text: str) -> None:
    assert covers(pattern, text) == fnmatch.fnmatchcase(text, pattern)


@pytest.mark.parametrize(
    "text", ['{"keys": []}', '{"keys": [{"kty": "odd"}]}', '{"keys": [{"kty": "OKP"}]}', "{", '{"keys": 5}']
)
def test_a_key_set_without_a_key(text: str) -> None:
    with pytest.raises(ConfigProblem):
        Tokens(AuthJwt(jwks=text))
