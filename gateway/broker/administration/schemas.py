"""The registry of schemas: versions by name, compatibility between them, and checking messages.

A schema is compiled once for each version. Registering and deleting under one name happen one after the other, in the
order they were asked for, since compiling takes place elsewhere and takes as long as it takes.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import attrs
import msgspec

from gateway.broker.offload import Offload
from gateway.broker.service import Caller, Handler
from gateway.envelope import Columns
from gateway.errors import (
    ConditionFailed,
    Conflict,
    GatewayError,
    InvalidRequest,
    NotFound,
    RowLost,
    SchemaViolation,
    Throttled,
    TooLarge,
)
from gateway.requests import (
    DONE,
    DeleteSchema,
    GetSchemas,
    Outcome,
    RegisterSchema,
    Request,
    SchemaInfo,
    SchemaKind,
    Schemas,
    ValidateSchema,
    Validation,
)
from gateway.store.interface import Put, Require, Store, Ticket, Unit

TABLE = "schemas"
LARGEST_DEFINITION = 64 << 10
LONGEST_NAME = 255
"""Bytes of a schema's name."""
MOST_VERSIONS = 1_000
"""Versions of one schema."""
MOST_SCHEMAS = 10_000
"""Versions of all names together."""

KINDS: Mapping[str, SchemaKind] = {
    "json": SchemaKind.JSON,
    "avro": SchemaKind.AVRO,
    "protobuf": SchemaKind.PROTOBUF,
    "proto": SchemaKind.PROTOBUF,
}
_VERSION = struct.Struct(">I")
_COUNTER = 0
"""The version under which the last number given out is kept, so that none is given out twice."""


QUICK_BYTES, QUICK_MESSAGES = 8 << 10, 64
"""What is checked in the event loop at most, in one batch; the schema's own bounds for that are in its module."""

Verdict = Mapping[int, SchemaViolation]
"""The messages of a batch that do not fit, by index."""


class Compiled(Protocol):
    def problems(self, value: bytes) -> list[str]:
        """What is wrong with a value; empty when nothing is."""
        ...

    def decoded(self, value: bytes) -> str:
        """A value as JSON. Raises InvalidRequest."""
        ...

    def quickly(self, values: Sequence[bytes]) -> list[list[str]] | None:
        """The same for each of a few short values; None when it turns out to take more than a few milliseconds."""
        ...


@attrs.frozen
class SchemaRow:
    kind: SchemaKind
    definition: bytes
    compiled: bytes = b""
    """Protobuf: the descriptor set."""


@attrs.define(eq=False)
class _Version:
    info: SchemaInfo
    row: SchemaRow
    compiled: Compiled | None = None

    def problems(self, value: bytes) -> list[str]:
        if self.compiled is None:
            self.compiled = _compile(self.row)
        return self.compiled.problems(value)

    def decoded(self, value: bytes) -> str:
        if self.compiled is None:
            self.compiled = _compile(self.row)
        return self.compiled.decoded(value)

    def check(self, values: Sequence[bytes]) -> Verdict:
        return _verdict([self.problems(value) for value in values])

    def check_quickly(self, values: Sequence[bytes]) -> Verdict | None:
        """What does not fit; None if it might take long to find out, so that it is for a thread."""
        if self.compiled is None or len(values) > QUICK_MESSAGES or sum(map(len, values)) > QUICK_BYTES:
            return None
        found = self.compiled.quickly(values)
        return _verdict(found) if found is not None else None


@attrs.define(eq=False)
class _Name:
    versions: dict[int, _Version] = attrs.Factory(dict)
    last: int = 0

    @property
    def latest(self) -> _Version | None:
        return self.versions[max(self.versions)] if self.versions else None


def _verdict(problems: Sequence[list[str]]) -> Verdict:
    return {index: SchemaViolation(problems=found) for index, found in enumerate(problems) if found}


def _compile(row: SchemaRow) -> Compiled:
    # each library is loaded by its first schema, not at start
    match row.kind:
        case SchemaKind.JSON:
            from gateway.schemas.json_schema import JsonSchema

            return JsonSchema(row.definition)
        case SchemaKind.AVRO:
            from gateway.schemas.avro import AvroSchema

            return AvroSchema(row.definition)
        case SchemaKind.PROTOBUF:
            from gateway.schemas.protobuf import ProtobufSchema

            return ProtobufSchema(row.compiled)


def _admit(kind: SchemaKind, definition: bytes, before: SchemaRow | None) -> tuple[SchemaRow, Compiled]:
    # Compile a new version and hold it against the one before. Runs in a thread.
    row = SchemaRow(kind, definition, _descriptors(definition) if kind is SchemaKind.PROTOBUF else b"")
    compiled = _compile(row)
    if before is not None:
        found = _incompatibilities(before, row)
        if found:
            raise Conflict(f"incompatible with the version before: {'; '.join(found)[:500]}")
    return row, compiled


def _descriptors(definition: bytes) -> bytes:
    from gateway.schemas.protobuf import compile_text

    return compile_text(definition)


