"""What `gateway serve` would meet beyond its file: certificates and keys that do not fit, directories nobody may write to,
and, where that is asked for, ports that are taken and upstreams that do not answer or do not let us in.

Apart from `check`, which reads the file and touches nothing else: what is here opens files and sockets.
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib.util
import shutil
import ssl
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import trio

from gateway import model
from gateway.app import NO_CLIENT, kafka_options
from gateway.bridges.breaker import refuses_login
from gateway.bridges.pool import client_tls
from gateway.config.circles import check_circles, resolved, warn_of_pulling_back
from gateway.config.document import Notebook
from gateway.errors import (
    ConfigProblem,
    GatewayError,
    InvalidRequest,
    RequestTimeout,
    StoreInUse,
    TargetError,
    TargetRefused,
)
from gateway.notation import show_endpoint
from gateway.observe.http import bind_http
from gateway.protocols.registry import Transport, protocol, protocols
from gateway.requests import DescribeTopics
from gateway.store.database import Lock, StoreFiles
from gateway.store.kafka.names import kafka_name
from gateway.store.writer import counting_floor
from gateway.transport.client import connect
from gateway.transport.listen import open_tcp_sockets
from gateway.transport.quic.certificates import RENEW_BEFORE, load_identity, load_key, read_certificates
from gateway.transport.quic.server import open_udp_sockets
from gateway.transport.tls import client_context, server_context
from gateway.transport.unix import unix_listener
from gateway.wire.session import ClientContext

Tls = model.TlsFiles | model.TlsTrust


def probe(config: model.Config, notes: Notebook) -> None:
    """Look at every certificate and directory that a configuration names. Changes nothing and asks nobody."""
    for tls in [listener.tls for listener in config.listeners.values()] + ([config.admin.tls] if config.admin else []):
        if isinstance(tls, model.TlsFiles) and _usable(tls, tls.client_ca, notes):
            _take(tls, functools.partial(server_context, tls.cert, tls.key, tls.client_ca), notes)
    for upstream in config.upstreams.values():
        trust, wanted = upstream.tls, client_tls(upstream, Transport.TCP)
        if isinstance(trust, model.TlsTrust) and wanted is not None and _usable(trust, trust.ca, notes):
            _take(trust, functools.partial(client_context, wanted), notes)
    check_circles(config, protocols(), notes, resolved)
    if not notes.problems:
        warn_of_pulling_back(config, notes)
    problem = _cannot_store(StoreFiles(Path(config.storage.path)))
    if problem:
        notes.complain(config.storage, "path", problem)
    if config.storage.kafka is not None:
        _look_at_kafka(config, config.storage.kafka, notes)
    elif not problem:
        _compare_floor(config.storage, notes)


def _look_at_kafka(config: model.Config, kafka: model.Kafka, notes: Notebook) -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        notes.complain(config.storage, "kafka", NO_CLIENT)
    if isinstance(kafka.tls, model.TlsTrust):
        _usable(kafka.tls, kafka.tls.ca, notes)
    if StoreFiles(Path(config.storage.path)).database.exists():
        left = "the log that is in this directory is not served any more: `gateway store copy` takes it to Kafka"
        notes.warn(config.storage, "path" if notes.has(config.storage, "path") else "kafka", left)
    _check_names(config, kafka, notes)


def _check_names(config: model.Config, kafka: model.Kafka, notes: Notebook) -> None:
    # of topics whose names are known already: what Kafka has no name for, and what it takes for the same
    called: dict[str, str] = {}
    for route in config.routes:
        for target in route.targets:
            key, topic = ("dead_letter", target.dead_letter) if isinstance(target, model.Forward) else ("topic", "")
            topic = target.topic if isinstance(target, model.StoreTarget) else topic
            if not topic or "{" in topic:
                continue
            try:
                name = kafka_name(kafka.prefix, topic)
            except InvalidRequest as error:
                notes.complain(target, key, error.message)
                continue
            other = called.setdefault(name.replace(".", "_"), topic)
            if other != topic:
                notes.complain(target, key, f"Kafka takes no two names that differ only in . and _: {other!r} is one")


def _usable(tls: Tls, authority: str, notes: Notebook) -> bool:
    # Whether the certificates are some and fit their keys, each looked at whatever is wrong with the others. That a file
    # cannot be read was said when its name was.
    authority_key = "ca" if isinstance(tls, model.TlsTrust) else "client_ca"
    trusted = not authority or (_readable(authority) and _dated(tls, authority_key, authority, notes))
    shown = not tls.cert or (_readable(tls.cert) and _dated(tls, "cert", tls.cert, notes))
    fits = not tls.key or _readable(tls.key)
    if tls.key and fits:
        try:
            if tls.cert and shown:
                load_identity(Path(tls.cert), Path(tls.key))
            else:
                load_key(Path(tls.key))
        except ConfigProblem as problem:
            notes.complain(tls, "key", problem.message)
            fits = False
    return trusted and shown and fits


def _readable(name: str) -> bool:
    try:
        with Path(name).open("rb"):
            return True
    except OSError:
        return False


def _dated(tls: Tls, key: str, name: str, notes: Notebook) -> bool:
    # whether a file holds certificates; a warning for each that does not count today, or soon not any more
    try:
        certificates = read_certificates(Path(name))
    except ConfigProblem as problem:
        notes.complain(tls, key, problem.message)
        return False
    now = dt.datetime.now(dt.UTC)
    for one in certificates:
        begin, end = one.not_valid_before_utc, one.not_valid_after_utc
        if end < now:
            notes.warn(tls, key, f"{name!r} has expired on {end:%Y-%m-%d}: nobody who verifies it will connect")
        elif begin > now:
            notes.warn(tls, key, f"{name!r} is not valid before {begin:%Y-%m-%d}")
        elif end < now + RENEW_BEFORE:
            notes.warn(tls, key, f"{name!r} expires on {end:%Y-%m-%d}")
    return True


def _take(tls: Tls, make: Callable[[], ssl.SSLContext], notes: Notebook) -> None:
    # what fits may still be too weak for OpenSSL
    try:
        make()
    except OSError as error:
        notes.complain(tls, "cert" if tls.cert else "ca", f"OpenSSL does not take it: {_said(error)}")


def _said(error: OSError) -> str:
    return getattr(error, "reason", "") or error.strerror or str(error)


def _cannot_store(files: StoreFiles) -> str:
    # why no store can be kept there; empty if it can
    place = looked = _first_existing(files.directory)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
        for looked in (files.database, files.lock):
            if looked.exists():
                with looked.open("r+b"):
                    pass
    except OSError as error:  # its own name may be of a file that was tried out
        return f"cannot write to {str(looked)!r}: {error.strerror or error}"
    return ""


def _compare_floor(storage: model.Storage, notes: Notebook) -> None:
    # what is written there is to mean what it says
    volume = shutil.disk_usage(_first_existing(Path(storage.path))).total
    counts = counting_floor(storage.free_space_floor, volume)
    if counts < storage.free_space_floor and notes.has(storage, "free_space_floor"):
        notes.warn(
            storage,
            "free_space_floor",
            f"more than a twentieth of the volume, which has {volume >> 20} MiB: {counts >> 20} MiB counts",
        )


def _first_existing(place: Path) -> Path:
    # what is missing would be made
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


# --- with --live ---


async def probe_live(config: model.Config, notes: Notebook) -> None:
    """Bind every port, and let them go; log in at every upstream; see whether another process has the store, or what the brokers
    say that are to have it.
    """
    files = StoreFiles(Path(config.storage.path))
    kafka = config.storage.kafka
    if kafka is not None:
        await trio.to_thread.run_sync(_probe_brokers, config, kafka, notes)
    elif files.lock.exists():
        try:
            with Lock(files.lock):
                pass
        except (StoreInUse, OSError) as error:
            notes.complain(config.storage, "path", str(error))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_probe_ports, config, notes)
        for upstream in config.upstreams.values():
            for host, port in upstream.addresses if upstream.protocol in protocols() else ():
                nursery.start_soon(_probe_upstream, upstream, host, port, notes)


def _probe_brokers(config: model.Config, kafka: model.Kafka, notes: Notebook) -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        return  # that was said
    from gateway.store.kafka.examination import examine_brokers

    for found in examine_brokers(kafka_options(config, kafka)):
        key = found.key if notes.has(kafka, found.key) else "brokers"
        (notes.warn if found.warning else notes.complain)(kafka, key, found.message)


async def _probe_ports(config: model.Config, notes: Notebook) -> None:
    with ExitStack() as held:
        for listener in config.listeners.values():
            if not notes.was_read(f"{notes.path_of(listener)}.bind"):
                continue
            try:
                carrier = listener.transport or protocol(listener.protocols[0]).transport
                if carrier is Transport.UNIX:
                    held.enter_context(unix_listener(listener.host, listener.mode))
                elif carrier is Transport.QUIC:
                    for udp in await open_udp_sockets(listener.host, listener.port):
                        held.callback(udp.close)
                else:
                    for sock in await open_tcp_sockets(listener.host, listener.port):
                        held.enter_context(sock)
            except OSError as error:
                notes.complain(listener, "bind", f"cannot bind {_place(listener)}: {error.strerror or error}")
        if config.admin is not None:
            _probe_http(config.admin, config.admin.host, config.admin.port, held, notes)
        if config.metrics.bind is not None:
            _probe_http(config.metrics, *config.metrics.bind, held, notes)


def _probe_http(value: object, host: str, port: int, held: ExitStack, notes: Notebook) -> None:
    try:
        held.enter_context(bind_http(host, port))
    except OSError as error:
        notes.complain(value, "bind", f"cannot bind {show_endpoint(host, port)}: {error.strerror or error}")


def _place(listener: model.Listener | model.Admin) -> str:
    return show_endpoint(listener.host, listener.port)


async def _probe_upstream(upstream: model.Upstream, host: str, port: int, notes: Notebook) -> None:
    spec = protocol(upstream.protocol)
    context = ClientContext(upstream.auth, upstream.dialect, transport=upstream.transport)
    tls = client_tls(upstream, upstream.transport or spec.transport)
    problem: GatewayError | None = None
    try:
        async with connect(spec, host, port, tls=tls, timeout=upstream.timeout, context=context) as connection:
            problem = await connection.driver.refusal(upstream.timeout)
            if problem is None:
                try:  # some protocols say only with an answer whether they have let us in
                    await connection.request(DescribeTopics(0), upstream.timeout)
                except GatewayError as error:
                    problem = error
    except TargetError as error:
        problem = error
    where = show_endpoint(host, port)
    if refuses_login(problem):
        notes.complain(upstream, "auth", f"{where} refuses the login: {problem.message}")
    elif isinstance(problem, TargetError | RequestTimeout) and not isinstance(problem, TargetRefused):
        notes.complain(upstream, "address", f"{where} does not answer: {problem.message}")
