"""Real gateways that do not let another one in: what it would forward waits, and leaves once the credentials are right."""

from __future__ import annotations

from pathlib import Path

import jwt
import pytest

from gateway.app import Gateway
from gateway.protocols.registry import protocol
from gateway.requests import Fetch, Fetched
from gateway.transport.client import connect
from tests.integration.inside import gateway, metric, publish

SECRET = "a shared secret that is long enough for HS256"
FAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0", auth: {{users: store, admin: {{name: root, password: right}}}}}}
  felix: {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed, auth: {{jwt: {{key: "{secret}", algorithms: [HS256]}}}}}}
  plain: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
"""
NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
upstreams:
  far: {{protocol: {protocol}, address: "localhost:{port}", timeout: 20s, auth: {auth}{tls}}}
routes:
  - name: orders
    match: {{}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{upstream: far, address: "{{topic}}", retry: {{max: 1, backoff: 1ms..1ms}}, dead_letter: dead, accept_loss: all}}
"""
TOKEN = jwt.encode(
    {"sub": "near", "tid": "t1", "exp": 4_102_444_800, "perms": ["stream.publish:stream:t1/default/*"]}, SECRET, "HS256"
)
CREDENTIALS = {
    "flymq": ("{username: root, password: wrong}", "{username: root, password: right}"),
    "felix": ("{tenant: t1, token: wrong}", f'{{tenant: t1, token: "{TOKEN}"}}'),
}


def logged_out(near: Gateway) -> bool:
    return any(text.startswith("upstream far: refuses our login: ") for text in near.health.problems())


@pytest.mark.parametrize("name", CREDENTIALS)
async def test_a_backlog_waits_until_the_credentials_are_right(tmp_path: Path, name: str):
    async with gateway(FAR.format(data=tmp_path / "far", secret=SECRET)) as far:
        tls = f', tls: {{ca: "{tmp_path / "far" / "self-signed.crt"}"}}' if name == "felix" else ""
        wrong, right = (
            NEAR.format(data=tmp_path / "near", protocol=name, port=far.ports[name], auth=auth, tls=tls)
            for auth in CREDENTIALS[name]
        )
        async with gateway(wrong) as near:
            await publish(near.ports["flymq"], [b"1", b"2", b"3"])
            await metric(near, "gateway_upstream_login_refused", 1, upstream="far")
            assert logged_out(near)
            reason = {"flymq": "credentials", "felix": "token"}[name]
            await metric(far, "gateway_failed_logins_total", lambda count: count >= 1, listener=name, reason=reason)
            await metric(near, "gateway_forward_backlog_messages", 3, forward="orders-far")
            await metric(near, "gateway_dead_lettered_messages_total", 0, route="orders", reason="refused")
        async with gateway(right) as near:
            await metric(near, "gateway_forward_backlog_messages", 0, forward="orders-far")
            await metric(near, "gateway_upstream_login_refused", 0, upstream="far")
            await metric(near, "gateway_dead_lettered_messages_total", 0, route="orders", reason="refused")
            assert not logged_out(near)
        async with connect(protocol("flymq"), "127.0.0.1", far.ports["plain"]) as connection:
            reply = await connection.request(Fetch(0, "orders", 0, 0, 10, 1 << 20))
            assert isinstance(reply, Fetched)
            assert [value for run in reply.runs for value in run.columns.values()] == [b"1", b"2", b"3"]
