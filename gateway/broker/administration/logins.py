"""Attempts to log in: the failed ones are told, and make the next from the same address, or for the same name, wait.

Failures fill a bucket that drains with time. The first few cost nothing, for people mistype; each further one doubles how
long the next attempt waits. From one address attempts wait for each other, so that a thousand connections guess no faster
than one. For a name they do not: or else anybody could keep its owner out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import attrs

from gateway.broker.service import Caller, Clock
from gateway.errors import Throttled
from gateway.recorder import Recorder
from gateway.settings import network_of

FREE = 5
FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0
FULL = 11
"""Failures that are remembered: at these the wait is the longest."""
FORGIVEN_AFTER = 10.0
"""Seconds after which one failure is forgotten."""
PATIENCE = 16.0
"""Who would wait longer than this is refused at once. A login has 30 s by default, and stock clients wait no longer."""
MOST = 10_000
"""Addresses, and names, that are remembered; those nothing was heard of for longest are forgotten."""
LONGEST_NAME = 64
OVERLOAD = "overload"

CallAt = Callable[[float, Callable[[], None]], object]


@attrs.define
class _Bucket:
    level: float = 0.0
    at: float = 0.0
    free_at: float = 0.0
    """When the last of the attempts that wait has its turn."""

    def drain(self, now: float) -> None:
        self.level = max(0.0, self.level - (now - self.at) / FORGIVEN_AFTER)
        self.at = now

    def wait(self, now: float) -> float:
        self.drain(now)
        return min(FIRST_WAIT * 2 ** round(self.level - FREE), LONGEST_WAIT) if self.level >= FREE else 0.0


class _Buckets:
    def __init__(self) -> None:
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def find(self, name: str) -> _Bucket | None:
        return self._buckets.get(name)

    def fill(self, name: str, now: float) -> None:
        bucket = self._buckets.setdefault(name, _Bucket(at=now))
        bucket.drain(now)
        bucket.level = min(bucket.level + 1, FULL)
        self._buckets.move_to_end(name)
        # with the oldest goes what is forgiven soonest: a flood of names makes room for nothing but itself
        if len(self._buckets) > MOST:
            self._buckets.popitem(last=False)

    def forget(self, name: str) -> None:
        self._buckets.pop(name, None)


class Logins:
    """Failed logins of late, by address and by name, and how long the next attempt has to wait."""

    def __init__(self, clock: Clock, call_at: CallAt, recorder: Recorder) -> None:
        self._clock = clock
        self._call_at = call_at
        self._recorder = recorder
        self._addresses = _Buckets()
        self._names = _Buckets()

    def attempt(self, caller: Caller, name: str, check: Callable[[], None]) -> None:
        """Check a secret, now or when its turn comes. Raises Throttled."""
        now = self._clock.now()
        wait = 0.0
        of_address = self._addresses.find(_network(caller))
        if of_address is not None and (alone := of_address.wait(now)):
            # one address waits in a queue of its own: many connections at once try no more often than one
            wait = max(of_address.free_at - now, 0.0) + alone
        of_name = self._names.find(name[:LONGEST_NAME])
        if of_name is not None:
            wait = max(wait, of_name.wait(now))
        # held for so long, attempts would be a cheap way to keep connections and memory
        if wait > PATIENCE:
            self._tell(caller, name, "throttled")
            raise Throttled("too many failed logins: try again later")
        if not wait:
            check()
            return
        if of_address is not None:
            of_address.free_at = now + wait
        # the answer waits, right or wrong: who guesses learns nothing from being answered sooner
        self._call_at(now + wait, lambda: None if caller.detached else check())

    def failed(self, caller: Caller, name: str, reason: str) -> None:
        """An attempt was wrong. `reason`: one of the metric's."""
        self._tell(caller, name, reason)
        if reason == OVERLOAD:
            return  # nothing was found wrong
        now = self._clock.now()
        self._addresses.fill(_network(caller), now)
        if name:
            self._names.fill(name[:LONGEST_NAME], now)

    def succeeded(self, name: str) -> None:
        """The owner of the name is there. Its address may be that of others as well."""
        self._names.forget(name[:LONGEST_NAME])

    def _tell(self, caller: Caller, name: str, reason: str) -> None:
        self._recorder.login_failed(caller.listener.name, reason, caller.origin.client, name[:LONGEST_NAME])


def _network(caller: Caller) -> str:
    return network_of(caller.origin.client.rpartition(":")[0].strip("[]"))
