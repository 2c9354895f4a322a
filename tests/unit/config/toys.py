"""Five protocols as the configuration sees them: names, transports, listener keys, what they carry. None of them runs."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from gateway.protocols.registry import Acknowledgement, Carries, Ordering, ProtocolSpec, Transport
from gateway.routing.expression import compile_expression
from gateway.settings import DOCUMENT_OR_STOCK, Backoff, NoSettings, Seconds, Size

compile_expression(
    "true"
)  # the interpreter raises the recursion limit once, which hypothesis must not see inside a test


@attrs.frozen
class BlipSettings:
    poll_hold: Seconds = Seconds(0.04)
    max_deliveries: int = 16
    backoff: Backoff = attrs.field(factory=lambda: Backoff(Seconds(0.1), Seconds(30)))
    grace: Seconds = Seconds(600)


@attrs.frozen
class Events:
    count: int = 64
    bytes: Size = Size(256 << 10)
    delay: Seconds = Seconds(250e-6)
    binary_single: bool = False


@attrs.frozen
class FelixSettings:
    scope: str = "t1/default"
    create: bool = True
    events: Events = attrs.Factory(Events)


@attrs.frozen
class Ping:
    interval: Seconds = Seconds(2)
    timeout: Seconds = Seconds(5)


class WriteHeaders(enum.Enum):
    NEVER = "never"
    ALWAYS = "always"


@attrs.frozen
class Reader:
    topic: str
    start: str = "latest"


@attrs.frozen
class FujinSettings:
    ping: Ping = attrs.Factory(Ping)
    write_headers: WriteHeaders = WriteHeaders.NEVER
    fetch_wait: Seconds = Seconds(8)
    readers: Mapping[str, Reader] = attrs.Factory(dict)


class FreshGroup(enum.Enum):
    REQUESTED = "requested"
    EMPTY = "empty"


@attrs.frozen
class RustlogSettings:
    fresh_group: FreshGroup = FreshGroup.REQUESTED


def carries(**changes: Any) -> Carries:
    plain = Carries(
        key=False,
        headers=False,
        partition=False,
        offset=False,
        time=False,
        expiry=False,
        ordering=Ordering.TOPIC,
        acknowledgement=Acknowledgement.STORED,
        max_value=16 << 20,
        min_value=0,
        batch_atomic=False,
        consumer_acknowledges=False,
    )
    return attrs.evolve(plain, **changes)


def _never(context: object) -> Any:
    raise AssertionError("a toy protocol does not run")


def spec(name: str, transport: Transport = Transport.TCP, **changes: Any) -> ProtocolSpec:
    values: dict[str, Any] = {
        "name": name,
        "transport": transport,
        "default_port": 1,
        "carries": carries(),
        "server": _never,
        "client": _never,
        "settings": NoSettings,
        **changes,
    }
    return ProtocolSpec(**values)


def _in_scope(settings: FelixSettings, address: str) -> str:
    return address.removeprefix(f"{settings.scope}/")


TOYS: Mapping[str, ProtocolSpec] = {
    toy.name: toy
    for toy in (
        spec(
            "blipmq",
            settings=BlipSettings,
            api_key_required=True,
            carries=carries(acknowledgement=Acknowledgement.BARRIER, consumer_acknowledges=True),
            shares_port_with=("flymq",),
        ),
        spec(
            "flymq",
            dialects=DOCUMENT_OR_STOCK,
            shares_port_with=("rustlog", "blipmq"),
            carries=carries(
                key=True,
                headers=True,
                partition=True,
                offset=True,
                expiry=True,
                ordering=Ordering.PARTITION,
                max_value=32 << 20,
                batch_atomic=True,
                consumer_acknowledges=True,
            ),
        ),
        spec(
            "rustlog",
            settings=RustlogSettings,
            carries=carries(
                key=True, partition=True, offset=True, time=True, ordering=Ordering.PARTITION, max_value=10_485_743
            ),
        ),
        spec("felix", Transport.QUIC, settings=FelixSettings, dialects=DOCUMENT_OR_STOCK, local_address=_in_scope),
        spec(
            "fujin",
            Transport.QUIC,
            settings=FujinSettings,
            dialects=DOCUMENT_OR_STOCK,
            alpns=("fujin",),
            other_transports={Transport.TCP: 4850, Transport.UNIX: 0},
            shares_port_with=("flymq",),
            carries=carries(headers=True, min_value=1, max_value=65_536, consumer_acknowledges=True),
        ),
    )
}
