"""Options that several commands share."""

from __future__ import annotations

import click
import pytest

from gateway.cli.options import SecondsType


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("0.25", 0.25), ("5s", 5.0), ("500ms", 0.5), ("2m", 120.0)])
def test_a_time_is_a_number_of_seconds_or_written_as_in_the_configuration(text: str, seconds: float) -> None:
    assert SecondsType().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["-1", "nan", "5 seconds", "s", ""])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SecondsType().convert(text, None, None)


def test_a_time_may_have_to_be_more_than_nothing() -> None:
    with pytest.raises(click.BadParameter, match="more than 0 s"):
        SecondsType(above=True).convert("0", None, None)
    with pytest.raises(click.BadParameter, match=r"at least 0\.1 s"):
        SecondsType(0.1).convert("50ms", None, None)
