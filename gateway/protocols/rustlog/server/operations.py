"""What a server session does with each operation: what it asks the broker, and what the outcome means to the client."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from gateway import requests
from gateway.envelope import Batch
from gateway.errors import AlreadyExists, GatewayError, InvalidRequest, NotFound, TooLarge, UnknownPartition
from gateway.protocols.rustlog.server.exposition import exposition
from gateway.protocols.rustlog.settings import FreshGroup
from gateway.protocols.rustlog.wire import binary, frames
from gateway.protocols.rustlog.wire.codec import CODECS, Codec, Gathering
from gateway.requests import Outcome, Request
from gateway.wire.ordering import ReplyQueue

_I63_MAX = (1 << 63) - 1
"""No log ever ends behind this, and it is the largest number every store can compare."""


class _Pending(msgspec.Struct, eq=False):
    """A request of ours under way, and what its answer is for."""

    slot: int
    encoding: frames.Encoding
    operation: frames.Operation


class _Producing(_Pending, eq=False):
    """One batch made of several Produce requests; `counts` says how many records each had."""

    counts: Sequence[int]


class _Fetching(_Pending, eq=False):
    """A read; `start` is where, whatever the client asked for."""

    operation: frames.Fetch
    start: int
    fresh: bool = False
    """The group has no offset: an unknown topic is no error then (RustLog wire 1.4)."""


class _FindingGroup(_Pending, eq=False):
    """The first step of a Fetch with a group."""

    operation: frames.Fetch


class _Listing(_Pending, eq=False):
    """A list, of which further pages are asked for."""

    found: list[tuple[str, int]] = msgspec.field(default_factory=list)


_BINARY = CODECS[frames.Encoding.BINARY].reading  # looked up once: to hash an enum is a call
SMALL_ANSWER = 4096
"""What an answer of unknown size is taken for until it is there; then its real size counts."""


class Desk:
    """Serves operations in the order they come, and puts their answers in that order."""

    def __init__(self, fresh_group: FreshGroup) -> None:
        self.gathering = Gathering()
        self.replies = ReplyQueue()
        self.asked: list[Request] = []
        """Requests for the broker, not yet handed out."""
        self.waiting = False
        """The operation under way has to be through, or in its second step, before anything else is parsed."""
        self._pausing = 0
        self._fresh_group = fresh_group
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self.reading = 0
        """How many bytes the answers under way may have, but for those to Produce."""
        self._shares: dict[int, int] = {}

    def serve(self, encoding: frames.Encoding, operation: frames.Operation) -> None:
        if isinstance(operation, frames.Produce) and operation.columns.count:
            self._produce(encoding, operation)
            return
        if self.gathering.counts:
            self.publish()
        self._operations[type(operation)](self, encoding, operation)

    def finish(self, request_id: int, outcome: Outcome) -> None:
        """Turn an outcome into its answer, or into the second step of its operation."""
        if request_id == self._pausing:
            self._pausing = 0
            self.waiting = False
        pending = self._pending.pop(request_id, None)
        if self._shares:
            self.reading -= self._shares.pop(request_id, 0)
        if pending is not None:
            self._completions[type(pending)](self, pending, outcome)

    def lone_fetch(self, data: bytes, room: int) -> requests.Fetch | None:
        """What is asked for by one binary Fetch that is all there is to a read, with nothing under way before it: in one step, as
        is the way of a client that reads on and on. None: it is not so, or its answer may be more than there is `room` for.
        """
        replies = self.replies
        if replies.slots or self.waiting or frames.LENGTH.unpack_from(data)[0] != len(data) - frames.HEADER:
            return None
        operation = binary.fetch(data, frames.HEADER, len(data))
        if operation is None or operation.group or not operation.max_bytes or operation.offset > _I63_MAX:
            return None
        most = min(operation.max_bytes, _BINARY.most_bytes)
        share = max(most, SMALL_ANSWER)
        if share >= room:
            return None
        request = requests.Fetch(
            next(self._ids),
            operation.topic,
            operation.partition,
            operation.offset,
            max_messages=_BINARY.most_messages,
            max_bytes=most,
            record_overhead=_BINARY.record_overhead,
            value_limit=_BINARY.value_limit,
            allow_gaps=_BINARY.allow_gaps,
        )
        pending = _Fetching(replies.take(), frames.Encoding.BINARY, operation, operation.offset)
        self._pending[request.id] = pending
        self._shares[request.id] = self.reading = share
        return request

    def ends_alone(self, request_id: int) -> bool:
        """Whether that was a binary Fetch, and all there is under way: then nothing is, and what was found is the answer."""
        pendings, replies = self._pending, self.replies
        pending = pendings.get(request_id)
        if (
            type(pending) is not _Fetching
            or pending.encoding is not frames.Encoding.BINARY
            or not pending.operation.max_bytes
            or len(pendings) != 1
            or len(replies.slots) != 1
            or self.asked
            or self.waiting
        ):
            return False
        pendings.clear()
        self._shares.clear()
        self.reading = 0
        replies.give_back()
        return True

    def pause(self) -> None:
        # let others have the event loop before anything else is parsed
        self.publish()
        self._pausing = next(self._ids)
        self.asked.append(requests.Pause(self._pausing))
        self.waiting = True

    def forget(self) -> None:
        """The connection is gone: what the broker still completes is dropped."""
        self._pending.clear()
        self.replies = ReplyQueue()

    def say(self, encoding: frames.Encoding, answer: frames.Answer) -> None:
        self.publish()
        self.replies.put(CODECS[encoding].encode(answer))

    def _answer(self, pending: _Pending, answer: frames.Answer) -> None:
        self.replies.fill(pending.slot, CODECS[pending.encoding].encode(answer))

    def _ask(self, request: Request, pending: _Pending, share: int = SMALL_ANSWER) -> None:
        # `share`: how many bytes the answer may have
        if share:
            self._shares[request.id] = share
            self.reading += share
        self._pending[request.id] = pending
        self.asked.append(request)

    # --- operations ---

    def _produce(self, encoding: frames.Encoding, operation: frames.Produce) -> None:
        largest = len(operation.columns.packed)
        if largest > frames.MAX_VALUE:
            largest = max(map(len, operation.columns.values()))
        if largest > frames.MAX_VALUE:
            self.say(
                encoding,
                frames.Refusal(TooLarge(f"record too large: {largest} bytes (max: {frames.MAX_VALUE})"), operation),
            )
        elif not self.gathering.add(encoding, operation):
            self.publish()
            self.gathering.add(encoding, operation)

    def publish(self) -> None:
        gathering = self.gathering
        if not gathering.counts:
            return
        columns, counts = gathering.take()
        topic, partition, encoding = gathering.topic, gathering.partition, gathering.encoding
        operation = frames.Produce(topic, partition, columns)
        batch = Batch(topic, columns, partition=partition)
        request = requests.Publish(next(self._ids), batch, create=False)
        self._ask(request, _Producing(self.replies.take(), encoding, operation, counts), 0)

    def _produce_nothing(self, encoding: frames.Encoding, operation: frames.Produce) -> None:
        # no records: only whether the partition is there counts (RustLog wire 1.4)
        request = requests.DescribeTopics(next(self._ids), operation.topic)
        self._ask(request, _Pending(self.replies.take(), encoding, operation))

    def fetch(self, encoding: frames.Encoding, operation: frames.Fetch) -> None:
        if self.gathering.counts:
            self.publish()
        if operation.group:
            # What follows is asked after the second step, so that this read sees the writes before it and no others.
            request = requests.ReadOffset(next(self._ids), operation.topic, operation.group, operation.partition)
            self._ask(request, _FindingGroup(self.replies.take(), encoding, operation))
            self.waiting = True
        else:
            self._read(_Fetching(self.replies.take(), encoding, operation, operation.offset))

    def _read(self, pending: _Fetching) -> None:
        operation, reading = pending.operation, CODECS[pending.encoding].reading
        nothing = reading.zero_reads_nothing and operation.max_bytes == 0
        most = max(1, min(operation.max_bytes, reading.most_bytes))
        request = requests.Fetch(
            next(self._ids),
            operation.topic,
            operation.partition,
            min(pending.start, _I63_MAX),
            max_messages=1 if nothing else reading.most_messages,
            max_bytes=most,
            record_overhead=reading.record_overhead,
            value_limit=reading.value_limit,
            allow_gaps=reading.allow_gaps,
        )
        self._ask(request, pending, max(most, SMALL_ANSWER))

    def _offset_commit(self, encoding: frames.Encoding, operation: frames.OffsetCommit) -> None:
        request = requests.CommitOffset(
            next(self._ids),
            operation.topic,
            operation.group,
            operation.partition,
            operation.offset,
            must_exist=encoding is not frames.Encoding.BINARY,
        )
        self._ask(request, _Pending(self.replies.take(), encoding, operation))

    def _offset_fetch(self, encoding: frames.Encoding, operation: frames.OffsetFetch) -> None:
        request = requests.ReadOffset(next(self._ids), operation.topic, operation.group, operation.partition)
        self._ask(request, _Pending(self.replies.take(), encoding, operation))

    def _create_topic(self, encoding: frames.Encoding, operation: frames.CreateTopic) -> None:
        if operation.partitions == 0:  # before anything else (RustLog wire 1.3, code 12)
            self.say(encoding, frames.Refusal(InvalidRequest("Invalid partition count: 0"), operation))
            return
        request = requests.CreateTopic(next(self._ids), operation.topic, operation.partitions)
        self._ask(request, _Pending(self.replies.take(), encoding, operation))
        self.waiting = True  # a Produce behind it needs the topic

    def _describe(self, encoding: frames.Encoding, operation: frames.Operation) -> None:
        topic = operation.topic if isinstance(operation, frames.DescribeTopic | frames.DescribePartition) else ""
        self._ask(requests.DescribeTopics(next(self._ids), topic), _Pending(self.replies.take(), encoding, operation))

    def _list(self, encoding: frames.Encoding, operation: frames.ListTopics) -> None:
        self._ask(requests.DescribeTopics(next(self._ids)), _Listing(self.replies.take(), encoding, operation))
        self.waiting = True  # one list at a time: how long it gets is not known before

    def _metrics(self, encoding: frames.Encoding, operation: frames.MetricsFetch) -> None:
        self._ask(requests.ReadTotals(next(self._ids)), _Pending(self.replies.take(), encoding, operation))

    def _ping(self, encoding: frames.Encoding, _: frames.Ping) -> None:
        self.say(encoding, frames.Pong())

    # --- outcomes ---

    def _produced(self, pending: _Producing, outcome: Outcome) -> None:
        codec = CODECS[pending.encoding]
        if not isinstance(outcome, requests.Published):
            answers = codec.encode(_refusal(pending, outcome)) * len(pending.counts)
        elif outcome.refused or outcome.scattered is not None:
            answers = _produced_apart(codec, pending, outcome)
        elif pending.encoding is frames.Encoding.BINARY:
            answers = binary.produced(outcome.base_offset, pending.counts)
        else:
            bases = itertools.accumulate(pending.counts, initial=outcome.base_offset)
            pairs = zip(bases, pending.counts, strict=False)
            answers = b"".join([codec.encode(frames.Produced(base, count)) for base, count in pairs])
        self.replies.fill(pending.slot, answers)

    def _group_found(self, pending: _FindingGroup, outcome: Outcome) -> None:
        operation, reading = pending.operation, CODECS[pending.encoding].reading
        committed = outcome.offset if isinstance(outcome, requests.GroupOffset) else None
        if isinstance(outcome, GatewayError) and not isinstance(outcome, NotFound):
            self._answer(pending, frames.Refusal(outcome, operation))
        elif committed is None and reading.group_overrides and self._fresh_group is FreshGroup.EMPTY:
            self._answer(pending, frames.Records((), 0))
        else:
            start = operation.offset
            if committed is not None:
                start = committed if reading.group_overrides else max(committed, start)
            fresh = committed is None and reading.group_overrides
            self._read(_Fetching(pending.slot, pending.encoding, operation, start, fresh))
        self.waiting = False

    def _fetched(self, pending: _Fetching, outcome: Outcome) -> None:
        operation, codec = pending.operation, CODECS[pending.encoding]
        if isinstance(outcome, requests.Fetched):
            runs, next_offset = outcome.runs, outcome.next_offset
            if codec.reading.zero_reads_nothing and operation.max_bytes == 0:
                runs, next_offset = (), pending.start
            elif not runs:
                beyond = pending.start >= outcome.log_end
                end = outcome.log_end if codec.reading.end_is_log_end else pending.start
                next_offset = end if beyond else next_offset
            elif codec.fits_alone is not None and not codec.fits_alone(runs[0].columns.value(0)):
                first = runs[0].base_offset
                text = f"the record at offset {first} is too large for this dialect: read on at {first + 1}"
                self._answer(pending, frames.Refusal(TooLarge(text), operation))
                return
            if pending.encoding is frames.Encoding.BINARY:
                self.replies.fill(pending.slot, binary.records(runs, next_offset))
            else:
                self._answer(pending, frames.Records(runs, next_offset))
        elif pending.fresh and isinstance(outcome, NotFound) and not isinstance(outcome, UnknownPartition):
            self._answer(pending, frames.Records((), 0))
        else:
            self._answer(pending, _refusal(pending, outcome))

    def _listed(self, pending: _Listing, outcome: Outcome) -> None:
        if isinstance(outcome, requests.Topics):
            pending.found += [(topic.address, len(topic.partitions)) for topic in outcome.topics]
            if outcome.following:
                self._ask(requests.DescribeTopics(next(self._ids), after=outcome.following), pending)
                return
            self._answer(pending, frames.TopicList(sorted(pending.found)))
        else:
            self._answer(pending, _refusal(pending, outcome))
        self.waiting = False

    def _answered(self, pending: _Pending, outcome: Outcome) -> None:
        operation = pending.operation
        if isinstance(operation, frames.CreateTopic):
            self.waiting = False
        match operation, outcome:
            case frames.OffsetCommit(), requests.Done():
                answer: frames.Answer = frames.Committed(success=True)
            case frames.OffsetCommit(), NotFound() if pending.encoding is not frames.Encoding.BINARY:
                answer = frames.Committed(success=False)
            case frames.OffsetFetch(), requests.GroupOffset(offset=offset):
                answer = frames.GroupPosition(offset)
            case frames.OffsetFetch(), NotFound():
                answer = frames.GroupPosition(None)
            case frames.CreateTopic(), requests.TopicCreated(created=True, partitions=partitions):
                answer = frames.Created(success=True, partitions=partitions)
            case frames.CreateTopic(), requests.TopicCreated():
                answer = frames.Refusal(AlreadyExists(), operation)
            case _, requests.Topics():
                answer = _described(operation, outcome)
            case frames.MetricsFetch(), requests.Totals():
                answer = frames.Metrics(exposition(outcome))
            case _:
                answer = _refusal(pending, outcome)
        self._answer(pending, answer)

    _operations: ClassVar[Mapping[type[frames.Operation], Callable[[Any, frames.Encoding, Any], None]]] = {
        frames.Produce: _produce_nothing,
        frames.Fetch: fetch,
        frames.OffsetCommit: _offset_commit,
        frames.OffsetFetch: _offset_fetch,
        frames.CreateTopic: _create_topic,
        frames.ListTopics: _list,
        frames.DescribeTopic: _describe,
        frames.DescribePartition: _describe,
        frames.MetricsFetch: _metrics,
        frames.Ping: _ping,
    }

    _completions: ClassVar[Mapping[type[_Pending], Callable[[Any, Any, Outcome], None]]] = {
        _Producing: _produced,
        _FindingGroup: _group_found,
        _Fetching: _fetched,
        _Listing: _listed,
        _Pending: _answered,
    }


def _refusal(pending: _Pending, outcome: Outcome) -> frames.Refusal:
    if not isinstance(outcome, GatewayError):
        raise TypeError(outcome)
    return frames.Refusal(outcome, pending.operation)


def _produced_apart(codec: Codec, pending: _Producing, published: requests.Published) -> bytes:
    # answers when the records of a batch did not end up one behind the other
    answers = []
    first = 0
    for count in pending.counts:
        refused = next((published.refused[i] for i in range(first, first + count) if i in published.refused), None)
        if refused is not None:
            answers.append(codec.encode(frames.Refusal(refused, pending.operation)))
        else:
            answers.append(codec.encode(frames.Produced(published.position(first)[1], count)))
        first += count
    return b"".join(answers)


def _described(operation: frames.Operation, topics: requests.Topics) -> frames.Answer:
    # high watermarks are real ones here; the original says 0 for ever (RustLog wire 1.4)
    partitions = topics.topics[0].partitions if topics.topics else ()
    states = [frames.PartitionState(p.id, p.end, p.start) for p in partitions]
    match operation:
        case frames.DescribeTopic() if states:
            return frames.TopicDescription(operation.topic, states)
        case frames.DescribePartition() | frames.Produce():
            for state in states:
                if state.id == operation.partition:
                    found = isinstance(operation, frames.DescribePartition)
                    return frames.PartitionDescription(operation.topic, state) if found else frames.Produced(0, 0)
    return frames.Refusal(UnknownPartition(), operation)
