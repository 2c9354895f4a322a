"""Publishes that a broker elsewhere answers itself.

Data flow:

    publisher ──Publish──► broker ──send──► queue of the upstream ──► connection ──► remote
        ▲                                      │ not sent in time: unavailable, nothing happened
        └────────── the remote's answer ◄──────┴─ sent, no answer in time or connection lost: outcome unknown

A batch goes as one request. What one publisher sends goes over one connection for as long as any of it is under way, so it
arrives in its order. Nothing is ever sent twice: whether to try again is the publisher's to decide, who knows by the status
whether the first attempt may have succeeded. What waits and what is under way is bounded; beyond that is refused at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import attrs
from msgspec.structs import replace

from gateway.bridges.breaker import refuses_login
from gateway.bridges.pool import PooledConnection, UpstreamPool
from gateway.broker.service import Clock, Timers
from gateway.envelope import Batch
from gateway.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    GatewayError,
    InvalidRequest,
    NotRouted,
    OffsetOutOfRange,
    RequestTimeout,
    SchemaViolation,
    ShuttingDown,
    Status,
    StoreReadOnly,
    TargetError,
    TargetLost,
    TargetRefused,
    Throttled,
    TooLarge,
    UnknownTopic,
    Unsupported,
)
from gateway.recorder import Recorder
from gateway.requests import Outcome, Publish, Published, Request
from gateway.routing.table import ResolvedProxy

MOST_REQUESTS = 256
"""Batches under way to one upstream."""
MOST_WAITING = 4_096
"""Batches that wait to be sent to an upstream, or are under way."""
MOST_BYTES = 64 << 20
"""Bytes of those batches."""

REFUSALS: Mapping[Status, Callable[[str], GatewayError]] = {
    Status.INVALID: InvalidRequest,
    Status.UNSUPPORTED: Unsupported,
    Status.DENIED: Denied,
    Status.NOT_FOUND: UnknownTopic,
    Status.EXISTS: AlreadyExists,
    Status.OUT_OF_RANGE: OffsetOutOfRange,
    Status.TOO_LARGE: TooLarge,
    Status.NOT_ROUTED: NotRouted,
    Status.SCHEMA: SchemaViolation,
    Status.CONFLICT: Conflict,
    Status.THROTTLED: Throttled,
    Status.READ_ONLY: StoreReadOnly,
    Status.TIMEOUT: RequestTimeout,
    Status.UNKNOWN_OUTCOME: TargetLost,
    Status.SHUTTING_DOWN: ShuttingDown,
}
"""A remote's refusal, said to the publisher as if it were ours: each protocol has its own words for each. Any other is
`unavailable`, a login that is refused among them: the publisher's own credentials are not to blame."""


def translated(upstream: str, error: GatewayError) -> GatewayError:
    if refuses_login(error):
        return TargetError(f"upstream {upstream} refuses our login")
    if isinstance(error, TargetRefused):
        make = REFUSALS.get(error.refusal, TargetError)
        return make(error.message)
    if error.status is Status.UNKNOWN_OUTCOME:
        return TargetLost(f"upstream {upstream} may or may not have taken it: {error.message}")
    return error


@attrs.define(eq=False)
class _Proxied:
    """A batch on its way to the upstream, and what to do when that has answered."""

    caller: int
    batch: Batch
    sent: Callable[[], None]
    ended: Callable[[Outcome], None]
    cancel: Callable[[], None] | None = None
    connection: PooledConnection | None = None
    """Where it was sent."""
    over: bool = False
    """The publisher has its answer."""


@attrs.define(eq=False)
class _Path:
    """The connection one publisher's batches go over, while any are under way."""

    pool: UpstreamPool
    connection: PooledConnection
    jobs: int = 0


