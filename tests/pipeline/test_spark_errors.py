"""What goes wrong below a job is told by its cause, in a line, and leaves nothing half done."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import InvalidRequest, NotAStore, StoreError, TargetError
from gateway.pipeline.archive import Archived, archive
from gateway.pipeline.audit import audit
from gateway.pipeline.compact import compact
from gateway.pipeline.endpoint import Endpoint
from gateway.pipeline.frames import messages_at
from gateway.pipeline.manifest import Archive
from gateway.pipeline.rollup import rollup
from gateway.pipeline.spark_errors import cause
from gateway.pipeline.spread import OnSpark, TaskFailed
from tests.pipeline.stored import Log, filled

TRACEBACK = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
gateway.errors.CorruptChunk: damaged chunk: topic=t partition=0 offsets=[3, 6)
\tat org.apache.spark.api.python.BasePythonRunner
Caused by: java.lang.RuntimeException: x
"""
OURS = """\
An error occurred while calling o7.getResult.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 3.0 (TID 9) (127.0.0.1 executor driver): gateway.spark.Damaged: damaged chunk: topic=t partition=0
\tat gateway.spark.RangeReader.next(RangeReader.java:62)
"""
JAVA = """\
An error occurred while calling o25.text.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a/b.parquet.  SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$
Caused by: java.lang.RuntimeException: file:/a/b.parquet is not a Parquet file
"""
STREAM = """\
[STREAM_FAILED] Query [id = 3e19ec44-42d7, runId = 220082c2-4100] terminated with exception: [STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] \
The checkpoint location file:/a/offsets should be empty on batch 0
Please either use a new checkpoint location, or delete the existing data. SQLSTATE: 42K03 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 3e19ec44-42d7, runId = 220082c2-4100]
Current Committed Offsets: {}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (STREAM, "The checkpoint location file:/a/offsets should be empty on batch 0"),
        (STREAM.replace("[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] ", TRACEBACK), "CorruptChunk: damaged chunk"),
        (TRACEBACK, "CorruptChunk: damaged chunk: topic=t partition=0 offsets=[3, 6)"),
        (OURS, "Damaged: damaged chunk: topic=t partition=0"),
        (
            "An error occurred while calling o7.parquet.\n: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.X not found",
            "Spark has no jar that knows org.apache.hadoop.fs.X: give it those of its Hadoop",
        ),
        ('UnsupportedFileSystemException: No FileSystem for scheme "gs"', "Spark has no jar that knows gs://: give it"),
        ("java.io.IOException: No space left on device\n\tat x", "No space left on device: make room where"),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved.\nDid",
            "A column `x` cannot be resolved.",
        ),
        (
            JAVA,
            "Encountered error while reading file file:///a/b.parquet.  SQLSTATE: KD001: file:/a/b.parquet is not a",
        ),
    ],
)
def test_the_cause_in_a_line(text: str, said: str) -> None:
    assert cause(text).startswith(said)
    assert "\n" not in cause(text)


async def three(log: Log) -> None:
    await log.create("t")
    for _ in range(3):
        await log.append("t", [b"a", b"b", b"c"], keys=[b"k", None, b""])


def damaged(path: Path) -> sqlite3.Connection:
    """Flip a bit of the second chunk; undone by a ROLLBACK of what is returned, which is not what a disk offers."""
    connection = sqlite3.connect(path / "log.sqlite", isolation_level=None)
    key, data = connection.execute("SELECT id, data FROM chunks ORDER BY id LIMIT 1 OFFSET 1").fetchone()
    broken = bytearray(data)
    broken[-1] ^= 1
    connection.execute("UPDATE chunks SET data = ? WHERE id = ?", (bytes(broken), key))
    connection.execute("CREATE TABLE whole (id, data)")
    connection.execute("INSERT INTO whole VALUES (?, ?)", (key, data))
    return connection


def healed(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE chunks SET data = whole.data FROM whole WHERE chunks.id = whole.id")
    connection.execute("DROP TABLE whole")
    connection.close()


@pytest.mark.spark
def test_a_damaged_chunk_is_named_by_every_job_and_a_rerun_goes_on(spark: Any, tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "archive"
    filled(store, three)
    connection = damaged(store)
    said = r"damaged chunk: topic=t partition=0 offsets=\[3, 6\)"
    with pytest.raises(StoreError, match=said):
        archive(str(store), out, spread=OnSpark(spark))
    assert [(file.start, file.end) for file in Archive.existing(out).files()] == [(0, 3)]  # what is good before it
    with pytest.raises(StoreError, match=said + r".*--accept-gaps goes on behind it"):
        archive(str(store), out)
    assert archive(str(store), tmp_path / "around", accept_gaps=True).records == 6
    around = audit(str(store), tmp_path / "around")
    assert (around.findings, len(around.accepted)) == ((), 1)
    messages = messages_at(str(store))
    with pytest.raises(TaskFailed, match=said):
        rollup(spark, messages, tmp_path / "rollup")
    with pytest.raises(TaskFailed, match=said):
        compact(spark, messages, tmp_path / "compact")
    assert not (tmp_path / "compact").exists()
    healed(connection)
    assert archive(str(store), out).records == 6
    assert audit(str(store), out).findings == ()
    assert archive(str(store), out) == Archived()


def test_an_endpoint_that_refuses_and_a_path_that_is_no_store(tmp_path: Path) -> None:
    gone = Endpoint("http://127.0.0.1:1", patience=0.1)
    with pytest.raises(TargetError, match=r"nothing listens at http://127.0.0.1:1: is the gateway running"):
        archive(gone, tmp_path / "archive")
    assert not (tmp_path / "archive").exists()
    with pytest.raises(NotAStore, match="there is no archive at"):
        audit(gone, tmp_path / "archive")
    (tmp_path / "archive" / "_manifests").mkdir(parents=True)
    with pytest.raises(TargetError, match="nothing listens"):
        audit(gone, tmp_path / "archive")
    with pytest.raises(NotAStore, match="there is no store at"):
        archive(str(tmp_path), tmp_path / "archive")
    with pytest.raises(InvalidRequest, match="say where the messages are"):
        messages_at("")


@pytest.mark.spark
def test_a_damaged_file_of_an_archive_is_named(spark: Any, tmp_path: Path) -> None:
    filled(tmp_path / "store", three)
    archive(str(tmp_path / "store"), tmp_path / "archive")
    (file,) = (tmp_path / "archive").glob("topic=t/day=*/*.parquet")
    file.write_bytes(b"PAR1" + b"?" * (file.stat().st_size - 4))
    with pytest.raises(TaskFailed, match=re.escape(file.name)):
        compact(spark, messages_at(str(tmp_path / "archive")), tmp_path / "out")
    assert not (tmp_path / "out").exists()
