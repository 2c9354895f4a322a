"""A batch to publish as PRODUCE frames, all sent at once, and their answers put together again."""

from __future__ import annotations

import struct

from gateway.errors import GatewayError, TargetRefused, TooLarge
from gateway.protocols.flymq.wire.frames import HEADER, MAGIC, MAX_PAYLOAD, VERSION, Op
from gateway.requests import Outcome, Publish, Published

_PLACE = struct.Struct(">iQq")
_PARTITION = struct.Struct(">i")
_LENGTH = struct.Struct(">I")
NOWHERE = (-1, 0)


class PublishedRun:
    """One Publish under way. FlyMQ carries no headers: what they cost is settled before a message gets here."""

    __slots__ = ("_address", "_next", "_places", "_refused", "_time", "_todo", "data", "id", "left")

    def __init__(self, request: Publish) -> None:
        batch = request.batch
        columns = batch.columns
        name = batch.address.encode()
        prefix = len(name).to_bytes(2, "big") + name
        partition = _PARTITION.pack(-1 if batch.partition is None else batch.partition)
        keys = columns.keys if columns.keys is not None else [None] * columns.count
        pieces: list[bytes] = []
        self.id = request.id
        self._address = batch.address
        self._places: list[tuple[int, int]] = [NOWHERE] * columns.count
        self._refused: dict[int, GatewayError] = {}
        self._todo: list[int] = []
        self._next = 0
        self._time = 0
        start = 0
        for index, end in enumerate(columns.ends):
            key = keys[index] or b""
            length = len(prefix) + 4 + len(key) + end - start + 4
            if length > MAX_PAYLOAD or len(name) > 0xFFFF:
                self._refused[index] = TooLarge(f"message too large: a payload of {length} bytes")
            else:
                self._todo.append(index)
                header = HEADER.pack(MAGIC, VERSION, Op.PRODUCE, 1, length)
                pieces += (header, prefix, _LENGTH.pack(len(key)), key, columns.packed[start:end], partition)
            start = end
        self.data = b"".join(pieces)
        self.left = len(self._todo)

    @staticmethod
    def fits(request: Publish) -> bool:
        """Whether this is plain publishing; transactions, schemas and delays have operations of their own."""
        return not (
            request.transaction or request.schema or request.deliver_at_ms or request.delay_ms or request.ttl_ms
        )

    def answered(self, payload: bytes, refused: TargetRefused | None) -> bool:
        """The next message's answer; True once all are there."""
        index = self._todo[self._next]
        self._next += 1
        self.left -= 1
        if refused is not None:
            self._refused[index] = refused
            return self.left == 0
        at = 2 + int.from_bytes(payload[:2], "big")
        if len(payload) < at + _PLACE.size:
            self._refused[index] = TargetRefused("an answer to PRODUCE that is cut off")
        else:
            partition, offset, self._time = _PLACE.unpack_from(payload, at)
            self._places[index] = (partition, offset)
        return self.left == 0

    def outcome(self) -> Outcome:
        """Where the messages went; the refusal itself if none was taken."""
        if self._refused and len(self._refused) == len(self._places):
            return self._refused[0]
        if not self._refused and self._places:
            partition, first = self._places[0]
            if self._places == [(partition, first + index) for index in range(len(self._places))]:
                return Published(self._address, self._time, partition, first)
        return Published(self._address, self._time, scattered=self._places, refused=self._refused)