class ProxyLane:
    def __init__(self, pool: UpstreamPool, timers: Timers, clock: Clock, recorder: Recorder) -> None:
        self._timers = timers
        self._clock = clock
        self._recorder = recorder
        self._waiting: deque[_Proxied] = deque()
        self._paths: dict[int, _Path] = {}
        self._requests = 0
        """Sent and not answered by the upstream, whatever the publisher was told meanwhile."""
        self._bytes = 0
        self._sending = False
        self.messages = 0
        """Messages whose publishers wait for an answer."""
        self.pool = pool
        self.send_over(pool)

    def send_over(self, pool: UpstreamPool) -> None:
        """From now on everything that is not sent yet goes over these connections."""
        self.pool = pool
        pool.on_change.append(self._send_on)
        self._send_on()

    def uses(self, pool: UpstreamPool) -> bool:
        """Whether anything waits for these connections, or for an answer on them."""
        waits = self.pool is pool and bool(self._waiting)
        return waits or any(path.pool is pool for path in self._paths.values())

    def send(self, timeout: float, job: _Proxied) -> None:
        """Send a batch as soon as possible; it ends once, within the time."""
        size = job.batch.columns.value_bytes
        # one batch is let in whatever its size, or a large one could never be sent
        if len(self._waiting) + self._requests >= MOST_WAITING or (self._bytes and self._bytes + size > MOST_BYTES):
            self._recorder.limit_hit("", "proxy")
            job.ended(Throttled(f"too many messages wait for upstream {self.pool.name}"))
            return
        job.cancel = self._timers.call_at(self._clock.now() + timeout, lambda: self._too_late(job, timeout))
        self._bytes += size
        self.messages += job.batch.columns.count
        self._waiting.append(job)
        self._send_on()

    # --- inside ---

    def _send_on(self) -> None:
        # answers that come while something is sent lead back here: only the outermost call walks the queue
        if self._sending:
            return
        self._sending = True
        while self._waiting and self._requests < MOST_REQUESTS:
            job = self._waiting[0]
            if job.over:
                self._waiting.popleft()
                self._bytes -= job.batch.columns.value_bytes
                continue
            path = self._path(job.caller)
            if path is None:
                break
            self._waiting.popleft()
            path.jobs += 1
            self._requests += 1
            job.connection = path.connection
            job.sent()
            self.pool.submit_on(path.connection, _publish(job.batch), self._answer_to(job))
        self._sending = False

    def _path(self, caller: int) -> _Path | None:
        # the way of a publisher's next batch; None while there is none
        path = self._paths.get(caller)
        if path is not None and path.pool is not self.pool:
            return None  # what it sent to where the upstream was ends first
        if path is not None and not path.connection.over.is_set():
            return path
        connection = self.pool.choose()
        if connection is None:
            return None
        if path is None:
            path = self._paths[caller] = _Path(self.pool, connection)
        path.connection = connection  # what was on the other one is lost, so there is no order left to keep
        return path

    def _answer_to(self, job: _Proxied) -> Callable[[Outcome], None]:
        def answered(outcome: Outcome) -> None:
            self._requests -= 1
            self._bytes -= job.batch.columns.value_bytes
            path = self._paths[job.caller]
            path.jobs -= 1
            if not path.jobs:
                del self._paths[job.caller]
            self._end(job, self._translated(outcome))
            self._send_on()

        return answered

    def _translated(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, GatewayError):
            return translated(self.pool.name, outcome)
        if isinstance(outcome, Published) and outcome.refused:
            refused = {index: translated(self.pool.name, error) for index, error in outcome.refused.items()}
            return replace(outcome, refused=refused)
        return outcome

    def _too_late(self, job: _Proxied, timeout: float) -> None:
        name = self.pool.name
        if job.connection is None:
            problem = self.pool.problem or "it is busy"
            self._end(job, TargetError(f"nothing could be sent to upstream {name} within {timeout:g} s: {problem}"))
            self._send_on()
        else:
            self._end(job, TargetLost(f"upstream {name} may or may not have taken it: no answer within {timeout:g} s"))

    def _end(self, job: _Proxied, outcome: Outcome) -> None:
        if job.over:
            return
        job.over = True
        self.messages -= job.batch.columns.count
        if job.cancel is not None:
            job.cancel()
        job.ended(outcome)


def _publish(batch: Batch) -> Callable[[int], Request]:
    return lambda number: Publish(number, batch)


class Proxies:
    """The proxied publishes to every upstream. Implements the broker's `ProxySender`."""

    def __init__(self, timers: Timers, clock: Clock, recorder: Recorder) -> None:
        self._timers = timers
        self._clock = clock
        self._recorder = recorder
        self._lanes: dict[str, ProxyLane] = {}
        self._left: list[ProxyLane] = []
        """No route goes there any more; who was sent there has no answer yet."""

    def become(self, pools: Mapping[str, UpstreamPool]) -> None:
        """From now on these upstreams are asked. Who was sent to another one is answered as it answers."""
        before, self._lanes = self._lanes, {}
        for name, pool in pools.items():
            lane = before.pop(name) if name in before else ProxyLane(pool, self._timers, self._clock, self._recorder)
            self._lanes[name] = lane
            if lane.pool is not pool:
                lane.send_over(pool)
        self._left = [lane for lane in (*self._left, *before.values()) if lane.messages]

    def uses(self, pool: UpstreamPool) -> bool:
        return any(lane.uses(pool) for lane in (*self._lanes.values(), *self._left))

    def connected(self, upstream: str) -> bool:
        lane = self._lanes.get(upstream)
        return lane is not None and lane.pool.connected

    def send(
        self,
        caller: int,
        proxy: ResolvedProxy,
        batch: Batch,
        sent: Callable[[], None],
        ended: Callable[[Outcome], None],
    ) -> None:
        lane = self._lanes.get(proxy.upstream)
        if lane is None:  # it was decided before a reload, and waited for something else since
            ended(TargetError(f"there is no upstream {proxy.upstream} any more"))
        else:
            lane.send(proxy.timeout, _Proxied(caller, batch, sent, ended))

    def show(self) -> None:
        for name, lane in self._lanes.items():
            self._recorder.gauge("gateway_proxy_in_flight_messages", float(lane.messages), upstream=name)
