"""What strangers can take from those who were let in: nothing worth having."""

from __future__ import annotations

import contextlib
from pathlib import Path

import trio

from tests.integration.flymq_raw import Flymq, produce
from tests.integration.inside import gateway
from tests.integration.raw import s16, tcp

CONFIG = """
version: 1
listeners:
  users: {{protocol: flymq, bind: "127.0.0.1:0", auth: {{users: store, admin: {{name: root, password: right}}}}}}
storage: {{path: "{data}", free_space_floor: 1, durability: none}}
memory: {{budget: 64MiB}}
"""
HEADER = bytes.fromhex("af010101") + (32 << 20).to_bytes(4)


async def test_forty_strangers_with_part_of_a_long_frame_stop_nobody(tmp_path: Path):
    async with gateway(CONFIG.format(data=tmp_path)) as served, contextlib.AsyncExitStack() as stack:
        port = served.ports["users"]

        async def hold(stream: trio.SocketStream) -> None:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.send_all(HEADER + bytes(7 << 20))

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
                nursery.start_soon(hold, stream)
            async with tcp(port) as wire:
                client = Flymq(wire)
                assert (await client.ask(0x70, s16("root") + s16("right")))[0] == 1
                with trio.fail_after(60):
                    await client.ask(0x01, produce("orders", bytes(7 << 20)))
            nursery.cancel_scope.cancel()
