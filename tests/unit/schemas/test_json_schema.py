"""JSON Schema: our words for what is wrong, and no schema or value that costs more than it may."""

from __future__ import annotations

import json
import threading
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.schemas.compatibility import json_incompatibilities
from gateway.schemas.json_schema import LARGEST_VALUE, JsonSchema


def compiled(**schema: Any) -> JsonSchema:
    return JsonSchema(json.dumps(schema).encode())


def problems(schema: JsonSchema, value: Any) -> list[str]:
    return schema.problems(json.dumps(value).encode())


ORDER = compiled(
    type="object",
    required=["id"],
    additionalProperties=False,
    properties={
        "id": {"type": "string", "pattern": "^[a-z]+-[0-9]+$"},
        "lines": {"type": "array", "uniqueItems": True, "items": {"required": ["n"], "properties": {"n": {"type": ["integer", "null"]}}}},
        "kind": {"enum": ["a", "b"]},
    },
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"id": "a-1"}, []),
        ({"id": "a-1", "lines": [{"n": 1}, {"n": None}, {"n": 2.0}], "kind": "b"}, []),
        ({}, ["missing required field: id"]),
        ({"id": 5}, ["type mismatch at id: expected string, got integer"]),
        ([], ["type mismatch at the top: expected object, got array"]),
        ({"id": "a-1", "x": 1}, ["unexpected field: x"]),
        ({"id": "a-1", "lines": [{}]}, ["missing required field: lines.0.n"]),
        ({"id": "a-1", "lines": [{"n": "x"}]}, ["type mismatch at lines.0.n: expected integer or null, got string"]),
        ({"id": "a-1", "lines": [{"n": 1}, {"n": 1.0}]}, ['[{"n":1},{"n":1.0}] has non-unique elements at lines']),
        ({"id": "A"}, ["does not match '^[a-z]+-[0-9]+$' at id"]),
        ({"id": "a-1", "kind": "c"}, ['"c" is not one of "a" or "b" at kind']),
    ],
)
def test_what_is_wrong_in_words(value: Any, expected: list[str]) -> None:
    assert problems(ORDER, value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", "not a JSON document"),
        (b"{", "not a JSON document"),
        (b"\xff", "not a JSON document"),
        (b"NaN", "not a JSON document"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 34 + b"]" * 34, "nested too deeply"),
        (b"[" + b"0," * 30_000 + b"0]", "too many values"),
        (b"1" + b"0" * 5_000, "not a JSON document"),
        (b"1e400", "not a JSON document"),
        (b'"' + b"x" * LARGEST_VALUE + b'"', "too large to validate"),
    ],
)
def test_values_that_are_none_or_too_much(value: bytes, expected: str) -> None:
    found = JsonSchema(b"{}").problems(value)
    assert found == [expected]


