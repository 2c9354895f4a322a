"""Protobuf: a `.proto` text, of which the first message is the schema.

The text is compiled by protoc in a process of its own, with an empty directory as all it can see beside the well-known
types, and with little time and memory. What is kept is the compiled descriptor: a restart compiles nothing.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor, descriptor_pb2, descriptor_pool, message, message_factory, unknown_fields

from gateway.errors import InvalidRequest, RequestTimeout

SECONDS = 10
"""How long protoc may take; its processor time is bounded to the same."""
MEMORY = 1 << 30
LARGEST_DESCRIPTOR = 1 << 20
LARGEST_VALUE = 1 << 20
"""The library parses in C and lets nobody else run: a hundredth of a second for each 128 KiB at the worst."""
DEEPEST = 32
MOST_PROBLEMS = 10
_FILE = "schema.proto"
_LONGEST_TEXT = 400


def compile_text(definition: bytes) -> bytes:
    """The descriptor set of a `.proto` text. Takes a tenth of a second in another process: not for the event loop."""
    with tempfile.TemporaryDirectory(prefix="gateway-schema-") as directory:
        Path(directory, _FILE).write_bytes(definition)
        result = Path(directory, "descriptors")
        arguments = ["-I", directory, "--include_imports", f"--descriptor_set_out={result}", _FILE]
        process = subprocess.Popen(  # noqa: S603 (the arguments are ours, only the file's content is not)
            [sys.executable, "-I", "-m", "grpc_tools.protoc", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=directory,
            env={},
            start_new_session=True,
        )
        _limit(process.pid)
        try:
            _, errors = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise RequestTimeout("the schema takes too long to compile") from None
        if process.returncode != 0 or not result.exists():
            lines = errors.decode("utf-8", "replace").replace(f"{directory}/", "").splitlines()
            located = [line for line in lines if line.startswith(_FILE)] or ["protoc refused it"]
            raise InvalidRequest(f"invalid schema: {'; '.join(located)[:_LONGEST_TEXT]}")
        if result.stat().st_size > LARGEST_DESCRIPTOR:
            raise InvalidRequest("the schema is too large once compiled")
        return result.read_bytes()


def _limit(process: int) -> None:
    # from outside: a preexec function is not safe in a program with threads
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process, resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.prlimit(process, resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.prlimit(process, resource.RLIMIT_FSIZE, (LARGEST_DESCRIPTOR * 4, LARGEST_DESCRIPTOR * 4))


class ProtobufSchema:
    def __init__(self, descriptors: bytes) -> None:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        main = files.file[-1]  # protoc writes imports first
        if not main.message_type:
            raise InvalidRequest("the schema has no message")
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in files.file:
                pool.Add(file)
            name = f"{main.package}.{main.message_type[0].name}".lstrip(".")
            self._message: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        except (TypeError, KeyError) as problem:
            raise InvalidRequest(f"invalid schema: {problem!s:.{_LONGEST_TEXT}}") from None

    @property
    def message(self) -> Any:
        """The class of its messages."""
        return self._message

    def problems(self, value: bytes) -> list[str]:
        """What is wrong with a value; empty when nothing is. A field that the schema does not know is."""
        if len(value) > LARGEST_VALUE:
            return ["too large to validate"]
        parsed = self._message()
        try:
            parsed.ParseFromString(value)
        except message.DecodeError:
            return ["not a message of the schema"]
        found = [f"missing required field: {path}" for path in parsed.FindInitializationErrors()[:MOST_PROBLEMS]]
        for problem in _unknown(parsed, "", 0):
            if len(found) == MOST_PROBLEMS:
                break
            found.append(problem)
        return found

    def decoded(self, value: bytes) -> str:
        """A message as JSON. Raises InvalidRequest for one that is none of the schema."""
        from google.protobuf import json_format

        if found := self.problems(value):
            raise InvalidRequest("; ".join(found))
        text: str = json_format.MessageToJson(self._message.FromString(value), preserving_proto_field_name=True)
        return text

    def quickly(self, values: Sequence[bytes]) -> list[list[str]]:
        """What is wrong with each of a few short values."""
        return [self.problems(value) for value in values]


def _unknown(parsed: Any, path: str, depth: int) -> Iterator[str]:
    for unknown in unknown_fields.UnknownFieldSet(parsed):
        yield f"unexpected field: {path}{unknown.field_number}"
    if depth == DEEPEST:
        return
    for field, content in parsed.ListFields():
        if field.message_type is None:
            continue
        below = f"{path}{field.name}."
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for item in content.values():
                    yield from _unknown(item, below, depth + 1)
        else:
            for item in content if field.is_repeated else (content,):
                yield from _unknown(item, below, depth + 1)


# --- compatibility: the wire types of the protobuf language guide, "Updating A Message Type" ---

_Field = descriptor.FieldDescriptor
_GROUPS = (
    (_Field.TYPE_INT32, _Field.TYPE_UINT32, _Field.TYPE_INT64, _Field.TYPE_UINT64, _Field.TYPE_BOOL, _Field.TYPE_ENUM),
    (_Field.TYPE_SINT32, _Field.TYPE_SINT64),
    (_Field.TYPE_STRING, _Field.TYPE_BYTES),
    (_Field.TYPE_FIXED32, _Field.TYPE_SFIXED32),
    (_Field.TYPE_FIXED64, _Field.TYPE_SFIXED64),
)
_GROUP_OF = {kind: number for number, group in enumerate(_GROUPS) for kind in group}


def protobuf_incompatibilities(old: bytes, new: bytes) -> list[str]:
    """Why messages of the old descriptor cannot be read with the new one; empty if they can."""
    found: list[str] = []
    waiting = [(ProtobufSchema(old).message.DESCRIPTOR, ProtobufSchema(new).message.DESCRIPTOR)]
    seen = set(waiting)
    for before, after in waiting:  # grows while it is walked
        for field in after.fields:
            source = before.fields_by_number.get(field.number)
            if source is None:
                if field.is_required:
                    found.append(f"new required field: {after.full_name}.{field.name}")
            elif _GROUP_OF.get(source.type, -source.type) != _GROUP_OF.get(field.type, -field.type):
                found.append(f"type mismatch at {after.full_name}.{field.name}")
            elif source.is_repeated != field.is_repeated:
                found.append(f"repeated and single are not the same at {after.full_name}.{field.name}")
            elif field.is_required and not source.is_required:
                found.append(f"field is required now: {after.full_name}.{field.name}")
            elif field.type == _Field.TYPE_MESSAGE:
                pair = source.message_type, field.message_type
                if pair not in seen:
                    seen.add(pair)
                    waiting.append(pair)
        # an unknown field is a problem here, so taking one away makes old messages invalid
        gone = sorted(
            field.name for number, field in before.fields_by_number.items() if number not in after.fields_by_number
        )
        found += [f"field is gone: {before.full_name}.{name}" for name in gone]
    return found[:MOST_PROBLEMS]
