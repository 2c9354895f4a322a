"""Answers of several processes as one: by values here, by real processes in `tests/kafka/test_workers.py`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.joined import join_connections, join_consumers, join_pulses
from gateway.admin.pulse import Flow, Pulse, UpstreamNow
from gateway.admin.readers import Connections, Consumers, ConsumerShown
from gateway.recorder import ConnectionSnapshot
from gateway.transport.workers import MOST


def pulse(flows: dict[str, float], upstream: UpstreamNow | None = None, *, problem: str = "", wrong: int = 0) -> Pulse:
    return Pulse(
        1,
        not problem,
        "ready",
        [problem] if problem else [],
        [],
        wrong,
        ["route r: 1"] * bool(wrong),
        2,
        Flow("received", 5.0, 50.0),
        Flow("delivered", 1.0, 10.0),
        [Flow(edge, rate, 10 * rate) for edge, rate in flows.items()],
        {"r": 1.0},
        {},
        {"l": 2.0},
        {"l": 3},
        [upstream] if upstream is not None else [],
        7,
        4,
        (0.1, 0.2, 0.3),
    )


def test_what_flows_adds_up_and_what_is_wrong_says_where() -> None:
    up = UpstreamNow("far", connected=True, circuit="closed", in_flight=1, backlog=2, latency=0.1)
    down = UpstreamNow("far", connected=False, circuit="open", in_flight=0, backlog=3, problem="gone", latency=0.3)
    found = join_pulses(
        pulse({"a>b": 1.0, "b>c": 2.0}, up), {1: pulse({"b>c": 3.0}), 3: pulse({}, down, problem="full", wrong=1)}
    )
    assert [(one.edge, one.messages, one.size) for one in found.flows] == [("b>c", 5.0, 50.0), ("a>b", 1.0, 10.0)]
    assert (found.received.messages, found.delivered.size, found.backlog, found.topics) == (15.0, 30.0, 12, 7)
    assert (found.refused, found.held_back, found.connections) == ({"r": 3.0}, {"l": 6.0}, {"l": 9})
    assert (found.ready, found.problems, found.wrong) == (False, ["worker 3: full"], ["worker 3: route r: 1"])
    assert found.unaccounted == 1
    assert found.upstreams == [
        UpstreamNow("far", connected=True, circuit="open", in_flight=1, backlog=5, problem="gone", latency=0.2)
    ]


def test_a_process_that_does_not_answer_is_named_and_left_out() -> None:
    found = join_pulses(pulse({"a>b": 1.0}), {1: pulse({"a>b": 2.0})}, [2])
    assert (found.ready, found.problems) == (False, ["worker 2: does not answer"])
    assert found.flows[0].messages == 3.0


def snapshot(number: int) -> ConnectionSnapshot:
    return ConnectionSnapshot(
        number, "l", "flymq", f"peer {number}", "", "", "", True, 0.0, 0.0, 0, 0, 0, 0, "", 0, "", ""
    )


@given(
    st.dictionaries(st.integers(0, MOST - 1), st.lists(st.integers(1, 60), unique=True), min_size=1, max_size=4),
    st.integers(1, 7),
)
def test_connections_page_by_page_are_all_there_once(workers: dict[int, list[int]], limit: int) -> None:
    seen: list[int] = []
    after: int | None = None
    while True:
        pages = {}
        for worker, numbers in workers.items():
            begin = -1 if after is None or after < worker else (after - worker) // MOST
            rest = [snapshot(number) for number in sorted(numbers) if number > begin]
            following = rest[limit - 1].id if len(rest) > limit else None
            pages[worker] = Connections(rest[:limit], following, len(numbers))
        page = join_connections(pages, limit)
        assert page.total == sum(map(len, workers.values()))
        seen += [one.id for one in page.connections]
        after = page.following
        if after is None:
            break
    assert seen == sorted(number * MOST + worker for worker, numbers in workers.items() for number in numbers)


def consumer(name: str, backlog: int) -> ConsumerShown:
    return ConsumerShown("reader", name, "t", 0, 0, backlog, 0, 0, 0, 0, 0, 0, 0, 0, backlog, 0)


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=4), st.integers(0, 20), st.integers(1, 9)
)
def test_a_page_of_consumers_is_that_of_all_together(backlogs: list[list[int]], skip: int, limit: int) -> None:
    every = [[consumer(f"{worker}-{n}", one) for n, one in enumerate(each)] for worker, each in enumerate(backlogs)]
    pages = [[Consumers(each[:5], len(each), (), (), ()), Consumers(each[5:], len(each), (), (), ())] for each in every]
    found = join_consumers(pages, skip, limit)
    rows = sorted((one for each in every for one in each), key=lambda one: (-one.backlog, one.name))
    assert found.consumers == rows[skip : skip + limit]
    assert found.total == len(rows)