def doubling(levels: int) -> dict[str, Any]:
    """Each definition has the next as both its alternatives."""
    definitions: dict[str, Any] = {
        str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}, {"$ref": f"#/$defs/{n + 1}"}]} for n in range(levels)
    }
    return {"$defs": {**definitions, str(levels): {"type": "null"}}, "$ref": "#/$defs/0"}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ([], "must be an object"),
        ({"type": "nonsense"}, "invalid schema"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "does not know the draft"),
        ({"$ref": "https://example.com/other"}, "refers only to itself"),
        ({"properties": {"enum": {"$ref": "file:///etc/passwd"}}}, "refers only to itself"),
        ({"$ref": "#/enum/0", "enum": [{"$ref": "http://example.com"}]}, "no schema is at"),
        ({"x": {"minimum": "no"}, "$ref": "#/x"}, "no schema is at"),
        ({"$ref": "#/$defs/missing"}, "no schema is at"),
        ({"$dynamicRef": "#x"}, "only plain references"),
        ({"$defs": {"a": {"$id": "http://example.com/a"}}}, "one $id at its top"),
        ({"$ref": "#"}, "refers to itself without going into the value"),
        ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}}, "refers to itself"),
        (doubling(20), "too many alternatives"),
        ({"$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(1200)} | {"1200": {}}}, "nested too deeply"),
        ({"pattern": "(a)\\1"}, "this pattern cannot be served"),
        ({"patternProperties": {"(?=x)": {}}}, "this pattern cannot be served"),
        ({"enum": list(range(6000))}, "too large or nested too deeply"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_bounded_is_refused(schema: Any, text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        JsonSchema(json.dumps(schema).encode())
    assert text in refusal.value.message


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        JsonSchema(b'{"not":' * 5000 + b"{}" + b"}" * 5000)


def test_alternatives_that_double_with_each_level_of_the_value_end() -> None:
    branch = {"required": ["never"], "properties": {"a": {"$ref": "#"}}}
    schema = compiled(anyOf=[branch, branch])
    value = None
    for _ in range(30):
        value = {"a": value}
    assert problems(schema, value) == ["too costly to validate"]


def test_patterns_take_linear_time() -> None:
    assert problems(compiled(pattern="^(a+)+$"), "a" * 100_000 + "b") == ["does not match '^(a+)+$'"]
    assert problems(compiled(patternProperties={"^(a+)+$": False}), {"a" * 10_000 + "b": 1}) == []


def test_the_message_of_a_large_value_is_small() -> None:
    found = problems(compiled(anyOf=[{"const": 1}] * 50), {"k": ["x" * 500] * 500})
    assert found == ["the object is not valid under any of the schemas listed in the 'anyOf' keyword"]


def test_where_too_much_may_be_wrong_it_is_said_that_it_does_not_fit() -> None:
    schema = compiled(required=["id"], items={"required": [f"field-{n}" for n in range(100)]})
    assert problems(schema, [{}] * 500) == ["does not fit, and is too large to say where"]
    assert problems(schema, {"id": [{}] * 500}) == []
    assert problems(schema, [{}] * 5)[0] == "missing required field: 0.field-0"


def test_what_is_unevaluated_beside_patterns() -> None:
    schema = compiled(patternProperties={"^x-": {"type": "integer"}}, unevaluatedProperties=False)
    assert problems(schema, {"x-a": 1}) == []
    assert problems(schema, {"x-a": 1, "y": 1})[0].startswith("Unevaluated properties are not allowed ('y'")


def test_references_by_pointer_and_by_anchor() -> None:
    schema = compiled(
        **{"$defs": {"a/b~c d": {"type": "integer"}, "e": {"$anchor": "e", "type": "string"}, "f": False}},
        properties={"x": {"$ref": "#/$defs/a~1b~0c%20d"}, "y": {"$ref": "#e"}, "z": {"$ref": "#/$defs/f"}},
    )
    assert problems(schema, {"x": 1, "y": "a"}) == []
    assert problems(schema, {"x": "a", "y": 1}) == [
        "type mismatch at x: expected integer, got string",
        "type mismatch at y: expected string, got integer",
    ]
    assert problems(schema, {"z": 1})


def test_the_deepest_schema_on_the_deepest_value_has_room_on_the_stack_of_a_thread() -> None:
    """The library's stack is the thread's own, and no exception is what its end would be."""
    chain: dict[str, Any] = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}]} for n in range(30)}
    schema = compiled(**{"$defs": {**chain, "30": {"properties": {"a": {"$ref": "#/$defs/0"}}}}, "$ref": "#/$defs/0"})
    value: Any = 5
    for _ in range(32):
        value = {"a": value}
    found: list[list[str]] = []
    before = threading.stack_size(2 << 20)
    try:
        thread = threading.Thread(target=lambda: found.append(problems(schema, value)))
    finally:
        threading.stack_size(before)
    thread.start()
    thread.join()
    assert found == [[]]


def test_a_type_that_contains_itself_is_fine() -> None:
    tree = compiled(properties={"children": {"items": {"$ref": "#"}}, "name": {"type": "string"}})
    assert problems(tree, {"name": "a", "children": [{"name": "b", "children": []}, {"name": 5}]}) == [
        "type mismatch at children.1.name: expected string, got integer"
    ]


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema"]
)
def test_older_drafts(draft: str) -> None:
    schema = compiled(**{"$schema": draft, "definitions": {"n": {"type": "integer"}}, "properties": {"n": {"$ref": "#/definitions/n"}}})  # fmt: skip
    assert problems(schema, {"n": "x"}) == ["type mismatch at n: expected integer, got string"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)
