"""The pump: who is woken, how often, and that nothing is called from inside what is being called."""

from __future__ import annotations

import attrs
import trio

from gateway.broker.timers import Alarm, Pump


async def test_what_is_called_soon_in_the_moment_a_timer_is_due_is_called_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The timer has woken the pump already: to wake it a second time would end the event loop."""
    pump, called = Pump(trio.current_time), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(20):  # the event loop shuffles who is first: before the pump ran, and after it
            due = trio.current_time() + 1
            pump.call_at(due, lambda number=number: called.append(("timer", number)))  # type: ignore[misc]
            await trio.sleep_until(due)
            pump.soon(number, lambda number=number: called.append(("soon", number)))  # type: ignore[misc]
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sorted(called) == [(kind, number) for kind in ("soon", "timer") for number in range(20)]


async def test_a_timer_that_is_earlier_than_the_one_waited_for_is_in_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pump = Pump(trio.current_time)
    called: list[float] = []
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        pump.call_at(began + 5, lambda: called.append(trio.current_time() - began))
        await trio.testing.wait_all_tasks_blocked()
        pump.soon("now", lambda: called.append(trio.current_time() - began))
        await trio.testing.wait_all_tasks_blocked()
        pump.call_at(began + 2, lambda: called.append(trio.current_time() - began))
        await trio.sleep(6)
        nursery.cancel_scope.cancel()
    assert called == [0, 2, 5]


async def test_a_timer_that_was_called_off_wakes_nobody(autojump_clock: trio.testing.MockClock) -> None:
    """A subscriber sets one with each poll, and calls it off with each delivery."""
    pump, woken = Pump(trio.current_time), Woken()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(woken)
        for _ in range(50):
            cancel = pump.call_at(trio.current_time() + 0.1, lambda: None)
            await trio.sleep(0.001)
            cancel()
        await trio.sleep(1)
        trio.lowlevel.remove_instrument(woken)
        nursery.cancel_scope.cancel()
    assert woken.times <= 2, "by the first at most: nobody told the clock"


@attrs.define(eq=False)
class Woken(trio.abc.Instrument):
    """How often the pump had a step."""

    times: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.times += task.name.endswith("Pump.run")


def test_what_is_released_inside_a_callback_is_called_after_it() -> None:
    """An upstream that answers at once, from inside the call that asks it: who asked is not called into while it asks."""
    pump = Pump(lambda: 1.0)
    order: list[str] = []

    def ask() -> None:
        order.append("asks")
        pump.hold()
        pump.soon("answered", lambda: order.append("answered"))
        pump.release()
        order.append("has asked")

    pump.soon("ask", ask)
    pump.turn()
    assert order == ["asks", "has asked", "answered"]
    pump.call_at(0.5, ask)
    pump.turn()
    assert order[3:] == ["asks", "has asked", "answered"]


def test_what_was_held_is_called_when_it_is_released() -> None:
    pump = Pump(lambda: 0.0)
    order: list[str] = []
    pump.hold()
    pump.soon("one", lambda: order.append("one"))
    assert order == []
    pump.release()
    assert order == ["one"]


async def test_an_alarm_that_is_put_off_rings_once_and_when_it_was_said_last(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """However often it is put off: that is done for every message, and must leave no timer behind for each."""
    pump = Pump(trio.current_time)
    rung: list[float] = []
    alarm = Alarm(pump, lambda: rung.append(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        start = trio.current_time()
        for after in range(1, 500):
            alarm.set(start + after)
        assert len(pump._heap) == 1
        alarm.set(start + 300)  # sooner, and later than the first
        await trio.sleep(299)
        assert not rung
        assert alarm.is_set
        await trio.sleep(2)
        assert rung == [start + 300]
        assert not alarm.is_set
        alarm.set(start + 400)
        alarm.set(start + 350)  # sooner than it is armed
        await trio.sleep(60)
        assert rung == [start + 300, start + 350]
        alarm.set(start + 400)
        alarm.set(start + 500)
        alarm.set(None)
        await trio.sleep(300)
        assert len(rung) == 2
        nursery.cancel_scope.cancel()
