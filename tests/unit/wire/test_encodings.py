"""One encoding for all who are sent the same: made once it is asked for twice, bounded, and never another's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.envelope import Columns, Run
from gateway.wire import encodings
from gateway.wire.encodings import Encodings


def run(values: Sequence[bytes], *, topic: str = "t", offset: int = 0) -> Run:
    return Run(topic, 0, offset, Columns.of(values), [0] * len(values), [])


class Encoder:
    def __init__(self) -> None:
        self.made = 0

    def __call__(self, of: Run) -> Sequence[bytes]:
        self.made += 1
        return [b"<%b>" % value for value in of.columns.values()]


def test_ten_readers_have_it_made_twice():
    known, encode = Encodings(), Encoder()
    found = [known.of(run([b"a", b"b"]), "form", encode) for _ in range(10)]
    assert found == [[b"<a>", b"<b>"]] * 10
    assert encode.made == 2
    assert all(one is found[1] for one in found[2:])


def test_one_reader_has_nothing_kept():
    known, encode = Encodings(), Encoder()
    for offset in range(2 * encodings.REMEMBERED):
        known.of(run([b"a" * 100], offset=offset), "form", encode)
    assert known.size == 0
    assert len(known._known) == encodings.REMEMBERED


@pytest.mark.parametrize(
    "other",
    [
        run([b"a", b"c"]),
        run([b"a"]),
        run([b"a", b"b"], topic="u"),
        run([b"a", b"b"], offset=1),
    ],
    ids=["a topic made anew", "less of it", "another topic", "another place"],
)
def test_other_records_are_not_taken_for_these(other: Run):
    known, encode = Encodings(), Encoder()
    for _ in range(3):
        known.of(run([b"a", b"b"]), "form", encode)
    for _ in range(3):
        assert known.of(other, "form", encode) == encode(other)
    assert known.of(run([b"a", b"b"]), "form", encode) == [b"<a>", b"<b>"]
    assert known.of(run([b"a", b"b"]), "other form", lambda _: [b"!"]) == [b"!"]


def test_what_is_kept_is_bounded_by_its_bytes():
    known, encode = Encodings(kept_bytes=10_000), Encoder()
    for offset in range(100):
        for _ in range(2):
            known.of(run([b"x" * 400], offset=offset), "form", encode)
        assert known.size <= 10_000
    assert known.size > 9_000
    for _ in range(3):
        assert known.of(run([b"y" * 20_000]), "form", encode) == [b"<%b>" % (b"y" * 20_000)]
    assert known.size <= 10_000
    before = encode.made
    known.of(run([b"x" * 400], offset=99), "form", encode)
    known.of(run([b"x" * 400], offset=0), "form", encode)
    assert encode.made == before + 1  # the latest is there, the first is not
