"""The description of the admin API in OpenAPI 3.1, from the operations that are served.

Apart from `app`, which serves: nothing here runs before somebody asks for the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway import __version__
from gateway.admin.operation import EVENTS, ApiOperation
from gateway.bulk import wire

PATH = "/openapi.json"
_REF = "#/components/schemas/{name}"


def document(operations: Sequence[ApiOperation]) -> Mapping[str, Any]:
    bodies = [one.body for one in operations if one.body is not None]
    answers = [one.answer for one in operations if _is_value(one)]
    queries = [one.query for one in operations]
    kinds = list(dict.fromkeys([wire.Problem, *bodies, *answers, *queries]))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = dict(zip(kinds, schemas, strict=True))
    parameters = {kind: list(_parameters(components.pop(kind.__name__))) for kind in set(queries)}
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _described(one, schema_of, parameters[one.query])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gateway",
            "version": __version__,
            "summary": "Everything that the console and the command line ask of a running gateway.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`admin.token`, or one of `admin.tokens`. Where none is configured this machine needs none.",
                }
            },
            "responses": {
                "Problem": {
                    "description": "It was not done; the status follows from the kind of error.",
                    "content": {wire.JSON: {"schema": schema_of[wire.Problem]}},
                }
            },
        },
    }


def _is_value(one: ApiOperation) -> bool:
    return tuple(one.media) in ((wire.JSON,), (EVENTS,))


def _described(one: ApiOperation, schema_of: Mapping[Any, Any], parameters: Sequence[Any]) -> Mapping[str, Any]:
    summary, _, more = one.says.partition("\n\n")
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": " ".join(summary.split()),
        "x-role": one.role.name.lower(),
        "responses": {
            "200": {
                "description": "Events, one after the other; each with this as its data."
                if EVENTS in one.media
                else "It was done.",
                "content": {
                    media: {
                        "schema": schema_of[one.answer] if _is_value(one) else {"type": "string", "format": "binary"}
                    }
                    for media in one.media
                },
            },
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if more:
        found["description"] = " ".join(more.split())
    if parameters:
        found["parameters"] = parameters
    if one.body is not None:
        schema = schema_of[one.body]
        found["requestBody"] = {
            "required": True,
            "content": {wire.JSON: {"schema": schema}, wire.MSGPACK: {"schema": schema}},
        }
    return found


def _parameters(schema: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    required = schema.get("required", ())
    for name, inner in schema.get("properties", {}).items():
        yield {"name": name, "in": "query", "required": name in required, "schema": inner}
