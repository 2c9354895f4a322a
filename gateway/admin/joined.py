"""The API of a gateway that is several processes: what each says of itself is asked of all, and is one answer.

    browser, CLI ──► worker 0 ─┬─► its own operation ────────────────┐
                               └─► the same of every other worker ───┴─► joined ─► the answer
                                   (Unix sockets nobody else reaches)

What is about the log is the same in every process and is asked of none; a consumer is put elsewhere by whoever has it, to whom
gateways pass that on by themselves. An operation knows nothing of this: it answers for its own process, and its join is a
function of answers. A process that is being started again is left out, and said to be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar
from urllib.parse import urlencode

import attrs
import msgspec
import trio

from gateway.admin.accounts import MessageAccounts
from gateway.admin.app import RELOAD
from gateway.admin.operation import ApiOperation, Asked, Events
from gateway.admin.overview import GatewayMap
from gateway.admin.pulse import ACCOUNTED_EVERY, EVERY, Flow, History, Lag, Pulse, UpstreamNow, UpstreamPast
from gateway.admin.readers import MOST, Connections, Consumers, ConsumersAsked, UpstreamList
from gateway.admin.tap import TapEvent, TapReport
from gateway.bridges.breaker import Circuit
from gateway.errors import NotFound
from gateway.observe.workers import Others
from gateway.recorder import ConnectionSnapshot
from gateway.transport.workers import MOST as MOST_WORKERS

T = TypeVar("T")
WORST = (Circuit.OPEN.value, Circuit.TRIAL.value, Circuit.CLOSED.value, "")
APART_MS = int(600 * EVERY * ACCOUNTED_EVERY)
"""Of two processes that both look all the time, one sample is at most half the way from the other's next, and a little more."""
MOST_LIVES = 3
"""Of one process, whose histories are joined: more are longer ago than is shown, unless it cannot stay up."""
EVENTS_KEPT = 64
"""Of all processes together, until whoever follows takes them; those that find no room wait where they are."""

Call = Callable[[Asked[Any, Any]], Awaitable[Any]]


def joined(operations: Sequence[ApiOperation], others: Others) -> Sequence[ApiOperation]:
    """The same operations, of all processes."""
    every = _Everywhere(others)
    ways: Mapping[str, Callable[[ApiOperation], Call]] = {
        "pulse": every.pulse,
        "history": every.histories,
        "audit": every.answers(join_accounts),
        "map": every.answers(join_maps),
        "upstreams": every.answers(join_upstreams),
        "events": every.pulses,
        "tap": every.taps,
        "connections": every.connections,
        "close_connection": every.closing,
        "consumers": every.consumers,
        "apply": every.applying,
    }
    return [attrs.evolve(one, call=ways[one.name](one)) if one.name in ways else one for one in operations]


