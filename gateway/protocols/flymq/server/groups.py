"""Consumer groups: offsets, lag, and who there is (FlyMQ document, 0x60 to 0x66; FlyMQ wire 2.2).

A group is bookkeeping: the next offset to read, per topic and partition. Nothing is assigned to anybody.
"""

from __future__ import annotations

from collections.abc import Generator

from gateway.errors import InvalidRequest, UnknownGroup, UnknownPartition
from gateway.protocols.flymq.server.operations import (
    Call,
    Operation,
    Operations,
    Steps,
    check_group,
    check_offset,
    expect,
)
from gateway.protocols.flymq.server.topics import describe_partition
from gateway.protocols.flymq.wire.codec import GROUP, REQUESTS, read_group, read_reset
from gateway.protocols.flymq.wire.frames import Op
from gateway.protocols.flymq.wire.mapping import Subject
from gateway.requests import (
    CommitOffset,
    DeleteGroup,
    GroupInfo,
    GroupOffset,
    Groups,
    ListGroups,
    Offset,
    OffsetForTime,
    ReadOffset,
    Reply,
    Request,
)


def _subject(call: Call, topic: str, group: str, partition: int) -> None:
    call.subject = Subject(topic, group, partition)
    if partition < 0:
        raise UnknownPartition


def commit(call: Call, payload: bytes) -> Steps:
    """Keeps the next offset to read; makes the group, and does not ask whether the topic exists."""
    topic, group, partition, offset = REQUESTS[call.op].decode(payload)
    _subject(call, topic, group, partition)
    yield CommitOffset(call.id(), topic, check_group(group), partition, check_offset(offset))
    return call.speech.flag(call.op)


def _read(call: Call, payload: bytes) -> Generator[Request, Reply, GroupOffset]:
    topic, group, partition = REQUESTS[call.op].decode(payload)
    _subject(call, topic, group, partition)
    kept = expect(GroupOffset, (yield ReadOffset(call.id(), topic, group, partition)))
    if not kept.group_exists:
        raise UnknownGroup
    return kept


def get_offset(call: Call, payload: bytes) -> Steps:
    """What is committed; 0 if this group exists but never committed here."""
    kept = yield from _read(call, payload)
    return call.answer(kept.offset or 0)


def get_lag(call: Call, payload: bytes) -> Steps:
    """How far the group is behind the log's end, counting only what the log still has."""
    kept = yield from _read(call, payload)
    found = yield from describe_partition(call, call.subject.topic, call.subject.partition)
    committed = kept.offset or 0
    lag = max(0, found.end - max(committed, found.start))
    return call.answer(committed, committed, found.end, lag)


def reset_offset(call: Call, payload: bytes) -> Steps:
    # moves a group to the log's start, its end, or an offset
    topic, group, partition, mode, offset = read_reset(payload)
    _subject(call, topic, group, partition)
    check_group(group)
    if mode not in {"earliest", "latest", "offset"}:
        raise InvalidRequest(f"unknown reset mode: {mode}")
    found = yield from describe_partition(call, topic, partition)
    if offset is None:
        offset = found.start if mode == "earliest" else found.end
    yield CommitOffset(call.id(), topic, group, partition, check_offset(offset), must_exist=True, reset=True)
    return call.speech.flag(call.op)


def _entry(info: GroupInfo) -> tuple[object, ...]:
    return info.address, info.group, info.members, info.offsets


def list_groups(call: Call, _payload: bytes) -> Steps:
    """One entry per topic and group; page by page, others are served in between."""
    entries: list[bytes] = []
    page = Groups(())
    while True:
        page = expect(Groups, (yield ListGroups(call.id(), after=page.following)))
        for info in page.groups:
            entry = GROUP.encode(*_entry(info))
            if not call.fits(entry):
                return call.listed(entries)
            entries.append(entry)
        if page.following is None:
            return call.listed(entries)


def describe_group(call: Call, payload: bytes) -> Steps:
    """One entry; without a topic, as two shipped clients ask, the first topic of that group."""
    topic, group = read_group(payload)
    call.subject = Subject(topic, check_group(group))
    groups = expect(Groups, (yield ListGroups(call.id(), topic, group))).groups
    if not groups:
        raise UnknownGroup
    return call.answer(*_entry(groups[0]))


def delete_group(call: Call, payload: bytes) -> Steps:
    """Forgets a group on a topic, or on every topic when none is named."""
    topic, group = read_group(payload)
    call.subject = Subject(topic, check_group(group))
    yield DeleteGroup(call.id(), topic, group)
    return call.speech.flag(call.op)


def seek_to_timestamp(call: Call, payload: bytes) -> Steps:
    """The first offset at or after a time. Nothing is committed: the consumer starts there, or commits it."""
    topic, group, partition, time = REQUESTS[call.op].decode(payload)
    _subject(call, topic, group, partition)
    found = expect(Offset, (yield OffsetForTime(call.id(), topic, partition, max(0, time))))
    return call.answer(found.offset)


OPERATIONS: Operations = {
    Op.COMMIT: Operation(commit),
    Op.GET_OFFSET: Operation(get_offset),
    Op.RESET_OFFSET: Operation(reset_offset, bars=True),
    Op.LIST_GROUPS: Operation(list_groups),
    Op.DESCRIBE_GROUP: Operation(describe_group),
    Op.GET_LAG: Operation(get_lag),
    Op.DELETE_GROUP: Operation(delete_group),
    Op.SEEK_TO_TIMESTAMP: Operation(seek_to_timestamp),
}
