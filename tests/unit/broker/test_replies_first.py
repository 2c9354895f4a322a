"""Whoever published has its answer before those who wait for what it published are served."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway import model
from gateway.broker.assembly import open_house
from gateway.recorder import Recorder
from gateway.requests import Completion, Fetch, Published, Take
from gateway.routing.table import compile_table
from gateway.store.sqlite import open_store
from gateway.transport.limits import Budget
from tests.unit.broker.house import Client, publish
from tests.unit.broker.support import OPTIONS

READERS = 1_000


class Publisher(Client):
    """Counts the gateway's calls from its request until its answer is there."""

    calls = 0

    def _take_in(self, completions: list[Completion]) -> None:
        if completions:
            sys.setprofile(None)
        super()._take_in(completions)

    async def counted(self) -> int:
        def count(frame: FrameType, event: str, _argument: object) -> None:
            self.calls += event == "call" and "/gateway/" in frame.f_code.co_filename

        self.calls = 0
        sys.setprofile(count)
        try:
            assert isinstance(await self.ask(publish("t", b"x")), Published)
        finally:
            sys.setprofile(None)
        await wait_all_tasks_blocked(0.01)
        return self.calls


@pytest.mark.parametrize("how", ["subscriptions", "fetches"])
async def test_a_thousand_who_wait_do_not_hold_up_the_answer_to_a_publisher(tmp_path: Path, how: str):
    table = compile_table(model.Config(listeners={}, routes=(model.IDENTITY,)), {})
    async with open_store(tmp_path, OPTIONS) as store, open_house(store, table, Recorder(), Budget(256 << 20)) as house:
        publisher, reader = Publisher(house), Client(house)
        await publisher.ask(publish("t", b"first"))
        alone = min([await publisher.counted() for _ in range(3)])
        end = store.topics["t"].partitions[0].end
        if how == "subscriptions":
            waiting = [
                reader.start(Take(0, await reader.subscribe("t"), 1, hold_until=float("inf")))[0]
                for _ in range(READERS)
            ]
        else:
            forever = trio.current_time() + 3_600
            fetch = Fetch(0, "t", 0, end, 10, 1 << 20, hold_until=forever)
            waiting = reader.start(*[fetch] * READERS)
        await wait_all_tasks_blocked(0.01)
        beside = await publisher.counted()
        assert beside <= 2.5 * alone
        for number in waiting:
            answer = await reader.outcome(number)
            runs = [delivered.run for delivered in answer.deliveries] if how == "subscriptions" else answer.runs
            assert [value for run in runs for value in run.columns.values()] == [b"x"]