class _Everywhere:
    """Asks all processes."""

    def __init__(self, others: Others) -> None:
        self._others = others
        self._pasts: dict[int, Sequence[History]] = {}
        """What each of the others has said last: one that dies takes its past along."""

    async def _theirs(self, path: str, answer: type[T], **query: object) -> Mapping[int, T]:
        found = await self._others.ask("GET", _target(path, query))
        return {number: msgspec.json.decode(body, type=answer) for number, body in found.items()}

    def answers(self, join: Callable[[Any, Mapping[int, Any]], Any]) -> Callable[[ApiOperation], Call]:
        def way(one: ApiOperation) -> Call:
            async def call(asked: Asked[Any, Any]) -> Any:
                own = await one.call(asked)
                return join(own, await self._theirs(one.path, one.answer))

            return call

        return way

    def histories(self, one: ApiOperation) -> Call:
        async def call(asked: Asked[Any, Any]) -> History:
            own = await one.call(asked)
            for number, found in (await self._theirs(one.path, History)).items():
                self._pasts[number] = lives_of(self._pasts.get(number, ()), found)
            return join_histories([[own], *self._pasts.values()])

        return call

    async def _pulse(self, own: Pulse) -> Pulse:
        theirs = await self._theirs("/v1/pulse", Pulse)
        return join_pulses(own, theirs, [one for one in self._others.numbers if one not in theirs])

    def pulse(self, one: ApiOperation) -> Call:
        async def call(asked: Asked[Any, Any]) -> Pulse:
            return await self._pulse(await one.call(asked))

        return call

    def pulses(self, one: ApiOperation) -> Call:
        async def follow(own: AsyncGenerator[tuple[str, bytes] | None]) -> AsyncGenerator[tuple[str, bytes] | None]:
            async with aclosing(own) as events:
                async for event in events:
                    if event is not None:
                        pulse = await self._pulse(msgspec.json.decode(event[1], type=Pulse))
                        yield event[0], msgspec.json.encode(pulse)

        async def call(asked: Asked[Any, Any]) -> Events:
            return Events(follow((await one.call(asked)).events))

        return call

    def taps(self, one: ApiOperation) -> Call:
        async def call(asked: Asked[Any, Any]) -> Events:
            own: Events = await one.call(asked)  # what is wrong with the question is said here
            target = _target(one.path, msgspec.to_builtins(asked.query))
            return Events(_merged(own.events, [self._others.follow(number, target) for number in self._others.numbers]))

        return call

    def connections(self, one: ApiOperation) -> Call:
        """An id is that of its process, and the process."""

        async def call(asked: Asked[Any, Any]) -> Connections:
            query = asked.query
            own = await one.call(
                attrs.evolve(asked, query=msgspec.structs.replace(query, after=_behind(query.after, 0)))
            )
            pages = {0: own}
            for number in self._others.numbers:
                after = _behind(query.after, number)
                more = {} if after is None else {"after": after}
                found = await self._others.ask(
                    "GET", _target(one.path, {"search": query.search, "limit": query.limit, **more}), only=number
                )
                pages |= {each: msgspec.json.decode(body, type=Connections) for each, body in found.items()}
            return join_connections(pages, query.limit)

        return call

    def closing(self, one: ApiOperation) -> Call:
        async def call(asked: Asked[Any, Any]) -> Any:
            number, worker = divmod(asked.query.id, MOST_WORKERS)
            if not worker:
                found = await one.call(attrs.evolve(asked, query=msgspec.structs.replace(asked.query, id=number)))
                return msgspec.structs.replace(found, closed=attrs.evolve(found.closed, id=asked.query.id))
            answers = await self._others.ask("DELETE", _target(one.path, {"id": number}), only=worker)
            if worker not in answers:
                raise NotFound(f"there is no connection {asked.query.id}: it may have ended")
            found = msgspec.json.decode(answers[worker], type=one.answer)
            return msgspec.structs.replace(found, closed=attrs.evolve(found.closed, id=asked.query.id))

        return call

    def consumers(self, one: ApiOperation) -> Call:
        async def call(asked: Asked[ConsumersAsked, Any]) -> Consumers:
            query = asked.query
            parts: dict[int, list[Consumers]] = {}
            for skip in range(0, query.skip + query.limit, MOST):  # whose they are is not known before they are sorted
                page = msgspec.structs.replace(query, skip=skip, limit=MOST)
                own = await one.call(attrs.evolve(asked, query=page))
                theirs = await self._theirs(one.path, Consumers, search=query.search, skip=skip, limit=MOST)
                for number, part in {0: own, **theirs}.items():
                    parts.setdefault(number, []).append(part)
            return join_consumers(list(parts.values()), query.skip, query.limit)

        return call

    def applying(self, one: ApiOperation) -> Call:
        """The file is everybody's: whoever did not write it reads it again."""

        async def call(asked: Asked[Any, Any]) -> Any:
            found = await one.call(asked)
            await self._others.ask("POST", RELOAD)
            return found

        return call


