"""What a benchmark says, as values: quantiles, rounds and their spread, ratios to the bare loops of the same round. Pure.

A round is one run of a workload against one target. Rounds of all targets take turns, and who begins moves on by one each time:
what changes on a machine while it is measured then changes for all of them. Ratios are of one round each; what is printed of
anything is its median over the rounds, and from where to where it went.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
PRINTED = ("p50", "p99", "p99.9")
"""Those that have a column."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What a client of a bench sends and reads, and how."""

    messages: int = 100_000
    """A round."""
    size: int = 100
    """Bytes of each."""
    batch: int = 100
    """Messages in a request."""
    window: int = 8
    """Requests under way on a connection."""
    connections: int = 1
    rate: float | None = None
    """Requests a second on all connections together, sent when they are due whatever became of those before; without one each
    request waits for an answer."""
    readers: int = 1
    """Who read all of it."""
    late: bool = False
    """They begin when everything is published."""

    @property
    def requests(self) -> int:
        return sum(-(-count // self.batch) for count in self.shares)

    @property
    def shares(self) -> Sequence[int]:
        """Messages of each connection."""
        return [
            self.messages // self.connections + (n < self.messages % self.connections) for n in range(self.connections)
        ]


WORKLOADS: Mapping[str, Workload] = {
    "one": Workload(messages=3_000, size=1024, batch=1, window=1),
    "sixteen": Workload(messages=8_000, size=1024, batch=1, window=1, connections=16),
    "window": Workload(messages=20_000, size=100, batch=1, window=64),
    "batches": Workload(messages=20_000, size=100, batch=100, window=4),
    "steady": Workload(messages=4_000, size=1024, batch=1, window=64, connections=4, rate=500.0),
    "fan-out": Workload(messages=5_000, size=100, batch=10, window=4, readers=10),
    "replay": Workload(messages=200_000, size=100, batch=1_000, window=4, late=True),
}
"""Those that have a name. `one`, one at a time, is what a client of old does; `steady` is an open loop far below what a broker
can: there its latency is what its users have. The last two are about reading.
"""


MEASURED = [name for name, one in WORKLOADS.items() if one.readers == 1 and not one.late]
"""Those of publishers alone: all brokers have them."""


class RoundSpread(msgspec.Struct, frozen=True):
    """A figure of several rounds: the one in the middle, and how far the others are from it."""

    median: float
    least: float
    most: float


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a workload against one target has come to."""

    requests: int
    messages: int
    """Those that were taken."""
    seconds: float
    milliseconds: Mapping[str, float]
    """Latency of requests, by quantile: from when one was sent, in an open loop from when it was due."""
    processor_seconds: float | None = None
    """Of the server; None where it is not on this machine, or nobody said which process it is."""
    delivered: int = 0
    """Messages that readers got, all of them together."""
    delivered_seconds: float = 0.0
    """From the first request, or from when late readers began, to the last of them."""
    delivery_milliseconds: Mapping[str, float] = {}
    """From when a message was sent to when a reader has it, by quantile; not of readers that begin late."""
    checked: Mapping[str, int] = {}
    """What the readers found: lost, damaged, repeated, disordered."""

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def delivered_per_second(self) -> float:
        return self.delivered / self.delivered_seconds if self.delivered_seconds else 0.0

    @property
    def processor_us(self) -> float | None:
        """Of the server, for each request."""
        return None if self.processor_seconds is None else self.processor_seconds / self.requests * 1e6


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A target and its rounds."""

    name: str
    mark: bool
    """It is a bare loop, to measure the others by."""
    rounds: Sequence[Round]

    @property
    def per_second(self) -> RoundSpread:
        return spread([one.per_second for one in self.rounds])

    @property
    def processor_us(self) -> RoundSpread | None:
        found = [one.processor_us for one in self.rounds if one.processor_us is not None]
        return spread(found) if found else None

    @property
    def delivered_per_second(self) -> RoundSpread | None:
        found = [one.delivered_per_second for one in self.rounds if one.delivered]
        return spread(found) if found else None

    def delivery(self, quantile: str) -> RoundSpread | None:
        found = [one.delivery_milliseconds[quantile] for one in self.rounds if one.delivery_milliseconds]
        return spread(found) if found else None

    def milliseconds(self, quantile: str) -> RoundSpread:
        return spread([one.milliseconds[quantile] for one in self.rounds])


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run of the bench found."""

    workload: str
    plan: Workload
    machine: Mapping[str, str]
    targets: Sequence[Measured]

    def ratios(self, target: Measured) -> Mapping[str, RoundSpread]:
        """The server's processor time for a request, as a multiple of each bare loop's in the same round."""
        found: dict[str, RoundSpread] = {}
        for mark in self.targets:
            pairs = [
                (one.processor_us, other.processor_us) for one, other in zip(target.rounds, mark.rounds, strict=False)
            ]
            known = [mine / least for mine, least in pairs if mine is not None and least]
            if mark.mark and mark is not target and known:
                found[mark.name] = spread(known)
        return found


def quantile(ascending: Sequence[float], share: float) -> float:
    """The nearest rank: the least of the values that at least this share of them does not exceed."""
    return ascending[max(0, math.ceil(share * len(ascending) - 1e-9) - 1)]


def quantiles(latencies: Sequence[float]) -> Mapping[str, float]:
    """Seconds in, milliseconds out."""
    ascending = sorted(latencies)
    return {name: round(quantile(ascending, share) * 1e3, 4) for name, share in QUANTILES.items()} if ascending else {}


def spread(values: Sequence[float]) -> RoundSpread:
    ascending = sorted(values)
    middle = len(ascending) // 2
    median = ascending[middle] if len(ascending) % 2 else (ascending[middle - 1] + ascending[middle]) / 2
    return RoundSpread(median, ascending[0], ascending[-1])


def turns(targets: int, rounds: int) -> Iterator[Sequence[int]]:
    """Who has its turn when: all in each round, and another one first each time."""
    for number in range(rounds):
        yield [(number + place) % targets for place in range(targets)]


class Schedule:
    """When the requests of one connection of an open loop are due. Late or not, the next one is due when it is. Connections take
    turns: all together are even.
    """

    def __init__(self, plan: Workload, number: int, begins: float) -> None:
        assert plan.rate is not None
        self._begins = begins + number / plan.rate
        self._step = plan.connections / plan.rate
        self._left = -(-plan.shares[number] // plan.batch)
        self._next = 0

    def take(self) -> float | None:
        """When the next request is due; None behind the last."""
        if self._next >= self._left:
            return None
        due = self._begins + self._next * self._step
        self._next += 1
        return due


class TargetSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the rounds of a target come to, with everything that is worked out of them."""

    name: str
    per_second: RoundSpread
    milliseconds: Mapping[str, RoundSpread]
    processor_us: RoundSpread | None
    ratios: Mapping[str, RoundSpread]
    delivered_per_second: RoundSpread | None
    delivery_milliseconds: Mapping[str, RoundSpread]


def as_json(found: Comparison) -> bytes:
    """All rounds, and what they come to beside them."""
    summary = [
        TargetSummary(
            name=one.name,
            per_second=one.per_second,
            milliseconds={name: one.milliseconds(name) for name in QUANTILES},
            processor_us=one.processor_us,
            ratios=found.ratios(one),
            delivered_per_second=one.delivered_per_second,
            delivery_milliseconds={name: each for name in QUANTILES if (each := one.delivery(name)) is not None},
        )
        for one in found.targets
    ]
    return msgspec.json.encode({**msgspec.structs.asdict(found), "summary": summary})


# --- for people ---


def table(found: Comparison) -> str:
    """A row for each target."""
    marks = [one.name for one in found.targets if one.mark]
    columns: list[tuple[str, Callable[[Measured], RoundSpread | None], int]] = [
        ("messages/s", lambda one: one.per_second, 0),
        *((f"{name} ms", partial(Measured.milliseconds, quantile=name), 3) for name in PRINTED),
        ("server µs", lambda one: one.processor_us, 0),
        *((f"x {name}", lambda one, name=name: found.ratios(one).get(name), 2) for name in marks),
        ("read/s", lambda one: one.delivered_per_second, 0),
        *((f"read {name} ms", partial(Measured.delivery, quantile=name), 3) for name in PRINTED),
    ]
    cells = [[value(one) for _head, value, _digits in columns] for one in found.targets]
    # what nobody has has no column
    kept = [n for n in range(len(columns)) if any(row[n] is not None for row in cells)]
    rows = [["", *(columns[n][0] for n in kept)]]
    for one, row in zip(found.targets, cells, strict=True):
        rows.append([one.name, *(shown(row[n], columns[n][2]) for n in kept)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(wide) for cell, wide in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in [describe(found), "", *lines])


def describe(found: Comparison) -> str:
    plan = found.plan
    loop = f"open loop, {plan.rate:,.0f} requests a second" if plan.rate else f"closed loop, window {plan.window}"
    rounds = max((len(one.rounds) for one in found.targets), default=0)
    readers = (
        ""
        if plan.readers == 1 and not plan.late
        else f", {plan.readers} {'late ' * plan.late}reader{'s' * (plan.readers != 1)}"
    )
    return (
        f"{found.workload}: {plan.messages:,} messages of {plan.size:,} B, {plan.batch:,} in a request, {plan.connections} "
        f"connection{'s' * (plan.connections != 1)}, {loop}{readers}; {rounds} round{'s' * (rounds != 1)} each, in turns"
    )


def shown(one: RoundSpread | None, digits: int) -> str:
    """The median, and from where to where it went if there was more than one."""
    if one is None:
        return "–"
    median, least, most = (f"{value:,.{digits}f}" for value in (one.median, one.least, one.most))
    return median if least == most else f"{median} ({least}–{most})"
