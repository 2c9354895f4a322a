"""Messages with a fate of their own: dead letters, delayed and short-lived ones, transactions, and the cluster
(FlyMQ document, 0x20 to 0x53; FlyMQ wire 2.2).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import msgspec

from gateway.envelope import Batch, Columns
from gateway.errors import Conflict, InvalidRequest, NotFound, UnknownTopic
from gateway.protocols.flymq.server.operations import Call, Operation, Operations, Steps, expect
from gateway.protocols.flymq.server.schemas import recorded
from gateway.protocols.flymq.server.topics import DEFAULT_MAX, LARGEST_MAX, describe, every_topic
from gateway.protocols.flymq.wire.codec import MEMBERS, REQUESTS, TOPIC_LED, read_optional_name, read_replay
from gateway.protocols.flymq.wire.codec_fetch import FETCH_BYTES
from gateway.protocols.flymq.wire.frames import Op
from gateway.protocols.flymq.wire.layout import STR
from gateway.protocols.flymq.wire.mapping import Subject
from gateway.requests import (
    Begin,
    Begun,
    CancelDelayed,
    Cluster,
    ClusterAnswer,
    ClusterJoin,
    ClusterLeave,
    ClusterStatus,
    Commit,
    DeadLetter,
    DeadLetters,
    Delayed,
    Publish,
    Published,
    PurgeDeadLetters,
    ReadDeadLetters,
    ReplayDeadLetter,
    Rollback,
    TopicInfo,
)

LONGEST_DELAY_MS = 86_400_000
LONGEST_TTL_MS = 100 * 366 * 86_400_000
LARGEST_RETRIES = (1 << 31) - 1
LONGEST_ERROR = 1000
"""Characters, of an id too."""
MOST_LOOKED_THROUGH = 1000


class ClientLetter(msgspec.Struct):
    """A dead letter as the original keeps it, which only clients ever write there (FlyMQ wire 4, DLQ)."""

    id: str | None = ""
    original_topic: str | None = ""
    original_offset: int | None = 0
    payload: bytes | None = b""
    reason: str | None = ""
    error_message: str | None = ""
    retry_count: int | None = 0


_decode_letter = msgspec.json.Decoder(ClientLetter).decode


@attrs.frozen
class Listed:
    """A dead letter as it is listed."""

    id: str
    value: bytes
    error: str
    retries: int
    topic: str = ""
    """Where a client says that it came from."""


def _listed(letter: DeadLetter) -> Listed | None:
    # None for what nobody put there as a letter: the original passes over it, too
    value = letter.columns.value(0)
    if letter.reason:
        error = letter.last_error or letter.reason
        return Listed(letter.id, value, error[:LONGEST_ERROR], min(letter.attempts, LARGEST_RETRIES))
    try:
        own = _decode_letter(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return Listed(
        (own.id or "")[:LONGEST_ERROR],
        own.payload or b"",
        (own.error_message or "")[:LONGEST_ERROR],
        max(-LARGEST_RETRIES, min(own.retry_count or 0, LARGEST_RETRIES)),
        own.original_topic or "",
    )


def fetch_dlq(call: Call, payload: bytes) -> Steps:
    """Dead letters of a topic, oldest first, as many as one answer holds."""
    topic, most = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    most = min(most, LARGEST_MAX) if most > 0 else DEFAULT_MAX
    letters = expect(DeadLetters, (yield ReadDeadLetters(call.id(), topic, most))).letters
    entries: list[tuple[str, bytes, str, int]] = []
    room = FETCH_BYTES
    for letter in letters:
        listed = _listed(letter)
        if listed is None:
            continue
        room -= len(listed.value)
        if entries and room < 0:
            break
        entries.append((listed.id, listed.value, listed.error, listed.retries))
    return call.answer(entries)


def replay_dlq(call: Call, payload: bytes) -> Steps:
    topic, letter = read_replay(payload)
    call.subject = Subject(topic)
    try:
        yield ReplayDeadLetter(call.id(), topic, letter)
    except UnknownTopic:
        raise
    except NotFound:
        return (yield from _replay_by_own_id(call, topic, letter))
    return call.answer(True, "OK")


def _replay_by_own_id(call: Call, topic: str, letter: str) -> Steps:
    # a letter that a client wrote goes back to where it says it came from; the original looks through as many
    look = ReadDeadLetters(call.id(), topic, MOST_LOOKED_THROUGH, to_replay=True)
    letters = expect(DeadLetters, (yield look)).letters
    for listed in map(_listed, letters):
        if listed is not None and listed.topic and listed.id == letter:
            call.subject = Subject(listed.topic)
            yield Publish(call.id(), Batch(listed.topic, Columns.of([listed.value]), round_robin=True))
            return call.answer(True, "OK")
    return call.answer(False, "message not found")


def purge_dlq(call: Call, payload: bytes) -> Steps:
    (topic,) = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    yield PurgeDeadLetters(call.id(), topic)
    return call.answer(True, "OK")


def produce_delayed(call: Call, payload: bytes) -> Steps:
    """Delivered after a delay. The answer is RecordMetadata, and behind it the id that cancels it."""
    topic, data, delay = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    if not 0 <= delay <= LONGEST_DELAY_MS:
        raise InvalidRequest(f"invalid delay: {delay} ms, at most {LONGEST_DELAY_MS}")
    reply = yield Publish(call.id(), Batch(topic, Columns.of([data]), round_robin=True), delay_ms=delay)
    if isinstance(reply, Delayed):
        return call.answer(topic, 0, 0, reply.timestamp_ms, -1, len(data), reply.ids[0])
    return recorded(call, topic, expect(Published, reply), data, "")


def cancel_delayed(call: Call, payload: bytes) -> Steps:
    """Takes a delayed message back; false once it was delivered."""
    topic, delayed = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    try:
        yield CancelDelayed(call.id(), topic, delayed)
    except NotFound:
        return call.answer(False, "message not found")
    return call.answer(True, "OK")


def produce_with_ttl(call: Call, payload: bytes) -> Steps:
    # never delivered once its time is over; 0 means it stays
    topic, data, ttl = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    if not 0 <= ttl <= LONGEST_TTL_MS:
        raise InvalidRequest(f"invalid ttl: {ttl} ms")
    published = expect(
        Published, (yield Publish(call.id(), Batch(topic, Columns.of([data]), round_robin=True), ttl_ms=ttl))
    )
    return recorded(call, topic, published, data)


def begin(call: Call, _payload: bytes) -> Steps:
    # opens a transaction that ends with this connection
    begun = expect(Begun, (yield Begin(call.id())))
    return call.answer(begun.transaction, True)


def commit(call: Call, payload: bytes) -> Steps:
    """All or nothing. What fails is an ERROR, since no shipped client looks at the flag (FlyMQ wire 2.2)."""
    (name,) = REQUESTS[call.op].decode(payload)
    yield Commit(call.id(), name)
    return call.answer(name, True)


def rollback(call: Call, payload: bytes) -> Steps:
    (name,) = REQUESTS[call.op].decode(payload)
    yield Rollback(call.id(), name)
    return call.answer(name, True)


def produce_in_transaction(call: Call, payload: bytes) -> Steps:
    """Kept until the commit, which gives the offset: the answer says 0."""
    name, topic, data = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    if not name:  # to the broker no transaction at all
        raise Conflict("transaction not found: ")
    published = expect(
        Published, (yield Publish(call.id(), Batch(topic, Columns.of([data]), round_robin=True), transaction=name))
    )
    if 0 in published.refused:
        raise published.refused[0]
    return call.answer(topic, published.partition, 0, published.timestamp_ms, -1, len(data))


def join(call: Call, payload: bytes) -> Steps:
    (peer,) = REQUESTS[call.op].decode(payload)
    answer = expect(ClusterAnswer, (yield ClusterJoin(call.id(), peer)))
    return call.answer(answer.done, answer.message)


def leave(call: Call, _payload: bytes) -> Steps:
    # leaves the other gateways; the last one cannot
    answer = expect(ClusterAnswer, (yield ClusterLeave(call.id())))
    return call.answer(answer.done, answer.message)


def _leads(call: Call, cluster: Cluster) -> Callable[[TopicInfo], bytes]:
    # how a topic is told: every partition is led by the gateway that answers, the others have logs of their own
    name = next((member.id for member in cluster.members if member.is_self), call.context.server_id)
    where = call.context.advertised

    def encode(topic: TopicInfo) -> bytes:
        leaders = [(part.id, name, where, 1, "online", [name], [name]) for part in topic.partitions]
        return TOPIC_LED.encode(topic.address, leaders)

    return encode


def cluster_metadata(call: Call, payload: bytes) -> Steps:
    """Who leads which partition (FlyMQ wire 2.2, 0x53). Only newer clients ask."""
    call.speech.sign(newer=True)
    name = read_optional_name(payload)
    call.subject = Subject(name)
    cluster = expect(Cluster, (yield ClusterStatus(call.id())))
    encode = _leads(call, cluster)
    entries = [encode((yield from describe(call, name)))] if name else (yield from every_topic(call, encode))
    return call.listed(entries, STR.encode(cluster.id))


def cluster_status(call: Call, _payload: bytes) -> Steps:
    """The layout of CLUSTER_METADATA, and behind it the members with their health."""
    cluster = expect(Cluster, (yield ClusterStatus(call.id())))
    entries = yield from every_topic(call, _leads(call, cluster))
    members = [(member.id, member.address, member.healthy, member.is_self) for member in cluster.members]
    return call.listed(entries, STR.encode(cluster.id), MEMBERS.encode(members))


OPERATIONS: Operations = {
    Op.FETCH_DLQ: Operation(fetch_dlq),
    Op.REPLAY_DLQ: Operation(replay_dlq),
    Op.PURGE_DLQ: Operation(purge_dlq),
    Op.PRODUCE_DELAYED: Operation(produce_delayed),
    Op.CANCEL_DELAYED: Operation(cancel_delayed),
    Op.PRODUCE_WITH_TTL: Operation(produce_with_ttl),
    Op.TXN_BEGIN: Operation(begin),
    Op.TXN_COMMIT: Operation(commit),
    Op.TXN_ROLLBACK: Operation(rollback),
    Op.TXN_PRODUCE: Operation(produce_in_transaction),
    Op.CLUSTER_JOIN: Operation(join),
    Op.CLUSTER_LEAVE: Operation(leave),
    Op.CLUSTER_STATUS: Operation(cluster_status, bars=True),
    Op.CLUSTER_METADATA: Operation(cluster_metadata, bars=True),
}