def _target(path: str, query: Mapping[str, object]) -> str:
    given = {
        name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items() if value != ""
    }
    return f"{path}?{urlencode({name: value for name, value in given.items() if value is not None})}"


# --- joining; pure ---


def join_pulses(own: Pulse, theirs: Mapping[int, Pulse], silent: Sequence[int] = ()) -> Pulse:
    """`silent`: who does not answer, and is being started again."""
    every = [own, *theirs.values()]
    flows: dict[str, Flow] = {}
    for flow in (flow for one in every for flow in one.flows):
        flows[flow.edge] = _together(flow.edge, [flow, *([flows[flow.edge]] if flow.edge in flows else [])])
    problems = [*own.problems, *(_named(number, text) for number, one in theirs.items() for text in one.problems)]
    problems += [_named(number, "does not answer") for number in silent]
    upstreams: dict[str, list[UpstreamNow]] = {}
    for upstream in (upstream for one in every for upstream in one.upstreams):
        upstreams.setdefault(upstream.name, []).append(upstream)
    return msgspec.structs.replace(
        own,
        ready=all(one.ready for one in every) and not silent,
        problems=problems,
        waiting=list(dict.fromkeys(text for one in every for text in one.waiting)),
        unaccounted=sum(one.unaccounted for one in every),
        wrong=[*own.wrong, *(_named(number, text) for number, one in theirs.items() for text in one.wrong)],
        accounts=sum(one.accounts for one in every),
        received=_together(own.received.edge, [one.received for one in every]),
        delivered=_together(own.delivered.edge, [one.delivered for one in every]),
        flows=sorted(flows.values(), key=lambda one: -one.messages),
        refused=_added(one.refused for one in every),
        dead_lettered=_added(one.dead_lettered for one in every),
        held_back=_added(one.held_back for one in every),
        connections=_added(one.connections for one in every),
        upstreams=[_upstream(found) for found in upstreams.values()],
        topics=max(one.topics for one in every),
        backlog=sum(one.backlog for one in every),
        publish_seconds=[max(each) for each in zip(*(one.publish_seconds for one in every), strict=True)],
    )


def join_histories(processes: Sequence[Sequence[History]]) -> History:
    """At the moments of the first process, or of one that has looked for longer, what each saw about then. Each looks by itself;
    of one that was started again there are several histories, the newest first.
    """
    own, longest = processes[0][0].times_ms, max((one.times_ms for lives in processes for one in lives), key=len)
    times = own if len(own) + 1 >= len(longest) else longest
    seen = [_about(times, lives) for lives in processes]
    lags: dict[tuple[str, str, str, int], list[int]] = {}
    for then in seen:
        for moment, found in enumerate(then):
            for lag in found[0].lags if found is not None else ():
                # a consumer is read by one process at a time, whichever that is
                row = lags.setdefault((lag.kind, lag.name, lag.topic, lag.partition), [0] * len(times))
                row[moment] = max(row[moment], lag.backlog[found[1]] if found is not None else 0)
    pasts = [{past.name: past for past in one.upstreams} for lives in processes for one in lives]
    moments = [[found for found in each if found is not None] for each in zip(*seen, strict=True)]
    return History(
        times,
        [round(sum(one.received[index] for one, index in each), 1) for each in moments],
        [round(sum(one.delivered[index] for one, index in each), 1) for each in moments],
        [Lag(*place, backlog=row) for place, row in sorted(lags.items(), key=lambda found: -found[1][-1])],
        [_past(name, moments, pasts) for name in dict.fromkeys(name for each in pasts for name in each)],
    )


def lives_of(known: Sequence[History], found: History) -> Sequence[History]:
    """The histories of one process, the newest first. `found`: what it says now, of itself alone if it was started again."""
    if known and (not found.times_ms or found.times_ms[0] <= known[0].times_ms[-1]):
        known = known[1:] if found.times_ms else known
    return [found, *known][:MOST_LIVES] if found.times_ms else known


