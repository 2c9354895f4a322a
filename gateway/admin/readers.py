"""Who is there: connections, durable consumers and what they have under way, brokers elsewhere."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import msgspec

from gateway.admin.access import Role
from gateway.admin.inside import Inside
from gateway.admin.operation import Asked, Large, Nothing, Query, Small, operation
from gateway.admin.pulse import Pulses
from gateway.bridges.breaker import Circuit
from gateway.bulk import wire
from gateway.errors import InvalidRequest, NotFound
from gateway.notation import show_endpoint
from gateway.recorder import ConnectionSnapshot, ConsumerCounts, IngestPlace, MirrorPlace, UnderWay
from gateway.requests import ConsumerReset
from gateway.slices import slices

MOST = 200
"""Connections, or consumers, in one answer."""
MOST_UNDER_WAY = 200

Limit = Annotated[int, msgspec.Meta(ge=1, le=MOST)]


class ConnectionsAsked(Query, frozen=True, kw_only=True):
    search: str = ""
    """In peer, principal, listener or protocol."""
    after: Large | None = None
    """Go on behind this id: `following` of the answer before."""
    limit: Limit = 100


class Connections(msgspec.Struct, frozen=True):
    connections: Sequence[ConnectionSnapshot]
    following: int | None
    total: int


class ConnectionAsked(Query, frozen=True, kw_only=True):
    id: Large


class Closed(msgspec.Struct, frozen=True):
    closed: ConnectionSnapshot


class ConsumersAsked(Query, frozen=True, kw_only=True):
    search: str = ""
    """What the name of a consumer, or of its topic, has to contain."""
    skip: Small = 0
    limit: Limit = 100


class ConsumerShown(msgspec.Struct, frozen=True):
    """A durable consumer on one partition; `backlog` is what it has not settled."""

    kind: str
    name: str
    topic: str
    partition: int
    start: int
    end: int
    position: int
    """The first offset it has not settled."""
    acknowledged: int
    filtered: int
    expired: int
    dead_lettered: int
    trimmed: int
    skipped: int
    """Passed over when somebody put it further on."""
    repeated: int
    """Settled once, and put in front of it again."""
    backlog: int
    unaccounted: int


class Consumers(msgspec.Struct, frozen=True):
    consumers: Sequence[ConsumerShown]
    total: int
    under_way: Sequence[UnderWay]
    """Messages that were tried and are not settled, at most some of them."""
    ingests: Sequence[IngestPlace]
    mirrors: Sequence[MirrorPlace]


class UpstreamsAsked(Query, frozen=True, kw_only=True):
    pass


class UpstreamShown(msgspec.Struct, frozen=True):
    """A broker elsewhere."""

    name: str
    protocol: str
    addresses: Sequence[str]
    """In order of preference."""
    current: int
    """Which of them is used."""
    connected: bool
    circuit: str
    in_flight: int
    backlog: int
    away_seconds: float | None
    problem: str
    refused: str
    """What it said when it would not let us in."""
    latency: float | None
    problems: Sequence[tuple[int, str]]
    """What was wrong while somebody looked: (milliseconds since the epoch, what)."""


class UpstreamList(msgspec.Struct, frozen=True):
    upstreams: Sequence[UpstreamShown]


class Readers:
    def __init__(self, inside: Inside, pulses: Pulses) -> None:
        self._inside = inside
        self._pulses = pulses

    @operation("GET", "/v1/connections", Role.READ)
    async def connections(self, asked: Asked[ConnectionsAsked, None]) -> Connections:
        """Open connections: who, by which protocol and dialect and how that was recognised, what is under way."""
        query, wanted = asked.query, asked.query.search.casefold()
        drivers = sorted(
            (one for listening in self._inside.listeners for one in listening.drivers), key=lambda one: one.number
        )
        found: list[ConnectionSnapshot] = []
        total, following = 0, None
        for driver in drivers:
            if not wanted and len(found) >= query.limit:
                total += 1
                following = found[-1].id
                continue
            snapshot = driver.snapshot()
            texts = (snapshot.peer, snapshot.principal, snapshot.listener, snapshot.protocol)
            if wanted and not any(wanted in one.casefold() for one in texts):
                continue
            total += 1
            if query.after is not None and driver.number <= query.after:
                continue
            if len(found) < query.limit:
                found.append(snapshot)
            else:
                following = found[-1].id
        return Connections(found, following, total)

    @operation("DELETE", "/v1/connections", Role.OPERATE)
    async def close_connection(self, asked: Asked[ConnectionAsked, None]) -> Closed:
        """Close a connection, now."""
        for listening in self._inside.listeners:
            for driver in listening.drivers:
                if driver.number == asked.query.id:
                    snapshot = driver.snapshot()
                    driver.cut()
                    return Closed(snapshot)
        raise NotFound(f"there is no connection {asked.query.id}: it may have ended")

    @operation("GET", "/v1/consumers", Role.READ)
    async def consumers(self, asked: Asked[ConsumersAsked, None]) -> Consumers:
        """Durable consumers, partition by partition, those furthest behind first; what they have tried and not settled."""
        query, inside = asked.query, self._inside
        wanted = query.search.casefold()
        found, total = list[Sequence[ConsumerCounts]](), 0
        async for some in slices(inside.house.snapshot().consumers):
            each = [one for one in some if wanted in one.name.casefold() or wanted in one.topic.casefold()]
            found.append(sorted(each, key=_furthest_behind))
            total += len(each)
        page: list[ConsumerCounts] = []
        async for some in slices(islice(heapq.merge(*found, key=_furthest_behind), query.skip + query.limit)):
            page += some
        tried = (
            *inside.house.subscriptions.under_way(MOST_UNDER_WAY),
            *inside.bridges.forwards.under_way(MOST_UNDER_WAY),
        )
        under_way = [one for one in tried if wanted in one.name.casefold() or wanted in one.topic.casefold()]
        ingests = [
            place
            for one in inside.bridges.ingests.all
            for place in one.places()
            if any(wanted in text.casefold() for text in (place.upstream, place.source, place.address))
        ]
        mirrors = [
            place
            for place in inside.bridges.mirrors.places()
            if any(wanted in text.casefold() for text in (place.upstream, place.route, place.topic))
        ]
        return Consumers(
            [_consumer(one) for one in page[query.skip :]],
            total,
            under_way[:MOST_UNDER_WAY],
            ingests[:MOST],
            mirrors[:MOST],
        )

    @operation("POST", wire.RESET_CONSUMER, Role.OPERATE)
    async def reset_consumer(self, asked: Asked[Nothing, ConsumerReset]) -> wire.ConsumerMoves:
        """Put a subscription, a named reader or a forward elsewhere on a topic; with `dry_run`, say where it would be, and what
        it would skip or get once more.
        """
        match asked.body.kind:
            case "forward":
                return wire.ConsumerMoves(await self._inside.bridges.forwards.reset(asked.body))
            case "subscription" | "reader":
                house = self._inside.house
                return wire.ConsumerMoves(await (house.shared or house.subscriptions).reset(asked.body))
        raise InvalidRequest(f"kind is subscription, reader or forward, not {asked.body.kind[:60]!r}")

    @operation("GET", "/v1/upstreams", Role.READ)
    async def upstreams(self, asked: Asked[UpstreamsAsked, None]) -> UpstreamList:
        """Brokers elsewhere that are used: their addresses in order, whether they answer, what waits for them."""
        found = []
        for pool in self._inside.bridges.upstreams.first.values():
            away = self._inside.house.clock.now() - pool.away_since if pool.away_since is not None else None
            wrong = not pool.connected or pool.breaker.state is not Circuit.CLOSED
            found.append(
                UpstreamShown(
                    pool.name,
                    pool.upstream.protocol,
                    [show_endpoint(host, port) for host, port in pool.upstream.addresses],
                    pool.current_address,
                    pool.connected,
                    pool.breaker.state.value,
                    pool.in_flight,
                    self._inside.bridges.forwards.backlog(pool),
                    away,
                    pool.problem if wrong else "",
                    pool.refused,
                    pool.latency,
                    self._pulses.seen_problems(pool.name),
                )
            )
        return UpstreamList(found)


def _furthest_behind(one: ConsumerCounts) -> tuple[int, str, str, str, int]:
    return -one.backlog, one.kind, one.name, one.topic, one.partition


def _consumer(one: ConsumerCounts) -> ConsumerShown:
    return ConsumerShown(
        one.kind,
        one.name,
        one.topic,
        one.partition,
        one.start,
        one.end,
        one.position,
        one.acknowledged,
        one.filtered,
        one.expired,
        one.dead_lettered,
        one.trimmed,
        one.skipped,
        one.repeated,
        one.backlog,
        one.unaccounted,
    )
