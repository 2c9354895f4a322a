"""What takes long: so much in a pass of the event loop, connections in turn."""

from __future__ import annotations

import itertools

import trio
import trio.testing

from gateway.broker.lane import PASS_BYTES, Lane


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


def test_a_pass_has_as_many_calls_as_it_has_room_for_and_one_at_least():
    lane = Lane()
    made: list[str] = []
    half = PASS_BYTES // 2
    for connection, name, size in (
        (1, "a1", half),
        (1, "a2", half),
        (2, "b1", half),
        (2, "b2", 9 * half),
        (1, "a3", half),
    ):
        lane.add(connection, lambda name=name: made.append(name), size)
    lane.turn()
    assert made == ["a1", "b1"]
    assert lane.busy
    lane.turn()
    assert made == ["a1", "b1", "a2", "b2"]
    lane.turn()
    assert made[4:] == ["a3"]
    assert not lane.busy


def test_what_a_call_says_it_has_spent_is_what_the_others_have_less():
    lane = Lane()
    made: list[str] = []

    def dear() -> None:
        made.append("dear")
        lane.spend(3 * PASS_BYTES)

    lane.add(1, dear, 0)
    lane.add(2, lambda: made.append("next"), 0)
    lane.turn()
    assert made == ["dear"]
    lane.turn()  # a debt is not carried on: one that is larger than a pass delays the others by a pass
    assert made == ["dear", "next"]


async def test_who_spends_a_pass_outside_of_the_lane_has_room_again_in_the_next_one():
    lane = Lane()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        await trio.testing.wait_all_tasks_blocked()
        lane.spend(PASS_BYTES)
        assert lane.busy
        await trio.testing.wait_all_tasks_blocked()
        assert not lane.busy
        nursery.cancel_scope.cancel()
