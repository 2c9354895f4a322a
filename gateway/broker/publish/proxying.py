"""Publishes whose answer is a remote broker's: sent there as they came, answered as it answers, stored nowhere here.

A batch may be split by its keys or headers, one part to a proxy and another into the log. Each part goes its way; the
publisher has one answer, when the last part has one. A part that comes to nothing refuses its members; if that is all of
them, the whole batch.

At the door a proxied message is received, in flight (`proxying`), and then either taken by the remote (`proxied`) or refused,
for whatever reason, an unknown outcome among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
from msgspec.structs import replace

from gateway.broker.publish.door import Doors
from gateway.broker.publish.publication import Part, Prepared, Publication
from gateway.broker.service import Caller, Clock
from gateway.envelope import Batch
from gateway.errors import GatewayError, TargetLost
from gateway.recorder import Recorder
from gateway.requests import Outcome, Publish, Published
from gateway.routing.table import ResolvedProxy
from gateway.store.interface import Ticket


class ProxySender(Protocol):
    """Who is connected to the brokers elsewhere."""

    def send(
        self,
        caller: int,
        proxy: ResolvedProxy,
        batch: Batch,
        sent: Callable[[], None],
        ended: Callable[[Outcome], None],
    ) -> None:
        """Send a batch: `sent` when it leaves, if it does; `ended` once, within the proxy's time, with Published (some members
        may be refused) or an error whose status says whether the remote may have taken it. One caller's batches go in the
        order they came.
        """
        ...


@attrs.define(eq=False)
class _Joined:
    """A publish whose parts are under way."""

    caller: Caller
    request: Publish
    left: int
    scattered: list[tuple[int, int]]
    timestamp_ms: int = 0
    refused: dict[int, GatewayError] = attrs.Factory(dict)


class Proxying:
    def __init__(self, clock: Clock, recorder: Recorder, doors: Doors) -> None:
        self._clock = clock
        self._recorder = recorder
        self._doors = doors
        self.sender: ProxySender | None = None
        """Connected when there are upstreams; until then nobody is there to take anything."""

    def start(
        self,
        publication: Publication,
        prepared: Prepared,
        request: Publish,
        commit: Callable[[Sequence[Prepared]], Ticket],
    ) -> None:
        """Send what is proxied, commit what is not, answer when all is known."""
        batch = publication.batch
        count = batch.columns.count
        joined = _Joined(publication.caller, request, len(publication.proxied), [(0, 0)] * count)
        if prepared.appends:
            joined.left += 1

            def stored(ticket: Ticket) -> None:
                publication.end(ticket.error)
                proxied = {index for part in publication.proxied for index in part.members(count)}
                others = [index for index in range(count) if index not in proxied]
                self._take_in(joined, others, ticket.error or prepared.finish(ticket.placements), own=True)

            commit((prepared,)).on_done(stored)
        else:
            joined.refused.update(prepared.refused)
        for part in publication.proxied:
            self._send(joined, batch, part)

    # --- inside ---

    def _send(self, joined: _Joined, batch: Batch, part: Part) -> None:
        columns, route, proxy = part.columns, part.route.name, part.route.proxy
        assert proxy is not None
        size = columns.value_bytes
        started = self._clock.now()
        out = replace(batch, address=proxy.address, columns=columns)

        def sent() -> None:
            self._recorder.delivered(route, proxy.upstream, columns.count, size)

        def ended(outcome: Outcome) -> None:
            self._account(part, proxy.upstream, outcome)
            self._recorder.publish_latency(route, self._clock.now() - started)
            self._take_in(joined, part.members(batch.columns.count), outcome, own=False)

        if self.sender is None:
            ended(TargetLost(f"nobody is connected to {proxy.upstream} yet"))
        else:
            self.sender.send(joined.caller.id, proxy, out, sent, ended)

    def _account(self, part: Part, upstream: str, outcome: Outcome) -> None:
        count, route = part.columns.count, part.route.name
        door = self._doors.of(route)
        door.proxying -= count
        if isinstance(outcome, GatewayError):
            lost: Sequence[GatewayError] = [outcome] * count
        else:
            lost = list(outcome.refused.values()) if isinstance(outcome, Published) else ()
        door.refused += len(lost)
        for error in lost[:1] if len(set(map(type, lost))) <= 1 else lost:
            self._recorder.refused(route, error.status, len(lost) if len(set(map(type, lost))) <= 1 else 1)
        taken = count - len(lost)
        door.proxied += taken
        if taken:
            size = part.columns.value_bytes * taken // count  # the share, where single members were refused
            self._recorder.acknowledged(route, upstream, taken, size)

    def _take_in(self, joined: _Joined, members: Sequence[int], outcome: Outcome, *, own: bool) -> None:
        # One part's answer. `own`: it speaks of the whole batch's indexes, not of its members'.
        if isinstance(outcome, GatewayError):
            joined.refused.update(dict.fromkeys(members, outcome))
        elif isinstance(outcome, Published):
            joined.timestamp_ms = max(joined.timestamp_ms, outcome.timestamp_ms)
            for order, index in enumerate(members):
                joined.scattered[index] = outcome.position(index if own else order)
            for order, error in outcome.refused.items():
                joined.refused[order if own else members[order]] = error
        joined.left -= 1
        if not joined.left:
            joined.caller.answer(joined.request.id, self._answer(joined))

    def _answer(self, joined: _Joined) -> Outcome:
        places = joined.scattered
        if places and len(joined.refused) == len(places):
            return joined.refused[min(joined.refused)]
        address = joined.request.batch.address
        timestamp = joined.timestamp_ms or self._clock.now_ms()
        partition, base = places[0] if places else (0, 0)
        if not joined.refused and places == [(partition, base + index) for index in range(len(places))]:
            return Published(address, timestamp, partition, base)
        return Published(address, timestamp, scattered=places, refused=joined.refused)
