"""The last value of each key, by real Spark, from a store and from an archive of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gateway.errors import AlreadyExists, NotAStore, StoreInUse
from gateway.pipeline.archive import archive
from gateway.pipeline.compact import compact
from gateway.pipeline.frames import Span, messages_at
from gateway.pipeline.options import TopicSelection
from gateway.pipeline.output import appearing
from tests.pipeline.stored import Log, filled
from tests.store.kit import START_MS


async def prices(log: Log) -> None:
    await log.create("prices/eu", partitions=2)
    await log.create("other")
    await log.append("prices/eu", [b"1", b"2", b"keyless"], 0, [b"a", b"b", None])
    await log.append("prices/eu", [b"3", b"4"], 1, [b"c", b"d"])
    log.clock.ms += 1000
    await log.append("prices/eu", [b"5", b""], 0, [b"a", b"b"])
    await log.append("prices/eu", [b"6", b"7"], 1, [b"c", b"e"], expires=[START_MS + 1, START_MS + 10**12])
    await log.append("other", [b"x"])


def rows(directory: Path) -> dict[bytes, bytes]:
    found = pq.read_table(directory, partitioning=None)
    return dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))


@pytest.mark.spark
def test_the_last_value_of_each_key(spark: Any, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    filled(store, prices)
    archive(str(store), tmp_path / "archive")
    expected = {b"a": b"5", b"d": b"4", b"e": b"7"}
    done = compact(spark, messages_at(str(tmp_path / "archive")), out, topics=TopicSelection(("prices/*",)))
    assert (done.messages, done.keys, done.topics) == (9, 3, 1)
    assert rows(out) == expected
    assert [path.name for path in out.glob("topic=*")] == ["topic=prices%2Feu"]
    stored = messages_at(str(store))
    with pytest.raises(AlreadyExists, match="is not empty: give --overwrite"):
        compact(spark, stored, out)
    assert compact(spark, stored, out, keep_tombstones=True, overwrite=True).keys == 4
    assert rows(out) == {**expected, b"b": b""}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.lock", "archive", "out", "store"]


def test_an_archive_knows_the_lives_of_a_topic(tmp_path: Path) -> None:
    from gateway.pipeline.compact import latest_lives
    from gateway.store.interface import DropTopic, Unit

    store = tmp_path / "store"
    filled(store, prices)
    archive(str(store), tmp_path / "archive", topics=TopicSelection(("other",)))

    async def again(log: Log) -> None:
        await log.store.submit(Unit(deletes=[DropTopic("other")])).wait()
        await log.create("other")
        await log.append("other", [b"y", b"z"])

    filled(store, again)
    archive(str(store), tmp_path / "archive", topics=TopicSelection(("other",)))
    spans = messages_at(str(tmp_path / "archive")).spans(TopicSelection())
    assert [(span.start, span.end) for span in spans] == [(0, 1), (0, 2)]
    assert latest_lives(spans) == [Span("other", spans[1].epoch, 0, 0, 2)]
    with pytest.raises(NotAStore, match="there is no store at"):
        messages_at(str(tmp_path / "none"))


class Killed(BaseException):
    """As if the process had died."""


def write(target: Path, text: str, *, overwrite: bool = True) -> None:
    with appearing(target, overwrite=overwrite) as fresh:
        Path(fresh.where).mkdir()
        (Path(fresh.where) / "file").write_text(text)


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    write(target, "old")
    rename = Path.rename
    for at in range(2):
        left = [at]

        def dying(self: Path, to: Path, left: list[int] = left) -> Path:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return rename(self, to)

        monkeypatch.setattr(Path, "rename", dying)
        with pytest.raises(Killed):
            write(target, f"new {at}")
        monkeypatch.setattr(Path, "rename", rename)
        if at:
            assert not target.exists()  # it died in between: the next run puts the old one back first
            with pytest.raises(AlreadyExists):
                write(target, "other", overwrite=False)
        assert (target / "file").read_text() == "old"
    write(target, "new")
    assert (target / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.lock", "out"]


def test_one_process_writes_a_directory_at_a_time(tmp_path: Path) -> None:
    with appearing(tmp_path / "out") as fresh:
        with pytest.raises(StoreInUse, match="another process writes"):
            write(tmp_path / "out", "second")
        Path(fresh.where).mkdir()
