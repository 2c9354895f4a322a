"""The composition root: makes everything a configuration describes, serves it, and takes it down in order."""

from __future__ import annotations

import contextlib
import functools
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import structlog
import trio

from gateway import __version__
from gateway.bridges.assembly import Bridges, open_bridges
from gateway.bridges.forward_rows import stored_floor
from gateway.broker.assembly import House, open_house
from gateway.broker.consume.deliveries import writing_stats
from gateway.broker.service import ListenerInfo
from gateway.bulk.service import LISTENER, PROTOCOL, Bulk, Listeners
from gateway.errors import ConfigProblem, StoreReadOnly, TargetError, Unsupported
from gateway.files import make_private_directory
from gateway.model import (
    Admin,
    AuthNone,
    AuthOpen,
    AuthUsers,
    ClientCert,
    ClusterSettings,
    Config,
    Kafka,
    Listener,
    TlsFiles,
    TlsNone,
    TlsTrust,
)
from gateway.notation import is_everywhere, show_endpoint
from gateway.observe.accounting import Accounting, GroupLags, knowing_ends
from gateway.observe.collecting import Collector, collecting
from gateway.observe.health import Health, ProcessPhase
from gateway.observe.http import bind_http, bind_http_here, serve_http_when_asked
from gateway.observe.lag import watching_lag
from gateway.observe.prometheus import PrometheusRecorder
from gateway.observe.sizes import Sizes
from gateway.observe.trimming import giving_back_after_floods
from gateway.protocols.registry import Transport, protocol
from gateway.reload import Reloads
from gateway.routing.table import compile_table
from gateway.store.interface import Store
from gateway.store.moved import refuse_unfinished
from gateway.store.serving import Address
from gateway.store.serving import note as note_serving
from gateway.store.sqlite import StoreOptions, open_store
from gateway.transport.driver import DriverContext
from gateway.transport.limits import Budget
from gateway.transport.listen import Served, TcpListener, open_tcp_sockets
from gateway.transport.tls import ReloadingContext, server_context
from gateway.transport.workers import Handover
from gateway.wire.session import SessionContext

if TYPE_CHECKING:  # what a configuration may do without is imported where it is used: a start waits for every module
    from starlette.types import ASGIApp

    from gateway.admin.inside import Inside
    from gateway.observe.workers import Others
    from gateway.store.kafka.options import KafkaOptions
    from gateway.supervisor import WorkerPart
    from gateway.transport.quic.certificates import CertificateFiles
    from gateway.transport.quic.trust import ClientTrust
    from gateway.transport.quic.udp import UdpSocket
    from gateway.transport.quic_listen import QuicListener
    from gateway.transport.websocket import WebSocketRules

DRAIN_SECONDS = 10.0
log = structlog.get_logger()


NO_CLIENT = "a log on Kafka needs its client: pip install 'gateway[kafka]'"


class CannotListen(TargetError):
    """A listener's address cannot be bound."""


@attrs.frozen
class BoundTcp:
    """A TCP listener whose sockets are open; nothing is accepted yet."""

    listener: Listener
    port: int
    sockets: list[socket.socket]
    kind: str = "tcp"


@attrs.frozen
class BoundUdp:
    """A QUIC listener whose sockets are open."""

    listener: Listener
    port: int
    sockets: list[UdpSocket]
    kind: str = "udp"


Bound = BoundTcp | BoundUdp


Announce = Callable[[str], None]


async def serve(config: Config, *, announce: Announce, part: WorkerPart | None = None) -> None:
    """Serve a configuration until a signal says otherwise. SIGTERM or SIGINT drains, a second one ends at once;
    SIGHUP reads the configuration's file again.
    """
    gateway = Gateway(config, part)
    async with trio.open_nursery() as nursery:
        # from before `ready` is printed: whoever waits for that may end the process at once
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            nursery.start_soon(_obey, signals, gateway, nursery.cancel_scope)
            if part is not None:
                nursery.start_soon(_end_with_supervisor, gateway)
            await nursery.start(gateway.run, announce)
            collector = Collector(gateway.recorder.collected, gateway.recorder.connected)
            nursery.start_soon(collector.run)
            with collecting(collector):
                await gateway.stopped.wait()
        nursery.cancel_scope.cancel()


async def _obey(signals: AsyncIterator[int], gateway: Gateway, everything: trio.CancelScope) -> None:
    async for number in signals:
        if number == signal.SIGHUP:
            gateway.reload()
            continue
        if gateway.draining:
            log.warning("stopping at once", signal=signal.Signals(number).name)
            everything.cancel()
            return
        log.info("draining", signal=signal.Signals(number).name, deadline=DRAIN_SECONDS)
        gateway.drain()


