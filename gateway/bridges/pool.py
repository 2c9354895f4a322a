"""The connections to one upstream: kept up, with requests given to whichever has least to do.

A request ends exactly once: with what the upstream says, or with TargetLost when its connection is gone or silent for
too long (half-open connections are found this way). What became of it then is unknown; whoever asked decides.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Sequence

import attrs
import trio

from gateway import model
from gateway.bridges.breaker import BACKOFF, Breaker, Circuit, Preference, is_outage, jittered, refuses_login
from gateway.broker.timers import Pump
from gateway.errors import GatewayError, TargetError, TargetLost, TargetOutOfTurn, TargetRefused
from gateway.protocols.registry import Carries, ProtocolSpec, Remote, Transport
from gateway.recorder import Recorder
from gateway.requests import Completion, DescribeTopics, Outcome, Request, Take
from gateway.settings import Dialect
from gateway.transport.client import dial
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext

PROBE_SECONDS = 5.0
"""Seconds between two looks at an address that would be better than the one in use."""
TELL_AGAIN = 30.0
"""Seconds between two lines in the log about what is wrong with an upstream."""
ASKED = "gateway"
"""The topic that is asked for where a protocol has no login: whatever the answer is, somebody gives it."""
Ended = Callable[[Outcome], None]


def client_tls(upstream: model.Upstream, transport: Transport) -> ClientTls | None:
    """How the upstream is trusted. QUIC is always encrypted: without settings the system's roots count."""
    tls = upstream.tls
    if isinstance(tls, model.TlsTrust):
        return ClientTls(ca=tls.ca, cert=tls.cert, key=tls.key, server_name=tls.server_name)
    if isinstance(tls, model.TlsSystem) or transport is Transport.QUIC:
        return ClientTls()
    return None


@attrs.define(eq=False)
class _Awaited:
    ended: Ended
    deadline: float
    patient: bool
    """Its answer waits for a message: how long that takes says nothing about the upstream."""


class PooledConnection:
    def __init__(self, pool: UpstreamPool) -> None:
        self._pool = pool
        self.driver: Remote | None = None
        self.waiting: dict[int, _Awaited] = {}
        self.over = trio.Event()
        self.question = 0
        """The request that only finds out whether somebody is there, while nobody has answered it."""
        self.useful = False
        """Whether the upstream ever took something on it."""
        self.out_of_turn = False
        """It would not store something behind what it had taken: for some address it keeps no turns."""
        self._retiring = False
        self._heard = self._lost = False
        self._timer: Callable[[], None] | None = None

    @property
    def of_use(self) -> bool:
        """Whether more may be sent on it."""
        return not (self._retiring or self.over.is_set())

    @property
    def keeps_turns(self) -> bool:
        """Whether what says what it comes after is stored behind that, or not at all."""
        return not self.out_of_turn and self.driver is not None and self.driver.keeps_turns

    @property
    def deaf(self) -> bool:
        """Whether it took requests, and ended without an answer to any."""
        return self._lost and not self._heard

    def said_nothing(self) -> None:
        self._lost = True

    def submit(self, request: Request, ended: Ended) -> None:
        driver = self.driver
        assert driver is not None
        deadline = trio.current_time() + self._pool.upstream.timeout
        self.waiting[request.id] = _Awaited(ended, deadline, isinstance(request, Take))
        if self._timer is None:
            self._timer = self._pool.timers.call_at(deadline, self._overdue)
        driver.submit([request])

    def complete(self, completions: Sequence[Completion]) -> None:
        """The session's answers. Those that come after their request was given up are dropped. What follows from them, the
        next requests above all, is done here and now: then it leaves in the same pass of the event loop.
        """
        self._pool.timers.hold()
        try:
            self._answered(completions)
        finally:
            self._pool.timers.release()

    def _answered(self, completions: Sequence[Completion]) -> None:
        for number, outcome in completions:
            if refuses_login(outcome):
                self._pool.shut_out(outcome, connected=True)  # before whoever asked looks where to go on
                self._pool.withdraw(self)
                self.over.set()
            if number == self.question:
                self.question = 0
            waiting = self.waiting.pop(number, None)
            if waiting is not None:
                if self._pool.timed and not waiting.patient:
                    self._pool.took(trio.current_time() - waiting.deadline + self._pool.upstream.timeout)
                self.useful = self.useful or not isinstance(outcome, GatewayError)
                self._lost = self._lost or isinstance(outcome, TargetLost)
                self._heard = self._heard or not isinstance(outcome, TargetLost)
                if isinstance(outcome, TargetLost):
                    self._pool.tell_people(outcome)
                self._pool.judge(outcome)
                waiting.ended(outcome)
        if self._retiring and not self.waiting:
            self.over.set()

    def retire(self) -> None:
        """Nothing new is sent on it; it ends when all that is under way is answered."""
        self._retiring = True
        if not self.waiting:
            self.over.set()

    def end(self, error: GatewayError) -> None:
        """It is of no more use: everything under way ends with this."""
        self.over.set()
        if self._timer is not None:
            self._timer()
            self._timer = None
        waiting, self.waiting = self.waiting, {}
        self._lost = self._lost or bool(waiting)
        for one in waiting.values():
            self._pool.judge(error)
            one.ended(error)

    def _overdue(self) -> None:
        # all requests have the same time, so the oldest is the first to be late
        self._timer = None
        oldest = next(iter(self.waiting.values()), None)
        if oldest is None:
            return
        if oldest.deadline <= trio.current_time():
            error = TargetLost(f"no answer within {self._pool.upstream.timeout:g} s")
            self._pool.tell_people(error)
            self._pool.leave(self, error)
        else:
            self._timer = self._pool.timers.call_at(oldest.deadline, self._overdue)