def _about(times: Sequence[int], lives: Sequence[History]) -> Sequence[tuple[History, int] | None]:
    # for each moment where the sample is that lies nearest to it; None where there is none near
    found: list[tuple[History, int] | None] = [None] * len(times)
    for one in lives:
        for moment, at in enumerate(times):
            right = bisect_left(one.times_ms, at)
            near = [index for index in (right - 1, right) if 0 <= index < len(one.times_ms)]
            index = min(near, key=lambda index: abs(one.times_ms[index] - at), default=None)
            if found[moment] is None and index is not None and abs(one.times_ms[index] - at) <= APART_MS:
                found[moment] = one, index
    return found


def _past(
    name: str, moments: Sequence[Sequence[tuple[History, int]]], pasts: Iterable[Mapping[str, UpstreamPast]]
) -> UpstreamPast:
    known = [each[name] for each in pasts if name in each]
    found = [[(past, index) for one, index in each for past in one.upstreams if past.name == name] for each in moments]
    return UpstreamPast(
        name,
        [min((past.circuit[index] for past, index in each), key=WORST.index, default="") for each in found],
        [any(past.connected[index] for past, index in each) for each in found],
        [_mean(past.latency[index] for past, index in each) for each in found],
        sorted({one for past in known for one in past.problems}),
    )


def join_accounts(own: MessageAccounts, theirs: Mapping[int, MessageAccounts]) -> MessageAccounts:
    """The accounts of doors add up; a consumer is one process's."""
    every = [own, *theirs.values()]
    doors: dict[str, dict[str, Any]] = {}
    for door in (door for one in every for door in one.doors):
        known = doors.setdefault(door["route"], {})
        for name, value in door.items():
            known[name] = value if name == "route" else known.get(name, 0) + value
    return MessageAccounts(list(doors.values()), [one for each in every for one in each.consumers], own.groups)


def join_maps(own: GatewayMap, theirs: Mapping[int, GatewayMap]) -> GatewayMap:
    """Everything is on each; arrows to those who read are where they read."""
    edges = {(one.source, one.target): one for each in (own, *theirs.values()) for one in each.edges}
    names = {one.id for one in own.nodes}
    return GatewayMap(own.nodes, [one for one in edges.values() if {one.source, one.target} <= names], own.left_out)


def join_upstreams(own: UpstreamList, theirs: Mapping[int, UpstreamList]) -> UpstreamList:
    found: dict[str, list[Any]] = {}
    for one in (one for each in (own, *theirs.values()) for one in each.upstreams):
        found.setdefault(one.name, []).append(one)
    return UpstreamList(
        [
            msgspec.structs.replace(
                _upstream(each),
                away_seconds=None if any(one.connected for one in each) else _most(one.away_seconds for one in each),
                refused=next((one.refused for one in each if one.refused), ""),
                problems=sorted({(at, text) for one in each for at, text in one.problems}),
            )
            for each in found.values()
        ]
    )


def join_connections(pages: Mapping[int, Connections], limit: int) -> Connections:
    every: list[ConnectionSnapshot] = [
        attrs.evolve(one, id=one.id * MOST_WORKERS + worker)
        for worker, page in pages.items()
        for one in page.connections
    ]
    every.sort(key=lambda one: one.id)
    found = every[:limit]
    more = len(every) > limit or any(page.following is not None for page in pages.values())
    return Connections(found, found[-1].id if more and found else None, sum(page.total for page in pages.values()))


