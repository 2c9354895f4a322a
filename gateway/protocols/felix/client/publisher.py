"""Publishing by a client session: in binary where the server acknowledges that, in JSON elsewhere (Felix wire section 0)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import attrs
from msgspec.structs import replace

from gateway import requests
from gateway.envelope import MOST_MESSAGES, PREFIX, Columns, Copies
from gateway.errors import GatewayError, TargetOutOfTurn, TooLarge, WireError
from gateway.protocols.felix.client.streams import Line, Login
from gateway.protocols.felix.wire import codec
from gateway.protocols.felix.wire.binary import decode_ack, encode_batch, encode_names, encoded_size
from gateway.protocols.felix.wire.frames import ACK, ACKED, AFTER, COPIES, MAX_PAYLOAD
from gateway.protocols.felix.wire.mapping import names_of, refused
from gateway.requests import Outcome


@attrs.define(eq=False)
class _Publishing:
    """A batch on its way, in as many frames as it takes."""

    request: requests.Publish
    left: int
    error: GatewayError | None = None


class Publisher:
    """All publishes of one connection, on a stream of their own."""

    def __init__(
        self,
        open_line: Callable[[], Line],
        finish: Callable[[int, Outcome], None],
        login: Login,
        scope: str,
        ids: Iterator[int],
        *,
        document: bool,
    ) -> None:
        self._open_line = open_line
        self._finish = finish
        self._login = login
        self._scope = scope
        self._ids = ids
        self._document = document
        self._line: Line | None = None

    def publish(self, request: requests.Publish) -> None:
        if self._line is None or self._line.gone:
            self._line = self._open_line()
        line = self._line
        # How, is known after the login.
        line.when_ready(lambda: self._send_batch(line, request), lambda error: self._finish(request.id, error))

    def _send_batch(self, line: Line, request: requests.Publish) -> None:
        names = names_of(request.batch.address, self._scope)
        turns = bool(self._login.server_flags & AFTER)
        if request.batch.copies is not None and request.batch.copies.after is not None and not turns:
            self._finish(request.id, TargetOutOfTurn("the server keeps no turns"))
            return
        try:
            head = encode_names(names)
            acked_binary = not self._document and self._login.server_flags & ACKED
            copies = request.batch.copies if self._login.server_flags & COPIES else None
            room = MAX_PAYLOAD - len(head) - 32 - (encoded_size(copies) if copies is not None else 0)
            if acked_binary:
                parts = split(request.batch.columns, room, room)
            else:  # base64, quotes and a comma: 7 bytes for the 5 of a one-byte message, nearly 4 for 3 of a long one
                parts = split(request.batch.columns, (room - 256) // 3 * 2, (room - 256) // 4 * 3)
        except (WireError, TooLarge) as error:
            self._finish(request.id, error)
            return
        publishing = _Publishing(request, len(parts))
        first, before = 0, None
        for part in parts:
            copied = some(copies, first, first + part.count) if copies is not None and len(parts) > 1 else copies
            if copied is not None and first and turns:
                copied = replace(copied, after=before)
            before = copied.last if copied is not None else None
            first += part.count
            request_id = None if self._document else next(self._ids)
            if acked_binary:
                data = encode_batch(head, part, request_id, copied)
            else:
                values = part.values()
                data = codec.encode(
                    codec.PublishBatch(names.tenant, names.namespace, names.stream, values, request_id, "per_batch")
                )
            line.ask(data, self._published(publishing, request_id), lambda error: self._part_done(publishing, error))

    def _published(self, publishing: _Publishing, request_id: int | None) -> Callable[[int, bytes], None]:
        def handler(flags: int, payload: bytes) -> None:
            said: codec.Id | None
            if flags & ACK:
                said, text = decode_ack(payload)
            else:
                said, text = _verdict(payload)
            if said is not None and said != request_id:
                raise WireError("a publish was answered out of turn")
            self._part_done(publishing, None if text is None else refused(text))

        return handler

    def _part_done(self, publishing: _Publishing, error: GatewayError | None) -> None:
        publishing.error = publishing.error or error
        publishing.left -= 1
        if publishing.left == 0:
            request = publishing.request
            self._finish(request.id, publishing.error or requests.Published(request.batch.address, 0))


def some(copies: Copies, start: int, stop: int) -> Copies:
    ranges = []
    first = 0
    for offset, batch_id, index, count in copies.ranges:
        begin, end = max(start - first, 0), min(stop - first, count)
        if begin < end:
            ranges.append((offset + begin, batch_id, index + begin, end - begin))
        first += count
    return Copies(copies.source, ranges, copies.path, copies.after if not start else None)


def split(columns: Columns, room: int, largest: int) -> Sequence[Columns]:
    """Columns in parts of as many messages as one request may have, whose packed values take at most `room` bytes each, or
    `largest` for one that goes alone.
    """
    if len(columns.packed) <= room and columns.count <= MOST_MESSAGES:
        return [columns]
    parts: list[Columns] = []
    first = base = 0
    while first < columns.count:
        stop = min(bisect_right(columns.ends, base + room), first + MOST_MESSAGES)
        if stop == first:
            size = columns.ends[first] - base
            if size > largest:
                raise TooLarge(f"a message of {size - PREFIX} bytes is more than a frame can carry")
            stop = first + 1
        parts.append(columns.slice(first, stop))
        base = columns.ends[stop - 1]
        first = stop
    return parts


def _verdict(payload: bytes) -> tuple[codec.Id | None, str | None]:
    # (request id, error's text) of an answer to a publish
    match codec.decode_server(payload):
        case codec.PublishOk(request_id=request_id) | codec.Ok(request_id=request_id):
            return request_id, None
        case codec.PublishError(request_id=request_id, message=text) | codec.Error(request_id=request_id, message=text):
            return request_id, text
    raise WireError("a publish was answered with something else")
