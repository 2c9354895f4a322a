"""Long answers: one in a pass of the event loop, connections in turn."""

from __future__ import annotations

import itertools

import trio
import trio.testing

from gateway.broker.lane import Lane


async def test_there_is_one_call_in_a_pass_and_connections_take_turns():
    lane = Lane()
    made: list[str] = []
    between: list[int] = []
    for connection, name in ((1, "a1"), (1, "a2"), (2, "b1"), (1, "a3"), (2, "b2")):
        lane.add(connection, lambda name=name: made.append(name))

    async def bystander() -> None:
        while len(made) < 5:
            between.append(len(made))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bystander)
        nursery.start_soon(lane.run)
        await trio.testing.wait_all_tasks_blocked()
        assert made == ["a1", "b1", "a2", "b2", "a3"]
        # tasks of a pass run in any order: from the first of one to the last of the next there are two
        assert all(after - before <= 2 for before, after in itertools.pairwise(between))
        lane.add(3, lambda: made.append("c1"))  # the lane is asleep by now
        await trio.testing.wait_all_tasks_blocked()
        assert made[-1] == "c1"
        nursery.cancel_scope.cancel()