def join_consumers(pages: Sequence[Sequence[Consumers]], skip: int, limit: int) -> Consumers:
    """`pages`: of each process the first of them, as many as the answer may be made of."""
    parts = [part for each in pages for part in each]
    found = {(one.kind, one.name, one.topic, one.partition): one for part in parts for one in part.consumers}
    rows = sorted(found.values(), key=lambda one: (-one.backlog, one.kind, one.name, one.topic, one.partition))
    under_way = {
        (one.kind, one.name, one.topic, one.partition, one.offset): one for part in parts for one in part.under_way
    }
    ingests: dict[tuple[str, str, str], Any] = {}
    for one in (one for part in parts for one in part.ingests):
        known = ingests.get((one.upstream, one.source, one.address))
        if known is None or one.state == "running":  # it runs in one process, and the others wait for theirs
            ingests[one.upstream, one.source, one.address] = one
    mirrors: dict[tuple[str, str, str, int], Any] = {}
    for mirror in (mirror for part in parts for mirror in part.mirrors):
        place = (mirror.route, mirror.upstream, mirror.topic, mirror.partition)
        if place not in mirrors or mirrors[place].position < mirror.position:
            mirrors[place] = mirror
    whole = all(sum(len(part.consumers) for part in each) >= each[0].total for each in pages)
    total = len(found) if whole else sum(each[0].total for each in pages)
    return Consumers(
        rows[skip : skip + limit],
        total,
        list(under_way.values())[:MOST],
        list(ingests.values()),
        list(mirrors.values()),
    )


def _behind(after: int | None, worker: int) -> int | None:
    # the last number of a process's own that an answer before has shown
    if after is None or after < worker:
        return None
    return (after - worker) // MOST_WORKERS


def _upstream(found: Sequence[Any]) -> Any:
    # a broker elsewhere as several processes see it: up if it is for one, and otherwise as the worst of them has it
    return msgspec.structs.replace(
        found[0],
        connected=any(one.connected for one in found),
        circuit=min((one.circuit for one in found), key=WORST.index),
        in_flight=sum(one.in_flight for one in found),
        backlog=sum(one.backlog for one in found),
        problem=next((one.problem for one in found if one.problem), ""),
        latency=_mean(one.latency for one in found),
    )


def _named(worker: int, text: str) -> str:
    return f"worker {worker}: {text}"


def _together(edge: str, flows: Sequence[Flow]) -> Flow:
    return Flow(edge, round(sum(one.messages for one in flows), 1), round(sum(one.size for one in flows), 1))


def _added(counts: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    found: Counter[str] = Counter()
    for one in counts:
        found.update(one)
    return dict(found)


def _most(values: Iterable[float | None]) -> float | None:
    return max((one for one in values if one is not None), default=None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None


# --- the tap ---

Live = AsyncGenerator[tuple[str, bytes] | None]


async def _merged(own: Live, theirs: Sequence[Live]) -> Live:
    # events of all as they come, until one's own end; reports of all added up
    ring: deque[tuple[int, tuple[str, bytes] | None]] = deque()
    fresh, room = trio.Event(), trio.Event()
    reports: dict[int, TapReport] = {}
    ended = False

    async def hand_on(number: int, source: Live) -> None:
        nonlocal ended
        async with aclosing(source) as events:
            async for event in events:
                while len(ring) >= EVENTS_KEPT:
                    await room.wait()
                ring.append((number, event))
                fresh.set()
        if number == 0:
            ended = True
            fresh.set()

    async with trio.open_nursery() as nursery:
        for number, source in enumerate((own, *theirs)):
            nursery.start_soon(hand_on, number, source)
        while not ended or ring:
            await fresh.wait()
            fresh = trio.Event()
            while ring:
                number, event = ring.popleft()
                if event is not None and event[0] == "report":
                    found = msgspec.json.decode(event[1], type=TapEvent)
                    assert found.report is not None
                    reports[number] = found.report
                    yield "report", msgspec.json.encode(TapEvent(report=_report(reports.values())))
                elif event is not None or number == 0:
                    yield event
            room.set()
            room = trio.Event()
        nursery.cancel_scope.cancel()


def _report(reports: Iterable[TapReport]) -> TapReport:
    rows: Iterator[tuple[int, int, int, int]] = (
        (one.seen, one.matched, one.dropped, one.unreadable) for one in reports
    )
    return TapReport(*(sum(each) for each in zip(*rows, strict=True)))
