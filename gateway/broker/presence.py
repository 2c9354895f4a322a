"""Which gateways of one log live, and that rows in the name of one that does not are taken away by whoever has that job."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress

from gateway.broker.ownership import Owners
from gateway.broker.service import Clock, StartJob, Timers
from gateway.errors import GatewayError
from gateway.store.interface import Put, Store, Unit

SETTLING = 15.0
"""Seconds for which a gateway that is heard of for the first time is taken to serve: it may not be a member yet. And until who
has the job looks, and looks again.
"""


class GoneGateways:
    """Looks after the rows of one table that gateways write in their own names."""

    def __init__(
        self,
        store: Store,
        owners: Owners,
        clock: Clock,
        timers: Timers,
        start_soon: StartJob,
        table: str,
        rows: Callable[[Container[bytes]], Sequence[Put]],
        told: Callable[[Mapping[bytes, bytes | None]], None],
    ) -> None:
        """`rows`: those to be taken away, of all that are not among these; `told` hears that they are."""
        self._store = store
        self._owners = owners
        self._clock = clock
        self._timers = timers
        self._start_soon = start_soon
        self._job = table
        self._rows = rows
        self._told = told
        self._heard: dict[bytes, float] = {}
        """Since when a gateway has been heard of."""
        self._looking = False
        owners.on_change(self.look_soon)

    def heard(self, gateway: bytes) -> None:
        """There is a row in its name."""
        self._heard.setdefault(gateway, self._clock.now())
        self.look_soon()

    async def serving(self) -> set[bytes]:
        since = self._clock.now() - SETTLING
        return {*await self._store.serving(), *(one for one, heard in self._heard.items() if heard > since)}

    def look_soon(self) -> None:
        # one look at a time: another would take away what who lives has written again since
        if not self._looking and self._owners.owns(self._job) and self._rows(()):
            self._looking = True
            self._timers.call_at(self._clock.now() + SETTLING, lambda: self._start_soon(None, None, self._look))

    async def _look(self) -> None:
        try:
            with suppress(GatewayError):
                await self._take_away()
        finally:
            self._looking = False
        # As long as there are rows of others: nobody says so when a gateway goes. This one's jobs need not change by that, since
        # the other may have had none, or somebody else has them now.
        self.look_soon()

    async def _take_away(self) -> None:
        serving = await self.serving()
        gone = self._rows(serving)
        for gateway in [one for one in self._heard if one not in serving]:
            del self._heard[gateway]  # if it is heard of again, it is from then on
        if gone:
            await self._store.submit(Unit(puts=gone, requires=self._owners.guard(self._job))).wait()
            # who lives after all may have written his again before this gateway was told that they are gone
            rows = self._store.table(self._job)
            self._told({one.key: rows.get(one.key) for one in gone})