WORDS = st.sampled_from(
    ["type", "properties", "items", "required", "enum", "$ref", "anyOf", "not", "pattern", "minimum", "$defs", "#", "a"]
)
SCHEMAS = st.recursive(
    JSON | WORDS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(WORDS, children, max_size=4),
    max_leaves=12,
)


@given(SCHEMAS, JSON)
def test_any_schema_and_value_end_in_a_refusal_or_a_list(schema: Any, value: Any) -> None:
    try:
        known = JsonSchema(json.dumps(schema).encode())
    except InvalidRequest:
        return
    assert all(isinstance(problem, str) for problem in problems(known, value))


@given(JSON)
def test_what_has_one_value_as_const_accepts_that_value(value: Any) -> None:
    try:
        known = compiled(const=value)
    except InvalidRequest:
        return
    assert problems(known, value) in ([], ["nested too deeply"])


NAMES = st.sampled_from(["a", "b", "ab", "c"])
SMALL = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 12) | st.sampled_from([0.5, 1.0, 3.0]) | NAMES,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(NAMES, children, max_size=4),
    max_leaves=10,
)
COUNT = st.integers(0, 3)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas as people write them, of every keyword that there is."""
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, max_size=3)
    kinds = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
    return st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
            "enum": st.lists(SMALL, min_size=1, max_size=3),
            "const": SMALL,
            "pattern": st.sampled_from(["^a", "b$", "[ab]{2}"]),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=2),
            **dict.fromkeys(("properties", "dependentSchemas"), named),
            **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), some),
            **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties"), inner),
            **dict.fromkeys(("propertyNames", "unevaluatedProperties", "unevaluatedItems"), inner),
            **dict.fromkeys(
                ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), COUNT
            ),
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minContains"), COUNT),
            "multipleOf": st.integers(1, 3),
            "uniqueItems": st.booleans(),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
            "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]),
        },
    )


@given(st.recursive(st.booleans(), keywords, max_leaves=8), keywords(st.booleans()), st.lists(SMALL, max_size=5))
def test_what_fits_is_what_fits_by_another_implementation(schema: Any, other: Any, values: list[Any]) -> None:
    if isinstance(schema, bool):
        return
    schema["$defs"] = {"a": {**other, "$ref": "#/$defs/b"}, "b": {"items": {"$ref": "#/$defs/a"}, "maxProperties": 2}}
    known = JsonSchema(json.dumps(schema).encode())
    theirs = jsonschema.Draft202012Validator(schema)
    assert [not problems(known, value) for value in values] == [theirs.is_valid(value) for value in values]


# --- compatibility ---

OLD = {"properties": {"id": {"type": "string"}, "n": {"type": "integer"}, "k": {"enum": ["a"]}}, "required": ["id"]}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (OLD, OLD, []),
        (OLD, {**OLD, "required": ["id", "n"]}, []),  # it was known (FlyMQ wire 4)
        (OLD, {**OLD, "required": ["id", "x"]}, ["new required field: x"]),
        (OLD, {"properties": {"n": {"type": "number"}}}, []),
        (OLD, {"properties": {"n": {"type": ["integer", "null"]}}}, []),
        (OLD, {"properties": {"n": {"type": "string"}}}, ["type is narrower than before: n"]),
        (OLD, {"properties": {"k": {"type": "string"}}}, ["type is narrower than before: k"]),
        (OLD, {"properties": {"k": {"enum": ["a", "b"]}}}, []),
        (OLD, {"properties": {"k": {"enum": ["b"]}}}, ["values are not allowed any more at k."]),
        (OLD, {"properties": {"id": {}}, "additionalProperties": False}, ["other fields are not allowed any more at the top"]),
        ({**OLD, "additionalProperties": False}, {"properties": {"id": {}, "n": {}}, "additionalProperties": False}, ["field is not allowed any more: k"]),
        (OLD, {"properties": {"id": False}}, ["nothing is allowed any more at id."]),
        ({"items": OLD}, {"items": {"required": ["x"]}}, ["new required field: [].x"]),
    ],
)  # fmt: skip
def test_backward_compatibility(old: Any, new: Any, expected: list[str]) -> None:
    assert json_incompatibilities(json.dumps(old).encode(), json.dumps(new).encode()) == expected
