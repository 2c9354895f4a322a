"""The Spark sink `gateway`: `df.write.format("gateway")` and `writeStream`, into a running gateway.

Each task numbers its appends, and each append carries (producer, epoch, number): the query and its partition, and the
micro-batch. What a retried task says again adds nothing; should it say something else than the first time, which happens
where a query is not deterministic, it is refused and told so.

Apart from the source: what it writes to is a running gateway, never a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import uuid4

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from gateway.errors import InvalidRequest, Unsupported
from gateway.pipeline.endpoint import Endpoint, EndpointWriter
from gateway.pipeline.messages import MessagesToSend, check_columns, messages
from gateway.pipeline.options import PLACE_NAMES, checked, endpoint_of, flag

NAMES = (*PLACE_NAMES, "topic", "protocol", "listener", "producer", "keepPartitions", "checkpointLocation", "path")
QUERY, EPOCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark calls them among a task's local properties."""


@attrs.frozen
class WriteOptions:
    endpoint: Endpoint
    topic: str = ""
    """An address for all rows; empty: the column topic says it."""
    protocol: str = ""
    listener: str = ""
    producer: str = ""
    keep_partitions: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """From Spark's options, whose names have no case. Raises InvalidRequest."""
        given = checked(options, NAMES)
        if not given.get("endpoint"):
            raise InvalidRequest(
                "the option endpoint is needed, the admin address of a running gateway: it does the writing"
            )
        if given.get("path"):
            raise InvalidRequest("a store is written by its gateway alone: give endpoint instead of path")
        return cls(
            endpoint_of(given),
            given.get("topic", ""),
            given.get("protocol", ""),
            given.get("listener", ""),
            given.get("producer", ""),
            flag(given.get("keeppartitions", "false"), "keepPartitions"),
        )


@attrs.define
class SinkCommit(WriterCommitMessage):
    messages: int
    repeated: int


class GatewayWriter(DataSourceArrowWriter):
    """Publishes a batch. A run has an id of its own, unless the option `producer` names one that a rerun shares."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(to_arrow_schema(schema, timezone="UTC"), options.topic)
        self._options = options
        self._run = options.producer or f"batch-{uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return publish(self._options, iterator, f"{self._run}/{_context().partitionId()}", 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Everything is stored already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What some tasks have published stays: a log forgets nothing because a neighbour failed."""


class GatewayStreamWriter(DataSourceStreamArrowWriter):
    """Publishes micro-batches, each once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(to_arrow_schema(schema, timezone="UTC"), options.topic)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query, epoch = context.getLocalProperty(QUERY), context.getLocalProperty(EPOCH)
        if query is None or epoch is None:
            raise Unsupported(
                "this Spark does not say which micro-batch a task belongs to: nothing could be exactly once"
            )
        name = self._options.producer or f"query-{query}"
        return publish(self._options, iterator, f"{name}/{context.partitionId()}", int(epoch))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Everything is stored already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """The micro-batch will be written again; what is there already is not added a second time."""


def publish(options: WriteOptions, batches: Iterator[pa.RecordBatch], producer: str, epoch: int) -> SinkCommit:
    """What comes next is made while one append is under way; it is sent when that is stored, so that nothing overtakes."""
    pieces = (one for batch in batches for one in messages(batch, options.topic, partitions=options.keep_partitions))
    appends: list[Future[SinkCommit]] = []
    with EndpointWriter(options.endpoint) as out, ThreadPoolExecutor(1) as sender:
        for number, one in enumerate(pieces):
            if appends:
                appends[-1].result()
            appends.append(sender.submit(_append, options, out, one, producer, epoch, number))
    made = [one.result() for one in appends]
    return SinkCommit(sum(one.messages for one in made), sum(one.repeated for one in made))


def _append(
    options: WriteOptions, out: EndpointWriter, one: MessagesToSend, producer: str, epoch: int, number: int
) -> SinkCommit:
    appended = out.append(
        one.address,
        one.columns,
        producer=producer,
        epoch=epoch,
        sequence=number,
        protocol=options.protocol,
        listener=options.listener,
        partition=one.partition,
    )
    return SinkCommit(one.columns.count, one.columns.count if appended.duplicate else 0)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise Unsupported("the sink writes inside a Spark task")
    return context
