"""What the pages say of keys, commands, metrics and states is what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import notation
from gateway.config.schema import json_schema
from gateway.settings import Backoff, Seconds, Size
from tests.unit.config.test_schema import paths
from tests.unit.docs.generate import keys, pages, replaced

PAGES = list(pages())


@pytest.mark.parametrize(("path", "text"), PAGES, ids=[path.stem for path, _ in PAGES])
def test_the_generated_parts_are_what_the_code_makes(path: Path, text: str) -> None:
    assert path.read_text() == text, "run `make docs`"


def test_every_key_says_what_it_is_for_and_since_when() -> None:
    said = list(keys(json_schema()))
    assert all(key.schema["description"].endswith(".") and key.schema["x-since"] for key in said)
    known = {path for path in paths(json_schema()) if not path.endswith("_file")}
    assert {key.path.replace("<name>", "*").replace("<glob>", "*") for key in said} == known


def test_a_part_is_replaced_and_nothing_beside_it() -> None:
    page = "# A\n\ntext\n\n## B\n\nold\n\n### C\n\nold\n\n## D\n\ntext\n"
    assert replaced(page, "## B", "new") == "# A\n\ntext\n\n## B\n\nnew\n\n## D\n\ntext\n"
    assert replaced(page, "## D", "new").endswith("## D\n\nnew\n")


@given(st.integers(0, 10**12))
def test_a_shown_duration_means_what_it_did(microseconds: int) -> None:
    seconds = Seconds(microseconds / 1e6)
    assert notation.duration(notation.show_duration(seconds)) == pytest.approx(seconds)


@given(st.integers(0, notation.LARGEST_SIZE))
def test_a_shown_size_means_what_it_did(size: int) -> None:
    assert notation.size(notation.show_size(Size(size))) == size


def test_shown_defaults_are_short() -> None:
    assert notation.show_duration(Seconds(float("inf"))) == "none"
    assert notation.show_duration(Seconds(600)) == "10m"
    assert notation.show_size(Size(64 << 20)) == "64MiB"
    assert notation.show_size(Size(0)) == "0B"
    assert notation.show_backoff(Backoff(Seconds(0.1), Seconds(30))) == "100ms..30s"
