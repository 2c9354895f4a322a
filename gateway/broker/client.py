"""One connection's side of the broker: program order, and completions in batches.

Apart from the broker: there is one of these for each connection, and one broker for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import attrs
from msgspec.structs import replace

from gateway.broker.service import Along, Handler, ListenerInfo
from gateway.envelope import Origin
from gateway.errors import GatewayError
from gateway.requests import Completion, Identity, Outcome, Request, Subscribe, Write

NOBODY = Identity(authenticated=False)
"""Who has not said who he is."""


def _unheard(_completions: Sequence[Completion]) -> None:
    """Nobody is there any more who would want to know."""


@attrs.frozen
class BrokerSide:
    """What all connections are served by: there is one of it, as of the broker."""

    open_to: Callable[[ListenerInfo, Identity], Container[type[Request]]]
    dispatch: Callable[[AttachedClient, Request], None]
    direct: Callable[[Container[type[Request]]], Mapping[type[Request], Handler]]
    soon: Callable[[object, Callable[[], None]], None]
    hold: Callable[[], None]
    release: Callable[[int], None]


class AttachedClient:
    """Implements Caller for the services and the driver's BrokerClient.

    Program order: a request that is no write runs when all earlier writes of the connection are answered; what comes
    behind a waiting request waits with it; writes do not wait for writes. A Subscribe is a barrier: what is published
    behind it must not be stored before it has found its start, or the subscription would miss it.
    """

    __slots__ = (
        "_broker",
        "_collecting",
        "_direct",
        "_done",
        "_on_completions",
        "_on_detach",
        "_running_queue",
        "_subscribing",
        "_waiting",
        "_writes",
        "along",
        "detached",
        "free",
        "id",
        "identity",
        "listener",
        "origin",
        "reads",
        "ways",
    )
    far = False

    def __init__(
        self,
        number: int,
        listener: ListenerInfo,
        peer: str,
        broker: BrokerSide,
        on_completions: Callable[[Sequence[Completion]], None],
        along: Callable[[], Along] | None = None,
    ) -> None:
        self.id = number
        self.listener = listener
        self.along = along
        self.identity = NOBODY
        self.origin = Origin(listener.protocol, listener.name, "", peer)
        self._broker = broker
        self.free = broker.open_to(listener, self.identity)
        """What it may ask whatever it is about."""
        self._direct = broker.direct(self.free)
        """Who serves what of that needs nothing else to be looked at."""
        self.ways: dict[str, Any] = {}
        self.reads: dict[str, Any] = {}
        self._on_completions = on_completions
        self._writes: dict[int, None] = {}
        self._waiting: deque[Request] | tuple[()] = ()
        """Made when something has to wait, and let go of when nothing does: an empty one is 760 bytes."""
        self._subscribing: int | None = None
        """The Subscribe under way; everything behind it waits."""
        self._collecting = False
        self._done: list[Completion] = []
        self.detached = False
        self._running_queue = False
        self._on_detach: list[Callable[[], None]] | tuple[()] = ()

    # --- the driver's side ---

    def submit(self, requests: Sequence[Request]) -> Sequence[Completion]:
        """Start requests; what ends at once is returned."""
        self._broker.hold()
        try:
            self.start(requests)
        finally:
            self._broker.release(self.id)
        return self.collect()

    def start(self, requests: Sequence[Request]) -> None:
        """Start requests, of which `collect` says how they ended: for who holds the commit himself, until others have started
        theirs.
        """
        self._collecting = True
        for request in requests:
            if self._waiting or self._subscribing is not None:
                self._line_up(request)
                continue
            if isinstance(request, Write):
                self._writes[request.id] = None
            elif self._writes:
                # a read may be about what was written just before it: it sees nothing until that is stored
                self._line_up(request)
                continue
            elif isinstance(request, Subscribe):
                self._subscribing = request.id
            handler = self._direct.get(type(request))
            if handler is None:
                self._broker.dispatch(self, request)
                continue
            try:
                handler(self, request)
            except GatewayError as error:
                self.answer(request.id, error)

    def collect(self) -> Sequence[Completion]:
        """What has ended; the rest is reported when it is known."""
        self._collecting = False
        done, self._done = self._done, []
        return done

    def detach(self) -> None:
        """The connection is gone: nothing is reported any more, services clean up."""
        self.detached = True
        self._waiting = ()
        # who refers to each other would be found by the collector alone
        self._on_completions = _unheard
        self.ways.clear()
        self.reads.clear()
        callbacks, self._on_detach = self._on_detach, ()
        for callback in callbacks:
            callback()

    # --- the services' side ---

    def identify(self, identity: Identity) -> None:
        self.identity = identity
        self.free = self._broker.open_to(self.listener, identity)
        self._direct = self._broker.direct(self.free)
        self.origin = replace(self.origin, principal=identity.name)
        self.ways.clear()  # routes may ask for the principal

    def answer(self, request_id: int, outcome: Outcome) -> None:
        self._done.append((request_id, outcome))
        if request_id in self._writes:
            del self._writes[request_id]
            if not self._writes and self._waiting:
                self._run_waiting()
        elif request_id == self._subscribing:
            self._subscribing = None
            self._run_waiting()
        if not self._collecting and not self.detached:
            self._broker.soon(self, self._report)

    def on_detach(self, callback: Callable[[], None]) -> None:
        if not self._on_detach:
            self._on_detach = []
        self._on_detach.append(callback)

    # --- inside ---

    def _line_up(self, request: Request) -> None:
        if not self._waiting:
            self._waiting = deque()
        self._waiting.append(request)

    def _read(self, request: Request) -> None:
        if isinstance(request, Subscribe):
            self._subscribing = request.id
        self._broker.dispatch(self, request)

    def _run_waiting(self) -> None:
        # answers given inside a dispatch lead back here: only the outermost call walks the queue
        if self._running_queue:
            return
        self._running_queue = True
        while self._waiting and self._subscribing is None:
            if isinstance(self._waiting[0], Write):
                request = self._waiting.popleft()
                self._writes[request.id] = None
                self._broker.dispatch(self, request)
            elif self._writes:
                break
            else:
                self._read(self._waiting.popleft())
        if not self._waiting:
            self._waiting = ()
        self._running_queue = False

    def _report(self) -> None:
        if self._done and not self.detached:
            done, self._done = self._done, []
            self._on_completions(done)
