"""The client side of one RustLog connection: binary, or the document's JSON where `dialect: document` says so.

Requests are pipelined and answered in order. What real servers do differently is taken care of here (RustLog wire, last
paragraph): topics are created first, never more than fits an answer is asked for, offsets are counted back from
`next_offset`, and a group without a commit is read without the group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from gateway import requests
from gateway.envelope import Columns
from gateway.errors import GatewayError, TargetLost, TooLarge, Unsupported, WireError
from gateway.protocols.rustlog.client.polling import Poller, fetched
from gateway.protocols.rustlog.wire import binary, json_seed
from gateway.protocols.rustlog.wire.frames import (
    HEADER,
    LENGTH,
    MAX_FRAME,
    Answer,
    Committed,
    Created,
    CreateTopic,
    DescribeTopic,
    ErrorAnswer,
    Fetch,
    GroupPosition,
    ListTopics,
    OffsetCommit,
    OffsetFetch,
    Operation,
    Produce,
    Produced,
    TopicDescription,
    TopicList,
    check_length,
)
from gateway.protocols.rustlog.wire.mapping import EXISTS, refused
from gateway.requests import Completion, Outcome, Request
from gateway.settings import Dialect
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.session import NO_COMPLETIONS, ClientBasics, ClientContext, Close, Completions, Kind, Output, Send

CHANNEL = 0

MOST_BYTES = 10_000_000
"""Never ask for more: a real server cuts the connection when its answer would be beyond 10 MiB (RustLog wire 1.3)."""

KNOWN_TOPICS = 65_536
"""How many topics are remembered as created, before they are all created once more."""

Handler = Callable[[Answer], None]


@attrs.define(eq=False)
class _Publishing:
    """A batch on its way, in as many Produce requests as it takes."""

    request: requests.Publish
    left: int
    positions: list[tuple[int, int]] = attrs.Factory(list)  # (base, count) of each part
    error: GatewayError | None = None


class RustlogClient(ClientBasics):
    def __init__(self, context: ClientContext) -> None:
        self._binary = context.dialect is not Dialect.DOCUMENT
        self._codec = binary if self._binary else json_seed
        self._buffer = ReceiveBuffer()
        self._waiting: deque[tuple[Operation, Handler]] = deque()
        self._created: set[str] = set()
        self._frames: list[bytes] = []
        self._done: list[Completion] = []
        self._poller = Poller(self._call, self._finish, has_describe=self._binary)
        self._open: set[int] = set()
        self._up = False
        self._gone: GatewayError | None = None
        self._closing = False

    # --- what the driver calls ---

    def opened(self, channel: int, kind: Kind, now: float) -> Completions:
        # there is no handshake: what was submitted goes out
        self._up = True
        return NO_COMPLETIONS

    def submit(self, request: Request, now: float) -> Completions:
        self._open.add(request.id)
        if self._gone is not None:
            self._finish(request.id, self._gone)
        else:
            self._start(request, now)
        return self._completions()

    def receive(self, channel: int, data: bytes, now: float) -> Completions:
        """Answers, each to the oldest request that has none."""
        if self._gone is not None:
            return NO_COMPLETIONS
        self._poller.now = now
        whole = self._buffer.feed(data)
        position, wanted = 0, 0
        try:
            while len(whole) - position >= HEADER:
                (length,) = LENGTH.unpack_from(whole, position)
                check_length(length)
                end = position + HEADER + length
                if end > len(whole):
                    wanted = HEADER + length
                    break
                if not self._waiting:
                    raise WireError("an answer that nobody waits for")
                operation, handler = self._waiting[0]
                answer = self._codec.decode_answer(operation, whole[position + HEADER : end])
                self._waiting.popleft()
                handler(answer)
                position = end
        except WireError as error:
            self._end(TargetLost(f"the server broke the protocol: {error.message}"))
            self._closing = True
            return self._completions()
        if position < len(whole):
            self._buffer.keep(whole[position:] if position else whole, wanted)
        return self._completions()

    def eof(self, channel: int, now: float) -> Completions:
        # a server that goes in the middle of a Fetch may have cut an answer that was too large (RustLog wire 1.3)
        reading = bool(self._waiting) and isinstance(self._waiting[0][0], Fetch)
        hint = ": its answer may have been too large, read less at a time" if reading else ""
        self._end(TargetLost(f"the server closed the connection{hint}"))
        self._closing = True
        return self._completions()

    def reset(self, channel: int, code: int) -> Completions:
        # TCP has no resets of its own
        return self.lost()

    def lost(self) -> Completions:
        # what was under way may or may not have happened
        self._end(TargetLost("the connection was lost"))
        return self._completions()

    def close(self, now: float) -> Completions:
        # RustLog knows no goodbye
        self._end(TargetLost("the connection was closed"))
        self._closing = True
        return self._completions()

    def timeout_at(self) -> float | None:
        # when an empty read is tried again: the protocol cannot wait (RustLog wire 8)
        return self._poller.next_poll()

    def on_timeout(self, now: float) -> Completions:
        self._poller.poll(now)
        return self._completions()

    def outputs(self) -> Sequence[Output]:
        queued: list[Output] = []
        if self._frames and self._up:
            queued.append(Send(CHANNEL, b"".join(self._frames)))
            self._frames.clear()
        if self._closing:
            self._closing = False
            queued.append(Close())
        return queued

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def admitted(self) -> bool | GatewayError:
        # there is no login
        return self._up

    # --- inside ---

    def _call(self, operation: Operation, handler: Handler) -> None:
        self._frames.append(self._codec.encode_request(operation))
        self._waiting.append((operation, handler))

    def _finish(self, request_id: int, outcome: Outcome) -> None:
        self._open.discard(request_id)
        self._done.append((request_id, outcome))

    def _completions(self) -> Completions:
        done, self._done = self._done, []
        return done

    def _end(self, error: GatewayError) -> None:
        if self._gone is None:
            self._gone = error
        self._waiting.clear()
        self._frames.clear()
        self._poller.clear()
        for request_id in sorted(self._open):
            self._finish(request_id, error)

    def _start(self, request: Request, now: float) -> None:
        self._poller.now = now
        match request:
            case requests.Publish():
                self._publish(request)
            case requests.Fetch() if self._poller.holds(request):
                self._poller.fetch(request)
            case requests.Fetch():
                self._simple(request, read_of(request), lambda pulled: fetched(request, pulled))
            case (
                requests.Subscribe() | requests.Take() | requests.Unsubscribe() | requests.Settle() | requests.Cancel()
            ):
                self._poller.start(request)
            case requests.CommitOffset(address=topic, group=group, partition=partition, offset=offset):
                self._simple(request, OffsetCommit(group, topic, partition, offset), _committed)
            case requests.ReadOffset(address=topic, group=group, partition=partition):
                self._simple(request, OffsetFetch(group, topic, partition), _position)
            case requests.CreateTopic(address=topic, partitions=count) if self._binary:
                self._created.add(topic)
                self._call(CreateTopic(topic, count), lambda answer: self._topic_made(request, answer))
            case requests.DescribeTopics(address="") if self._binary:
                self._simple(request, ListTopics(), _listed)
            case requests.DescribeTopics(address=topic) if self._binary:
                self._simple(request, DescribeTopic(topic), _described)
            case _:
                self._finish(request.id, Unsupported(f"RustLog cannot express {type(request).__name__}"))

    def _simple(self, request: Request, operation: Operation, reply: Callable[[Answer], Outcome]) -> None:
        def answered(answer: Answer) -> None:
            self._finish(
                request.id, refused(answer.code, answer.text) if isinstance(answer, ErrorAnswer) else reply(answer)
            )

        self._call(operation, answered)

    def _topic_made(self, request: requests.CreateTopic, answer: Answer) -> None:
        match answer:
            case Created(success=True):
                self._finish(request.id, requests.TopicCreated(created=True, partitions=request.partitions))
            case ErrorAnswer(code=code) if code == EXISTS:
                self._finish(request.id, requests.TopicCreated(created=False, partitions=request.partitions))
            case ErrorAnswer(code=code, text=text):
                self._finish(request.id, refused(code, text))
            case _:
                self._finish(request.id, refused(0, "the topic was not created"))

    # --- publishing ---

    def _publish(self, request: requests.Publish) -> None:
        batch = request.batch
        partition = batch.partition or 0
        try:
            parts = split(batch.columns, self._room_for(batch.address))
        except TooLarge as error:
            self._finish(request.id, error)
            return
        if request.create and self._binary and batch.address not in self._created:
            # In front of the first records, so that none is refused for want of its topic; "exists" is as good.
            if len(self._created) >= KNOWN_TOPICS:
                self._created.clear()
            self._created.add(batch.address)
            self._call(CreateTopic(batch.address, partition + 1), lambda _: None)
        publishing = _Publishing(request, len(parts))
        for part in parts:
            self._call(Produce(batch.address, partition, part), lambda answer: self._produced(publishing, answer))

    def _room_for(self, topic: str) -> int:
        # bytes of packed records that one request can carry
        head = 11 + len(topic.encode())
        return MAX_FRAME - head if self._binary else (MAX_FRAME - 128) // 4 - 2 * head

    def _produced(self, publishing: _Publishing, answer: Answer) -> None:
        match answer:
            case Produced(base=base, count=count):
                publishing.positions.append((base, count))
            case ErrorAnswer(code=code, text=text):
                publishing.error = publishing.error or refused(code, text)
                self._created.discard(publishing.request.batch.address)
        publishing.left -= 1
        if publishing.left == 0:
            self._finish(publishing.request.id, publishing.error or _published(publishing))


def read_of(request: requests.Fetch) -> Fetch:
    """A Fetch without a group, of no more than an answer holds."""
    size = max(1, min(request.max_bytes, MOST_BYTES))
    return Fetch("", request.address, request.partition, request.offset, size)


def split(columns: Columns, room: int) -> Sequence[Columns]:
    """Columns in parts whose packed values take at most `room` bytes each."""
    if len(columns.packed) <= room:
        return [columns]
    parts: list[Columns] = []
    first = 0
    base = 0
    while first < columns.count:
        stop = bisect_right(columns.ends, base + room)
        if stop == first:
            raise TooLarge(f"a record of {len(columns.value(first))} bytes is more than a request can carry")
        parts.append(columns.slice(first, stop))
        base = columns.ends[stop - 1]
        first = stop
    return parts


def _published(publishing: _Publishing) -> requests.Published:
    batch = publishing.request.batch
    partition = batch.partition or 0
    base = publishing.positions[0][0]
    following = base
    scattered: list[tuple[int, int]] | None = None
    for start, count in publishing.positions:
        if start != following and scattered is None:
            scattered = [(partition, base + i) for i in range(following - base)]
        if scattered is not None:
            scattered.extend((partition, start + i) for i in range(count))
        following = start + count
    return requests.Published(batch.address, 0, partition, base, scattered)


def _committed(answer: Answer) -> Outcome:
    if isinstance(answer, Committed) and answer.success:
        return requests.DONE
    return refused(0, "the offset was not committed")


def _position(answer: Answer) -> Outcome:
    offset = answer.offset if isinstance(answer, GroupPosition) else None
    return requests.GroupOffset(offset, group_exists=offset is not None)


def _listed(answer: Answer) -> Outcome:
    # the log's bounds are not told: 0
    topics = answer.topics if isinstance(answer, TopicList) else ()
    return requests.Topics(
        [requests.TopicInfo(name, [requests.PartitionInfo(i, 0, 0) for i in range(count)]) for name, count in topics]
    )


def _described(answer: Answer) -> Outcome:
    # real servers give 0 for each log end (RustLog wire 1.4)
    if not isinstance(answer, TopicDescription):
        return requests.Topics(())
    partitions = [requests.PartitionInfo(state.id, 0, state.high_watermark) for state in answer.partitions]
    return requests.Topics([requests.TopicInfo(answer.topic, partitions)])
