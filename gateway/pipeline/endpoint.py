"""A running gateway's bulk API, for programs without an event loop: executors, jobs, tools. Needs no Arrow, no trio.

    endpoint = Endpoint.of("https://gateway:9600", token="...", ca="ca.pem")

    with EndpointLog(endpoint) as log:              # as `gateway.store.reader.LogReader` is
        log.topics()                                # name -> StoredTopic (epoch, partitions with start, end)
        for run in log.read_chunks("orders", 0, 17, 99): ...      # Runs, as from the store itself
        log.offset_for_time("orders", 0, 1_700_000_000_000)

    with EndpointWriter(endpoint) as out:
        done = out.append("orders", Columns.of([b"a", b"b"]), producer="job/3", epoch=0, sequence=0)
        done.places                                 # [Stretch(topic, partition, base_offset, count)]
        out.producer("job/3")                       # Producer(epoch, sequence): where to go on after a crash

`gateway.pipeline.source.open_log(path_or_endpoint)` opens either kind of source; `gateway.pipeline.columns.batches` makes
Arrow of runs and `gateway.pipeline.messages.messages` makes Columns of Arrow. An Endpoint is a value: it may be pickled and
travel to executors (certificates travel inside it). The others hold a connection and serve one thread.

An append is stored whole or not at all (a message that is refused refuses all). The same (producer, epoch, sequence) adds
nothing a second time and answers with the same places; with other messages it is a Conflict. A producer that begins a
later epoch ends the earlier ones: what still arrives for those is a Conflict. A connection that breaks is opened again
and the request repeated, for `patience` seconds; so is one that the gateway cannot serve just now (read-only, throttled,
draining).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self
from urllib.parse import urlencode

import msgspec

from gateway.bulk import wire
from gateway.bulk.wire import Appended, Producer
from gateway.envelope import Columns, Run
from gateway.errors import GatewayError, TooLarge
from gateway.pipeline.endpoint_http import Cut, Endpoint, EndpointCaller
from gateway.store.chunk import decode
from gateway.store.interface import Durability, Stored, TopicConfig
from gateway.store.position import Position
from gateway.store.reader import ReadableLog, StoredPartition, StoredTopic

__all__ = ["Appended", "Endpoint", "EndpointLog", "EndpointWriter", "Producer"]

READ_BYTES = 16 << 20
"""About how much one request asks for: a reader that pauses holds nothing up for long."""


class _Client:
    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._caller = EndpointCaller(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._caller.close()


class EndpointLog(_Client, ReadableLog):
    """The log of a running gateway."""

    has_chunks = True

    def __init__(self, endpoint: Endpoint) -> None:
        _Client.__init__(self, endpoint)
        ReadableLog.__init__(self, f"at {endpoint.url}")
        self._dense: bool | None = None

    @property
    def dense_offsets(self) -> bool:
        if self._dense is None:
            self.described()
        return self._dense is not False

    def topics(self) -> Mapping[str, StoredTopic]:
        return {one.name: _stored(one) for one in self.described()}

    def described(self, name: str = "") -> Sequence[wire.TopicSnapshot]:
        topics: list[wire.TopicSnapshot] = []
        after = ""
        while True:
            asked = {key: text for key, text in (("name", name), ("after", after)) if text}
            query = "?" + urlencode(asked) if asked else ""
            found = self._caller.ask("GET", wire.TOPICS + query, wire.TopicSnapshots)
            self._dense = found.dense_offsets
            topics += found.topics
            after = found.following
            if not after:
                return topics

    def topic(self, name: str) -> StoredTopic:
        found = self.described(name)
        if not found:
            raise self._unknown(name)
        return _stored(found[0])

    def read_chunks(
        self, topic: str, partition: int, start: int | None = None, end: int | None = None, *, epoch: int | None = None
    ) -> Iterator[Run]:
        if start is None or end is None or epoch is None:
            known = self.topic(topic)
            found = known.partition(partition)
            epoch = known.epoch if epoch is None else epoch
            start = found.start if start is None else start
            end = found.end if end is None else end
        position = Position(topic, partition, start, dense=self.dense_offsets)
        for base, count, chunk in self._stored(topic, partition, start, end, epoch):
            run = decode(chunk, topic, partition, base, count)
            yield run.slice(position.skip(base, base + count), min(count, end - base))

    def read_stored(
        self, topic: str, partition: int, start: int, end: int, records: int, size: int, *, epoch: int | None = None
    ) -> Iterator[Sequence[Stored]]:
        held: list[Stored] = []
        count = taken = 0
        try:
            for chunk in self._stored(topic, partition, start, end, epoch):
                held.append(chunk)
                count += chunk[1]
                taken += len(chunk[2])
                if count >= records or taken >= size:
                    yield held
                    held, count, taken = [], 0, 0
        except GatewayError:
            if held:
                yield held  # what is good before a problem comes first
            raise
        if held:
            yield held

    def _stored(self, topic: str, partition: int, start: int, end: int, epoch: int | None) -> Iterator[Stored]:
        # the chunks of [start, end), without a gap, however often the connection breaks
        position = Position(topic, partition, start, dense=self.dense_offsets)
        while position.offset < end:
            before = position.offset
            try:
                for base, count, chunk in self._frames(topic, partition, before, end, epoch):
                    position.skip(base, base + count)
                    yield base, count, chunk
            except Cut as error:
                self._caller.again(error, progress=position.offset > before)
            else:
                if position.offset == before:
                    return  # the log ends here

    def redriven(self, topic: str, epoch: int, partition: int) -> Iterator[int]:
        """The offsets of dead letters that were published again, ascending."""
        first = 0
        while True:
            query = urlencode({"topic": topic, "epoch": epoch, "partition": partition, "first": first})
            found = self._caller.ask("GET", f"{wire.REDRIVEN}?{query}", wire.Offsets).offsets
            yield from found
            if not found:
                return
            first = found[-1] + 1

    def _frames(self, topic: str, partition: int, start: int, end: int, epoch: int | None) -> Iterator[Stored]:
        asked = {"topic": topic, "partition": partition, "start": start, "end": end, "max_bytes": READ_BYTES}
        query = urlencode(asked if epoch is None else {**asked, "epoch": epoch})
        with self._caller.stream(f"{wire.LOG}?{query}", wire.CHUNKS) as read:
            while True:
                size, kind = wire.FRAME.unpack(read(wire.FRAME.size))
                payload = read(size)
                if kind == wire.CHUNK_FRAME:
                    base, count = wire.PLACE.unpack_from(payload)
                    yield base, count, payload[wire.PLACE.size :]
                elif kind == wire.END_FRAME:
                    return
                else:
                    raise wire.error_of(msgspec.json.decode(payload, type=wire.Problem))

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        query = urlencode({"topic": topic, "partition": partition, "timestamp_ms": timestamp_ms})
        return self._caller.ask("GET", f"{wire.OFFSET_FOR_TIME}?{query}", wire.OffsetFound).offset


def _stored(topic: wire.TopicSnapshot) -> StoredTopic:
    partitions = [
        StoredPartition(one.number, one.start, one.end, one.last_time_ms, one.bytes, -1) for one in topic.partitions
    ]
    config = TopicConfig(
        len(partitions),
        Durability(topic.durability),
        retention_seconds=topic.retention_seconds,
        retention_bytes=topic.retention_bytes,
        schema=topic.schema,
    )
    return StoredTopic(topic.name, topic.epoch, config, partitions)


class EndpointWriter(_Client):
    """Appends to a running gateway, by its routes."""

    def append(
        self,
        address: str,
        columns: Columns,
        *,
        producer: str,
        epoch: int,
        sequence: int,
        protocol: str = "",
        listener: str = "",
        partition: int | None = None,
        create: bool = True,
    ) -> Appended:
        """Publish messages to one address, once however often it is said.

        `protocol` and `listener`: the address is read as their clients would write it; without them it is the name of a
        topic, or whatever the routes for everybody make of it. `partition=None`: by key, as any producer's.
        """
        body = wire.AppendRequest(
            address=address,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            packed=columns.packed,
            count=columns.count,
            keys=list(columns.keys) if columns.keys is not None else None,
            headers=list(columns.headers) if columns.headers is not None else None,
            expires=list(columns.expires) if columns.expires is not None else None,
            protocol=protocol,
            listener=listener,
            partition=partition,
            create=create,
        )
        data = msgspec.msgpack.encode(body)
        if len(data) > wire.LARGEST_APPEND:
            raise TooLarge(f"one append has at most {wire.LARGEST_APPEND} bytes, not {len(data)}")
        return self._caller.ask("POST", wire.APPEND, Appended, data, wire.MSGPACK)

    def producer(self, producer: str) -> Producer:
        return self._caller.ask("GET", f"{wire.PRODUCER}?{urlencode({'producer': producer})}", Producer)

    def delete_topic(self, topic: wire.TopicSnapshot) -> None:
        """Drop a topic as it was looked at. Raises UnknownTopic, or Conflict: a forward has not delivered all of it, or more has
        come since.
        """
        seen = {"name": topic.name, "epoch": topic.epoch, "end": sum(one.end for one in topic.partitions)}
        self._caller.ask("DELETE", f"{wire.TOPICS}?{urlencode(seen)}", wire.TopicSnapshots)

    def redrive(self, what: wire.Redrive) -> Sequence[wire.Redriven]:
        body = msgspec.json.encode(what)
        return self._caller.ask("POST", wire.REDRIVE, wire.RedriveResult, body, wire.JSON).letters