async def _end_with_supervisor(gateway: Gateway) -> None:
    # It holds the other end of the standard input and writes nothing there. One that was killed could tell nobody to end.
    await trio.lowlevel.wait_readable(sys.stdin.fileno())
    if not gateway.draining:
        log.warning("draining: the process that started this one is gone", deadline=DRAIN_SECONDS)
        gateway.drain()


async def _until(over: trio.CancelScope, run: Callable[[], Awaitable[None]]) -> None:
    with over:
        await run()


async def _run_listener(listener: TcpListener | QuicListener, finished: trio.Event) -> None:
    try:
        await listener.run()
    finally:
        finished.set()


class Gateway:
    """One running gateway."""

    def __init__(self, config: Config, part: WorkerPart | None = None) -> None:
        """`part`: it is one process of several."""
        ours = functools.partial(_ours, part)
        config = ours(config)
        self._config = config
        self._part = part
        self._worker = part.worker if part is not None else None
        self._handover: Handover | None = None
        self.stopped = trio.Event()
        self._drain = trio.Event()
        self.recorder = PrometheusRecorder(
            routes=[route.name for route in config.routes],
            listeners={
                **({LISTENER: PROTOCOL} if config.admin is not None else {}),
                **{name: "+".join(listener.protocols) for name, listener in config.listeners.items()},
            },
            targets=[*config.listeners, *config.upstreams],
            version=__version__,
        )
        self._table = compile_table(config)
        self.reloads = Reloads(config, self._table, self.recorder, ours)
        self.health = Health(self.recorder)
        self.ports: dict[str, int] = {}
        """The real port of each listener, and of `admin`."""

    @property
    def draining(self) -> bool:
        return self._drain.is_set()

    def drain(self) -> None:
        self.reloads.close()
        self._drain.set()

    def reload(self) -> None:
        if self.draining:
            log.warning("the configuration is not reloaded: the gateway goes down")
        else:
            self.reloads.ask()

    async def run(self, announce: Announce, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open everything, announce it, serve until drained."""
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            # ports first: one that is taken is told at once, and not after the log has been opened
            bound = [await self._bind(stack, listener) for listener in self._listened]
            web: dict[str, socket.socket] = {}
            if self._worker is not None:
                self._handover = Handover(self._worker)
                stack.callback(self._handover.close)
                web["worker"] = bind_http_here(self._worker.path("metrics"))
                stack.callback(web["worker"].close)
            if config.admin is not None and self._leads:
                web["admin"] = self._bind_http(stack, "admin", config.admin.host, config.admin.port)
            if config.metrics.bind is not None and self._leads:
                web["metrics"] = self._bind_http(stack, "metrics", *config.metrics.bind)
            store = await self._open_store(stack)
            table = self._table
            accounts = [one.auth for one in config.listeners.values() if isinstance(one.auth, AuthUsers)]
            budget = Budget(config.memory.budget)
            house = await stack.enter_async_context(
                open_house(store, table, self.recorder, budget, accounts=accounts, cluster=_cluster(config, bound))
            )
            await self._link(stack, house, store)
            await stack.enter_async_context(
                writing_stats(house.latencies, store, house.pump, house.clock, self.recorder)
            )
            await stack.enter_async_context(watching_lag(self.recorder.lagged))
            await stack.enter_async_context(knowing_ends(store, config.metrics.groups, house.groups.positions))
            await stack.enter_async_context(giving_back_after_floods(budget.peak, lambda: budget.used))
            bridges = await stack.enter_async_context(open_bridges(config, store, house, table, self.recorder, budget))
            self.health.conditions(bridges.problems)
            self.health.notices(bridges.waiting)
            self.health.notices(lambda: (("store", text) for text in store.lost.texts))
            self.recorder.on_scrape(bridges.refresh)
            if (shared := house.shared) is not None:
                self.recorder.on_scrape(lambda: self.recorder.gauge("gateway_passed_waiting", shared.waiting))
            self.health.watch_store(lambda: store.health)
            self.recorder.on_scrape(self.health.refresh)
            self.recorder.before_scrape(Accounting(self.recorder, house.snapshot).take)
            self.recorder.on_scrape(GroupLags(self.recorder, config.metrics.groups, house.groups.positions))
            sizes = Sizes(
                self.recorder,
                Path(config.storage.path),
                topics=lambda: len(store.topics),
                budget_used=lambda: budget.used,
                budget_limit=budget.limit,
            )
            self.recorder.on_scrape(sizes)
            listeners = [self._listener(one, house, budget) for one in bound]
            stop_admin = trio.Event()
            async with trio.open_nursery() as nursery:
                if self._handover is not None:
                    nursery.start_soon(_until, handing := trio.CancelScope(), self._handover.run)
                if "metrics" in web:
                    serve = functools.partial(
                        serve_http_when_asked,
                        functools.partial(self._metrics_app, self._others, config.metrics.bind),
                        web["metrics"],
                        stop=stop_admin,
                    )
                    nursery.start_soon(serve)
                if config.admin is not None:
                    spoken = {name: listener.protocols for name, listener in config.listeners.items()}
                    bulk = Bulk(store, house, table, Listeners(spoken))
                    nursery.start_soon(bulk.run, stop_admin)
                    make_inside = functools.partial(self._inside, store, house, bulk, bridges, listeners)
                    if "admin" in web:
                        make = functools.partial(self._admin_app, make_inside, budget)
                        tls = self._admin_tls()
                        nursery.start_soon(
                            functools.partial(serve_http_when_asked, make, web["admin"], stop=stop_admin, tls=tls)
                        )
                    if "worker" in web:
                        here = functools.partial(self._worker_app, make_inside)
                        nursery.start_soon(
                            functools.partial(serve_http_when_asked, here, web["worker"], stop=stop_admin)
                        )
                elif "worker" in web:
                    here = functools.partial(self._metrics_app, None, None)
                    nursery.start_soon(functools.partial(serve_http_when_asked, here, web["worker"], stop=stop_admin))
                finished = [trio.Event() for _ in listeners]
                for listener, event in zip(listeners, finished, strict=True):
                    nursery.start_soon(_run_listener, listener, event)
                self._announce(announce, bound)
                if config.storage.kafka is None:
                    try:
                        note_serving(Path(config.storage.path), self._addresses())
                    except OSError as error:  # a full disk: readers are served all the same
                        log.warning("where the store is served cannot be noted", problem=str(error))
                self.health.enter(ProcessPhase.READY)
                # what is loaded when somebody asks for it leaves no byte code: on a full disk that would be half a file, which
                # every later start would fail at
                sys.dont_write_bytecode = True
                announce("ready")
                # what is pulled from elsewhere may come in only now, when who reads it can connect
                bridges.admit()
                nursery.start_soon(self.reloads.run, bridges)
                task_status.started()
                await self._drain.wait()
                self.health.enter(ProcessPhase.DRAINING)
                bridges.drain()
                # the store closes after them, by the stack: what a client was told is stored has been stored
                await self._take_down(listeners, finished)
                stop_admin.set()
                if self._handover is not None:
                    # last: packets of connections that end come by way of the other processes
                    handing.cancel()
        self.stopped.set()

    async def _take_down(self, listeners: Sequence[TcpListener | QuicListener], finished: Sequence[trio.Event]) -> None:
        for listener in listeners:
            listener.drain()
        with trio.move_on_after(DRAIN_SECONDS):
            for event in finished:
                await event.wait()
        for listener in listeners:
            listener.abort()
        log.info("drained")

    @property
    def _leads(self) -> bool:
        # of several processes the first does what one has to do
        return self._worker is None or self._worker.number == 0

    @property
    def _listened(self) -> Sequence[Listener]:
        # a Unix socket is one process's
        every = self._config.listeners.values()
        return [one for one in every if self._leads or one.transport is not Transport.UNIX]

    @property
    def _others(self) -> Others | None:
        worker = self._worker
        if worker is None:
            return None
        from gateway.observe.workers import Others

        numbers = [number for number in range(worker.of) if number != worker.number]
        return Others({number: worker.path("metrics", number) for number in numbers})

    async def _open_store(self, stack: contextlib.AsyncExitStack) -> Store:
        storage = self._config.storage
        if storage.kafka is not None:
            make_private_directory(Path(storage.path))
            cluster = kafka_options(self._config, storage.kafka)
            try:
                shared = await stack.enter_async_context(_kafka_store(cluster, self.recorder))
            except StoreReadOnly as error:
                raise await _said_by_brokers(cluster, error) from error
            await refuse_unfinished(shared)
            return shared
        options = StoreOptions(storage.tail_cache, storage.page_cache, storage.free_space_floor)
        store = await stack.enter_async_context(open_store(storage.path, options, recorder=self.recorder))
        await refuse_unfinished(store)
        # until the forwards run, what they had reached is what is written: retention must not take what they have not sent
        store.set_retention_floor(stored_floor(store))
        return store

    async def _link(self, stack: contextlib.AsyncExitStack, house: House, store: Store) -> None:
        kafka = self._config.storage.kafka
        if kafka is None:
            return
        from gateway.link.opening import LinkPlace, open_links

        host, port = kafka.link.bind or ("", 0)
        port += self._worker.number if port and self._worker is not None else 0
        place = LinkPlace(host, port, kafka.link.advertise)
        directory = Path(self._config.storage.path)
        place = await stack.enter_async_context(
            open_links(house, store, self.recorder, place, kafka.brokers, directory)
        )
        log.info("other gateways reach this one", host=place.advertise, port=place.port)

    async def _bind(self, stack: contextlib.AsyncExitStack, listener: Listener) -> Bound:
        bound: Bound
        shared = self._part is not None
        port = self._part.ports.get(listener.name, listener.port) if self._part is not None else listener.port
        try:
            carrier = listener.transport or protocol(listener.protocols[0]).transport
            if carrier is Transport.QUIC:
                from gateway.transport.quic.server import open_udp_sockets

                udp = await open_udp_sockets(listener.host, port, shared=shared)
                for one in udp:
                    stack.callback(one.close)
                bound = BoundUdp(listener, udp[0].address[1], udp)
            elif carrier is Transport.UNIX:
                from gateway.transport.unix import unix_listener

                local = stack.enter_context(unix_listener(listener.host, listener.mode))
                bound = BoundTcp(listener, 0, [local], carrier.value)
            else:
                tcp = await open_tcp_sockets(listener.host, port, shared=shared)
                for sock in tcp:
                    stack.callback(sock.close)
                bound = BoundTcp(listener, tcp[0].getsockname()[1], tcp, carrier.value)
        except OSError as error:
            where = show_endpoint(listener.host, listener.port)
            raise CannotListen(f"listener {listener.name}: cannot bind {where}: {error}") from error
        self.ports[listener.name] = bound.port
        return bound

    def _bind_http(self, stack: contextlib.AsyncExitStack, name: str, host: str, port: int) -> socket.socket:
        try:
            sock = bind_http(host, port)
        except OSError as error:
            raise CannotListen(f"{name}: cannot bind {host}:{port}: {error}") from error
        stack.callback(sock.close)
        self.ports[name] = sock.getsockname()[1]
        return sock

    def _inside(
        self,
        store: Store,
        house: House,
        bulk: Bulk,
        bridges: Bridges,
        listeners: Sequence[TcpListener | QuicListener],
    ) -> Inside:
        from gateway.admin.inside import Inside

        return Inside(
            store,
            house,
            self._table,
            self.recorder,
            self.health,
            bulk,
            bridges,
            self.reloads,
            listeners,
            self.ports,
            time.time,
        )

    def _admin_app(self, make_inside: Callable[[], Inside], budget: Budget) -> ASGIApp:
        from gateway.admin.access import Access
        from gateway.admin.api import Api
        from gateway.admin.app import admin_app
        from gateway.console.pages import OPEN_PATHS, Console
        from gateway.docs.web import docs_routes

        admin = self._config.admin or Admin()
        failed = functools.partial(self.recorder.login_failed, "admin", "token")
        access = Access(admin, now=time.time, failed=lambda peer: failed(peer, ""))
        api = Api(make_inside(), self._others)
        console = Console(api.operations, access)
        return admin_app(
            self.recorder,
            self.health,
            access,
            api.operations,
            pages=[*console.routes(), *docs_routes()],
            open_paths=OPEN_PATHS,
            refuse=console.refuse,
            lifespan=api.running,
            others=self._others,
            room=budget,
        )

    def _worker_app(self, make_inside: Callable[[], Inside]) -> ASGIApp:
        # what the process with the admin address asks this one, itself included: each answers for itself
        from gateway.admin.api import Api
        from gateway.admin.app import worker_app

        api = Api(make_inside())
        return worker_app(self.recorder, self.health, api.operations, api.running, self.reload)

    def _metrics_app(self, others: Others | None, bind: tuple[str, int] | None) -> ASGIApp:
        from gateway.admin.app import metrics_app

        return metrics_app(self.recorder, self.health, others, bind[0] if bind is not None else "")

    def _admin_tls(self) -> ssl.SSLContext | None:
        admin = self._config.admin
        make = self._tls(admin) if admin is not None else None
        return make() if make is not None else None

    def _certificate(self, listener: Listener | Admin) -> tuple[CertificateFiles, Path, Path]:
        from gateway.transport.quic.certificates import (
            CERTIFICATE_NAME,
            DEFAULT_NAMES,
            KEY_NAME,
            CertificateFiles,
            self_signed,
        )

        if isinstance(listener.tls, TlsFiles):
            certificate, key = Path(listener.tls.cert), Path(listener.tls.key)
            try:
                return CertificateFiles(certificate, key), certificate, key
            except ConfigProblem as problem:
                whose = f"listeners.{listener.name}" if isinstance(listener, Listener) else "admin"
                raise ConfigProblem(problem.message, path=f"{whose}.tls") from problem
        directory = Path(self._config.storage.path)
        names = (*DEFAULT_NAMES, *self._config.certified_names)
        return self_signed(directory, names), directory / CERTIFICATE_NAME, directory / KEY_NAME

    def _listener(self, bound: Bound, house: House, budget: Budget) -> TcpListener | QuicListener:
        listener = bound.listener
        hold, release = house.broker.hold, house.broker.release
        # which `trio.current_time` comes to as well, by way of two more calls
        clock = trio.lowlevel.current_clock().current_time
        context = DriverContext(
            listener.name, listener.limits, budget, self.recorder, clock, house.broker.lane, hold, release
        )
        served = [self._served(listener, name, house, bound.port) for name in listener.protocols]
        if isinstance(bound, BoundUdp):
            from gateway.transport.quic_listen import QuicListener

            return QuicListener(
                context,
                bound.sockets,
                served,
                self._certificate(listener)[0],
                _client_trust(listener),
                self._handover,
                list(self._config.listeners).index(listener.name),
            )
        return TcpListener(context, bound.sockets, served, self._tls(listener), _websocket(listener))

    def _tls(self, listener: Listener | Admin) -> Callable[[], ssl.SSLContext] | None:
        if isinstance(listener.tls, TlsNone):
            return None
        files, certificate, key = self._certificate(listener)
        client_ca, client_cert = "", ""
        if isinstance(listener.tls, TlsFiles):
            client_ca, client_cert = listener.tls.client_ca, listener.tls.client_cert.value

        def make() -> ssl.SSLContext:
            return server_context(str(certificate), str(key), client_ca, client_cert)

        return ReloadingContext(make, lambda: files.fingerprint).current

    def _served(self, listener: Listener, name: str, house: House, port: int) -> Served:
        spec = protocol(name)
        serve = spec.server
        assert serve is not None  # the configuration has no listener of a protocol that is dialled alone
        context = SessionContext(
            listener=listener.name,
            settings=listener.settings.get(name, spec.settings()),
            dialect=listener.dialect,
            auth_required=not isinstance(listener.auth, AuthNone | AuthOpen),
            limits=listener.limits,
            advertised=_advertised(self._config, listener, port),
            server_id=self._config.cluster.id,
            transport=listener.transport or spec.transport,
        )
        of_alpn = functools.cache(lambda alpn: attrs.evolve(context, alpn=alpn))
        info = ListenerInfo(listener.name, name, listener.auth, context.settings, listener.limits)
        return Served(
            spec,
            lambda alpn: serve(of_alpn(alpn)),
            lambda peer, callback: house.broker.attach(info, peer, callback),
            spec.alpns_of.get(listener.dialect, spec.alpns),
        )

    def _shown_tls(self, listener: Listener | Admin) -> str:
        if isinstance(listener.tls, TlsNone):
            return ""
        files, certificate, _key = self._certificate(listener)
        return f" tls certificate {certificate} sha256 {files.fingerprint}"

    def _addresses(self) -> Sequence[Address]:
        hosts = {one.name: one.host for one in self._config.listeners.values()}
        if self._config.admin is not None:
            hosts["admin"] = self._config.admin.host
        if self._config.metrics.bind is not None:
            hosts["metrics"] = self._config.metrics.bind[0]
        return [(hosts[name], port) for name, port in self.ports.items() if port]

    def _announce(self, announce: Announce, bound: Sequence[Bound]) -> None:
        for one in bound:
            listener = one.listener
            where = show_endpoint(listener.host, one.port)
            line = f"listening {listener.name}: {'+'.join(listener.protocols)} on {one.kind} {where}"
            announce(line + self._shown_tls(listener))
        if "admin" in self.ports and self._config.admin is not None:
            admin = self._config.admin
            scheme = "http" if isinstance(admin.tls, TlsNone) else "https"
            where = show_endpoint(admin.host, self.ports["admin"])
            announce(f"listening admin: {scheme} on tcp {where}" + self._shown_tls(admin))
        if "metrics" in self.ports and self._config.metrics.bind is not None:
            announce(
                f"listening metrics: http on tcp {show_endpoint(self._config.metrics.bind[0], self.ports['metrics'])}"
            )
        for route in self._config.routes:
            targets: Mapping[str, None] = dict.fromkeys(target.word for target in route.targets)
            announce(f"route {route.name}: {', '.join(targets)}")


def _ours(part: WorkerPart | None, config: Config) -> Config:
    # a configuration as one process of several has it: each is a member of its own to the clients that ask who there is
    if part is None:
        return config
    cluster = attrs.evolve(config.cluster, id=f"{config.cluster.id}-{part.worker.number}")
    return attrs.evolve(config, cluster=cluster)


def _websocket(listener: Listener) -> WebSocketRules | None:
    # at the path of its protocol's name
    if listener.transport is not Transport.WEBSOCKET:
        return None
    from gateway.transport.websocket import WebSocketRules

    return WebSocketRules(f"/{listener.protocols[0]}", listener.origins)


def _kafka_store(options: KafkaOptions, recorder: PrometheusRecorder) -> contextlib.AbstractAsyncContextManager[Store]:
    try:
        from gateway.store.kafka.opening import open_kafka_store
    except ModuleNotFoundError as error:
        raise Unsupported(NO_CLIENT) from error
    return open_kafka_store(options, recorder=recorder)


async def _said_by_brokers(options: KafkaOptions, error: StoreReadOnly) -> StoreReadOnly:
    # why a log cannot be opened: all that Kafka's library says of most reasons is that nobody has answered in time
    from gateway.store.kafka.examination import examine_brokers

    def found() -> list[str]:
        return [one.message for one in examine_brokers(options) if not one.warning]

    reasons = "; ".join(await trio.to_thread.run_sync(found)) or error.message
    return StoreReadOnly(f"the log on Kafka cannot be opened: {reasons}")


def kafka_options(config: Config, kafka: Kafka) -> KafkaOptions:
    """How the cluster that a configuration names is reached."""
    from gateway.librdkafka.login import login_settings
    from gateway.store.kafka.options import KafkaOptions

    tls, sasl = kafka.tls, kafka.sasl
    trust = tls if isinstance(tls, TlsTrust) else TlsTrust()
    return KafkaOptions(
        brokers=[show_endpoint(host, port) for host, port in kafka.brokers],
        prefix=kafka.prefix,
        replication=kafka.replication,
        min_insync=kafka.insync,
        timeout=kafka.timeout,
        largest=kafka.largest,
        compression=kafka.compression.value,
        security=login_settings(
            tls=not isinstance(tls, TlsNone),
            ca=trust.ca,
            cert=trust.cert,
            key=trust.key,
            mechanism=sasl.mechanism.value if sasl is not None else "",
            username=sasl.username if sasl is not None else "",
            password=sasl.password if sasl is not None else "",
            token_url=sasl.token_url if sasl is not None else "",
            scope=sasl.scope if sasl is not None else "",
        ),
        tail_cache=config.storage.tail_cache,
        id=config.cluster.id,
    )


def _cluster(config: Config, bound: Sequence[Bound]) -> ClusterSettings:
    # what this gateway tells about itself: without an address of its own, that of its first TCP listener
    if config.cluster.address:
        return config.cluster
    for one in bound:
        if isinstance(one, BoundTcp):
            return attrs.evolve(config.cluster, address=_advertised(config, one.listener, one.port))
    return config.cluster


def _advertised(config: Config, listener: Listener, port: int) -> str:
    # Where clients are told that a listener is. Every interface is no place: there it is the host that other gateways know.
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    if not port:
        return host
    if is_everywhere(host) and config.cluster.address:
        host = config.cluster.address.rpartition(":")[0]
    return f"{host}:{port}"


def _client_trust(listener: Listener) -> ClientTrust | None:
    if not isinstance(listener.tls, TlsFiles) or not listener.tls.client_ca:
        return None
    from gateway.transport.quic.trust import ClientTrust

    return ClientTrust(listener.tls.client_ca, listener.tls.client_cert is ClientCert.REQUIRED)
