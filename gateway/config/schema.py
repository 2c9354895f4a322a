"""The JSON Schema of `routes.yaml`, made from the grammar that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config.grammar import grammar
from gateway.protocols.registry import ProtocolSpec
from gateway.protocols.registry import protocols as registered


def json_schema(protocols: Mapping[str, ProtocolSpec] | None = None) -> dict[str, Any]:
    """The schema with the listener keys of these protocols (of the registered ones, if not given).

    It says what an editor can know: keys, types, words. Everything else (names, captures, ports, losses) `check` says.
    """
    specs = registered() if protocols is None else protocols
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gateway routes.yaml, version 1",
        **grammar(specs).schema(),
    }
