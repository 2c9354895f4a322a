"""How the parts of the broker fit together: callers, handlers, and the one way messages are prepared for the log.

Each part (groups, schemas, accounts, ...) is a service: a class that names the requests it serves in `handlers()`. The
broker dispatches by request type. A handler runs synchronously, never awaits, and sees to it that `caller.answer` is
called exactly once for the request: at once, or later from a ticket's callback or a timer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from gateway.envelope import Batch, Columns, Origin
from gateway.errors import GatewayError
from gateway.requests import Identity, Outcome, Publish, Published, Request
from gateway.routing.table import ResolvedProxy
from gateway.settings import Limits
from gateway.store.interface import Append, CreateTopic, Placement, Ticket


@attrs.frozen
class ListenerInfo:
    """What the broker knows about a listener."""

    name: str
    protocol: str
    auth: Any = None
    """The listener's auth settings (`gateway.config.model`)."""
    settings: Any = None
    """The protocol's own settings."""
    limits: Limits = attrs.Factory(Limits)


class Caller(Protocol):
    """One attached connection, as services see it."""

    @property
    def id(self) -> int:
        """Unique in this process."""
        ...

    @property
    def listener(self) -> ListenerInfo:
        """Where it came in."""
        ...

    @property
    def origin(self) -> Origin:
        """Who it is, as the log will remember it."""
        ...

    @property
    def identity(self) -> Identity:
        """Who it is, as accounts see it."""
        ...

    @property
    def detached(self) -> bool:
        """Whether the connection is gone."""
        ...

    def identify(self, identity: Identity) -> None:
        """A login succeeded: from now on the connection is this."""
        ...

    def answer(self, request_id: int, outcome: Outcome) -> None:
        """End a request. Exactly once for each."""
        ...

    def on_detach(self, callback: Callable[[], None]) -> None:
        """Call back when the connection is gone (roll back, forget memberships)."""
        ...


Handler = Callable[[Caller, Any], None]


class Service(Protocol):
    """A part of the broker."""

    def handlers(self) -> Mapping[type[Request], Handler]:
        """The requests it serves."""
        ...


@attrs.frozen(eq=False)
class ProxiedPart:
    """Messages of a batch that go to a broker elsewhere instead of the log. `indexes` are theirs in the batch, None: all."""

    route: str
    proxy: ResolvedProxy
    columns: Columns
    indexes: Sequence[int] | None

    def members(self, count: int) -> Sequence[int]:
        """Their indexes in a batch of that many."""
        return self.indexes if self.indexes is not None else range(count)


@attrs.frozen(eq=False)
class Prepared:
    """A batch that is routed, authorised, checked against its schema, transformed and spread over partitions: all that is
    left is to append it. `finish` makes the reply once the placements are known.
    """

    appends: Sequence[Append]
    creates: Sequence[CreateTopic]
    finish: Callable[[Sequence[Placement]], Published]
    parts: Sequence[tuple[str, int, int]]
    """(route, messages, bytes) of what will be stored, for the accounting."""
    started: float
    proxied: Sequence[ProxiedPart] = ()
    """What is not for the log. Only a plain publish can have such parts."""
    letters: Sequence[tuple[str, int]] = ()
    """(route, messages) among the parts that are dead letters. Only a plain publish can have such parts."""


class Publishing(Protocol):
    """The one way into the log. Listeners, transactions, delays, replays and bridges all come through here."""

    def prepare(self, caller: Caller, batch: Batch, schema: str = "", create: bool = True) -> Prepared:
        """Decide everything about a batch but its offsets. Raises a GatewayError that refuses it whole.

        What was prepared is accounted for: it has to end in `commit` or `discard`. `create=False`: the topic must exist.
        """
        ...

    def discard(self, prepared: Sequence[Prepared]) -> None:
        """Prepared batches will not be committed (a transaction rolled back)."""
        ...

    def adopt(self, parts: Sequence[tuple[str, int, int]]) -> None:
        """What an earlier process took and did not append (delayed messages) waits here now: it counts as received."""
        ...

    def refused(self, caller: Caller, request: Publish, error: GatewayError) -> None:
        """Count a publish that was refused before it was prepared."""
        ...

    def commit(self, prepared: Sequence[Prepared], puts: Sequence[Any] = (), requires: Sequence[Any] = ()) -> Ticket:
        """Append several prepared batches, with table writes (`Put`) and conditions (`Require`), in one unit. The
        ticket's placements are in the order of the appends; accounting is done here.
        """
        ...


class Clock(Protocol):
    """Time, injected: the monotonic clock sessions see, and the wall clock the log keeps."""

    def now(self) -> float:
        """Seconds on the monotonic clock."""
        ...

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class Timers(Protocol):
    """Calls at a time, without a task each."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back at `when` (the clock of `Clock.now`); returns a function that cancels it."""
        ...
