"""Answers of several processes as one: by values here, by real processes in `tests/kafka/test_workers.py`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.joined import (
    MOST_LIVES,
    join_connections,
    join_consumers,
    join_histories,
    join_maps,
    join_pulses,
    join_upstreams,
    lives_of,
)
from gateway.admin.overview import GatewayMap, MapEdge, MapNode
from gateway.admin.pulse import Flow, History, Lag, Pulse, UpstreamNow, UpstreamPast
from gateway.admin.readers import Connections, Consumers, ConsumerShown, UpstreamList, UpstreamShown
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


def history(first: int, rates: list[float], *, backlog: list[int] | None = None, circuit: str = "closed") -> History:
    """A sample every five seconds from `first` on."""
    count = len(rates)
    past = UpstreamPast("far", [circuit] * count, [circuit == "closed"] * count, [0.1] * count, [(first, circuit)])
    lags = [Lag("forward", "f", "t", 0, backlog)] if backlog is not None else []
    return History([first + 5_000 * number for number in range(count)], rates, rates, lags, [past])


def test_histories_are_joined_by_their_times() -> None:
    """Each process looks at moments of its own, and one has looked for longer than the other."""
    own, other = history(0, [1.0, 2.0, 3.0], backlog=[5, 4, 3]), history(6_900, [10.0, 20.0], circuit="open")
    joined = join_histories([[own], [other]])
    assert joined.times_ms == own.times_ms
    assert joined.received == [1.0, 12.0, 23.0]
    assert [one.backlog for one in joined.lags] == [[5, 4, 3]]
    (far,) = joined.upstreams
    assert (far.circuit, far.connected) == (["closed", "open", "open"], [True, True, True])
    assert far.problems == [(0, "closed"), (6_900, "open")]
    # the moments are the first one's, unless somebody has been there for longer
    assert join_histories([[other], [own]]).times_ms == other.times_ms
    assert join_histories([[other], [history(0, [1.0, 2.0, 3.0, 4.0])]]).received == [1.0, 12.0, 23.0, 4.0]
    assert join_histories([[History([], [], [], [], [])], [own]]).received == [1.0, 2.0, 3.0]
    assert join_histories([[History([], [], [], [], [])]]).times_ms == []


def test_a_process_that_was_started_again_keeps_its_past() -> None:
    own = history(0, [1.0] * 10)
    lives: list[History] = []
    for found in (history(0, [2.0, 2.0]), history(0, [2.0, 2.0, 2.0])):  # one life, that goes on
        lives = list(lives_of(lives, found))
    assert len(lives) == 1
    lives = list(lives_of(lives, History([], [], [], [], [])))  # it has died, and has seen nothing yet
    lives = list(lives_of(lives, history(30_000, [7.0] * 4)))
    assert join_histories([[own], lives]).received == [3.0, 3.0, 3.0, 1.0, 1.0, 1.0, 8.0, 8.0, 8.0, 8.0]
    for number in range(5):
        lives = list(lives_of(lives, history(100_000 * (number + 1), [1.0])))
    assert len(lives) == MOST_LIVES


def test_an_upstream_is_up_if_it_is_for_one_and_its_circuit_that_of_the_worst() -> None:
    def shown(circuit: str, away: float | None, backlog: int, problem: str) -> UpstreamList:
        connected = away is None
        return UpstreamList(
            [
                UpstreamShown(
                    "far", "flymq", ["h:1"], 0, connected, circuit, 1, backlog, away, problem, "", 0.2, [(backlog, "p")]
                )
            ]
        )

    (one,) = join_upstreams(shown("closed", None, 3, ""), {1: shown("open", 7.0, 4, "timed out")}).upstreams
    assert (one.connected, one.circuit, one.backlog, one.in_flight) == (True, "open", 7, 2)
    assert (one.away_seconds, one.problem, one.problems) == (None, "timed out", [(3, "p"), (4, "p")])
    (one,) = join_upstreams(shown("trial", 3.0, 0, "x"), {1: shown("closed", 7.0, 0, "")}).upstreams
    assert (one.connected, one.circuit, one.away_seconds) == (False, "trial", 7.0)


def test_the_map_has_the_arrows_of_all_to_places_that_are_on_it() -> None:
    def drawn(*edges: tuple[str, str]) -> GatewayMap:
        nodes = [MapNode(one, "route", one, one) for one in ("a", "b", "c")]
        return GatewayMap(nodes, [MapEdge(source, target, "read") for source, target in edges])

    found = join_maps(drawn(("a", "b")), {1: drawn(("a", "b"), ("b", "c"), ("a", "not-shown"))})
    assert sorted(one.id for one in found.edges) == ["a>b", "b>c"]
