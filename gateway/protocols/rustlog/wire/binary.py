"""The binary dialect: the one the stock clients speak (RustLog wire 1). All integers are big-endian."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from gateway.envelope import PREFIX, Columns, Run, index_packed
from gateway.errors import Truncated, WireError
from gateway.protocols.rustlog.wire import frames
from gateway.protocols.rustlog.wire.mapping import binary_error
from gateway.wire.ordering import LONG, Answer, answer_of

PRODUCE, FETCH, OFFSET_COMMIT, OFFSET_FETCH = 0x01, 0x02, 0x03, 0x04
CREATE_TOPIC, LIST_TOPICS, DESCRIBE_TOPIC, DESCRIBE_PARTITION = 0x05, 0x06, 0x07, 0x08
METRICS_FETCH, ERROR, PING = 0x09, 0xFE, 0xFF

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_PLACE = struct.Struct(">IQI")  # partition, offset, max_bytes
_PRODUCED = struct.Struct(">IBQI")  # frame length 13, type, base_offset, count (RustLog wire 1.2)
_RECORDS = struct.Struct(">IBI")  # frame length, type, count
_FAILURE = struct.Struct(">IBHH")  # frame length, type, code, text length


# --- requests, as a server reads them ---


class _Fields:
    """A cursor over a request whose errors name the field as the original server does (RustLog wire 1.3)."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 1

    def _number(self, layout: struct.Struct, what: str) -> int:
        if self.position + layout.size > len(self.data):
            raise frames.Undecodable(f"decode error: missing {what}")
        value: int = layout.unpack_from(self.data, self.position)[0]
        self.position += layout.size
        return value

    def u32(self, what: str) -> int:
        return self._number(_U32, what)

    def u64(self, what: str) -> int:
        return self._number(_U64, what)

    def text(self, what: str) -> str:
        size = self._number(_U16, f"{what} length")
        end = self.position + size
        if end > len(self.data):
            raise frames.Undecodable(f"decode error: truncated {what}")
        raw = self.data[self.position : end]
        self.position = end
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise frames.Undecodable(f"decode error: invalid utf8 {what}: {rust_text(error)}") from None

    def records(self) -> Columns:
        count = self.u32("record count")
        start = position = self.position
        data, size = self.data, len(self.data)
        frames.check_count(min(count, (size - start) // PREFIX))
        for _ in range(count):  # ends at the latest with the bytes, however large the count is
            if position + PREFIX > size:
                raise frames.Undecodable("decode error: truncated record length")
            position += PREFIX + _U32.unpack_from(data, position)[0]
            if position > size:
                raise frames.Undecodable("decode error: truncated record")
        return Columns.from_packed(data[start:position], count)


def rust_text(error: UnicodeDecodeError) -> str:
    """What the original's standard library says about invalid UTF-8 (RustLog wire 1.3)."""
    if error.reason == "unexpected end of data":
        return f"incomplete utf-8 byte sequence from index {error.start}"
    return f"invalid utf-8 sequence of {error.end - error.start} bytes from index {error.start}"


def fetch(data: bytes, start: int, end: int) -> frames.Fetch | None:
    """The Fetch whose payload is data[start:end], in three looks if it is whole and well formed, as nearly always."""
    group_at = start + 3
    group_end = group_at + (data[start + 1] << 8 | data[start + 2]) if group_at <= end else end
    topic_at = group_end + 2
    if topic_at > end:
        return None
    topic_end = topic_at + (data[group_end] << 8 | data[group_end + 1])
    if topic_end + _PLACE.size > end:
        return None
    try:
        group, topic = data[group_at:group_end].decode(), data[topic_at:topic_end].decode()
    except UnicodeDecodeError:
        return None
    return frames.Fetch(group, topic, *_PLACE.unpack_from(data, topic_end))


def _fetch(f: _Fields) -> frames.Fetch:
    # what is wrong with one is found field by field
    return fetch(f.data, 0, len(f.data)) or frames.Fetch(
        f.text("group_id"), f.text("topic"), f.u32("partition"), f.u64("offset"), f.u32("max_bytes")
    )


REQUEST_TYPES: Mapping[int, Callable[[_Fields], frames.Operation]] = {
    PRODUCE: lambda f: frames.Produce(f.text("topic"), f.u32("partition"), f.records()),
    FETCH: _fetch,
    OFFSET_COMMIT: lambda f: frames.OffsetCommit(f.text("group"), f.text("topic"), f.u32("partition"), f.u64("offset")),
    OFFSET_FETCH: lambda f: frames.OffsetFetch(f.text("group"), f.text("topic"), f.u32("partition")),
    CREATE_TOPIC: lambda f: frames.CreateTopic(f.text("topic"), f.u32("partition count")),
    LIST_TOPICS: lambda _: frames.ListTopics(),
    DESCRIBE_TOPIC: lambda f: frames.DescribeTopic(f.text("topic")),
    DESCRIBE_PARTITION: lambda f: frames.DescribePartition(f.text("topic"), f.u32("partition")),
    METRICS_FETCH: lambda _: frames.MetricsFetch(),
    PING: lambda _: frames.Ping(),
}


def decode_request(payload: bytes) -> frames.Operation:
    """A request's payload. Bytes behind its last field are ignored (RustLog wire 1.1)."""
    decode = REQUEST_TYPES.get(payload[0])
    if decode is None:
        raise frames.UnknownOperation(f"unknown request type: {payload[0]}")
    return decode(_Fields(payload))


# --- answers, as a server writes them: whole frames ---


def produced(base: int, counts: Sequence[int]) -> bytes:
    """The answers to several Produce requests that were stored one behind the other."""
    if len(counts) == 1:
        return _PRODUCED.pack(13, PRODUCE, base, counts[0])
    pack = _PRODUCED.pack
    if sum(counts) == len(counts):  # one record each: no running sum (no request here has none)
        return b"".join([pack(13, PRODUCE, offset, 1) for offset in range(base, base + len(counts))])
    answers = []
    for count in counts:
        answers.append(pack(13, PRODUCE, base, count))
        base += count
    return b"".join(answers)


def records(runs: Sequence[Run], next_offset: int) -> Answer:
    """The answer to a Fetch."""
    if len(runs) == 1 and len(runs[0].columns.packed) <= LONG:  # as nearly always
        columns = runs[0].columns
        head = _RECORDS.pack(13 + len(columns.packed), FETCH, columns.count)
        return b"".join((head, columns.packed, _U64.pack(next_offset)))
    return answer_of(*_record_pieces(runs, next_offset))


def _record_pieces(runs: Sequence[Run], next_offset: int) -> tuple[Sequence[bytes], int]:
    # and their size
    pieces, count, size = [b""], 0, 0
    for run in runs:
        columns = run.columns
        pieces.append(columns.packed)
        count += columns.count
        size += len(columns.packed)
    if size > frames.MAX_PACKED:
        return _record_pieces(*fitting(runs, next_offset))
    pieces[0] = _RECORDS.pack(13 + size, FETCH, count)
    pieces.append(_U64.pack(next_offset))
    return pieces, _RECORDS.size + size + _U64.size


def fitting(found: Sequence[Run], next_offset: int) -> tuple[Sequence[Run], int]:
    """The runs that one answer can hold, and the offset behind them (RustLog wire 8)."""
    left = frames.MAX_PACKED
    for index, run in enumerate(found):
        size = len(run.columns.packed)
        if size > left:
            fits = next((i for i, end in enumerate(run.columns.ends) if end > left), run.columns.count)
            runs = [*found[:index], run.slice(0, fits)] if fits else found[:index]
            return runs, run.base_offset + fits
        left -= size
    return found, next_offset


def _topic_list(answer: frames.TopicList) -> bytes:
    entries = []
    left = frames.MAX_FRAME - 5
    for name, partitions in answer.topics:
        entry = _text(name) + _U32.pack(partitions)
        left -= len(entry)
        if left < 0:
            break
        entries.append(entry)
    return frames.frame(bytes([LIST_TOPICS]) + _U32.pack(len(entries)) + b"".join(entries))


def _topic_description(answer: frames.TopicDescription) -> bytes:
    states = b"".join([_U32.pack(p.id) + _U64.pack(p.high_watermark) for p in answer.partitions])
    count = _U32.pack(len(answer.partitions))
    return frames.frame(bytes([DESCRIBE_TOPIC]) + _text(answer.topic) + count + count + states)


def _partition_description(answer: frames.PartitionDescription) -> bytes:
    state = _U32.pack(answer.state.id) + _U64.pack(answer.state.high_watermark)
    return frames.frame(bytes([DESCRIBE_PARTITION]) + _text(answer.topic) + state)


def _metrics(answer: frames.Metrics) -> bytes:
    text = answer.text.encode()
    if len(text) > frames.MAX_FRAME - 5:  # whole lines only
        text = text[: text.rindex(b"\n", 0, frames.MAX_FRAME - 5) + 1]
    return frames.frame(bytes([METRICS_FETCH]) + _U32.pack(len(text)) + text)


def _refusal(answer: frames.Refusal) -> bytes:
    code, text = binary_error(answer)
    raw = text.encode()[:0xFFFF].decode(errors="ignore").encode()  # cut between characters
    return _FAILURE.pack(5 + len(raw), ERROR, code, len(raw)) + raw


_ANSWERS: Mapping[type[frames.Answer], Callable[..., bytes]] = {
    frames.Produced: lambda a: produced(a.base, (a.count,)),
    frames.Records: lambda a: b"".join(_record_pieces(a.runs, a.next_offset)[0]),
    frames.Committed: lambda a: frames.frame(bytes([OFFSET_COMMIT, a.success])),
    frames.GroupPosition: lambda a: frames.frame(
        bytes([OFFSET_FETCH, 0]) if a.offset is None else bytes([OFFSET_FETCH, 1]) + _U64.pack(a.offset)
    ),
    frames.Created: lambda a: frames.frame(bytes([CREATE_TOPIC, a.success])),
    frames.TopicList: _topic_list,
    frames.TopicDescription: _topic_description,
    frames.PartitionDescription: _partition_description,
    frames.Metrics: _metrics,
    frames.Pong: lambda _: frames.frame(bytes([PING])),
    frames.Refusal: _refusal,
}


def encode_answer(answer: frames.Answer) -> bytes:
    return _ANSWERS[type(answer)](answer)


# --- the client's half ---


def _text(value: str) -> bytes:
    raw = value.encode()
    return _U16.pack(len(raw)) + raw


def encode_request(operation: frames.Operation) -> bytes:
    """A whole frame (RustLog wire 1.2)."""
    match operation:
        case frames.Produce():
            head = bytes([PRODUCE]) + _text(operation.topic) + _U32.pack(operation.partition)
            columns = operation.columns
            size = len(head) + 4 + len(columns.packed)
            return b"".join((frames.LENGTH.pack(size), head, _U32.pack(columns.count), columns.packed))
        case frames.Fetch():
            names = _text(operation.group) + _text(operation.topic) + _U32.pack(operation.partition)
            return frames.frame(bytes([FETCH]) + names + _U64.pack(operation.offset) + _U32.pack(operation.max_bytes))
        case frames.OffsetCommit():
            names = _text(operation.group) + _text(operation.topic) + _U32.pack(operation.partition)
            return frames.frame(bytes([OFFSET_COMMIT]) + names + _U64.pack(operation.offset))
        case frames.OffsetFetch():
            names = _text(operation.group) + _text(operation.topic)
            return frames.frame(bytes([OFFSET_FETCH]) + names + _U32.pack(operation.partition))
        case frames.CreateTopic():
            return frames.frame(bytes([CREATE_TOPIC]) + _text(operation.topic) + _U32.pack(operation.partitions))
        case frames.ListTopics():
            return frames.frame(bytes([LIST_TOPICS]))
        case frames.DescribeTopic():
            return frames.frame(bytes([DESCRIBE_TOPIC]) + _text(operation.topic))
        case frames.DescribePartition():
            return frames.frame(bytes([DESCRIBE_PARTITION]) + _text(operation.topic) + _U32.pack(operation.partition))
        case frames.MetricsFetch():
            return frames.frame(bytes([METRICS_FETCH]))
        case frames.Ping():
            return frames.frame(bytes([PING]))
    raise TypeError(operation)


_TYPES: Mapping[type[frames.Operation], int] = {
    frames.Produce: PRODUCE,
    frames.Fetch: FETCH,
    frames.OffsetCommit: OFFSET_COMMIT,
    frames.OffsetFetch: OFFSET_FETCH,
    frames.CreateTopic: CREATE_TOPIC,
    frames.ListTopics: LIST_TOPICS,
    frames.DescribeTopic: DESCRIBE_TOPIC,
    frames.DescribePartition: DESCRIBE_PARTITION,
    frames.MetricsFetch: METRICS_FETCH,
    frames.Ping: PING,
}


def decode_answer(operation: frames.Operation, payload: bytes) -> frames.Answer:
    """The answer to an operation, or ErrorAnswer; WireError when it is neither. Bytes behind it are ignored."""
    kind = payload[0]
    fields = _AnswerFields(payload)
    if kind == ERROR:
        return frames.ErrorAnswer(fields.u16(), fields.text())
    if kind != _TYPES[type(operation)]:
        raise WireError(f"answer of type {kind} to {type(operation).__name__}")
    match operation:
        case frames.Produce():
            return frames.Produced(fields.u64(), fields.u32())
        case frames.Fetch():
            return fields.fetched()
        case frames.OffsetCommit():
            return frames.Committed(fields.u8() == 1)
        case frames.OffsetFetch():
            return frames.GroupPosition(fields.u64() if fields.u8() else None)
        case frames.CreateTopic():
            return frames.Created(fields.u8() == 1)
        case frames.ListTopics():
            return frames.TopicList([(fields.text(), fields.u32()) for _ in range(fields.count(6))])
        case frames.DescribeTopic():
            topic = fields.text()
            fields.u32()
            return frames.TopicDescription(
                topic, [frames.PartitionState(fields.u32(), fields.u64()) for _ in range(fields.count(12))]
            )
        case frames.DescribePartition():
            return frames.PartitionDescription(fields.text(), frames.PartitionState(fields.u32(), fields.u64()))
        case frames.MetricsFetch():
            return frames.Metrics(fields.take(fields.u32()).decode(errors="replace"))
        case _:
            return frames.Pong()


class _AnswerFields:
    """A cursor over an answer."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 1

    def take(self, size: int) -> bytes:
        start = self.position
        if start + size > len(self.data):
            raise Truncated("an answer is cut off")
        self.position = start + size
        return self.data[start : self.position]

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "big")

    def text(self) -> str:
        return self.take(self.u16()).decode(errors="replace")

    def count(self, smallest: int) -> int:
        count = self.u32()
        if count * smallest > len(self.data) - self.position:
            raise Truncated("more is announced than an answer holds")
        return count

    def fetched(self) -> frames.Pulled:
        count = self.count(PREFIX)
        start, data = self.position, self.data
        end = len(data) - 8
        try:  # nothing follows next_offset in any known server, so the records fill what is in front of it
            columns = Columns(packed := data[start:end], index_packed(packed, count))
        except Truncated:
            position = start
            for _ in range(count):
                self.position = position
                position += PREFIX + self.u32()
            self.position = position
            columns = Columns.from_packed(data[start:position], count)
            return frames.Pulled(columns, self.u64())
        self.position = end
        return frames.Pulled(columns, self.u64())
