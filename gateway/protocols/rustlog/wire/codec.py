"""Which dialect a payload is in, and each dialect's way to decode, to encode and to read the log.

Also `Gathering`: consecutive Produce requests of one read, joined into the columns of one batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping

import attrs
import msgspec

from gateway.envelope import MOST_MESSAGES, PREFIX, Columns
from gateway.errors import Truncated
from gateway.protocols.rustlog.wire import binary, json_seed, json_typed
from gateway.protocols.rustlog.wire.frames import LENGTH, MAX_PACKED, MAX_VALUE, Answer, Encoding, Operation, Produce

_WHITE = b" \t\r\n"


@attrs.frozen
class Reading:
    """How a dialect reads the log."""

    record_overhead: int
    most_bytes: int
    most_messages: int
    value_limit: int
    allow_gaps: bool
    zero_reads_nothing: bool
    """max_bytes 0 answers nothing (RustLog wire 1.4); elsewhere at least one record comes (document, max_bytes)."""
    group_overrides: bool
    """A group's offset replaces the one asked for, even a larger one (RustLog wire 1.4); elsewhere the larger counts."""
    end_is_log_end: bool
    """Beyond the end `next_offset` is the log's end (document, Edge cases), not the offset asked for."""


@attrs.frozen
class Codec:
    """One dialect, as a server speaks it."""

    decode: Callable[[bytes], Operation]
    encode: Callable[[Answer], bytes]
    reading: Reading
    fits_alone: Callable[[bytes], bool] | None
    """Whether an answer can hold this record; None: whichever was accepted."""


