"""A client of the admin API that knows nothing but its OpenAPI document: what it may ask and what an answer has to look like."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import jsonschema
import trio

from gateway.app import Gateway
from tests.integration.inside import gateway

TOKENS = {"read": "look", "operate": "do", "administer": "root"}
CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
admin:
  bind: "127.0.0.1:0"
  token: root
  tokens: {{grafana: {{token: look, role: read}}, oncall: {{token: do, role: operate}}}}
storage: {{path: "{data}", free_space_floor: 1, durability: memory}}
upstreams:
  far: {{protocol: flymq, address: ["127.0.0.1:{closed}", "127.0.0.1:{closed}"], auth: {{username: us, password: hush-hush}}}}
routes:
  - name: orders
    match: {{protocol: flymq, topic: "orders.*"}}
    transform:
      - {{set_header: {{region: eu}}}}
      - {{filter: "value.amount > 10"}}
    to:
      - store:   {{topic: "orders.{{1}}", partitions: 2}}
      - bridge:  {{protocol: felix, address: "acme/shop/orders-{{1}}", accept_loss: all}}
  - name: away
    match: {{topic: "away.*"}}
    to:
      - store:   {{topic: "away.{{1}}"}}
      - forward: {{upstream: far, address: "away.{{1}}", accept_loss: all}}
  - name: everything-else
    match: {{}}
    to: [{{store: {{topic: "{{topic}}"}}}}]
"""


class Problem(Exception):
    """The API said no."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.body = body


class ApiClient:
    """`await client("records", topic="t")`: an operation by its id; every answer is held against its schema."""

    def __init__(self, http: httpx.AsyncClient, document: Mapping[str, Any]) -> None:
        self.http = http
        self.document = document
        self.operations = {
            one["operationId"]: (method, path, one)
            for path, methods in document["paths"].items()
            for method, one in methods.items()
        }

    def check(self, schema: Mapping[str, Any], value: Any) -> None:
        whole = {**schema, "components": self.document["components"]}
        jsonschema.Draft202012Validator(whole).validate(value)

    async def __call__(self, operation: str, body: Any = None, /, *, token: str = "root", **query: Any) -> Any:
        method, path, described = self.operations[operation]
        known = {one["name"]: one for one in described.get("parameters", ())}
        assert query.keys() <= known.keys()
        for parameter, value in query.items():
            self.check(known[parameter]["schema"], value)
        params = {key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()}
        headers = {"Authorization": f"Bearer {token}"}
        content = None
        if body is not None:
            self.check(described["requestBody"]["content"]["application/json"]["schema"], body)
            content = json.dumps(body)
            headers["Content-Type"] = "application/json"
        answer = await self.http.request(method, path, params=params, content=content, headers=headers)
        if answer.status_code != 200:
            reference = described["responses"]["default"]["$ref"].rpartition("/")[2]
            schema = self.document["components"]["responses"][reference]["content"]["application/json"]["schema"]
            self.check(schema, answer.json())
            raise Problem(answer.status_code, answer.json())
        media = described["responses"]["200"]["content"]
        kind = answer.headers["content-type"].partition(";")[0]
        if kind != "application/json":
            assert kind in media
            return answer.content
        found = answer.json()
        self.check(media["application/json"]["schema"], found)
        return found

    @asynccontextmanager
    async def events(self, operation: str, /, **query: Any) -> AsyncIterator[LiveEvents]:
        """Live events, each held against its schema."""
        method, path, described = self.operations[operation]
        schema = described["responses"]["200"]["content"]["text/event-stream"]["schema"]
        url = self.http.base_url
        async with await trio.open_tcp_stream(url.host, url.port or 0) as stream:
            asked = f"{method.upper()} {path}?{urlencode(query)} HTTP/1.1"
            await stream.send_all(f"{asked}\r\nHost: 127.0.0.1\r\nAuthorization: Bearer root\r\n\r\n".encode())
            found = LiveEvents(stream, lambda value: self.check(schema, value))
            assert (await found.line()).startswith(b"HTTP/1.1 200 ")
            yield found


class LiveEvents:
    """Server-sent events, one at a time. Each is one chunk of the body, so that lines stay whole."""

    def __init__(self, stream: trio.SocketStream, check: Callable[[Any], None]) -> None:
        self._stream = stream
        self._check = check
        self._buffer = b""

    async def line(self) -> bytes:
        while b"\n" not in self._buffer:
            data = await self._stream.receive_some()
            assert data, "the stream of events ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    async def next(self, *kinds: str) -> Any:
        """The next event, or the next of one of these kinds."""
        with trio.fail_after(60):
            kind = ""
            while True:
                field, _, rest = (await self.line()).partition(b": ")
                if field == b"event":
                    kind = rest.decode()
                elif field == b"data":
                    found = json.loads(rest)
                    self._check(found)
                    if not kinds or kind in kinds:
                        return found


@asynccontextmanager
async def serving_api(directory: Path, config: str = "") -> AsyncIterator[tuple[Gateway, ApiClient]]:
    """A gateway, from a file, and a client made of what it says of its API."""
    file = directory / "gateway.yaml"
    text = config or CONFIG.format(data=directory / "data", closed=1)
    file.write_text(text)
    async with gateway(text, file=str(file)) as served:
        base = f"http://127.0.0.1:{served.ports['admin']}"
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as http:
            document = (await http.get("/openapi.json", headers={"Authorization": "Bearer look"})).json()
            yield served, ApiClient(http, document)
