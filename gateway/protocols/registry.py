"""The protocols there are: every sub-package of this one that has a `SPEC`. A new protocol is a new folder."""

from __future__ import annotations

import enum
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import attrs

import gateway.protocols
from gateway.envelope import Run
from gateway.errors import GatewayError
from gateway.requests import Completion, Request
from gateway.settings import Dialect, NoSettings
from gateway.settings import Transport as Transport  # noqa: PLC0414 - every SPEC names it
from gateway.wire.anatomy import Carried
from gateway.wire.session import ClientContext, ClientSession, ServerSession, SessionContext


class Sniff(enum.Enum):
    """What the first bytes of a connection say."""

    YES = "yes"
    NO = "no"
    MORE = "more"  # cannot tell yet


class Ordering(enum.Enum):
    """The scope in which a protocol keeps order."""

    PARTITION = "partition"
    TOPIC = "topic"
    NONE = "none"


class Acknowledgement(enum.Enum):
    """The strongest sign a publisher gets."""

    STORED = "stored"
    BARRIER = "barrier"  # nothing per message; an exchange that follows proves it (BlipMQ's PING)
    NOTHING = "nothing"


class ReaderPosition(enum.Enum):
    """Who remembers how far a reader of a broker elsewhere is, and how it is found again."""

    NAMED = "named"  # the broker, under the reader's name
    NUMBERED = "numbered"  # the broker, under the number it gave the subscription
    OWN = "own"  # nobody but the reader: it asks for an offset


@attrs.frozen
class Carries:
    """What a protocol can carry, from which the fidelity of every route is worked out."""

    key: bool
    headers: bool
    """Always. `ProtocolSpec.headered`: in which dialects publishers can all the same."""
    partition: bool
    offset: bool
    time: bool
    expiry: bool
    ordering: Ordering
    acknowledgement: Acknowledgement
    max_value: int
    min_value: int
    batch_atomic: bool
    consumer_acknowledges: bool
    """Whether a reader can say that it is done with a message."""
    hands_on_expiry: bool = True
    """Whether our client gives a message's expiry to a broker elsewhere, where the protocol has one."""
    copies: bool = False
    """Whether a publish can say which message of another gateway's log it copies, so that a resend is known (`Batch.copies`)."""
    copies_where: str = "the remote is another gateway, which knows what it was sent before"
    """What has to be for that, in words for the documentation."""
    final_refusals: Sequence[str] = ()
    """Refusals by an upstream that are not worth trying again, in words for the documentation."""

    def holds(self, size: int) -> bool:
        return self.min_value <= size <= self.max_value


class Ending(Protocol):
    """Something that is over one day (a trio.Event)."""

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...