def _json_reading(most_bytes: int, smallest_record: int, largest_value: int) -> Reading:
    return Reading(
        record_overhead=0,
        most_bytes=most_bytes,
        most_messages=min(MOST_MESSAGES, MAX_PACKED // smallest_record),
        value_limit=largest_value,
        allow_gaps=True,
        zero_reads_nothing=False,
        group_overrides=False,
        end_is_log_end=True,
    )


CODECS: Mapping[Encoding, Codec] = {
    Encoding.BINARY: Codec(
        binary.decode_request,
        binary.encode_answer,
        Reading(
            record_overhead=12,
            most_bytes=MAX_PACKED,
            most_messages=MAX_PACKED // PREFIX,
            value_limit=MAX_VALUE,
            allow_gaps=False,
            zero_reads_nothing=True,
            group_overrides=True,
            end_is_log_end=False,
        ),
        None,
    ),
    Encoding.SEED_JSON: Codec(
        json_seed.decode_request,
        json_seed.encode_answer,
        _json_reading(json_seed.MOST_READ, json_seed.SMALLEST_RECORD, json_seed.MOST_BYTES),
        json_seed.fits_alone,
    ),
    Encoding.TYPED_JSON: Codec(
        json_typed.decode_request,
        json_typed.encode_answer,
        _json_reading(json_typed.MOST_BYTES, json_typed.SMALLEST_RECORD, json_typed.MOST_BYTES),
        json_typed.fits_alone,
    ),
}


class _Keys(msgspec.Struct):
    type: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_KEYS = msgspec.json.Decoder(_Keys)


def encoding_of(payload: bytes, before: Encoding = Encoding.BINARY) -> Encoding:
    """The dialect of one payload (RustLog wire 3). JSON that cannot be read is in the dialect of the JSON before it."""
    first = payload[0]
    if first not in b"{ \t\r\n" or not payload.lstrip(_WHITE).startswith(b"{"):
        return Encoding.BINARY
    try:
        keys = _KEYS.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        if first == binary.METRICS_FETCH:  # a tab is also a binary request, whatever follows it
            return Encoding.BINARY
        return before if before is not Encoding.BINARY else Encoding.SEED_JSON
    return Encoding.SEED_JSON if keys.type is msgspec.UNSET else Encoding.TYPED_JSON


class Gathering:
    """Produce requests that follow each other with one topic, partition and dialect: the makings of one batch.

    Binary requests are taken as they lie in the read: their bytes are the packed values already, so a request costs a
    comparison and a slice, however many records it has.
    """

    __slots__ = ("_columns", "_head", "_singles", "counts", "encoding", "partition", "topic")

    def __init__(self) -> None:
        self.counts: list[int] = []
        """Records of each request."""
        self.encoding = Encoding.BINARY
        self.topic = ""
        self.partition = 0
        self._head = b""
        self._singles: list[bytes] = []
        self._columns: list[Columns] = []

    def add_frame(self, data: bytes, start: int, end: int) -> bool:
        """Take the binary Produce payload data[start:end]; False leaves it to the caller, as nothing was taken.

        It is left when it belongs to another batch, and when it is not the plain case: no records, bytes behind the
        last one, anything undecodable, a record that could not be returned.
        """
        base = start + 7 + (data[start + 1] << 8 | data[start + 2]) if end - start >= 3 else end  # behind the partition
        body = base + 4
        if body > end:
            return False
        head = data[start:base]
        if head != self._head and not self._begin(head):
            return False
        (count,) = LENGTH.unpack_from(data, base)
        if count == 1:
            record = data[body:end]
            if end - body < PREFIX or LENGTH.unpack_from(record)[0] != end - body - PREFIX or end - body > MAX_VALUE:
                return False
            self._singles.append(record)
        else:
            if not 0 < count <= MOST_MESSAGES or end - body > MAX_VALUE:
                return False
            try:
                columns = Columns.from_packed(data[body:end], count)
            except Truncated:
                return False
            self._gather_singles()
            self._columns.append(columns)
        self.counts.append(count)
        return True

    def add_alike(self, data: bytes, start: int, end: int) -> int:
        """Take the whole frames behind the one at data[start:end], just taken, that differ from it in their record only.

        This is what a producer of small records sends, one a request: a comparison each. Returns where it stopped.
        """
        if self.counts[-1] != 1:
            return end
        stride = end - start
        size = len(self._singles[-1])
        pattern = data[start : end - size + PREFIX]
        singles = self._singles
        taken = len(singles)
        position, last = end, len(data) - stride
        while position <= last and data.startswith(pattern, position):
            position += stride
            singles.append(data[position - size : position])
        self.counts.extend([1] * (len(singles) - taken))
        return position

    def add(self, encoding: Encoding, produce: Produce) -> bool:
        """Take a decoded request with at least one record; False when it belongs to another batch."""
        if self.counts:
            if (self.encoding, self.topic, self.partition) != (encoding, produce.topic, produce.partition):
                return False
        else:
            self.encoding, self.topic, self.partition = encoding, produce.topic, produce.partition
            self._head = b""
        self._gather_singles()
        self._columns.append(produce.columns)
        self.counts.append(produce.columns.count)
        return True

    def take(self) -> tuple[Columns, list[int]]:
        """Everything gathered, and how many records each request had. Begins anew."""
        if len(self._singles) == 1 and not self._columns:  # one record alone: how long it is was looked at
            (record,) = self._singles
            self._singles, counts, self.counts, self._head = [], self.counts, [], b""
            return Columns(record, array("I", (len(record),))), counts
        self._gather_singles()
        taken = Columns.concat(self._columns), self.counts
        self._columns = []
        self.counts = []
        self._head = b""
        return taken

    def _begin(self, head: bytes) -> bool:
        # whether a batch can begin with this type, topic and partition
        if self.counts:
            return False
        try:
            self.topic = head[3:-4].decode()
        except UnicodeDecodeError:
            return False
        self.encoding = Encoding.BINARY
        self.partition = int.from_bytes(head[-4:], "big")
        self._head = head
        return True

    def _gather_singles(self) -> None:
        if self._singles:
            self._columns.append(Columns.from_packed(b"".join(self._singles), len(self._singles)))
            self._singles = []
