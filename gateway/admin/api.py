"""Every operation there is, over a running gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from gateway.admin.accounts import Everybody
from gateway.admin.inside import Inside
from gateway.admin.joined import joined
from gateway.admin.letters import DeadLetterList
from gateway.admin.log import StoredLog
from gateway.admin.operation import ApiOperation, operations_of
from gateway.admin.overview import Overview
from gateway.admin.pulse import Pulses
from gateway.admin.readers import Readers
from gateway.admin.records import Records
from gateway.admin.routing import Routing
from gateway.admin.tap import Taps
from gateway.observe.workers import Others


class Api:
    """The resources, and what runs for them."""

    def __init__(self, inside: Inside, others: Others | None = None) -> None:
        """`others`: the other processes of this gateway, which are asked as well."""
        self.pulses = Pulses(inside)
        house = inside.house
        own = tuple(
            operations_of(
                Everybody(house.snapshot, house.groups.positions, lambda: inside.config.metrics.groups),
                Overview(inside),
                self.pulses,
                StoredLog(inside.bulk),
                Records(inside),
                Routing(inside),
                Readers(inside, self.pulses),
                DeadLetterList(inside),
                Taps(inside),
            )
        )
        self.operations: Sequence[ApiOperation] = own if others is None else joined(own, others)

    @asynccontextmanager
    async def running(self, _app: object) -> AsyncIterator[None]:
        """What goes on beside requests, for as long as the block lasts."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pulses.run)
            yield
            nursery.cancel_scope.cancel()
