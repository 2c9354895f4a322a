"""The broker: one entry for every request, from listeners, bridges and tools alike."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Protocol

import trio

from gateway.broker.client import AttachedClient, BrokerSide
from gateway.broker.freshness import Freshness
from gateway.broker.lane import Lane
from gateway.broker.service import Along, Caller, Handler, ListenerInfo, Service, Waiters
from gateway.broker.timers import Pump
from gateway.errors import GatewayError, ShuttingDown, Unsupported
from gateway.requests import (
    DONE,
    Cancel,
    Completion,
    DescribeTopics,
    GetAcls,
    GetRoles,
    GetSchemas,
    GetUsers,
    Identity,
    ListGroups,
    Pause,
    Publish,
    Request,
)

Job = Callable[[], Awaitable[None]]

LONG = frozenset({DescribeTopics, GetAcls, GetRoles, GetSchemas, GetUsers, ListGroups, Pause})
"""Requests that may have long answers, unless they name the topic they are about."""


class Authorises(Protocol):
    """Who decides what a caller may do."""

    def authorise(self, caller: Caller, request: Request) -> None:
        """Raise Unauthenticated or Denied unless the caller may do this."""
        ...

    def open_to(self, listener: ListenerInfo, identity: Identity) -> Container[type[Request]]:
        """Of which requests that need not be asked at all."""
        ...


class Jobs:
    """Work that awaits (reading from disk), in the broker's nursery; an error answers the request it was for."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None

    def start_soon(self, caller: Caller | None, request: Request | None, job: Job) -> None:
        """Run a job for a request (or for nobody in particular)."""
        if self._nursery is None:
            if caller is not None and request is not None:
                caller.answer(request.id, ShuttingDown())
            return
        self._nursery.start_soon(self._run, caller, request, job)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep(float("inf"))
            finally:
                self._nursery = None

    async def _run(self, caller: Caller | None, request: Request | None, job: Job) -> None:
        try:
            await job()
        except GatewayError as error:
            if caller is not None and request is not None:
                caller.answer(request.id, error)


class Broker:
    def __init__(
        self,
        services: Iterable[Service],
        *,
        authorisation: Authorises,
        pump: Pump,
        waiters: Sequence[Waiters],
        refused: Callable[[Caller, Publish, GatewayError], None],
        hold: Callable[[], None],
        release: Callable[[int], None],
        lane: Lane,
        fresh: Freshness | None = None,
    ) -> None:
        """`fresh`: who asks the store before a request is served, where others write to it too."""
        self._handlers: dict[type[Request], Handler] = {
            Cancel: self._cancel,
            Pause: lambda caller, request: caller.answer(request.id, DONE),
        }
        for service in services:
            self._handlers.update(service.handlers())
        self._authorise = authorisation.authorise
        self.lane = lane
        self._fresh = fresh
        self._waiters = waiters
        self._refused = refused
        self.hold = hold
        """Around the requests of one read, so that the store commits together what came together."""
        self.release = release
        self._numbers = itertools.count(1)
        self._directs: dict[Container[type[Request]], Mapping[type[Request], Handler]] = {}
        self._side = BrokerSide(authorisation.open_to, self._dispatch, self._direct, pump.soon, hold, release)

    def attach(
        self,
        listener: ListenerInfo,
        peer: str,
        on_completions: Callable[[Sequence[Completion]], None],
        along: Callable[[], Along] | None = None,
    ) -> AttachedClient:
        return AttachedClient(
            next(self._numbers),
            listener,
            peer,
            self._side,
            on_completions,
            along,
        )

    def _direct(self, free: Container[type[Request]]) -> Mapping[type[Request], Handler]:
        # by the requests for which `_dispatch` comes to no more than this
        if free not in self._directs:
            some = (
                ()
                if self._fresh is not None
                else (kind for kind in self._handlers if kind in free and kind not in LONG)
            )
            self._directs[free] = {kind: self._handlers[kind] for kind in some}
        return self._directs[free]

    def _dispatch(self, caller: AttachedClient, request: Request) -> None:
        if type(request) not in caller.free:
            try:
                self._authorise(caller, request)
            except GatewayError as error:
                if isinstance(request, Publish):
                    self._refused(caller, request, error)
                caller.answer(request.id, error)
                return
        handler = self._handlers.get(type(request))
        if handler is None:
            caller.answer(request.id, Unsupported(f"{type(request).__name__} is not available here"))
        elif type(request) in LONG and not getattr(request, "address", ""):
            self.lane.add(caller.id, lambda: self._handle(handler, caller, request))
        elif self._fresh is None or not self._fresh.first(caller, request, self._handle, handler):
            try:
                handler(caller, request)
            except GatewayError as error:
                caller.answer(request.id, error)

    @staticmethod
    def _handle(handler: Handler, caller: AttachedClient, request: Request) -> None:
        try:
            handler(caller, request)
        except GatewayError as error:
            caller.answer(request.id, error)

    def _cancel(self, caller: Caller, request: Cancel) -> None:
        for waiters in self._waiters:
            if waiters.cancel(caller, request.request):
                break
        caller.answer(request.id, DONE)
