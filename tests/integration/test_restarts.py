"""What becomes of what was acknowledged when a gateway is killed, frozen, or replaced: where several serve a log, beside another one."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import attrs
import pytest
import trio

from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError, TargetError
from gateway.protocols.registry import Transport, protocol
from gateway.requests import Publish
from gateway.transport.client import connect
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext, Credentials
from tests.integration.flymq_raw import flymq, frame, i32, produce, read_all
from tests.integration.gateways import gateways, until
from tests.integration.raw import CLIENTS, s16
from tests.integration.running import Served
from tests.kafka.fixtures import Log

PATIENCE = 120
VALUE = b"\0\xffvalue"


async def publish_on(served: Served, topic: str, good: list[bytes]) -> None:
    """One message after the other, each noted when it is acknowledged, until the gateway is gone."""
    try:
        async with flymq(served.ports["flymq"]) as client:
            for number in range(100_000):
                value = b"%06d" % number
                await client.wire.send(frame(1, produce(topic, value)))
                operation, _flags, _answer = await client.read()
                assert operation == 1
                good.append(value)
    except (trio.BrokenResourceError, trio.EndOfChannel, EOFError, AssertionError, OSError):
        pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_nothing_acknowledged_is_lost_with_a_gateway(log: Log, tmp_path: Path, how: int) -> None:
    good: list[bytes] = []
    with (
        gateways(log, tmp_path, *("dying", "staying")[: 1 + log.shared]) as (dying, *others),
        trio.fail_after(PATIENCE),
    ):
        async with flymq((*others, dying)[0].ports["flymq"]) as client:
            await client.ask(3, s16("kept") + i32(1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_on, dying, "kept", good)

            async def has(count: int) -> bool:
                return len(good) >= count

            await until(lambda: has(200))
            if how == signal.SIGSTOP:
                dying.send_signal(how)
                for other in others:  # they go on meanwhile
                    async with flymq(other.ports["flymq"]) as client:
                        await client.ask(1, produce("kept", b"other"))
                before = len(good)
                dying.send_signal(signal.SIGCONT)
                await until(lambda: has(before + 100))
            await trio.to_thread.run_sync(dying.end, signal.SIGKILL)
        if not others:
            await trio.to_thread.run_sync(dying.start)
        found: list[bytes] = []

        async def all_there() -> bool:
            found[:] = await read_all((*others, dying)[0].ports["flymq"], "kept")
            return len(found) >= len(good)

        await until(all_there)
    mine = [value for value in found if value != b"other"]
    assert len(found) - len(mine) == (how == signal.SIGSTOP) * len(others)
    assert mine[: len(good)] == good  # each once, in order
    assert len(mine) <= len(good) + 1  # the one that was under way


def takes_no_connection(error: BaseException) -> bool:
    """Over QUIC one that goes down says so: CONNECTION_REFUSED."""
    return isinstance(error, TargetError) and " refused the connection: transport error 0x2" in error.message


async def test_a_rolling_restart_loses_nothing_acknowledged(log: Log, tmp_path: Path) -> None:
    """Publishers of all five protocols, each message to a topic of its own, at whichever gateway takes it; a lone one is restarted
    under them.
    """
    good: list[str] = []
    missed = 0
    with gateways(log, tmp_path, *("one", "two")[: 1 + log.shared]) as serving, trio.fail_after(3 * PATIENCE):

        async def publish(protocol: str) -> None:
            nonlocal missed
            for number in range(1_000):
                address = f"roll.{protocol}.{number}"
                try:
                    with trio.fail_after(10):
                        client, port = CLIENTS[protocol](), serving[number % len(serving)].ports[protocol]
                        async with client.connect(port) as wire:
                            await client.publish(wire, address, VALUE)
                    good.append(address)
                except* (OSError, EOFError, AssertionError, trio.TooSlowError, trio.BrokenResourceError):
                    missed += 1
                except* TargetError as errors:
                    if (others := errors.split(takes_no_connection)[1]) is not None:
                        raise others from None
                    missed += 1

        async with trio.open_nursery() as nursery:
            for protocol in CLIENTS:
                nursery.start_soon(publish, protocol)

            async def each_has(count: int) -> bool:
                return all(sum(f".{protocol}." in one for one in good) >= count for protocol in CLIENTS)

            await until(lambda: each_has(2))
            for one in serving:
                before = len(good)
                assert await trio.to_thread.run_sync(one.end, signal.SIGTERM) == 0
                await trio.to_thread.run_sync(one.start)

                async def more(reached: int = before + 10) -> bool:
                    return len(good) >= reached

                await until(more)
            nursery.cancel_scope.cancel()
        async with flymq(serving[0].ports["flymq"]) as client:
            for address in good:
                assert VALUE in await client.values(address), address
    assert missed, "nobody met a gateway that was down: the restart was none"


@attrs.define
class Sender:
    """A publisher that stays with its gateway while that serves, and then goes to the next one."""

    name: str
    """Its protocol's."""
    issued: list[bytes] = attrs.Factory(list)
    acknowledged: list[bytes] = attrs.Factory(list)

    @property
    def topic(self) -> str:
        return f"ordered.{self.name}"

    async def publish(self, serving: list[Served]) -> None:
        """One after the other; what is not confirmed is not tried again, and counts as not sent."""
        tls = ClientTls(insecure=True) if protocol(self.name).transport is Transport.QUIC else None
        context = ClientContext(credentials=Credentials(api_key="dev-key" if self.name == "blipmq" else ""))
        for gateway in itertools.cycle(serving):
            try:
                port = gateway.ports[self.name]
                async with connect(
                    protocol(self.name), "127.0.0.1", port, tls=tls, context=context, timeout=5
                ) as connection:
                    while not connection.driver.closed:
                        value = f"{self.name} {len(self.issued)}".encode()
                        self.issued.append(value)
                        await connection.request(Publish(0, Batch(self.topic, Columns.of([value]))), timeout=15)
                        self.acknowledged.append(value)
            except* (GatewayError, OSError):
                pass
            await trio.sleep(0.05)

    def judge(self, found: list[bytes]) -> None:
        assert len(found) == len(set(found)), "something is there twice"
        assert set(found) <= set(self.issued), "invented"
        good = set(self.acknowledged)
        assert [value for value in found if value in good] == self.acknowledged


async def test_who_goes_from_one_to_the_next_while_all_are_replaced_loses_nothing(log: Log, tmp_path: Path) -> None:
    """Publishers of all five protocols, in order, each to one topic; of three gateways each is drained and started again."""
    senders = [Sender(name) for name in CLIENTS]
    with (
        gateways(log, tmp_path, *("one", "two", "three")[: 3 if log.shared else 1]) as serving,
        trio.fail_after(3 * PATIENCE),
    ):
        async with flymq(serving[0].ports["flymq"]) as client:
            for sender in senders:
                await client.ask(3, s16(sender.topic) + i32(1))
        async with trio.open_nursery() as nursery:
            for sender in senders:
                nursery.start_soon(sender.publish, serving)
            for replaced in (None, *serving):
                if replaced is not None:
                    assert await trio.to_thread.run_sync(replaced.end, signal.SIGTERM) == 0
                    await trio.to_thread.run_sync(replaced.start)
                reached = [len(sender.acknowledged) + 10 for sender in senders]

                async def more(reached: list[int] = reached) -> bool:
                    return all(len(one.acknowledged) >= count for one, count in zip(senders, reached, strict=True))

                await until(more)
            nursery.cancel_scope.cancel()
        for sender in senders:
            sender.judge(await read_all(serving[0].ports["flymq"], sender.topic))
