"""Protobuf: compiled apart from us, parsed strictly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.schemas.protobuf import ProtobufSchema, compile_text, protobuf_incompatibilities

TEXT = b"""
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  message Line { int32 n = 1; }
  int64 id = 1;
  google.protobuf.Timestamp at = 2;
  Line first = 3;
  repeated Line lines = 4;
  map<string, Line> by_name = 5;
  repeated int32 numbers = 6;
}
message Other { string x = 1; }
"""
ORDER = ProtobufSchema(compile_text(TEXT))

# (protobuf encoding, "Message Structure": tag = number << 3 | wire type)
GOOD = bytes.fromhex("0805 12020801 1a020801 2200 22020802 2a050a0161 1200 3202 0102".replace(" ", ""))


def test_the_first_message_is_the_schema() -> None:
    assert ORDER.problems(b"") == []
    assert ORDER.problems(GOOD) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\xff", "not a message of the schema"),
        (b"\x08", "not a message of the schema"),
        (b"\x78\x01", "unexpected field: 15"),
        (b"\x0a\x01a", "unexpected field: 1"),  # a number's field with a text in it
        (b"\x1a\x02\x78\x01", "unexpected field: first.15"),
        (b"\x22\x00\x22\x02\x78\x01", "unexpected field: lines.15"),
        (b"\x2a\x07\x0a\x01a\x12\x02\x78\x01", "unexpected field: by_name.15"),
        (b"\x0b" * 200, "not a message of the schema"),
    ],
)
def test_what_is_no_message(value: bytes, expected: str) -> None:
    assert ORDER.problems(value) == [expected]


def test_required_fields_of_the_older_syntax() -> None:
    schema = ProtobufSchema(compile_text(b'syntax = "proto2"; message A { required int32 id = 1; }'))
    assert schema.problems(b"") == ["missing required field: id"]
    assert schema.problems(b"\x08\x01") == []


@given(st.binary(max_size=60))
def test_any_bytes_end_in_a_list(value: bytes) -> None:
    assert all(isinstance(problem, str) for problem in ORDER.problems(value))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"nonsense", "schema.proto:1:1"),
        (b"\xff\xfe", "schema.proto:1:1"),
        (b'import "/etc/passwd";', "schema.proto:1:1"),
        (b'syntax = "proto3"; import "../../x.proto";', "schema.proto:1:20"),
        (b'syntax = "proto3"; message A { Missing m = 1; }', "schema.proto:1:32"),
        (b'syntax = "proto3"; ' + b"message A {" * 1000 + b"}" * 1000, "recursion limit"),
    ],
)  # fmt: skip
def test_what_does_not_compile_says_where(text: bytes, expected: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        compile_text(text)
    assert expected in refusal.value.message
    assert "/tmp" not in refusal.value.message


A = b'syntax = "proto2"; message A { required int32 id = 1; optional string n = 2; optional B b = 3; } message B { optional int32 x = 1; }'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"", b"", []),
        (b"required int32 id", b"required int64 id", []),
        (b"required int32 id", b"optional int32 other_name", []),
        (b"required int32 id", b"required sint32 id", ["type mismatch at A.id"]),
        (b"required int32 id", b"required string id", ["type mismatch at A.id"]),
        (b"optional string n", b"required string n", ["field is required now: A.n"]),
        (b"optional string n", b"repeated string n", ["repeated and single are not the same at A.n"]),
        (b"optional B b = 3;", b"optional B b = 3; required int32 k = 4;", ["new required field: A.k"]),
        (b"optional B b = 3;", b"optional B b = 3; optional int32 k = 4;", []),
        (b"optional string n = 2;", b"", ["field is gone: A.n"]),
        (b"optional int32 x", b"optional double x", ["type mismatch at B.x"]),
    ],
)
def test_backward_compatibility(old: bytes, new: bytes, expected: list[str]) -> None:
    assert protobuf_incompatibilities(compile_text(A), compile_text(A.replace(old, new) if old else A)) == expected
