"""The file that says how far a replay is: whole or not there, and about one replay only."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from gateway.errors import Conflict, StoreDamaged
from gateway.pipeline.frames import Span
from gateway.pipeline.progress import Progress, ProgressFile, Wanted

WANTED = Wanted("/data", "http://127.0.0.1:9600", "orders.*", 1, None, "value is not null")
SPANS = [Span("orders.eu", 1, 0, 5, 10), Span("orders.eu", 1, 1, 0, 3)]


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = ProgressFile.of(WANTED, tmp_path)
    assert file.load(WANTED) is None
    progress = Progress(WANTED, SPANS, 17)
    progress.pending = {("orders.eu", 1, 0): 7}
    file.save(progress)
    assert file.load(WANTED) == progress
    assert progress.begun() == [Span("orders.eu", 1, 0, 5, 7)]
    progress.taken(progress.pending, 2)
    file.save(progress)
    assert file.load(WANTED) == progress
    assert (progress.sent, progress.sequence, progress.pending) == (2, 1, None)
    assert progress.left() == [Span("orders.eu", 1, 0, 7, 10), SPANS[1]]
    progress.taken({("orders.eu", 1, 0): 10, ("orders.eu", 1, 1): 3}, 6)
    assert progress.left() == []
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_another_replay_has_another_file(tmp_path: Path) -> None:
    other = attrs.evolve(WANTED, where="true")
    assert ProgressFile.of(other, tmp_path).path != ProgressFile.of(WANTED, tmp_path).path
    assert ProgressFile.of(WANTED, None).path.parent == Path("/")
    file = ProgressFile.of(WANTED, tmp_path)
    file.save(Progress(other, SPANS, 17))
    with pytest.raises(Conflict, match="is about another replay"):
        file.load(WANTED)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("{", StoreDamaged, "Remove it to begin anew"),
        ('{"version": 1}', StoreDamaged, "is no progress of a replay: KeyError"),
        ('{"version": 9}', Conflict, "has version 9"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, error: type[Exception], said: str) -> None:
    file = ProgressFile.of(WANTED, tmp_path)
    file.path.write_text(text)
    with pytest.raises(error, match=said):
        file.load(WANTED)
