"""One table over an archive and its log: the archive up to where it ends, the log from there, each record once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.arrow.schema import SCHEMA
from gateway.errors import UnknownTopic
from gateway.pipeline.manifest import Archive, ArchiveFile, Gap
from gateway.pipeline.options import ReadOptions
from gateway.pipeline.ranges import WAY_ON, HistoryGone, Range, meant, selected
from gateway.pipeline.shelves import shelf_at
from gateway.store.reader import ReadableLog

EPOCH = "epoch"
"""The one column more than a message has: which life of its topic it is from."""
WITH_EPOCH = SCHEMA.append(pa.field(EPOCH, pa.int64()))
BATCH_ROWS = 32_768


def history(directory: Path | str, reader: ReadableLog, options: ReadOptions) -> tuple[list[ArchiveFile], list[Range]]:
    """The files of an archive, and what the log has beside them. Raises HistoryGone for what neither has and nobody accepted."""
    archive = Archive.existing(directory)
    files = archive.files()  # before the log: what is added meanwhile is read from there
    accepted = archive.accepted()
    topics = reader.topics()
    missing = sorted(set(options.topics.names) - set(topics) - {one.topic for one in files})
    if missing:
        raise UnknownTopic(f"there is no topic {', '.join(missing)} in {options.where} or {directory}")
    ends: dict[tuple[str, int, int], int] = {}
    known_to: list[ArchiveFile | Gap] = [*files, *accepted]
    for each in known_to:
        life = (each.topic, each.epoch, each.partition)
        ends[life] = max(ends.get(life, 0), each.end)
    found: list[Range] = []
    lost: list[str] = []
    for known in selected(topics, options, all_named=False):
        for one in meant(known, options):
            place = (known.name, known.epoch, one.number)
            done = ends.get(place, one.start)
            excused = any(
                (gap.topic, gap.epoch, gap.partition) == place and gap.start <= done and one.start <= gap.end
                for gap in accepted
            )
            if done < one.start and not excused:
                lost.append(f"{known.name}/{one.number} [{done}, {one.start})")
            if max(done, one.start) < one.end:
                found.append(Range(known.name, one.number, max(done, one.start), one.end, known.epoch))
    if lost and options.fail_on_data_loss:
        raise HistoryGone(f"{'; '.join(lost)}: removed before it was archived. {WAY_ON}")
    wanted = options.topics.among(sorted({one.topic for one in files}))
    return [one for one in files if one.topic in wanted and options.topics.has(one.topic, one.partition)], found


def archived_batches(directory: Path | str, file: ArchiveFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a file, with the topic, which only its directory says."""
    columns = [name for name in schema.names if name != "topic"]
    shelf = shelf_at(directory)
    try:
        opened = pq.ParquetFile(shelf.opened(file.path))
    except FileNotFoundError as error:
        raise HistoryGone(
            f"{shelf.place}/{file.path} is not there: the archive was merged meanwhile, or has lost it. {WAY_ON}"
        ) from error
    with opened:
        for batch in opened.iter_batches(BATCH_ROWS, columns=columns or ["offset"]):
            if not schema.names:  # nothing but their number is asked for
                yield pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
                continue
            topic = pa.repeat(pa.scalar(file.topic, pa.string()), batch.num_rows)
            cells = [topic if name == "topic" else batch.column(name) for name in schema.names]
            yield pa.RecordBatch.from_arrays(cells, schema=schema)
