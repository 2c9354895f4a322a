"""In front of publishing: batches whose check against a schema would hold up the event loop are checked in a thread.

What is quickly checked is checked where it is published. What is not, is checked here first, and its verdict waits in the
registry for the publish that follows. Writes of one connection stay in their order: what comes behind a batch that is
being checked waits for it, and so does the end of a transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import attrs

from gateway.broker.offload import Offload
from gateway.broker.schemas import SchemaService, Verdict, Verdicts
from gateway.broker.service import Caller, Handler
from gateway.envelope import Columns
from gateway.errors import GatewayError
from gateway.requests import Commit, Publish, Request, Rollback
from gateway.routing.table import Plan, ResolvedRoute, RoutingTable

Refused = Callable[[Caller, Publish, GatewayError], None]


@attrs.define(eq=False)
class _Lane:
    """A connection's writes while one of them is being checked: that one, and those behind it."""

    caller: Caller
    waiting: deque[Publish | Commit | Rollback]
    verdicts: Verdicts = attrs.Factory(dict)
    """About the first of them."""
    checking: bool = False
    """A thread is at it."""
    walking: bool = False
    """`_go_on` is at it."""


class SchemaGate:
    """Wraps the handlers of Publish, Commit and Rollback."""

    def __init__(
        self,
        handlers: Mapping[type[Request], Handler],
        schemas: SchemaService,
        table: RoutingTable,
        offload: Offload,
        refused: Refused,
    ) -> None:
        self._handlers = handlers
        self._publish = handlers[Publish]
        self._schemas = schemas
        self._table = table
        self._offload = offload
        self._refused = refused
        self._lanes: dict[int, _Lane] = {}
        """By connection."""

    def handlers(self) -> Mapping[type[Request], Handler]:
        """The requests it stands in front of."""
        return {Publish: self.publish, Commit: self.ending, Rollback: self.ending}

    def publish(self, caller: Caller, request: Publish) -> None:
        """Publish, as soon as it is known what fits."""
        lane = self._lanes.get(caller.id) if self._lanes else None
        if lane is not None:
            lane.waiting.append(request)
            return
        if not self._wanted(caller, request):
            self._publish(caller, request)
            return
        lane = _Lane(caller, deque((request,)))
        costly = self._attempt(lane, request)
        if costly is not None:
            self._lanes[caller.id] = lane
            self._check(lane, request, *costly)
            self._go_on(lane)

    def ending(self, caller: Caller, request: Commit | Rollback) -> None:
        """A transaction ends behind what was published in it."""
        lane = self._lanes.get(caller.id)
        if lane is not None:
            lane.waiting.append(request)
        else:
            self._handlers[type(request)](caller, request)

    # --- inside ---

    def _plan(self, caller: Caller, request: Publish) -> Plan | None:
        listener = caller.listener
        try:
            return self._table.writer(listener.protocol, listener.name, request.batch.address, caller.origin.principal)
        except GatewayError:
            return None  # publishing says why, and counts it

    def _wanted(self, caller: Caller, request: Publish) -> bool:
        """Whether a schema has a say in it."""
        if request.schema:
            return True
        if not self._table.has_schemas:
            return False
        plan = self._plan(caller, request)
        if plan is None:
            return False
        if plan.route is None:
            return True
        return any(self._table.topic_config(topic).schema for topic in plan.route.topics)

    def _attempt(self, lane: _Lane, request: Publish) -> tuple[str, Columns] | None:
        """Publish if all that is to be known is known or quickly found; else what a thread has to find out."""
        self._schemas.verdicts = lane.verdicts
        try:
            costly = self._costly(lane.caller, request)
            if costly is None:
                self._publish(lane.caller, request)
        finally:
            self._schemas.verdicts = {}
        return costly

    def _costly(self, caller: Caller, request: Publish) -> tuple[str, Columns] | None:
        """The first schema, and what is to be held against it, whose verdict is neither known nor quickly found."""
        plan = self._plan(caller, request)
        if plan is None:
            return None
        columns = request.batch.columns
        parts = [(plan.route, None)] if plan.route is not None else plan.split(columns)[0]
        for route, indexes in parts:
            part = columns if indexes is None else columns.pick(indexes)
            costly = self._costly_part(route, part, request.schema)
            if costly is not None:
                return costly
        return None

    def _costly_part(self, route: ResolvedRoute, columns: Columns, schema: str) -> tuple[str, Columns] | None:
        names = {self._table.topic_config(topic).schema for topic in route.topics}
        names.add(schema)
        names.discard("")
        if names and route.transform is not None:
            columns = route.transform.apply(columns)[0]
        for name in sorted(names):
            try:
                verdict = self._schemas.quick_check(name, columns)
            except GatewayError:
                return None  # no such schema: publishing says so
            if verdict is None:
                return name, columns
            if verdict:
                columns = columns.pick([index for index in range(columns.count) if index not in verdict])
        return None

    def _go_on(self, lane: _Lane) -> None:
        """Work the lane off, up to a batch that has to be checked elsewhere."""
        if lane.walking:
            return
        lane.walking = True
        while lane.waiting and not lane.checking:
            request = lane.waiting[0]
            try:
                if isinstance(request, Publish):
                    costly = self._attempt(lane, request)
                    if costly is not None:
                        self._check(lane, request, *costly)
                        continue
                else:
                    self._handlers[type(request)](lane.caller, request)
            except GatewayError as error:
                lane.caller.answer(request.id, error)
            lane.waiting.popleft()
            lane.verdicts = {}
        lane.walking = False
        if not lane.waiting:
            self._lanes.pop(lane.caller.id, None)

    def _check(self, lane: _Lane, request: Publish, schema: str, columns: Columns) -> None:
        """Find a verdict in a thread, and go on from there."""
        key, work = self._schemas.slow_check(schema, columns)

        def done(verdict: Verdict | GatewayError) -> None:
            lane.checking = False
            if isinstance(verdict, GatewayError):
                self._refused(lane.caller, request, verdict)
                lane.caller.answer(request.id, verdict)
                lane.waiting.popleft()
                lane.verdicts = {}
            else:
                lane.verdicts[key] = verdict
            self._go_on(lane)

        lane.checking = True
        self._offload.thread(work, done)
