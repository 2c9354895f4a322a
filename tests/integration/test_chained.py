"""A forward to another gateway does not wait for answers, and nothing overtakes what could not be stored there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from gateway import model
from gateway.protocols.registry import protocol
from gateway.requests import DeleteTopic
from gateway.store.loop import CommitLoop
from gateway.transport.client import connect
from tests.integration.inside import far_config, gateway, stored
from tests.unit.bridges.house import Bridged, bridged, forward, route
from tests.unit.bridges.peers import until


class Held:
    """Makes stores that commit in an event loop make no commit, for a while."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.loops: set[CommitLoop] = set()
        self._holding = False
        advance = CommitLoop._advance

        def held(loop: CommitLoop, *, together: bool = True) -> None:
            self.loops.add(loop)
            if not self._holding:
                advance(loop, together=together)

        patch.setattr(CommitLoop, "_advance", held)

    @property
    def messages(self) -> int:
        """How many wait to be stored: in as many units as there were reads."""
        units = [ticket.unit for loop in self.loops for ticket in loop._committer.pending]
        return sum(append.columns.count for unit in units for append in unit.appends)

    @property
    def deletes(self) -> int:
        return sum(len(ticket.unit.deletes) for loop in self.loops for ticket in loop._committer.pending)

    def hold(self) -> None:
        self._holding = True

    def release(self) -> None:
        self._holding = False
        for loop in self.loops:
            loop.wake()


@attrs.frozen
class Pair:
    near: Bridged
    held: Held
    flymq: int
    """Where to look into the other one."""

    async def publish(self, *values: bytes) -> None:
        for value in values:
            await self.near.client().publish("orders", value)

    async def stored(self, count: int) -> Sequence[bytes]:
        return await stored(self.flymq, "orders", lambda found: len(found) >= count)


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    """A gateway that forwards over Felix to one whose commits can be held."""
    held = Held(monkeypatch)
    async with _pair(tmp_path, held) as made:
        yield made


@asynccontextmanager
async def _pair(path: Path, held: Held) -> AsyncIterator[Pair]:
    data = path / "far"
    async with gateway(far_config("felix", data)) as far:
        trust = model.TlsTrust(ca=str(data / "self-signed.crt"))
        target = model.Upstream("far", "felix", (("localhost", far.ports["far"]),), tls=trust)
        async with bridged(path / "near", [target], route(forward(address="{topic}"))) as near:
            made = Pair(near, held, far.ports["flymq"])
            await made.publish(b"0")
            await near.delivered()  # the login is through, and the topic is there
            try:
                yield made
            finally:
                held.release()


async def test_a_message_does_not_wait_for_the_answer_to_the_one_before_it(pair: Pair):
    pair.held.hold()
    await pair.publish(b"1", b"2", b"3")
    with trio.fail_after(60):
        await until(lambda: pair.held.messages == 3)
    assert pair.near.counts.messages["delivered", "far"] == 4
    assert pair.near.counts.messages["acknowledged", "far"] == 1
    pair.held.release()
    await pair.near.delivered()
    assert await pair.stored(4) == [b"0", b"1", b"2", b"3"]
    assert pair.near.counts.messages["delivered", "far"] == 4


async def test_what_was_sent_behind_something_that_could_not_be_stored_is_sent_again_behind_it(pair: Pair):
    pair.held.hold()
    async with connect(protocol("flymq"), "127.0.0.1", pair.flymq) as other, trio.open_nursery() as nursery:
        nursery.start_soon(other.request, DeleteTopic(0, "orders"), 60)
        with trio.fail_after(60):
            await until(lambda: pair.held.deletes == 1)
            await pair.publish(b"1", b"2", b"3")
            await until(lambda: pair.held.messages == 3)
        pair.held.release()
    await pair.near.delivered()
    assert await pair.stored(3) == [b"1", b"2", b"3"]
    assert pair.near.counts.messages["delivered", "far"] == 7
    assert pair.near.counts.messages["acknowledged", "far"] == 4
