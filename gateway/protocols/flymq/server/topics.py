"""Topics and messages: CONSUME, FETCH, CREATE_TOPIC, DELETE_TOPIC, LIST_TOPICS, SUBSCRIBE, METADATA (FlyMQ document,
core operations; FlyMQ wire 2.2). PRODUCE is not here: the session reads whole runs of it (codec_produce).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence

from gateway.envelope import Run
from gateway.errors import InvalidRequest, RequestError, Status, UnknownPartition, UnknownTopic
from gateway.protocols.flymq.server.filters import FetchFilter, Sieve, compile_filter
from gateway.protocols.flymq.server.operations import (
    LAST_OFFSET,
    LONGEST_HOLD,
    Call,
    Operation,
    Operations,
    Steps,
    expect,
)
from gateway.protocols.flymq.wire import codec_fetch
from gateway.protocols.flymq.wire.codec import REQUESTS
from gateway.protocols.flymq.wire.dialect import filter_suffix, read_mode
from gateway.protocols.flymq.wire.frames import Op
from gateway.protocols.flymq.wire.layout import STR, WireWords
from gateway.protocols.flymq.wire.mapping import Subject
from gateway.requests import (
    CreateTopic,
    DeleteTopic,
    DescribeTopics,
    Fetch,
    Fetched,
    GroupOffset,
    JoinGroup,
    PartitionInfo,
    ReadOffset,
    Reply,
    Request,
    TopicCreated,
    TopicInfo,
    Topics,
)
from gateway.wire.reader import Reader

DEFAULT_MAX = 10
"""What a FETCH with max <= 0 means (FlyMQ wire 2.2)."""
LARGEST_MAX = 100_000
SCAN_STEP = 1000
"""Records a filter looks at per read of the log."""
SCAN_BYTES = 512 << 10
"""Bytes a filter looks at per read of the log, but for a single longer record: others are served in between."""
SCAN_LIMIT = 20_000
"""Records a filter looks at per FETCH: a client that only moves on when something matched gets across long stretches,
and none can make one FETCH read a whole log."""
MOST_PARTITIONS = 10_000
MOST_GROUPS = 1024
"""Groups one connection counts as a member of; membership is for people to look at, nothing depends on it."""


class EndOfLog(RequestError):
    """EOF"""

    status = Status.OUT_OF_RANGE


def consume(call: Call, payload: bytes) -> Steps:
    """One record; the answer has no offset, so only the very record asked for will do."""
    topic, partition, offset = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic, partition=partition, missing="out of range")
    if partition < 0:
        raise UnknownPartition
    wanted = min(offset, LAST_OFFSET)
    reply = yield Fetch(call.id(), topic, partition, wanted, 1, codec_fetch.FETCH_BYTES, allow_gaps=False)
    fetched = expect(Fetched, reply)
    for run in fetched.runs:
        if run.count and run.base_offset == wanted:
            return call.answer(run.columns.key(0) or b"", run.columns.value(0))
    if wanted >= fetched.log_end:
        raise EndOfLog
    following = fetched.runs[0].base_offset if fetched.runs else fetched.next_offset
    raise InvalidRequest(f"message expired: go on at {max(following, wanted + 1)}")


def fetch(call: Call, payload: bytes) -> Steps:
    """A batch from an offset, as much as one answer may hold."""
    with WireWords():
        reader = Reader(payload)
        topic, partition, offset, most = REQUESTS[call.op].read(reader)
        suffix = filter_suffix(payload[reader.position :])
    if suffix is not None:
        call.speech.sign(newer=True)
    call.subject = Subject(topic, partition=partition)
    if partition < 0:
        raise UnknownPartition
    most = min(most, LARGEST_MAX) if most > 0 else DEFAULT_MAX
    hold = min(call.settings.fetch_hold, LONGEST_HOLD)
    if suffix:
        return (yield from _fetch_matching(call, offset, most, compile_filter(suffix)))
    reply = yield Fetch(
        call.id(),
        topic,
        partition,
        min(offset, LAST_OFFSET),
        most,
        codec_fetch.FETCH_BYTES,
        hold_until=call.now + hold if hold > 0 else None,
        record_overhead=codec_fetch.OVERHEAD,
    )
    fetched = expect(Fetched, reply)
    runs, following = codec_fetch.fit(fetched.runs, fetched.next_offset)
    if not runs and following == LAST_OFFSET:
        following = offset
    return codec_fetch.answer(call.op, runs, following, server=call.speech.stock)


def _fetch_matching(call: Call, offset: int, most: int, wanted: FetchFilter) -> Steps:
    # read on until something matches, the log ends, or enough was looked at
    topic, partition = call.subject.topic, call.subject.partition
    sieve = Sieve(wanted, most)
    runs: Sequence[Run] = ()
    following = min(offset, LAST_OFFSET)
    for _ in range(SCAN_LIMIT // SCAN_STEP):
        reply = yield Fetch(call.id(), topic, partition, following, SCAN_STEP, SCAN_BYTES, sieve=sieve)
        fetched = expect(Fetched, reply)
        runs, before, following = fetched.runs, following, fetched.next_offset
        if runs or following <= before or following >= fetched.log_end or sieve.left <= 0:
            break
    runs, following = codec_fetch.fit(runs, max(offset, following))
    return codec_fetch.answer(call.op, runs, following, server=call.speech.stock)


def create_topic(call: Call, payload: bytes) -> Steps:
    """What exists is kept, whatever partitions are asked for; 0 means 1 (FlyMQ wire 2.2)."""
    topic, partitions = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    if not 0 <= partitions <= MOST_PARTITIONS:
        raise InvalidRequest(f"invalid partition count: {partitions}")
    expect(TopicCreated, (yield CreateTopic(call.id(), topic, max(1, partitions))))
    return call.speech.flag(call.op)


def delete_topic(call: Call, payload: bytes) -> Steps:
    """Deleting what is not there succeeds (FlyMQ wire 2.2)."""
    (topic,) = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    with contextlib.suppress(UnknownTopic):
        yield DeleteTopic(call.id(), topic)
    return call.speech.flag(call.op)


def list_topics(call: Call, _payload: bytes) -> Steps:
    return call.listed((yield from every_topic(call, lambda topic: STR.encode(topic.address))))


def every_topic(call: Call, encode: Callable[[TopicInfo], bytes]) -> Generator[Request, Reply, list[bytes]]:
    """An entry for each topic, sorted by the bytes of its name; page by page, others are served in between."""
    found: list[tuple[str, bytes]] = []
    page = Topics((), "")
    while True:
        page = expect(Topics, (yield DescribeTopics(call.id(), after=page.following)))
        for topic in page.topics:
            entry = encode(topic)
            if not call.fits(entry):
                break
            found.append((topic.address, entry))
        else:
            if page.following:
                continue
        return [entry for _, entry in sorted(found)]


def describe(call: Call, topic: str) -> Generator[Request, Reply, TopicInfo]:
    """One topic; UnknownTopic if there is none."""
    if not topic:  # to the broker an empty address means all
        raise UnknownTopic
    topics = expect(Topics, (yield DescribeTopics(call.id(), topic))).topics
    if not topics:
        raise UnknownTopic
    return topics[0]


def describe_partition(call: Call, topic: str, partition: int) -> Generator[Request, Reply, PartitionInfo]:
    """One partition of a topic; UnknownPartition if there is none."""
    info = yield from describe(call, topic)
    for found in info.partitions:
        if found.id == partition:
            return found
    raise UnknownPartition


def metadata(call: Call, payload: bytes) -> Steps:
    """The Go codec's layout: per partition its id, its leader, and the log's first and next offset (FlyMQ wire 2.2)."""
    (topic,) = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    info = yield from describe(call, topic)
    return call.answer(topic, [(part.id, 0, part.start, part.end) for part in info.partitions])


def subscribe(call: Call, payload: bytes) -> Steps:
    """Where a consumer begins. It also counts the connection as a member of the group, if it names one."""
    with WireWords():
        reader = Reader(payload)
        topic, group, partition = REQUESTS[call.op].read(reader)
        mode = read_mode(payload[reader.position :], call.speech)
    call.subject = Subject(topic, group, partition)
    if mode not in {"", "earliest", "latest", "commit"}:
        raise InvalidRequest(f"unknown subscribe mode: {mode}")
    found = yield from describe_partition(call, topic, partition)
    start = found.start if mode in {"earliest", "commit"} else found.end
    if group and (mode == "commit" or call.settings.resume):
        kept = expect(GroupOffset, (yield ReadOffset(call.id(), topic, group, partition)))
        if kept.offset is not None:
            start = kept.offset
    member = (topic, group)
    if group and member not in call.joined and len(call.joined) < MOST_GROUPS:
        yield JoinGroup(call.id(), topic, group)
        call.joined[member] = None
    return call.answer(start)


OPERATIONS: Operations = {
    Op.CONSUME: Operation(consume),
    Op.CONSUME_ZERO_COPY: Operation(consume),
    Op.FETCH: Operation(fetch),
    Op.FETCH_BINARY: Operation(fetch),
    Op.CREATE_TOPIC: Operation(create_topic),
    Op.DELETE_TOPIC: Operation(delete_topic),
    Op.LIST_TOPICS: Operation(list_topics),
    Op.METADATA: Operation(metadata),
    Op.SUBSCRIBE: Operation(subscribe, bars=True),
}
