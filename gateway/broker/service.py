"""How the parts of the broker fit together: callers and handlers.

Each part (groups, schemas, accounts, ...) is a service: a class that names the requests it serves in `handlers()`. The
broker dispatches by request type. A handler runs synchronously, never awaits, and sees to it that `caller.answer` is
called exactly once for the request: at once, or later from a ticket's callback or a timer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from gateway.envelope import Origin
from gateway.requests import Identity, Outcome, Request
from gateway.settings import Limits
from gateway.store.interface import Put, Require

Guard = Callable[[], Sequence[Require]]
"""What is required of the store now for anything to be written."""


@attrs.frozen
class Along:
    """What goes into the log with what somebody publishes."""

    puts: Sequence[Put] = ()
    """Only if all of it is taken."""
    requires: Sequence[Require] = ()


NOTHING_ALONG = Along()


@attrs.frozen
class ListenerInfo:
    name: str
    protocol: str
    auth: Any = None
    """The listener's auth settings (`gateway.model`)."""
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
    def ways(self) -> dict[str, Any]:
        """What publishing has found out about the addresses this connection writes to."""
        ...

    @property
    def reads(self) -> dict[str, Any]:
        """What reading by offset has found out about the addresses it reads."""
        ...

    @property
    def along(self) -> Callable[[], Along] | None:
        """Of a bridge: what it publishes is stored on conditions, and with rows."""
        ...

    @property
    def detached(self) -> bool:
        """Whether the connection is gone."""
        ...

    @property
    def far(self) -> bool:
        """Whether it is a connection of another gateway: what is handed out to it counts as delivered when that says so."""
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


StartJob = Callable[[Caller | None, Request | None, Callable[[], Awaitable[None]]], None]
"""Work that awaits, for a request of somebody or for nobody in particular."""


class Service(Protocol):
    def handlers(self) -> Mapping[type[Request], Handler]:
        """The requests it serves."""
        ...


class Waiters(Protocol):
    """A service in which requests of a connection may wait."""

    def cancel(self, caller: Caller, request_id: int) -> bool:
        """Answer the waiting request with what it has; False if none waits under that id."""
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
