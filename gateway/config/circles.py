"""Upstreams that are this gateway itself: what it sends to one of its own listeners comes in again, and goes out again."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping

from gateway import model
from gateway.config.document import Notebook
from gateway.errors import GatewayError
from gateway.notation import show_endpoint
from gateway.protocols.registry import ProtocolSpec
from gateway.routing.compiled import compile_ingest
from gateway.routing.patterns import overlap
from gateway.routing.table import compile_table

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Addresses = Callable[[str], Iterable[Address]]
LOOPBACK = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))


def literal(host: str) -> Iterable[Address]:
    """What is meant without asking anybody: an address as it is written, or localhost."""
    if host.rstrip(".").lower() == "localhost":
        return LOOPBACK
    try:
        return [_plain(ipaddress.ip_address(host.partition("%")[0]))]
    except ValueError:
        return []


def resolved(host: str) -> Iterable[Address]:
    """What a name means by whatever this machine asks; nothing if nobody knows it."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [_plain(ipaddress.ip_address(str(one[4][0]).partition("%")[0])) for one in found]


def check_circles(
    config: model.Config, specs: Mapping[str, ProtocolSpec], notes: Notebook, addresses: Addresses = literal
) -> None:
    """Note every address of an upstream that is used and is one of our listeners, on whichever interface."""
    used = {target.upstream for target in _remote(config)} | {
        one.name for one in config.upstreams.values() if one.ingest
    }
    for upstream in config.upstreams.values():
        spec = specs.get(upstream.protocol)
        if spec is None or upstream.name not in used:
            continue
        for host, port in upstream.addresses:
            for listener in config.listeners.values():
                transports = {listener.transport or specs[name].transport for name in listener.protocols}
                if listener.port != port or (upstream.transport or spec.transport) not in transports:
                    continue
                if listener.host == host or any(_reaches(one, listener.host, addresses) for one in addresses(host)):
                    place = f"{show_endpoint(host, port)} is listener {listener.name!r} of this gateway itself"
                    problem = f"{place}: what goes there would come in again, and go round"
                    if all(one.message != problem for one in notes.problems):  # who asks for names asks after us
                        notes.complain(upstream, "address", problem)
                    break


def warn_of_pulling_back(config: model.Config, notes: Notebook) -> None:
    """Say where what is sent to an upstream is pulled from it again: it would be stored, and sent, for ever. Looked for by an
    example of what is pulled: whether a transform ends it in time, nobody can see here.
    """
    table = compile_table(config)
    for upstream in config.upstreams.values():
        for ingest in upstream.ingest:
            rule = compile_ingest(ingest)
            remote = overlap(rule.symbols, rule.symbols) or ""
            try:
                plan = table.writer(upstream.protocol, upstream.name, rule.address(remote) or "")
            except GatewayError:
                continue  # no such address, or nobody takes it
            for way in (plan.route,) if plan.route is not None else plan.candidates:
                for sent in (*way.compiled.forwards, *way.compiled.mirrors) if way.topics else ():
                    there = config.upstreams[sent.target.upstream]
                    if set(there.addresses) & set(upstream.addresses) and sent.remote_address(way.topic) == remote:
                        place = f"what is pulled from {remote!r} is sent there again by route {way.name!r}"
                        notes.warn(ingest, "from", f"{place}, and pulled again: it goes round")


def _remote(config: model.Config) -> Iterator[model.Forward | model.Mirror | model.Proxy]:
    for route in config.routes:
        for target in route.targets:
            if isinstance(target, model.Forward | model.Mirror | model.Proxy):
                yield target


def _plain(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _reaches(address: Address, bound: str, addresses: Addresses) -> bool:
    # whether who connects to an address comes to a listener that is bound so
    if address.is_unspecified:  # connecting to it is connecting to oneself
        address = LOOPBACK[address.version == 6]
    return any(
        _is_ours(address) if place.is_unspecified and place.version == address.version else place == address
        for place in addresses(bound)
    )


def _is_ours(address: Address) -> bool:
    # whether an interface of this machine has it: then a socket may have it, too
    if address.is_loopback:
        return True
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((str(address), 0))
    except OSError:
        return False
    return True