class Remote(Protocol):
    """A broker elsewhere, to whoever dialled it: one connection with a session, or whatever a library keeps."""

    @property
    def ended(self) -> Ending:
        """It is gone, with everything under way."""
        ...

    @property
    def heard(self) -> Ending:
        """It has said something: that a connection was taken is no sign of it, the system does so by itself."""
        ...

    @property
    def keeps_turns(self) -> bool:
        """Whether it stores a publish that says what it comes after (`Copies.after`) behind that, or not at all."""
        ...

    async def refusal(self, timeout: float) -> GatewayError | None:
        """Wait until the broker has let us in; or why it has not."""
        ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Start requests; what became of them comes as completions."""
        ...


class Trust(Protocol):
    """Whom to trust, and who we are: names of files, empty where there is none."""

    @property
    def ca(self) -> str: ...
    @property
    def cert(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def server_name(self) -> str: ...


@attrs.frozen
class Reach:
    """What it takes to reach a broker elsewhere."""

    addresses: Sequence[tuple[str, int]]
    context: ClientContext
    tls: Trust | None
    """None: without TLS."""
    timeout: float
    complete: Callable[[Sequence[Completion]], None]
    """Is given what became of requests."""


@attrs.frozen
class ProtocolSpec:
    """Everything the house needs to know about a protocol."""

    name: str
    transport: Transport
    default_port: int
    carries: Carries
    server: Callable[[SessionContext], ServerSession] | None
    """None: it is dialled, and not served."""
    client: Callable[[ClientContext], ClientSession] | None = None
    """None: it is served, and neither dialled nor bridged to."""
    shows: Callable[[Run, str], Sequence[Carried]] | None = None
    """A run of one record taken apart, as clients at an address get it, made by what serves it; None: nobody can look."""
    reach: Callable[[Reach], AbstractAsyncContextManager[Remote]] | None = None
    """Where dialling is more than a session on a link, because a client library of the broker's does it."""
    library: tuple[str, str] | None = None
    """That library: the module, and the extra of the gateway that brings it."""
    one_cluster: bool = False
    """The addresses of an upstream are of one broker, which is reached by any of them; not one better than the other."""
    settings: type[Any] = NoSettings
    """attrs class of the listener keys that only this protocol has (fields: Seconds, Size, Backoff, bool, int, str,
    enums, nested attrs classes, Mapping[str, ...])."""
    other_transports: Mapping[Transport, int] = attrs.Factory(dict)
    """What else it may run over, and at which port."""
    dialects: Sequence[Dialect] = ()
    """What `dialect` may say of a listener or an upstream; none: there is only one."""
    dialect_carries: Mapping[Dialect, Carries] = attrs.Factory(dict)
    """What messages carry in dialects that carry something else."""
    headered: Sequence[Dialect] = ()
    """In which dialects publishing carries headers, where the stock clients' has no place for them."""
    alpns: Sequence[str] = ()
    """What is offered over QUIC, in order of preference; none: peers offer none."""
    alpns_of: Mapping[Dialect, Sequence[str]] = attrs.Factory(dict)
    """What who dials offers in these dialects alone."""
    tried: Sequence[Dialect] = ()
    """What `auto` tries, in this order, over a byte stream: who does not speak one ends the connection."""
    sniff: Callable[[bytes], Sniff] | None = None
    shares_port_with: Sequence[str] = ()
    api_key_required: bool = False
    """Without keys nobody could ever log in: a configuration error unless `auth: open`."""
    reader_position: ReaderPosition = ReaderPosition.NAMED
    address_of_path: Callable[[str], str] = attrs.field(default=lambda path: path)
    """From the path of a URL (`blipmq://host/orders`) or an address in routes.yaml to the canonical address."""
    local_address: Callable[[Any, str], str] = attrs.field(default=lambda _settings, address: address)
    """From a full address (or a template of addresses) to what sessions of a listener with these settings call it, where
    that is shorter: a Felix stream in the listener's default scope is its name alone."""

    def carries_in(self, dialect: Dialect) -> Carries:
        return self.dialect_carries.get(dialect, self.carries)

    def port_over(self, transport: Transport | None) -> int | None:
        """Where it is usually found; None where it does not run over that."""
        return self.default_port if transport in (None, self.transport) else self.other_transports.get(transport)


@functools.cache
def protocols() -> Mapping[str, ProtocolSpec]:
    found: dict[str, ProtocolSpec] = {}
    for module in pkgutil.iter_modules(gateway.protocols.__path__):
        if module.ispkg:
            spec: ProtocolSpec = importlib.import_module(f"gateway.protocols.{module.name}").SPEC
            found[spec.name] = spec
    return found


def served() -> Mapping[str, ProtocolSpec]:
    """Those that clients find here, by name."""
    return {name: spec for name, spec in protocols().items() if spec.server is not None}


def carried(specs: Mapping[str, ProtocolSpec]) -> Mapping[str, Carries]:
    """What messages carry, by protocol; and by `protocol dialect` for dialects that carry something else."""
    rows: dict[str, Carries] = {}
    for name, spec in specs.items():
        rows[name] = spec.carries
        rows.update({row_of(name, dialect): carries for dialect, carries in spec.dialect_carries.items()})
    return rows


def row_of(name: str, dialect: Dialect) -> str:
    return f"{name} {dialect.value}"


def protocol(name: str) -> ProtocolSpec:
    return protocols()[name]


def dialled(spec: ProtocolSpec) -> bool:
    """Whether brokers that speak it can be reached."""
    return spec.client is not None or spec.reach is not None
