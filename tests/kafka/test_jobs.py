"""What one gateway does at a time, of each kind: taken over from one that lives, from one that is killed, and from one that is frozen
and wakes up.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tests.integration.flymq_raw import flymq, produce
from tests.integration.gateways import until
from tests.integration.raw import BlipMQ, Wire, blipmq_frame, s16, tcp
from tests.integration.running import Served
from tests.kafka.looking import ADMIN, owned, shared_out
from tests.kafka.node import Kafka
from tests.kafka.test_ownership import CONFIG, PATIENCE, on_kafka, served, taken, values

JOBS = 8
"""Of a kind: some of them change their gateway with half of the slots."""
SLOTS = 32
FEW = 3
FAR = 'far: {{protocol: flymq, address: "127.0.0.1:{port}"{more}}}'
ROUTES = """
upstreams:
  {far}
routes:
  - name: out
    match: {{topic: "job*"}}
    to:
      - store: {{topic: "job{{1}}"}}
      - {target}
  - {{name: rest, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""
FORWARD = 'forward: {upstream: far, address: "job{1}", retry: {max: 1000, backoff: 20ms..200ms}, accept_loss: all}'
MIRROR = 'mirror: {upstream: far, address: "job{1}", percent: 100}'


def topic(number: int) -> str:
    return f"job{number}"


@attrs.define(eq=False)
class Kind:
    """How messages go through jobs of one kind: what is put in comes out, in order, at least once."""

    gateway: Served
    """Where its clients are."""
    far: Served
    sent: dict[int, list[bytes]] = attrs.Factory(lambda: {number: [] for number in range(JOBS)})
    durable = True
    """What is put in while it changes its gateway comes out, too."""

    @staticmethod
    def config(_far: Served) -> str:
        return ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """With what it needs for as long as it is looked at."""
        yield

    async def put(self, number: int, value: bytes) -> None:
        await self._produce(self.gateway, number, value)

    async def _produce(self, gateway: Served, number: int, value: bytes) -> None:
        async with flymq(gateway.ports["flymq"]) as client:
            await client.ask(1, produce(topic(number), value))
        self.sent[number].append(value)

    async def found(self, number: int) -> Sequence[bytes]:
        return await values(self.far.ports["flymq"], topic(number))


class Forwarded(Kind):
    @staticmethod
    def config(far: Served) -> str:
        return ROUTES.format(far=FAR.format(port=far.ports["flymq"], more=""), target=FORWARD)


class Mirrored(Kind):
    durable = False

    @staticmethod
    def config(far: Served) -> str:
        return ROUTES.format(far=FAR.format(port=far.ports["flymq"], more=""), target=MIRROR)


class Pulled(Kind):
    @staticmethod
    def config(far: Served) -> str:
        pulled = ", ".join(
            f"{{from: {topic(number)}, into: {topic(number)}, group: pulls{number}}}" for number in range(JOBS)
        )
        more = f", ingest: [{pulled}]"
        return f"\nupstreams:\n  {FAR.format(port=far.ports['flymq'], more=more)}\n"

    async def put(self, number: int, value: bytes) -> None:
        await self._produce(self.far, number, value)

    async def found(self, number: int) -> Sequence[bytes]:
        async with flymq(self.gateway.ports["flymq"]) as client:
            try:
                return await client.everything(topic(number))
            except AssertionError:  # there is no such topic yet
                return []


@attrs.define(eq=False)
class Subscribed(Kind):
    _wire: Wire | None = None
    _numbers: dict[int, int] = attrs.Factory(dict)
    _got: dict[int, list[bytes]] = attrs.Factory(lambda: {number: [] for number in range(JOBS)})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with tcp(self.gateway.ports["blipmq"]) as self._wire:
            await BlipMQ.greet(self._wire)
            for number in range(JOBS):
                await self._wire.send(blipmq_frame(4, 3, s16(topic(number)) + b"\1"))
                await self._wire.expect(bytes.fromhex("00000011050000000000000003"))
                self._numbers[number] = struct.unpack(">Q", await self._wire.receive(8))[0]
            yield

    async def found(self, number: int) -> Sequence[bytes]:
        assert self._wire is not None
        last = self.sent[number][-1]
        if last not in self._got[number]:
            self._got[number] += await taken(self._wire, self._numbers[number], last)
        return self._got[number]


async def go_through(kind: Kind, stage: bytes) -> None:
    """Put something into each job, and see it come out."""
    for number in range(JOBS):

        async def arrived(number: int = number) -> bool:
            return kind.sent[number][-1] in await kind.found(number)

        for index in range(FEW):
            await kind.put(number, b"%s %d %d" % (stage, number, index))
        if kind.durable:
            await until(arrived)
            continue
        index = FEW
        while not await arrived():  # it may be taken since this was put in, and nobody keeps it for who takes it
            await kind.put(number, b"%s %d %d" % (stage, number, index))
            index += 1
            with trio.move_on_after(1):
                await until(arrived)


async def has(gateway: Served, slots: int) -> None:
    while await owned(gateway) != slots:  # noqa: ASYNC110  # nobody tells
        await trio.sleep(0.05)


@pytest.mark.parametrize("kind", [Forwarded, Mirrored, Pulled, Subscribed])
@pytest.mark.parametrize("fate", ["lives", "killed", "frozen"])
async def test_a_job_goes_on_at_another_gateway(
    kafka: Kafka, topics: str, tmp_path: Path, kind: type[Kind], fate: str
) -> None:
    async with AsyncExitStack() as stack:
        stack.enter_context(trio.fail_after(PATIENCE))
        far = await stack.enter_async_context(served(tmp_path / "far", CONFIG.format(data="DATA", kafka="")))
        config = on_kafka(kafka, topics, kind.config(far)) + ADMIN
        before = await stack.enter_async_context(served(tmp_path / "before", config))
        if fate == "lives":
            work = kind(before, far)
            await has(before, SLOTS)
            await stack.enter_async_context(work.running())
            await go_through(work, b"alone")
            other = await stack.enter_async_context(served(tmp_path / "other", config))
            await shared_out([before, other])
        else:
            other = await stack.enter_async_context(served(tmp_path / "other", config))
            work = kind(other, far)
            await shared_out([before, other])
            await stack.enter_async_context(work.running())
            await go_through(work, b"shared")
            before.send_signal(signal.SIGKILL if fate == "killed" else signal.SIGSTOP)
            await has(other, SLOTS)
            await go_through(work, b"alone")
            if fate == "frozen":
                before.send_signal(signal.SIGCONT)
                await shared_out([before, other])
        await go_through(work, b"last")
        for number in range(JOBS):
            found = list(await work.found(number))
            # what was under way may come twice; what was put in when each had its jobs does not
            assert [one for one in found if one.startswith(b"last")] == [
                one for one in work.sent[number] if one.startswith(b"last") and (work.durable or one in found)
            ]
            once = list(dict.fromkeys(found))
            assert once == [one for one in work.sent[number] if work.durable or one in found]
