"""What the admin API sees of the gateway it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import attrs

from gateway import model
from gateway.bridges.assembly import Bridges
from gateway.broker.assembly import House
from gateway.bulk.service import Bulk
from gateway.observe.health import Health
from gateway.observe.prometheus import PrometheusRecorder
from gateway.recorder import ConnectionSnapshot
from gateway.reload import Reloads
from gateway.routing.table import RoutingTable
from gateway.store.interface import Store


class OpenConnection(Protocol):
    @property
    def number(self) -> int: ...

    def snapshot(self) -> ConnectionSnapshot: ...

    def cut(self) -> None: ...


class Listening(Protocol):
    @property
    def drivers(self) -> Collection[OpenConnection]: ...


@attrs.frozen(eq=False)
class Inside:
    """One running gateway."""

    store: Store
    house: House
    table: RoutingTable
    recorder: PrometheusRecorder
    health: Health
    bulk: Bulk
    bridges: Bridges
    reloads: Reloads
    listeners: Sequence[Listening]
    ports: Mapping[str, int]
    now: Callable[[], float]
    """Seconds since the epoch."""

    @property
    def config(self) -> model.Config:
        """As it is in force."""
        return self.reloads.config
