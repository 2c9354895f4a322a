"""Pulling from a broker elsewhere, over every protocol between two real gateways: nothing missing, order kept, and the place
found again after a restart.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.inside import PROTOCOLS, far_config, gateway, metric, publish, stored, upstream

NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
upstreams:
  far: {far}
routes:
  - name: pulled
    match: {{listener: far}}
    to: [{{store: {{topic: "{{topic}}"}}}}]
  - name: others
    match: {{}}
    to: [{{store: {{topic: "{{topic}}"}}}}]
"""
VALUES = [b"message %04d" % number for number in range(900)]
REPLAYING = ("flymq", "rustlog", "felix")
"""Protocols over which what the remote had before is pulled, too."""


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_what_a_remote_gets_comes_in_and_goes_on_after_a_restart(tmp_path: Path, name: str):
    there, here = tmp_path / "far", tmp_path / "near"
    more = ", timeout: 20s, ingest: [{from: orders, into: far.orders, group: g}]"
    async with gateway(far_config(name, there)) as far:
        config = NEAR.format(data=here, far=upstream(name, far.ports["far"], there, more))
        before = 300 if name in REPLAYING else 0
        if name in REPLAYING:
            await publish(far.ports["flymq"], VALUES[:300])
        async with gateway(config) as near:
            await metric(near, "gateway_ingest_state", 1, upstream="far", source="orders", state="running")
            await publish(far.ports["flymq"], VALUES[before:600])
            found = await stored(near.ports["flymq"], "far.orders", lambda found: len(found) >= 600)
            assert found == VALUES[:600]
            await metric(near, "gateway_ingest_messages_total", 600, upstream="far", source="orders")
            await metric(near, "gateway_route_stored_messages_total", 600, route="pulled")
        await publish(far.ports["flymq"], VALUES[600:])  # while nobody pulls
        async with gateway(config) as near:
            found = await stored(near.ports["flymq"], "far.orders", lambda found: set(VALUES) <= set(found))
            assert list(dict.fromkeys(found)) == VALUES
            assert len(found) <= len(VALUES) + 300
            await metric(near, "gateway_route_unaccounted_messages", 0, route="pulled")
