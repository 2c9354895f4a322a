"""What FlyMQ has promised by its answers is there after kill -9, and what it has not is not."""

from __future__ import annotations

import signal
from pathlib import Path

import trio

from tests.integration.flymq_raw import flymq, i32, produce, u64
from tests.integration.raw import s16, s32
from tests.integration.running import Served
from tests.kafka.fixtures import Log

CONFIG = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {storage}
"""


def configured(log: Log, home: Path) -> str:
    return CONFIG.format(storage=log.storage(home / "data"))


async def test_kill_between_everything(log: Log, tmp_path: Path):
    served = Served(tmp_path, configured(log, tmp_path))
    served.start()
    try:
        with trio.fail_after(60):
            async with flymq(served.ports["flymq"]) as client, flymq(served.ports["flymq"]) as other:
                for topic in ("a", "b"):
                    await client.ask(3, s16(topic) + i32(1))
                names = [(await client.ask(0x40))[:-1] for _ in range(3)]
                for name in names:
                    for topic in ("a", "b"):
                        answer = await client.ask(0x43, name + s16(topic) + s32(name[-4:]))
                        assert answer[:13] == s16(topic) + i32(0) + bytes(6)
                assert await other.refused(0x41, names[0]) == f"transaction not found: {names[0][2:].decode()}"
                assert await client.values("a") == await client.values("b") == []
                assert await client.ask(0x41, names[0]) == names[0] + b"\1"
                assert await client.ask(0x42, names[1]) == names[1] + b"\1"
                assert "committed" in await client.refused(0x41, names[0])
                assert "rolled back" in await client.refused(0x43, names[1] + s16("a") + s32(b"x"))
                assert await other.values("a") == await other.values("b") == [names[0][-4:]]
                late = await client.ask(0x30, s16("later") + s32(b"due") + u64(4000))
                assert late[:-2].startswith(s16("later") + i32(0) + u64(0))
                taken_back = await client.ask(0x30, s16("later") + s32(b"cancelled") + u64(4000))
                assert await client.ask(0x31, s16("later") + taken_back[7 + 4 + 8 + 8 + 8 :]) == b"\1" + s16("OK")
                await client.ask(0x35, s16("short") + s32(b"gone") + u64(1000))
                await client.ask(0x35, s16("short") + s32(b"stays") + u64(600_000))
                await client.ask(0x35, s16("short") + s32(b"for ever") + u64(0))
                assert await client.refused(0x30, s16("later") + s32(b"x") + u64(86_400_001))
                assert await client.refused(0x30, s16("later") + s32(b"x") + b"\xff" * 8)
                await client.ask(6, s16("a") + s16("g") + i32(0) + u64(1))
                async with flymq(served.ports["flymq"]) as leaving:
                    gone = (await leaving.ask(0x40))[:-1]
                    await leaving.ask(0x43, gone + s16("a") + s32(b"never"))
                for number in range(200):  # the last replies of these race with the kill
                    await client.wire.send(b"\xaf\1\1\1" + s32(produce("race", b"%d" % number)))
                for _ in range(20):
                    assert (await client.read())[0] == 1
                await trio.to_thread.run_sync(served.end, signal.SIGKILL)
            await trio.to_thread.run_sync(served.start)
            async with flymq(served.ports["flymq"]) as client:
                assert await client.values("a") == await client.values("b") == [names[0][-4:]]
                assert await client.refused(0x41, names[2]) == f"transaction not found: {names[2][2:].decode()}"
                assert await client.ask(0x60, s16("a") + s16("g") + i32(0)) == u64(1)
                raced = await client.values("race")
                assert 20 <= len(raced) <= 200
                assert raced == [b"%d" % number for number in range(len(raced))]
                while (short := await client.values("short")) != [
                    b"stays",
                    b"for ever",
                ]:  # a start may be faster than it expires
                    assert short == [b"gone", b"stays", b"for ever"]
                    await trio.sleep(0.05)
                while True:
                    op = await client.ask(8)
                    if s16("later") in op and (found := await client.values("later")):
                        assert found == [b"due"]
                        break
                    await trio.sleep(0.05)
                assert await client.ask(0x31, s16("later") + late[35:]) == b"\0" + s16("message not found")
    finally:
        if served.running:
            served.end(signal.SIGKILL)


async def test_two_gateways_that_join(tmp_path: Path):
    homes = [tmp_path / "one", tmp_path / "two"]
    gateways = []
    for home in homes:
        home.mkdir()
        gateways.append(Served(home, configured(Log(), home)))
    try:
        for served in gateways:
            served.start()
        one, two = (served.ports["flymq"] for served in gateways)
        with trio.fail_after(60):
            async with flymq(one) as first:
                alone = await first.ask(0x52)
                assert str(two).encode() not in alone
                assert await first.ask(0x51) == b"\0" + (await first.ask(0x51))[1:]  # the last member stays
                assert (await first.ask(0x50, s16(f"127.0.0.1:{two}")))[:1] == b"\1"
                address = s16(f"127.0.0.1:{two}")
                while address + b"\1\0" not in await first.ask(0x52):  # healthy, and not the one that answers
                    await trio.lowlevel.checkpoint()
                await trio.to_thread.run_sync(gateways[1].end, signal.SIGKILL)
                while address + b"\0\0" not in await first.ask(0x52):
                    await trio.lowlevel.checkpoint()
                assert (await first.ask(0x51))[:1] == b"\1"
                assert address not in await first.ask(0x52)
    finally:
        for served in gateways:
            if served.running:
                served.end(signal.SIGTERM)


async def test_gateways_that_know_each_other_by_configuration(tmp_path: Path):
    """The second is told of the first; each shows its own name and address, and the other's health as it changes."""
    gateways = []
    try:
        for name in ("one", "two"):
            home = tmp_path / name
            home.mkdir()
            peers = [f"127.0.0.1:{served.ports['flymq']}" for served in gateways]
            cluster = f"cluster: {{id: {name}, peers: {peers}}}\n"
            gateways.append(Served(home, configured(Log(), home) + cluster))
            gateways[-1].start()
        own = [f"127.0.0.1:{served.ports['flymq']}" for served in gateways]
        with trio.fail_after(60):
            async with flymq(gateways[0].ports["flymq"]) as first, flymq(gateways[1].ports["flymq"]) as second:
                status = await first.ask(0x52)
                assert status == s16("one") + bytes(4) + i32(1) + s16("one") + s16(own[0]) + b"\1\1"
                assert await first.ask(0x50, s16(own[0])) == b"\0" + s16(f"{own[0]} is this gateway")
                itself, other = s16("two") + s16(own[1]) + b"\1\1", s16(f"two-{own[0]}") + s16(own[0])
                while await second.ask(0x52) != s16("two") + bytes(4) + i32(2) + itself + other + b"\1\0":
                    await trio.lowlevel.checkpoint()
                metadata = await second.ask(0x53)
                assert metadata == s16("two") + bytes(4)  # no topics
                await trio.to_thread.run_sync(gateways[0].end, signal.SIGKILL)
                while await second.ask(0x52) != s16("two") + bytes(4) + i32(2) + itself + other + b"\0\0":
                    await trio.lowlevel.checkpoint()
                assert (await second.ask(0x51))[:1] == b"\1"
                assert await second.ask(0x52) == s16("two") + bytes(4) + i32(1) + itself
                assert (await second.ask(0x50, s16(own[0])))[:1] == b"\1"
                assert own[0].encode() in await second.ask(0x52)
    finally:
        for served in gateways:
            if served.running:
                served.end(signal.SIGTERM)
