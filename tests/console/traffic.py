"""Messages in all five protocols, sent and read by connections that stay open while a page is looked at."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import trio

from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError
from gateway.protocols.registry import Transport, protocol
from gateway.requests import CommitOffset, Publish, Published, RegisterSchema, Subscribe, Take
from gateway.transport.client import Connection, connect
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext, Credentials

ADDRESSES = {
    "blipmq": "alerts",
    "flymq": "orders.eu",
    "rustlog": "clicks",
    "felix": "sensors/site/temperature",
    "fujin": "invoices",
}


class Senders:
    """One connection for each protocol, in a thread."""

    def __init__(self, ports: Mapping[str, int], certificate: Path) -> None:
        self._ports = ports
        self._certificate = certificate
        self._open: dict[str, Connection] = {}
        self._up = threading.Event()
        self._down = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def send(
        self, name: str, *values: bytes, address: str = "", keys: Sequence[bytes | None] | None = None
    ) -> Published:
        """Publish to an address; when this returns it is stored, as far as the protocol says so. Raises what refused it."""
        batch = Batch(address or ADDRESSES[name], Columns.of(values, keys))

        async def publish() -> Published:
            reply = await self._open[name].request(Publish(0, batch), timeout=60)
            assert isinstance(reply, Published)
            return reply

        assert self._token is not None
        return trio.from_thread.run(publish, trio_token=self._token)

    def commit(self, topic: str, group: str, offset: int) -> None:
        """A consumer group of FlyMQ's has read so far."""

        async def commit() -> None:
            await self._open["flymq"].request(CommitOffset(0, topic, group, 0, offset), timeout=60)

        assert self._token is not None
        trio.from_thread.run(commit, trio_token=self._token)

    def register(self, name: str, kind: str, definition: str) -> None:
        """A schema."""

        async def register() -> None:
            await self._open["flymq"].request(RegisterSchema(0, name, kind, definition.encode()), timeout=60)

        assert self._token is not None
        trio.from_thread.run(register, trio_token=self._token)

    def subscribe(self, name: str, address: str, *, acknowledge: bool = False, reader: str = "") -> None:
        """Read on an address from now on, without an end."""

        async def begin() -> None:
            asked = Subscribe(0, address, acknowledge=acknowledge, name=reader)
            subscribed = await self._open[name].request(asked, timeout=60)
            take = Take(0, subscribed.subscription, 100, hold_until=trio.current_time() + 600)
            self._nursery.start_soon(self._ignore, name, take)

        assert self._token is not None
        trio.from_thread.run(begin, trio_token=self._token)

    async def _ignore(self, name: str, take: Take) -> None:
        await self._open[name].request(take, timeout=600)

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001  # raised in the test's own thread
            self._failed = error
        self._up.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            for name in ADDRESSES:
                await self._nursery.start(self._connect, name)
            self._up.set()
            await self._down.wait()
            self._nursery.cancel_scope.cancel()

    async def _connect(self, name: str, task_status: trio.TaskStatus[None]) -> None:
        spec = protocol(name)
        tls = ClientTls(ca=str(self._certificate)) if spec.transport is Transport.QUIC else None
        context = ClientContext(Credentials(api_key="dev-key")) if name == "blipmq" else ClientContext()
        async with connect(spec, "localhost", self._ports[name], tls=tls, context=context, timeout=60) as connection:
            self._open[name] = connection
            task_status.started()
            await trio.sleep(float("inf"))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(120)
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._token is not None and self._failed is None:
            trio.from_thread.run_sync(self._down.set, trio_token=self._token)
        self._thread.join()


@contextmanager
def again_and_again(work: Callable[[], object]) -> Iterator[None]:
    """Done some times a second for as long as the block lasts, in a thread; it may be refused. What else it fails by is raised where
    the block ends: who waits there for what came of the work is to hear that there was none.
    """
    ended = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not ended.wait(0.1):
                with suppress(GatewayError):
                    work()
        except BaseException as error:  # noqa: BLE001  # raised in the test's own thread
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if failed:
            raise failed[0]


@contextmanager
def flowing(senders: Senders) -> Iterator[None]:
    """Some messages a second in every protocol, for the length of the block."""
    numbers = itertools.count(1)

    def send() -> None:
        number = next(numbers)
        senders.send(
            "flymq",
            *[b'{"amount": %d, "item": "book"}' % (5 + (7 * number + each) % 60) for each in range(24)],
            keys=[b"customer-%d" % (each % 9) for each in range(24)],
        )
        senders.send("rustlog", *[b"click %d" % each for each in range(60)])
        senders.send("felix", *[b"%d.%d" % (18 + number % 4, each) for each in range(10)])
        senders.send("blipmq", b'{"level": "warning", "disk": "%d %%"}' % (60 + number % 30))
        senders.send("fujin", *[b'{"invoice": %d}' % (1000 + number + each) for each in range(4)])

    with again_and_again(send):
        yield