def _incompatibilities(before: SchemaRow, after: SchemaRow) -> list[str]:
    if before.kind is not after.kind:
        return [f"it is {before.kind.value}"]
    match after.kind:
        case SchemaKind.JSON:
            from gateway.schemas.compatibility import json_incompatibilities

            return json_incompatibilities(before.definition, after.definition)
        case SchemaKind.AVRO:
            from gateway.schemas.compatibility import avro_incompatibilities

            return avro_incompatibilities(before.definition, after.definition)
        case SchemaKind.PROTOBUF:
            from gateway.schemas.protobuf import protobuf_incompatibilities

            return protobuf_incompatibilities(before.compiled, after.compiled)


class SchemaService:
    def __init__(self, store: Store, offload: Offload) -> None:
        self._store = store
        self._offload = offload
        self._names: dict[str, _Name] = {}
        self._count = 0
        self._lanes: dict[str, deque[Callable[[], None]]] = {}
        for key, raw in store.table(TABLE).items():
            name, version = _split(key)
            if version == _COUNTER:
                self._names.setdefault(name, _Name()).last = int.from_bytes(raw, "big")
            else:
                self._add(name, version, msgspec.msgpack.decode(raw, type=SchemaRow))
        store.on_rows(TABLE, self._registered_elsewhere)

    def _registered_elsewhere(self, rows: Mapping[bytes, bytes | None]) -> None:
        for key, raw in rows.items():
            name, version = _split(key)
            if raw is None:
                self._forget(name, version)
            elif version == _COUNTER:
                self._names.setdefault(name, _Name()).last = int.from_bytes(raw, "big")
            elif version not in self._names.setdefault(name, _Name()).versions:
                self._add(name, version, msgspec.msgpack.decode(raw, type=SchemaRow))

    def _forget(self, name: str, version: int) -> None:
        entry = self._names.get(name)
        if entry is None:
            return
        if version == _COUNTER:
            del self._names[name]
        elif entry.versions.pop(version, None) is not None:
            self._count -= 1

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            RegisterSchema: self._register,
            GetSchemas: self._get,
            ValidateSchema: self._validate,
            DeleteSchema: self._delete,
        }

    # --- for publishing ---

    def check_quickly(self, schema: str, columns: Columns) -> Verdict | None:
        """What does not fit, by index; None if finding out might hold up the event loop. `schema` is a name (its latest
        version) or `<name>-v<version>`; NotFound.
        """
        return self._named(schema).check_quickly(list(columns.values()))

    def checking(self, schema: str, columns: Columns) -> Callable[[], Verdict]:
        """What does not fit, however long it takes to find out: for a thread."""
        version = self._named(schema)
        return lambda: version.check(list(columns.values()))

    def decoding(self, schema: str) -> tuple[SchemaKind, Callable[[bytes], str] | None]:
        """The kind of a schema, and what makes JSON of its values, for a thread; None where they are JSON. NotFound."""
        version = self._named(schema)
        return version.info.kind, version.decoded if version.info.kind is not SchemaKind.JSON else None

    def _named(self, schema: str) -> _Version:
        entry = self._names.get(schema)
        if entry is not None and entry.latest is not None:
            return entry.latest
        name, _, number = schema.rpartition("-v")
        entry = self._names.get(name)
        if entry is not None and number.isascii() and number.isdecimal() and int(number[:10]) in entry.versions:
            return entry.versions[int(number[:10])]
        raise NotFound(f"no schema found for topic: {schema}")

    # --- requests ---

    def _register(self, caller: Caller, request: RegisterSchema) -> None:
        try:
            name = check_name(request.name)
            if request.kind not in KINDS:
                raise InvalidRequest(f"unsupported schema type: {request.kind[:32]}")
            if len(request.definition) > LARGEST_DEFINITION:
                raise TooLarge(f"a schema has at most {LARGEST_DEFINITION} bytes")
        except GatewayError as refusal:
            caller.answer(request.id, refusal)
            return
        self._in_turn(name, lambda: self._compile_next(caller, request, name, KINDS[request.kind]))

    def _compile_next(self, caller: Caller, request: RegisterSchema, name: str, kind: SchemaKind) -> None:
        entry = self._names.get(name, _Name())
        latest = entry.latest
        if self._store.lost:
            try:  # a number that was given out means what it meant
                self._store.lost.check_around(TABLE, _key(name, 0), _key(name, _COUNTER), f"schema {name}")
            except RowLost as lost:
                self._end_turn(name, caller, request, lost)
                return
        if latest is not None and (latest.row.kind, latest.row.definition) == (kind, request.definition):
            # a producer that registers its schema at every start gets the version it has
            self._end_turn(name, caller, request, Schemas([latest.info]))
            return
        if len(entry.versions) >= MOST_VERSIONS or self._count >= MOST_SCHEMAS:
            self._end_turn(name, caller, request, Throttled("too many schemas"))
            return

        def done(result: tuple[SchemaRow, Compiled] | GatewayError) -> None:
            if isinstance(result, GatewayError):
                self._end_turn(name, caller, request, result)
            else:
                self._keep(caller, request, name, entry.last + 1, *result)

        self._offload.thread(lambda: _admit(kind, request.definition, latest.row if latest else None), done)

    def _keep(
        self, caller: Caller, request: RegisterSchema, name: str, version: int, row: SchemaRow, compiled: Compiled
    ) -> None:
        puts = [
            Put(TABLE, _key(name, version), msgspec.msgpack.encode(row)),
            Put(TABLE, _key(name, _COUNTER), _VERSION.pack(version)),
        ]

        def done(ticket: Ticket) -> None:
            outcome: Outcome
            if isinstance(
                ticket.error, ConditionFailed
            ):  # another gateway was quicker: what it registered comes before
                self._compile_next(caller, request, name, row.kind)
                return
            if ticket.error is not None:
                outcome = ticket.error
            else:
                added = self._add(name, version, row, compiled)
                self._names[name].last = version
                outcome = Schemas([added.info])
            self._end_turn(name, caller, request, outcome)

        before = self._names[name].last if name in self._names else 0
        counted = Require(TABLE, _key(name, _COUNTER), _VERSION.pack(before) if before else None)
        self._store.submit(Unit(puts=puts, requires=[counted])).on_done(done)

    def _get(self, caller: Caller, request: GetSchemas) -> None:
        entry = self._names.get(request.name)
        outcome: Outcome
        if request.version is None:
            entries: Iterable[_Name] = self._names.values() if not request.name else [entry] if entry else []
            infos = [entry.versions[number].info for entry in entries for number in sorted(entry.versions)]
            outcome = Schemas(sorted(infos, key=lambda info: (info.name, info.version)))
        elif entry is None or entry.latest is None:
            outcome = NotFound(f"no schema found for topic: {request.name}")
        else:
            wanted = entry.versions.get(request.version) if request.version else entry.latest
            outcome = NotFound(f"schema not found: {request.name} v{request.version}")
            if wanted is not None:
                outcome = Schemas([wanted.info])
        caller.answer(request.id, outcome)

    def _validate(self, caller: Caller, request: ValidateSchema) -> None:
        entry = self._names.get(request.name)
        latest = entry.latest if entry is not None else None
        if latest is None:
            caller.answer(request.id, Validation(()))
            return

        def done(verdict: Verdict | GatewayError) -> None:
            if isinstance(verdict, GatewayError):
                caller.answer(request.id, verdict)
            else:
                caller.answer(request.id, Validation(verdict[0].problems if verdict else ()))

        values = [request.value]
        verdict = latest.check_quickly(values)
        if verdict is not None:
            done(verdict)
        else:
            self._offload.thread(lambda: latest.check(values), done)

    def _delete(self, caller: Caller, request: DeleteSchema) -> None:
        self._in_turn(request.name, lambda: self._delete_next(caller, request))

    def _delete_next(self, caller: Caller, request: DeleteSchema) -> None:
        name = request.name
        entry = self._names.get(name)
        if entry is None or (request.version and request.version not in entry.versions):
            text = f"schema not found: {name} v{request.version}" if request.version else f"schema not found: {name}"
            self._end_turn(name, caller, request, NotFound(text))
            return
        # the counter goes with the last of the name only when all of it is deleted: a number names one schema for good
        gone = [request.version] if request.version else [*entry.versions, _COUNTER]

        def done(ticket: Ticket) -> None:
            if ticket.error is None:
                for version in gone:
                    self._forget(name, version)
            self._end_turn(name, caller, request, ticket.error or DONE)

        self._store.submit(Unit(puts=[Put(TABLE, _key(name, version), None) for version in gone])).on_done(done)

    # --- inside ---

    def _add(self, name: str, version: int, row: SchemaRow, compiled: Compiled | None = None) -> _Version:
        added = _Version(SchemaInfo(name, version, row.kind, row.definition), row, compiled)
        self._names.setdefault(name, _Name()).versions[version] = added
        self._count += 1
        return added

    def _in_turn(self, name: str, job: Callable[[], None]) -> None:
        lane = self._lanes.setdefault(name, deque())
        lane.append(job)
        if len(lane) == 1:
            job()

    def _end_turn(self, name: str, caller: Caller, request: Request, outcome: Outcome) -> None:
        caller.answer(request.id, outcome)
        lane = self._lanes[name]
        lane.popleft()
        if lane:
            lane[0]()
        else:
            del self._lanes[name]


def check_name(name: str) -> str:
    if not name or len(name.encode()) > LONGEST_NAME or not name.isprintable():
        raise InvalidRequest(f"a schema's name has 1 to {LONGEST_NAME} bytes, all of them printable")
    return name


def _key(name: str, version: int) -> bytes:
    return name.encode() + b"\0" + _VERSION.pack(version)


def _split(key: bytes) -> tuple[str, int]:
    return key[: -_VERSION.size - 1].decode(), _VERSION.unpack(key[-_VERSION.size :])[0]
