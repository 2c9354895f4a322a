"""The gateway's pulse: what flows where, who is up, whether every message is accounted for; once a second while somebody looks.

    counters ─► two samples a second apart ─► Pulse ─► every follower (the console, `gateway top`)
                                                └ every fifth is kept for a while: lag and upstreams over time

Nothing is sampled while nobody follows, but for some minutes behind the last one, so that a page that is loaded again still has
its past. A sample costs what there are series of, whatever the traffic is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice

import attrs
import msgspec
import trio

from gateway.admin.access import Role
from gateway.admin.inside import Inside
from gateway.admin.operation import EVENTS, Asked, Events, Nothing, operation
from gateway.bridges.breaker import Circuit
from gateway.bridges.pool import UpstreamPool
from gateway.observe import metrics as m
from gateway.slices import slices

EVERY = 1.0
ACCOUNTED_EVERY = 5
"""Samples between two looks at the accounts, and between two that are kept."""
KEPT = 180
LINGER = 900.0
"""Seconds for which it goes on when nobody looks any more."""
MOST_FLOWS = 500
MOST_LAGS = 100
"""Consumers whose lag is kept, and groups; those furthest behind."""
MOST_GROUPS = 2_000
"""Positions of groups among which those are looked for."""
MOST_WRONG = 20
"""Accounts with something unaccounted for that are named."""
MOST_PROBLEMS = 20
"""Problems of an upstream that are remembered."""


class Flow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Along one arrow of the map."""

    edge: str
    messages: float = 0.0
    """Messages a second."""
    size: float = 0.0
    """Bytes a second."""


class UpstreamNow(msgspec.Struct, frozen=True):
    """A broker elsewhere, as far as can be seen from here."""

    name: str
    connected: bool
    circuit: str
    in_flight: int
    backlog: int
    problem: str = ""
    latency: float | None = None
    """Seconds an answer took, over the last of them; None where none came while somebody looked."""


class Pulse(msgspec.Struct, frozen=True):
    """One second of a gateway's life."""

    time_ms: int
    ready: bool
    phase: str
    problems: Sequence[str]
    waiting: Sequence[str]
    unaccounted: int
    """The sum of what is amiss in every account; 0 means that every message is accounted for."""
    wrong: Sequence[str]
    """The accounts that do not add up."""
    accounts: int
    received: Flow
    delivered: Flow
    flows: Sequence[Flow]
    refused: Mapping[str, float]
    """Messages a second, by route."""
    dead_lettered: Mapping[str, float]
    held_back: Mapping[str, float]
    """How often a second peers of a listener were not read from, because a bound was reached."""
    connections: Mapping[str, int]
    upstreams: Sequence[UpstreamNow]
    topics: int
    backlog: int
    """Messages that durable consumers have not settled."""
    publish_seconds: Sequence[float]
    """In which half, 95 and 99 of 100 publishes are answered."""


class Lag(msgspec.Struct, frozen=True):
    """How many messages a consumer was behind, at each moment of the history."""

    kind: str
    name: str
    topic: str
    partition: int
    backlog: Sequence[int]


class UpstreamPast(msgspec.Struct, frozen=True):
    name: str
    circuit: Sequence[str]
    connected: Sequence[bool]
    latency: Sequence[float | None]
    problems: Sequence[tuple[int, str]]
    """(milliseconds since the epoch, what was wrong), the newest last."""


class History(msgspec.Struct, frozen=True):
    """What was seen while somebody looked, the newest last."""

    times_ms: Sequence[int]
    received: Sequence[float]
    delivered: Sequence[float]
    lags: Sequence[Lag]
    upstreams: Sequence[UpstreamPast]


@attrs.frozen
class _Counts:
    at: float
    received: Mapping[tuple[str, ...], float]
    received_bytes: Mapping[tuple[str, ...], float]
    stored: Mapping[tuple[str, ...], float]
    stored_bytes: Mapping[tuple[str, ...], float]
    delivered: Mapping[tuple[str, ...], float]
    delivered_bytes: Mapping[tuple[str, ...], float]
    refused: Mapping[tuple[str, ...], float]
    dead_lettered: Mapping[tuple[str, ...], float]
    limits: Mapping[tuple[str, ...], float]


@attrs.frozen
class _Accounted:
    """What the accounts of all doors and consumers come to."""

    wrong: Sequence[str]
    unaccounted: int
    accounts: int
    backlog: int
    lags: Mapping[tuple[str, str, str, int], int]
    """Of consumers and of groups, those furthest behind."""


@attrs.frozen
class _Kept:
    pulse: Pulse
    lags: Mapping[tuple[str, str, str, int], int]


