"""Places for files: what a directory does with renames and locks, an object store does with what it has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.serializers import CPickleSerializer

from gateway.errors import InvalidRequest, StoreError, StoreInUse
from gateway.pipeline.shelves import STAGING, Shelf, is_remote, shelf_at
from tests.pipeline.s3 import ObjectStore, object_store


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture(params=["directory", "s3a"])
def shelf(request: pytest.FixtureRequest, s3: ObjectStore, tmp_path: Path) -> Shelf:
    made = shelf_at(tmp_path / "shelf" if request.param == "directory" else s3.prefix())
    made.prepared("notes")
    return made


NAME = "topic=a%2Fb c/day=2026-01-31/e1-p0.parquet"


def test_a_file_is_staged_then_settled_as_often_as_it_is_said(shelf: Shelf) -> None:
    with shelf.staged("e1-p0.parquet") as path:
        path.write_bytes(b"rows" * 3_000_000)
    assert list(shelf.files()) == list(shelf.files(STAGING)) == [f"{STAGING}/e1-p0.parquet"]
    assert not shelf.has(NAME)
    shelf.settle("e1-p0.parquet", NAME)
    shelf.settle("e1-p0.parquet", NAME)
    assert list(shelf.files()) == [NAME]
    assert shelf.has(NAME)
    with shelf.opened(NAME) as file:
        file.seek(11_999_996)
        assert (file.size(), file.read()) == (12_000_000, b"rows")
    shelf.remove(NAME)
    shelf.remove(NAME)
    assert not shelf.files()
    with pytest.raises(FileNotFoundError):
        shelf.opened(NAME)


def test_what_was_not_finished_is_not_there(shelf: Shelf) -> None:
    class Stopped(Exception):
        pass

    def stop() -> None:
        with shelf.staged("half") as path:
            path.write_bytes(b"half")
            raise Stopped

    with pytest.raises(Stopped):
        stop()
    if not shelf.lockable:
        assert not shelf.files()


def test_small_files_are_read_in_the_order_that_was_asked_for(shelf: Shelf) -> None:
    for number in range(40):
        shelf.replace(f"notes/{number}", b"%d" % number)
    shelf.replace("notes/7", b"again")
    names = [f"notes/{number}" for number in range(39, -1, -1)]
    assert shelf.read(names) == [b"again" if number == 7 else b"%d" % number for number in range(39, -1, -1)]
    assert set(shelf.files("notes")) == set(names)
    assert shelf.read([]) == []
    with pytest.raises(FileNotFoundError):
        shelf.read(["notes/1", "notes/none"])


def test_of_two_that_create_the_same_one_hears_it(s3: ObjectStore) -> None:
    shelf = shelf_at(s3.prefix())
    together = threading.Barrier(8)
    won: list[int] = []

    def go(number: int) -> None:
        together.wait()
        if shelf_at(shelf.place).create("notes/1", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    (winner,) = won
    assert shelf.read(["notes/1"]) == [b"%d" % winner]
    # whoever does not hear the answer asks again, and is still the one
    assert shelf.create("notes/1", b"%d" % winner)
    assert not shelf.create("notes/1", b"other")


def test_a_directory_is_held_by_one(tmp_path: Path) -> None:
    shelf = shelf_at(tmp_path)
    with shelf.held(), pytest.raises(StoreInUse, match="another process adds to"), shelf.held():
        pass


def test_it_travels_with_what_it_is_reached_by_and_shows_none_of_it(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = shelf_at(s3.prefix())
    shelf.replace("x", b"1")
    frozen = CPickleSerializer().dumps(shelf)
    for name in s3.environment:
        monkeypatch.delenv(name)
    assert CPickleSerializer().loads(frozen).read(["x"]) == [b"1"]
    assert "secret" not in repr(shelf)


@pytest.mark.parametrize("place", ["hdfs://there/x", "ftp://there/x", "abfs://there"])
def test_a_place_that_it_does_not_know(place: str) -> None:
    assert is_remote(place)
    with pytest.raises(InvalidRequest, match=place):
        shelf_at(place).files()


def test_what_the_store_says_is_told_in_a_line(s3: ObjectStore) -> None:
    with pytest.raises(StoreError, match=r"^s3a://nobodys/x: .*NoSuchBucket") as told:
        shelf_at("s3a://nobodys/x").replace("a", b"1")
    assert "\n" not in told.value.message
