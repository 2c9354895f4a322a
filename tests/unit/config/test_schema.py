"""The JSON Schema says what the grammar reads: good files fit it, and files with unknown keys or wrong types do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.config.load import examine
from gateway.config.schema import json_schema
from tests.unit.config.test_problems import HEAD
from tests.unit.config.toys import TOYS

HERE = Path(__file__).parent
SCHEMA = json_schema(TOYS)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def paths(schema: Any, prefix: str = "") -> set[str]:
    """Every key the schema knows, by its path."""
    found: set[str] = set()
    if isinstance(schema, dict):
        for name, inner in schema.get("properties", {}).items():
            found |= {f"{prefix}{name}"} | paths(inner, f"{prefix}{name}.")
        for key in ("items", "additionalProperties"):
            found |= paths(schema.get(key), f"{prefix}*." if key == "additionalProperties" else prefix)
        for key in ("anyOf", "oneOf"):
            for inner in schema.get(key, ()):
                found |= paths(inner, prefix)
    return found


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", ["five.yaml", "reference.yaml"])
def test_good_files_fit(name: str) -> None:
    VALIDATOR.validate(yaml.safe_load((HERE / name).read_text()))


def test_it_knows_the_keys_of_protocols_and_secret_files() -> None:
    known = paths(SCHEMA)
    assert known >= {
        "listeners.*.fresh_group",
        "listeners.*.events.binary_single",
        "listeners.*.readers.*.topic",
        "listeners.*.auth.api_keys_file",
        "upstreams.*.auth.password_file",
        "routes.to.forward.retry.backoff",
        "routes.transform.rewrite.key",
        "topics.*.retention.bytes",
    }


STRAY = [
    "version: 2\nlisteners: {}",
    "version: 1",
    "version: 1\nlisteners: []",
    "version: 1\nlisteners: {}\nroute: []",
    HEAD + "  x: {protocol: nope, bind: 'h:1'}\n",
    HEAD + "  x: {protocol: flymq}\n",
    HEAD + "  x: {protocol: flymq, bind: 'h:1', colour: red}\n",
    HEAD + "  x: {protocol: flymq, bind: 'h:1', limits: {connections: many}}\n",
    HEAD + "  x: {protocol: flymq, bind: 'h:1', tls: {cert: a}}\n",
    HEAD + "storage: {durability: never}\n",
    HEAD + "routes: [{name: a, match: {}, to: []}]\n",
    HEAD + "routes: [{name: a, match: {}, to: [{store: {topic: t}, bridge: {protocol: p, address: a}}]}]\n",
    HEAD + "routes: [{name: a, match: {}, to: [{store: {topic: t, partitions: 0}}]}]\n",
    HEAD + "routes: [{name: a, match: {}, to: [{forward: {address: a}}]}]\n",
]


@pytest.mark.parametrize("text", STRAY)
def test_what_it_refuses_is_refused_by_the_program_too(text: str) -> None:
    assert not VALIDATOR.is_valid(yaml.safe_load(text))
    assert examine(text, "r.yaml", {}, TOYS).problems