_FAMILIES = (
    m.RECEIVED_MESSAGES,
    m.RECEIVED_BYTES,
    m.STORED_MESSAGES,
    m.STORED_BYTES,
    m.DELIVERED_MESSAGES,
    m.DELIVERED_BYTES,
    m.REFUSED_MESSAGES,
    m.DEAD_LETTERED_MESSAGES,
    m.LIMIT_HITS,
)


class Pulses:
    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._wanted = trio.Event()
        self._hurry = trio.Event()
        """Somebody has come who does not want to wait."""
        self._fresh = trio.Event()
        self._followers = 0
        self._last: _Counts | None = None
        self._number = 0
        self._accounted: _Accounted | None = None
        self._problems: dict[str, deque[tuple[int, str]]] = {}
        self._kept: deque[_Kept] = deque(maxlen=KEPT)
        self.latest: Pulse | None = None

    async def run(self) -> None:
        """Take one a second while they are wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            idle_since = trio.current_time()
            # while nobody looks nothing is counted; it goes on for a while, so that a page that is loaded again has its history
            while self._followers or trio.current_time() < idle_since + LINGER:
                if self._followers:
                    idle_since = trio.current_time()
                await self._take()
                self._hurry = trio.Event()
                if self._followers:
                    await trio.sleep(EVERY)
                else:
                    with trio.move_on_after(EVERY * ACCOUNTED_EVERY):
                        await self._hurry.wait()
            self._wanted = trio.Event()
            # rates are differences: between two looks that lie far apart they would say nothing about now
            self._last = None
            # measuring each answer of an upstream costs a clock: nobody wants to know any more
            for pool in self._pools():
                pool.timed = False

    @operation("GET", "/v1/pulse", Role.READ)
    async def pulse(self, asked: Asked[Nothing, None]) -> Pulse:
        """What flows where, now."""
        if self.latest is None or not self._followers:
            return await self._next()
        return self.latest

    @operation("GET", "/v1/events", Role.READ, media=(EVENTS,), event=Pulse)
    async def events(self, asked: Asked[Nothing, None]) -> Events:
        """The same, once a second from now on."""
        return Events(self._followed())

    @operation("GET", "/v1/history", Role.READ)
    async def history(self, asked: Asked[Nothing, None]) -> History:
        """Rates, the lag of consumers and the state of upstreams since somebody looks."""
        self._wanted.set()
        kept = list(self._kept)
        last = kept[-1].lags if kept else {}
        furthest = sorted(last, key=lambda one: -last[one])
        names = [one.name for one in kept[-1].pulse.upstreams] if kept else []
        return History(
            [one.pulse.time_ms for one in kept],
            [one.pulse.received.messages for one in kept],
            [one.pulse.delivered.messages for one in kept],
            [Lag(*one, [moment.lags.get(one, 0) for moment in kept]) for one in furthest],
            [self._past(name, kept) for name in names],
        )

    @property
    def followed(self) -> bool:
        return self._followers > 0

    def seen_problems(self, upstream: str) -> Sequence[tuple[int, str]]:
        return list(self._problems.get(upstream, ()))

    # --- inside ---

    async def _followed(self) -> AsyncGenerator[tuple[str, bytes] | None]:
        self._followers += 1
        self._wanted.set()
        try:
            while True:
                pulse = await self._next()
                yield "pulse", msgspec.json.encode(pulse)
        finally:
            self._followers -= 1

    async def _next(self) -> Pulse:
        self._followers += 1
        self._wanted.set()
        self._hurry.set()
        try:
            await self._fresh.wait()
        finally:
            self._followers -= 1
        assert self.latest is not None
        return self.latest

    def _past(self, name: str, kept: Sequence[_Kept]) -> UpstreamPast:
        seen = [{one.name: one for one in moment.pulse.upstreams}.get(name) for moment in kept]
        return UpstreamPast(
            name,
            [one.circuit if one is not None else "" for one in seen],
            [one is not None and one.connected for one in seen],
            [one.latency if one is not None else None for one in seen],
            self.seen_problems(name),
        )

    def _pools(self) -> Iterator[UpstreamPool]:
        yield from self._inside.bridges.upstreams.first.values()

    async def _take(self) -> None:
        # the accounts of every consumer cost as much as all the rest: they are taken more rarely
        accounted = self._accounted
        if accounted is None or self._number % ACCOUNTED_EVERY == 0:
            accounted = self._accounted = await self._account()
        inside = self._inside
        counts = _Counts(trio.current_time(), *[dict(one) for one in inside.recorder.counted(*_FAMILIES)])
        before, self._last = self._last, counts
        problems = inside.health.problems()
        flows = list(_flows(before or counts, counts))
        self.latest = pulse = Pulse(
            time_ms=int(inside.now() * 1000),
            ready=not problems,
            phase=inside.health.phase.value,
            problems=problems,
            waiting=inside.health.waiting(),
            unaccounted=accounted.unaccounted,
            wrong=accounted.wrong,
            accounts=accounted.accounts,
            received=_sum("received", [one for one in flows if one.edge.startswith("listener:")]),
            delivered=_sum("delivered", [one for one in flows if one.edge.startswith("topics:")]),
            flows=sorted(flows, key=lambda one: -one.messages)[:MOST_FLOWS],
            refused=_by_first(before or counts, counts, "refused"),
            dead_lettered=_by_first(before or counts, counts, "dead_lettered"),
            held_back=_by_first(before or counts, counts, "limits"),
            connections={
                name: len(one.drivers) for name, one in zip(inside.config.listeners, inside.listeners, strict=False)
            },
            upstreams=[self._upstream(pool) for pool in self._pools()],
            topics=len(inside.store.topics),
            backlog=accounted.backlog,
            publish_seconds=inside.recorder.totals().publishes,
        )
        if self._number % ACCOUNTED_EVERY == 0:
            self._kept.append(_Kept(pulse, accounted.lags))
        self._number += 1
        fresh, self._fresh = self._fresh, trio.Event()
        fresh.set()

    async def _account(self) -> _Accounted:
        # of every door and every consumer, of which there may be tens of thousands
        house = self._inside.house
        snapshot = house.snapshot()
        wrong = [f"route {one.route or '(none)'}: {one.unaccounted}" for one in snapshot.doors if one.unaccounted]
        accounts, unaccounted = len(snapshot.doors), sum(abs(one.unaccounted) for one in snapshot.doors)
        backlog, behind = 0, list[tuple[int, str, str, str, int]]()
        async for consumers in slices(snapshot.consumers):
            for one in consumers:
                backlog += one.backlog
                if amiss := one.unaccounted:
                    unaccounted += abs(amiss)
                    wrong.append(f"{one.kind} {one.name} of {one.topic}/{one.partition}: {amiss}")
            accounts += len(consumers)
            lags = ((one.backlog, one.kind, one.name, one.topic, one.partition) for one in consumers)
            behind = nlargest(MOST_LAGS, (*behind, *lags))
        groups = (
            (one.lag, "group", one.group, one.topic, one.partition)
            for one in islice(house.groups.positions(), MOST_GROUPS)
        )
        lag_of = {
            (kind, name, topic, partition): lag
            for lag, kind, name, topic, partition in (*behind, *nlargest(MOST_LAGS, groups))
        }
        return _Accounted(wrong[:MOST_WRONG], unaccounted, accounts, backlog, lag_of)

    def _upstream(self, pool: UpstreamPool) -> UpstreamNow:
        pool.timed = True
        problem = pool.refused or (
            pool.problem if not pool.connected or pool.breaker.state is not Circuit.CLOSED else ""
        )
        if problem:
            seen = self._problems.setdefault(pool.name, deque(maxlen=MOST_PROBLEMS))
            if not seen or seen[-1][1] != problem:
                seen.append((int(self._inside.now() * 1000), problem))
        return UpstreamNow(
            pool.name,
            pool.connected,
            pool.breaker.state.value,
            pool.in_flight,
            self._inside.bridges.forwards.backlog(pool),
            problem,
            pool.latency,
        )


def _flows(before: _Counts, now: _Counts) -> Iterator[Flow]:
    seconds = max(now.at - before.at, 1e-3)
    for edge, messages, size in (
        ("listener:{1}>route:{0}", "received", "received_bytes"),
        ("route:{0}>topics:{0}", "stored", "stored_bytes"),
        ("topics:{0}>target:{1}", "delivered", "delivered_bytes"),
    ):
        counted, bytes_then, bytes_now = getattr(now, messages), getattr(before, size), getattr(now, size)
        then = getattr(before, messages)
        for labels, value in counted.items():
            if not value:
                continue
            came = (value - then.get(labels, 0)) / seconds
            weight = (bytes_now.get(labels, 0) - bytes_then.get(labels, 0)) / seconds
            yield Flow(edge.format(*labels), round(came, 1), round(weight, 1))


def _by_first(before: _Counts, now: _Counts, what: str) -> Mapping[str, float]:
    seconds = max(now.at - before.at, 1e-3)
    then, found = getattr(before, what), Counter[str]()
    for labels, value in getattr(now, what).items():
        if came := value - then.get(labels, 0):
            found[labels[0]] += came / seconds
    return {name: round(value, 1) for name, value in found.items()}


def _sum(name: str, flows: Sequence[Flow]) -> Flow:
    return Flow(name, round(sum(one.messages for one in flows), 1), round(sum(one.size for one in flows), 1))
