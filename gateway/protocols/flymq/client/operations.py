"""Every request FlyMQ can express, but reading and plain publishing (FlyMQ wire 2.2)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from gateway.envelope import Columns
from gateway.errors import InvalidRequest, Status, TargetRefused, Truncated, Unauthenticated, Unsupported
from gateway.protocols.flymq.client.reader import lookup, probe
from gateway.protocols.flymq.client.steps import Ask, ClientShared, ClientSteps, must
from gateway.protocols.flymq.wire.codec import CLUSTER, MEMBERS, read_schema
from gateway.protocols.flymq.wire.dialect import read_identity, read_login
from gateway.protocols.flymq.wire.frames import Op
from gateway.protocols.flymq.wire.layout import WireWords
from gateway.requests import (
    DONE,
    Authenticate,
    Begin,
    Begun,
    CancelDelayed,
    Cluster,
    ClusterAnswer,
    ClusterJoin,
    ClusterLeave,
    ClusterStatus,
    Commit,
    CommitOffset,
    CreateTopic,
    DeadLetter,
    DeadLetters,
    Delayed,
    DeleteGroup,
    DeleteSchema,
    DeleteTopic,
    DescribeTopics,
    GetSchemas,
    GroupInfo,
    GroupOffset,
    Groups,
    Identity,
    JoinGroup,
    ListGroups,
    Member,
    Offset,
    OffsetForTime,
    PartitionInfo,
    Publish,
    Published,
    PurgeDeadLetters,
    ReadDeadLetters,
    ReadOffset,
    RegisterSchema,
    ReplayDeadLetter,
    Request,
    Rollback,
    SchemaInfo,
    SchemaKind,
    Schemas,
    TopicCreated,
    TopicInfo,
    Topics,
    ValidateSchema,
    Validation,
    WhoAmI,
)
from gateway.wire.reader import Reader

_MISSING = TargetRefused("message not found", refusal=Status.NOT_FOUND, final=True)
_FAILED = TargetRefused("the transaction was not committed", refusal=Status.CONFLICT, final=True)
_KINDS = {kind.value: kind for kind in SchemaKind} | {"proto": SchemaKind.PROTOBUF}


def _publish(upstream: ClientShared, request: Publish) -> ClientSteps:
    # messages with a transaction, a schema, a delay or a lifetime, one after the other: they have no keys
    batch = request.batch
    if request.deliver_at_ms:
        raise Unsupported("FlyMQ delays by a span, not until a time")
    places: list[tuple[int, int]] = []
    ids: list[str] = []
    time = 0
    for value in batch.columns.values():
        if request.transaction:
            answer = yield from upstream.ask(Op.TXN_PRODUCE, request.transaction, batch.address, value)
        elif request.schema:
            answer = yield from upstream.ask(Op.PRODUCE_WITH_SCHEMA, batch.address, request.schema, value)
        elif request.ttl_ms:
            answer = yield from upstream.ask(Op.PRODUCE_WITH_TTL, batch.address, value, request.ttl_ms)
        else:
            answer = yield from upstream.ask(Op.PRODUCE_DELAYED, batch.address, value, request.delay_ms)
            ids.append(answer[6])
        _, partition, offset, time = answer[:4]
        places.append((partition, offset))
    if ids:
        return Delayed(time, ids)
    return Published(batch.address, time, scattered=places)


def _cancel_delayed(upstream: ClientShared, request: CancelDelayed) -> ClientSteps:
    done, text = yield from upstream.ask(Op.CANCEL_DELAYED, request.address, request.delayed_id)
    must(done, text, _MISSING)
    return DONE


def _begin(upstream: ClientShared, _request: Begin) -> ClientSteps:
    name, _ = yield from upstream.ask(Op.TXN_BEGIN)
    return Begun(name)


def _commit(upstream: ClientShared, request: Commit) -> ClientSteps:
    _, done = yield from upstream.ask(Op.TXN_COMMIT, request.transaction)
    must(done, "", _FAILED)
    return DONE


def _rollback(upstream: ClientShared, request: Rollback) -> ClientSteps:
    _, done = yield from upstream.ask(Op.TXN_ROLLBACK, request.transaction)
    must(done, "", _FAILED)
    return DONE


def _create_topic(upstream: ClientShared, request: CreateTopic) -> ClientSteps:
    # the answer does not say whether it was there already
    yield from upstream.ask(Op.CREATE_TOPIC, request.address, request.partitions)
    return TopicCreated(True, request.partitions)


def _delete_topic(upstream: ClientShared, request: DeleteTopic) -> ClientSteps:
    yield from upstream.ask(Op.DELETE_TOPIC, request.address)
    return DONE


def _describe_topics(upstream: ClientShared, request: DescribeTopics) -> ClientSteps:
    # METADATA; from a broker that does not know it, what SUBSCRIBE tells (FlyMQ wire 2.2)
    names = [request.address]
    if not request.address:
        (names,) = yield from upstream.ask(Op.LIST_TOPICS)
    topics: list[TopicInfo] = []
    for name in names:
        try:
            _, found = yield from upstream.ask(Op.METADATA, name)
        except TargetRefused as error:
            if error.refusal is not Status.UNSUPPORTED:
                raise
            starts = yield from probe(upstream, name, "", "earliest")
            found = []
            for partition, start in starts.items():
                end = yield from lookup(upstream, name, "", partition, "latest")
                found.append((partition, 0, start, end))
        topics.append(TopicInfo(name, [PartitionInfo(part, start, end) for part, _, start, end in found]))
    return Topics(topics)


def _commit_offset(upstream: ClientShared, request: CommitOffset) -> ClientSteps:
    yield from upstream.ask(Op.COMMIT, request.address, request.group, request.partition, request.offset)
    return DONE


def _read_offset(upstream: ClientShared, request: ReadOffset) -> ClientSteps:
    # GET_LAG, which says the log's end too. 0 is also what a group without a commit here is answered.
    try:
        answer = yield from upstream.ask(Op.GET_LAG, request.address, request.group, request.partition)
    except TargetRefused as error:
        if error.refusal is Status.NOT_FOUND:
            return GroupOffset(None, False)
        raise
    _, committed, end, _ = answer
    return GroupOffset(committed, True, 0, end)


def _join_group(upstream: ClientShared, request: JoinGroup) -> ClientSteps:
    yield from lookup(upstream, request.address, request.group, 0, "commit")
    return DONE


def _list_groups(upstream: ClientShared, request: ListGroups) -> ClientSteps:
    (entries,) = yield from upstream.ask(Op.LIST_GROUPS)
    return Groups(
        [
            GroupInfo(topic, group, members, offsets)
            for topic, group, members, offsets in entries
            if request.address in {"", topic} and request.group in {"", group}
        ]
    )


def _delete_group(upstream: ClientShared, request: DeleteGroup) -> ClientSteps:
    yield from upstream.ask(Op.DELETE_GROUP, request.address, request.group)
    return DONE


def _offset_for_time(upstream: ClientShared, request: OffsetForTime) -> ClientSteps:
    (offset,) = yield from upstream.ask(
        Op.SEEK_TO_TIMESTAMP, request.address, "", request.partition, request.timestamp_ms
    )
    return Offset(offset)


def _register_schema(upstream: ClientShared, request: RegisterSchema) -> ClientSteps:
    name, kind, version = yield from upstream.ask(Op.REGISTER_SCHEMA, request.name, request.kind, request.definition)
    return Schemas([SchemaInfo(name, version, _kind(kind), request.definition)])


def _get_schemas(upstream: ClientShared, request: GetSchemas) -> ClientSteps:
    # a list names its entries by id (`orders-v2`) and lacks their definitions: each is asked for
    wanted = [(request.name, request.version or 0)]
    if request.version is None:
        (entries,) = yield from upstream.ask(Op.LIST_SCHEMAS, request.name)
        wanted = [(name.removesuffix(f"-v{version}"), version) for name, _, version in entries]
    schemas: list[SchemaInfo] = []
    for name, version in wanted:
        payload = yield Ask(Op.GET_SCHEMA, upstream.request(Op.GET_SCHEMA, name, version))
        _, number, kind, definition, compatibility = read_schema(payload or b"")
        schemas.append(SchemaInfo(name, number, _kind(kind), definition, compatibility or "backward"))
    return Schemas(schemas)


def _kind(text: str) -> SchemaKind:
    if text not in _KINDS:
        raise InvalidRequest(f"unsupported schema type: {text}")
    return _KINDS[text]


def _validate_schema(upstream: ClientShared, request: ValidateSchema) -> ClientSteps:
    valid, problems = yield from upstream.ask(Op.VALIDATE_SCHEMA, request.name, request.value)
    return Validation(() if valid else problems or ("does not fit the schema",))


def _delete_schema(upstream: ClientShared, request: DeleteSchema) -> ClientSteps:
    yield from upstream.ask(Op.DELETE_SCHEMA, request.name, request.version)
    return DONE


def _read_dead_letters(upstream: ClientShared, request: ReadDeadLetters) -> ClientSteps:
    (entries,) = yield from upstream.ask(Op.FETCH_DLQ, request.address, request.max_messages)
    return DeadLetters(
        [
            DeadLetter(letter, Columns.of([data]), error, retries, error, error, request.address)
            for letter, data, error, retries in entries
        ]
    )


def _replay_dead_letter(upstream: ClientShared, request: ReplayDeadLetter) -> ClientSteps:
    done, text = yield from upstream.ask(Op.REPLAY_DLQ, request.address, request.letter)
    must(done, text, _MISSING)
    return DONE


def _purge_dead_letters(upstream: ClientShared, request: PurgeDeadLetters) -> ClientSteps:
    done, text = yield from upstream.ask(Op.PURGE_DLQ, request.address)
    must(done, text, _MISSING)
    return DONE


def _authenticate(upstream: ClientShared, request: Authenticate) -> ClientSteps:
    payload = yield Ask(Op.AUTH, upstream.request(Op.AUTH, request.username, request.password))
    with WireWords():
        ok, name, roles, text = read_login(payload or b"")
    if not ok:
        raise Unauthenticated(text)
    return Identity(True, name or request.username, roles)


def _who_am_i(_upstream: ClientShared, _request: WhoAmI) -> ClientSteps:
    payload = yield Ask(Op.WHOAMI, b"")
    with WireWords():
        ok, name, roles, permissions = read_identity(payload or b"")
    return Identity(ok, name, roles, permissions)


def _cluster_join(upstream: ClientShared, request: ClusterJoin) -> ClientSteps:
    done, text = yield from upstream.ask(Op.CLUSTER_JOIN, request.peer)
    return ClusterAnswer(done, text)


def _cluster_leave(upstream: ClientShared, _request: ClusterLeave) -> ClientSteps:
    done, text = yield from upstream.ask(Op.CLUSTER_LEAVE)
    return ClusterAnswer(done, text)


def _cluster_status(_upstream: ClientShared, _request: ClusterStatus) -> ClientSteps:
    payload = yield Ask(Op.CLUSTER_STATUS, b"")
    with WireWords():
        reader = Reader(payload or b"")
        name, _ = CLUSTER.read(reader)
        members: list[tuple[str, str, bool, bool]] = []
        with contextlib.suppress(Truncated):  # a broker that names no members
            (members,) = MEMBERS.read(reader)
    return Cluster(name, [Member(*member) for member in members])


STEPS: Mapping[type[Request], Callable[[ClientShared, Any], ClientSteps]] = {
    Publish: _publish,
    CancelDelayed: _cancel_delayed,
    Begin: _begin,
    Commit: _commit,
    Rollback: _rollback,
    CreateTopic: _create_topic,
    DeleteTopic: _delete_topic,
    DescribeTopics: _describe_topics,
    CommitOffset: _commit_offset,
    ReadOffset: _read_offset,
    JoinGroup: _join_group,
    ListGroups: _list_groups,
    DeleteGroup: _delete_group,
    OffsetForTime: _offset_for_time,
    RegisterSchema: _register_schema,
    GetSchemas: _get_schemas,
    ValidateSchema: _validate_schema,
    DeleteSchema: _delete_schema,
    ReadDeadLetters: _read_dead_letters,
    ReplayDeadLetter: _replay_dead_letter,
    PurgeDeadLetters: _purge_dead_letters,
    Authenticate: _authenticate,
    WhoAmI: _who_am_i,
    ClusterJoin: _cluster_join,
    ClusterLeave: _cluster_leave,
    ClusterStatus: _cluster_status,
}
