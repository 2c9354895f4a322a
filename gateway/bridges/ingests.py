"""Every ingest of a configuration: the connections they share, the remote addresses they find, when they may start.

An ingest that names one remote address has one source. One with wildcards asks the broker for its topics, again and again;
where a broker cannot list them, the topics that exist here say which remote addresses there are.

Nothing is asked of a remote before `admit`: the log is open, its own subscribers may connect, and then each source waits for
what its route needs besides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import trio

from gateway.bridges.ingest import IngestContext, IngestState, Source, remembers_offsets
from gateway.bridges.ingest_entry import EntryContext, IngestEntry
from gateway.bridges.pool import UpstreamPool
from gateway.broker.ownership import OwnedJobs
from gateway.errors import GatewayError, Status
from gateway.protocols.registry import ReaderPosition
from gateway.recorder import IngestPlace
from gateway.requests import DescribeTopics, Outcome, Request, Topics
from gateway.routing.address import is_reserved
from gateway.routing.table import IngestRule, RoutingTable

REFRESH_SECONDS = 5.0
"""Between two looks for new remote topics."""
MOST_SOURCES = 4_096
"""Remote addresses of one ingest."""
STOP_SECONDS = 2.0
"""How long going down waits for what is being stored: what it does not wait for comes again."""


def job_of(upstream: str, rule: IngestRule) -> str:
    """The name under which one gateway at a time owns it."""
    return f"ingest {upstream} {rule.ingest.source} {rule.ingest.group}"


class RunningIngest:
    """One `ingest` of one upstream."""

    def __init__(
        self,
        context: IngestContext,
        entries: EntryContext,
        pool: UpstreamPool,
        rule: IngestRule,
        table: RoutingTable,
        obstacle: Callable[[str], str],
    ) -> None:
        self._context = context
        self._entries = entries
        self._table = table
        self._obstacle = obstacle
        self.pool = pool
        self.rule = rule
        self.name = rule.ingest.source
        self._sources: dict[str, Source] = {}
        self._partitions: dict[str, int] = {}
        self._look_at: Callable[[], None] | None = None
        self._admitted = False
        self._shown: IngestState | None = None
        context.recorder.ingested(pool.name, self.name, 0)
        for status in Status:
            context.recorder.ingest_failed(pool.name, self.name, status, 0)
        self.show()

    @property
    def job(self) -> str:
        return job_of(self.pool.name, self.rule)

    @property
    def sources(self) -> Iterable[Source]:
        return self._sources.values()

    def places(self) -> Iterator[IngestPlace]:
        """How far it is, address by address; without one it is there, too."""
        if not self._sources:
            yield IngestPlace(self.pool.name, self.name, "", IngestState.WAITING.value, None, 0, self.problem)
        for source in self.sources:
            yield source.place()

    @property
    def idle(self) -> bool:
        """Nothing of it is on its way into the log or being settled."""
        return all(source.idle for source in self.sources)

    @property
    def problem(self) -> str:
        """Why it does not go on, if somebody has to look."""
        if self.pool.refused:
            return f"refuses our login: {self.pool.refused}"
        return next((source.problem for source in self.sources if source.problem), "")

    def show(self) -> None:
        running = self.pool.connected and any(source.running for source in self.sources)
        self._show("refused" if self.problem else "running" if running else "waiting")

    def _show(self, state: str) -> None:
        for each in ("waiting", "running", "refused"):
            labels = {"upstream": self.pool.name, "source": self.name, "state": each}
            self._context.recorder.gauge("gateway_ingest_state", float(each == state), **labels)

    def admit(self) -> None:
        if self._admitted:
            return
        self._admitted = True
        if self.rule.exact is not None:
            self._add(self.rule.exact)
        self.changed()

    def changed(self) -> None:
        if not self._admitted:
            return
        for source in list(self.sources):
            source.wake()
        if self.rule.exact is None and self._look_at is None:
            self._look()

    def finish(self) -> None:
        """Ask for nothing more; what comes because it was asked for is stored, and settled."""
        self._end_looking()
        for source in self.sources:
            source.finish()

    def stop(self) -> None:
        self._end_looking()
        for source in self.sources:
            source.stop()

    def close(self) -> None:
        for source in self.sources:
            source.close()
        self._show("")

    # --- finding remote addresses ---

    def _end_looking(self) -> None:
        self._admitted = False
        if self._look_at is not None:
            self._look_at()

    def _look(self) -> None:
        self._look_at = None
        if not self._admitted:
            return
        connection = self.pool.choose()
        if connection is not None:
            self.pool.submit_on(connection, _every_topic, self._found)
            self._look_at = self._call_later()

    def _call_later(self) -> Callable[[], None]:
        return self._context.pump.call_at(self._context.clock.now() + REFRESH_SECONDS, self._look)

    def _found(self, outcome: Outcome) -> None:
        if not self._admitted:
            return
        if isinstance(outcome, Topics):
            for info in outcome.topics:
                self._add(info.address, len(info.partitions))
        else:
            for remote in self._known_here():
                self._add(remote)

    def _known_here(self) -> Iterator[str]:
        protocol, listener = self.pool.spec.name, self.pool.name
        for topic in list(self._context.store.topics):
            address = self._table.address_of(protocol, listener, topic)
            remote = self.rule.remote(address) if address is not None else None
            if remote is not None:
                yield remote

    def _add(self, remote: str, partitions: int = 0) -> None:
        before = self._partitions.get(remote, 0)
        self._partitions[remote] = max(partitions, before)
        known = self._sources.get(remote)
        if known is not None:
            if before and partitions > before:
                known.restart()
            return
        address = self.rule.address(remote)
        if address is None or is_reserved(remote) or len(self._sources) >= MOST_SOURCES:
            return
        host, port = self.pool.upstream.addresses[0]
        guard = partial(self._context.owners.guard, self.job)
        spec = self.pool.spec
        rows = remembers_offsets(spec) or spec.reader_position is ReaderPosition.OWN
        door = IngestEntry(self._entries, self.pool.name, spec.name, f"{host}:{port}", address, guard, rows=rows)
        names = (self.name, self.rule.ingest.group, remote)
        source = Source(self._context, self.pool, names, door, lambda: self._obstacle(address), guard)
        self._sources[remote] = source
        source.wake()


def _every_topic(number: int) -> Request:
    return DescribeTopics(number)


class Ingests(OwnedJobs[RunningIngest]):
    """Every ingest of the configuration: those that run, and those that wait until what they need is there."""

    def __init__(
        self,
        context: IngestContext,
        entries: EntryContext,
        table: RoutingTable,
        reachable: Callable[[str], bool],
        start_soon: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        """`reachable`: whether an upstream that a proxy goes to is there."""
        super().__init__(context.owners)
        self._start_soon = start_soon
        self._context = context
        self._entries = entries
        self._table = table
        self._reachable = reachable
        self._pools: Mapping[str, UpstreamPool] = {}
        self._leaving: Sequence[RunningIngest] = ()
        self._admitted = False
        self.all: Sequence[RunningIngest] = ()

    def become(self, pools: Mapping[str, UpstreamPool]) -> None:
        """From now on these are pulled from, as the table says. What is pulled over connections that are not among them
        stops, and who follows begins when it has (`finished`, `follow`).
        """
        for name, pool in pools.items():
            if self._pools.get(name) is not pool:
                pool.on_change.append(partial(self._changed, pool))
        self._pools = pools
        for ingest in self.all:
            if pools.get(ingest.pool.name) is not ingest.pool:
                self.leave(ingest)
        self._begin()

    def jobs(self) -> Iterable[tuple[str, RunningIngest]]:
        return ((ingest.job, ingest) for ingest in self.all)

    def take(self) -> None:
        self._begin()
        self._start_soon(self._change_over)

    def leave(self, job: RunningIngest) -> None:
        self.all = [ingest for ingest in self.all if ingest is not job]
        self._leaving = [*self._leaving, job]
        job.finish()

    def _begin(self) -> None:
        # those that are not there: they ask for nothing until they may
        known = {ingest.job for ingest in self.all}
        self.all = [*self.all] + [
            RunningIngest(
                self._context,
                self._entries,
                pool,
                rule,
                self._table,
                lambda address, pool=pool: self._obstacle(pool, address),  # type: ignore[misc]
            )
            for name, pool in self._pools.items()
            for rule in self._table.ingests[name]
            if job_of(name, rule) not in known and self._owners.owns(job_of(name, rule))
        ]

    async def _change_over(self) -> None:
        await self.finished()
        self.follow()

    async def finished(self) -> None:
        """Until all that was stopped has stored what it had asked for and said so. Who follows may begin (`follow`) when its
        connections are closed: on some remotes both would share what comes.
        """
        while not all(ingest.idle for ingest in self._leaving):
            await self._context.pump.moment()
        for ingest in self._leaving:
            ingest.stop()
            ingest.close()
        self._leaving = ()

    def follow(self) -> None:
        """Begin the ingests that wait for those of before to end."""
        if self._admitted:
            self.admit()

    def admit(self) -> None:
        self._admitted = True
        for ingest in self.all:
            ingest.admit()

    def uses(self, pool: UpstreamPool) -> bool:
        """Whether something that was pulled over these connections is not settled there."""
        return any(ingest.pool is pool for ingest in self._leaving)

    def show(self) -> None:
        for ingest in self.all:
            ingest.show()

    def stop(self) -> None:
        """Take nothing more; what is being stored is stored, and settled."""
        self._admitted = False
        for ingest in (*self.all, *self._leaving):
            ingest.stop()

    async def drain(self) -> None:
        self.stop()
        everyone = (*self.all, *self._leaving)  # `finished` may end meanwhile
        with trio.move_on_after(STOP_SECONDS):
            while not all(ingest.idle for ingest in everyone):
                await self._context.pump.moment()
        for ingest in everyone:
            ingest.close()

    # --- inside ---

    def _changed(self, pool: UpstreamPool) -> None:
        for ingest in self.all:
            if ingest.pool is pool:
                ingest.changed()

    def _obstacle(self, pool: UpstreamPool, address: str) -> str:
        # why nothing may be pulled for an address here: where it would go is not ready
        health = self._context.store.health
        if not health.writable:
            return f"the store is read-only: {health.reason}"
        try:
            plan = self._table.writer(pool.spec.name, pool.name, address)
        except GatewayError as error:
            return error.message
        for route in (plan.route,) if plan.route is not None else plan.candidates:
            if route.proxy is not None and not self._reachable(route.proxy.upstream):
                return f"{address} waits for upstream {route.proxy.upstream}"
        return ""