class UpstreamPool:
    """All connections to an upstream, and who wants to hear of them."""

    def __init__(
        self,
        upstream: model.Upstream,
        spec: ProtocolSpec,
        timers: Pump,
        recorder: Recorder,
        chance: random.Random | None = None,
        caller: str = "",
    ) -> None:
        """`caller`: what it is called at the upstream, where that matters."""
        self.upstream = upstream
        self.spec = spec
        self.timers = timers
        self.on_change: list[Callable[[], None]] = []
        """Called when a connection came up, and after a failed attempt to connect."""
        self.problem = "not connected yet"
        self.away_since: float | None = None
        """Since when nobody has answered there."""
        self._proven_by_answers = False
        """A connection was up when the login was refused, or took requests and answered none: the next one being up does not
        mean that all is well."""
        self.refused = ""
        """What the upstream said when it would not let us in; empty again once it does."""
        self.timed = False
        """Somebody wants to know how long answers take."""
        self.latency: float | None = None
        """Seconds, over the last of them; only while it is `timed`."""
        self._chance = chance or random.Random()  # noqa: S311  # spreads retries, keeps no secret
        self.breaker = Breaker(self._chance)
        self._recorder = recorder
        self._caller = caller
        self._connections: list[PooledConnection] = []
        self._places = [upstream.addresses] if spec.one_cluster else [(one,) for one in upstream.addresses]
        self._preference = Preference(len(self._places))
        self._ids = itertools.count(1)
        self._trial: Callable[[], None] | None = None
        self._tell_at = 0.0
        self._told = False
        self.report_to(recorder)

    @property
    def name(self) -> str:
        return self.upstream.name

    @property
    def current_address(self) -> int:
        return self._preference.current

    @property
    def connected(self) -> bool:
        return bool(self._connections)

    @property
    def marks_by_header(self) -> bool:
        """Whether by which gateways a message came is said there in a header: the protocol has headers, and no other place."""
        dialect = self.upstream.dialect
        return dialect in self.spec.headered or (dialect is Dialect.AUTO and bool(self.spec.headered))

    @property
    def carries(self) -> Carries:
        """What can be said there; with `auto`, in every dialect that may turn out to be spoken."""
        return self.spec.carries_in(self.upstream.dialect)

    def report_to(self, recorder: Recorder) -> None:
        self._recorder = recorder
        recorder.gauge("gateway_upstream_connected", float(self.connected), upstream=self.name)
        recorder.gauge("gateway_upstream_login_refused", float(bool(self.refused)), upstream=self.name)

    @property
    def in_flight(self) -> int:
        return sum(len(connection.waiting) for connection in self._connections)

    @property
    def ready(self) -> bool:
        if not self._connections:
            return False
        if self.breaker.state is Circuit.CLOSED:
            return True
        now = trio.current_time()
        if self.breaker.allows(now, self.in_flight):
            return True
        if self._trial is None and now < self.breaker.opens_until:
            self._trial = self.timers.call_at(self.breaker.opens_until, self._try_again)
        return False

    def submit(self, make: Callable[[int], Request], ended: Ended) -> bool:
        """Send a request, made for its id; False if there is nowhere to send it now."""
        connection = self.choose()
        if connection is None:
            return False
        connection.submit(make(next(self._ids)), ended)
        return True

    def choose(self) -> PooledConnection | None:
        """The connection with the least to do; None if no request would be sent now."""
        if not self.ready:
            return None
        connections = self._connections
        return connections[0] if len(connections) == 1 else min(connections, key=lambda one: len(one.waiting))

    def submit_on(self, connection: PooledConnection, make: Callable[[int], Request], ended: Ended) -> None:
        """Send a request on this connection and no other: what it is about exists only there."""
        if connection.over.is_set():
            ended(TargetLost("the connection to the upstream is gone"))
        else:
            connection.submit(make(next(self._ids)), ended)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self.upstream.pool):
                nursery.start_soon(self._keep_up)

    def took(self, seconds: float) -> None:
        self.latency = seconds if self.latency is None else 0.8 * self.latency + 0.2 * seconds

    def judge(self, outcome: Outcome) -> None:
        """What an answer says about the target as a whole; a refusal that is final says nothing about it."""
        if not isinstance(outcome, GatewayError) or (isinstance(outcome, TargetRefused) and not is_outage(outcome)):
            self._reached()
        if not isinstance(outcome, GatewayError):
            if self.breaker.state is not Circuit.CLOSED:
                # who was held back may send again: soon, not from inside the answer that is being gone through
                self.timers.call_at(trio.current_time(), self._try_again)
            self.breaker.succeeded()
        elif isinstance(outcome, TargetOutOfTurn):
            pass  # what it was to come after has been judged
        elif isinstance(outcome, TargetError) and not getattr(outcome, "final", False):
            self.breaker.failed(trio.current_time())

    def leave(self, connection: PooledConnection, error: GatewayError) -> None:
        """Take a connection out of use: what is under way on it ends with this."""
        if self.withdraw(connection):
            self.problem = ""
            if not self._connections:
                self._is_away(error)
        connection.end(error)

    def withdraw(self, connection: PooledConnection) -> bool:
        """Give a connection nothing more to do; whether it was in use."""
        if connection not in self._connections:
            return False
        self._connections.remove(connection)
        self._recorder.gauge("gateway_upstream_connected", float(bool(self._connections)), upstream=self.name)
        return True

    def tell_people(self, error: GatewayError) -> None:
        """Say in the log what is wrong, unless that was done just now."""
        now = trio.current_time()
        if now >= self._tell_at:
            self._tell_at = now + TELL_AGAIN
            self._told = True
            self._recorder.upstream_failed(self.name, error.message)

    def shut_out(self, error: GatewayError, *, connected: bool) -> None:
        self.tell_people(error)
        self._proven_by_answers = connected
        self.refused = error.message
        self._is_away(error)
        self._recorder.gauge("gateway_upstream_login_refused", 1.0, upstream=self.name)

    # --- inside ---

    def _is_away(self, error: GatewayError) -> None:
        self.problem = error.message
        if self.away_since is None:
            self.away_since = trio.current_time()

    def _reached(self) -> None:
        # somebody is there, and the login, if there is one, is through
        self._proven_by_answers = False
        self.problem = ""
        if self.refused:
            self.refused = ""
            self._recorder.gauge("gateway_upstream_login_refused", 0.0, upstream=self.name)
        if self.away_since is not None:
            if self._told:
                self._told = False
                self._recorder.upstream_back(self.name, trio.current_time() - self.away_since)
            self.away_since = None

    def _try_again(self) -> None:
        if self._trial is not None:
            self._trial()
            self._trial = None
        self._changed()

    def _changed(self) -> None:
        for callback in self.on_change:
            callback()

    async def _keep_up(self) -> None:
        failures = 0
        while True:
            for index in self._preference.order():
                used = await self._connect(index)
                if isinstance(used, GatewayError):
                    self.tell_people(used)
                elif used.deaf:
                    self._proven_by_answers = True
                    self._preference.was_deaf()  # the next may be better
                else:
                    # up, and down again before it was of any use: no storm
                    failures = 0 if used.useful else failures + 1
                    break
            else:
                failures += 1
                if isinstance(used, GatewayError) and not self._connections:
                    self._is_away(used)
                self._changed()
            await trio.sleep(jittered(BACKOFF.delay(max(failures, 1)), self._chance))

    async def _connect(self, index: int) -> GatewayError | PooledConnection:
        # use one address until the connection ends: the connection that was, or why there was none
        connection = PooledConnection(self)
        try:
            async with self._dial(index, connection.complete) as driver:
                connection.driver = driver
                refusal = await driver.refusal(self.upstream.timeout)
                if refusal is None:
                    await self._use(index, connection, driver)
        except TargetError as error:
            refusal = error
        finally:
            self.leave(connection, TargetLost("the connection to the upstream ended"))
        if refuses_login(refusal):
            self.shut_out(refusal, connected=False)
        if connection.useful:
            self._preference.was_useful(index)
        return refusal or connection

    async def _use(self, index: int, connection: PooledConnection, driver: Remote) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, connection, driver)
            if index:
                nursery.start_soon(self._probe, connection, index)
            self._preference.use(index)
            self._connections.append(connection)
            self.problem = "connected, and nothing was answered yet" if self.away_since is not None else ""
            if self.problem and not driver.heard.is_set():
                connection.question = next(self._ids)
                driver.submit([DescribeTopics(connection.question, ASKED)])  # nothing else may wait for an answer
            # where a protocol has no such question, what is sent has to show it
            patience = self.upstream.timeout if connection.question else math.inf
            nursery.start_soon(self._hear, connection, driver, patience)
            self._recorder.gauge("gateway_upstream_connected", 1.0, upstream=self.name)
            self._changed()
            await connection.over.wait()
            nursery.cancel_scope.cancel()

    async def _hear(self, connection: PooledConnection, driver: Remote, patience: float) -> None:
        with trio.move_on_after(patience):
            await driver.heard.wait()
        if not driver.heard.is_set():
            error = TargetLost(f"no answer within {patience:g} s")
            self.tell_people(error)
            connection.said_nothing()
            self.leave(connection, error)
        elif connection in self._connections and not self._proven_by_answers:
            self._reached()

    async def _watch(self, connection: PooledConnection, driver: Remote) -> None:
        await driver.ended.wait()
        error = TargetLost("the connection to the upstream was lost")
        self.tell_people(error)
        self.leave(connection, error)

    async def _probe(self, connection: PooledConnection, index: int) -> None:
        # on a second choice: see whether a better one is back, and stays so
        while True:
            await trio.sleep(PROBE_SECONDS)
            better = await self._first_answering(index)
            if self._preference.probed(better, trio.current_time(), PROBE_SECONDS / 2):
                break
        self._preference.use(better or 0)
        if connection in self._connections:
            self._connections.remove(connection)
        connection.retire()

    async def _first_answering(self, end: int) -> int | None:
        # the best address before this one that lets us in
        for index in range(end):
            with contextlib.suppress(TargetError):
                async with self._dial(index, lambda _completions: None) as driver:
                    if await driver.refusal(self.upstream.timeout) is None:
                        return index
        return None

    def _dial(
        self, index: int, complete: Callable[[Sequence[Completion]], None]
    ) -> contextlib.AbstractAsyncContextManager[Remote]:
        return dial(
            self.spec,
            self._places[index],
            complete,
            context=ClientContext(
                self.upstream.auth,
                self.upstream.dialect,
                says_copies=True,
                transport=self.upstream.transport,
                caller=self._caller,
            ),
            tls=client_tls(self.upstream, self.upstream.transport or self.spec.transport),
            timeout=self.upstream.timeout,
            soon=self.timers.soon,
        )
