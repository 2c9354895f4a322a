"""A publish on its way through the pipeline: one value that carries what is known of it so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

import attrs
import msgspec
from msgspec.structs import replace

from gateway.broker.identity import came_by
from gateway.broker.service import Caller
from gateway.envelope import Batch, Columns, Origin
from gateway.errors import GatewayError
from gateway.requests import Publish, Published
from gateway.routing.table import ResolvedRoute
from gateway.store.interface import Append, Durability, MakeTopic, Placement, Put, Require, Store

TRANSFORM = "transform"
"""The reason of a dead letter that its route could not transform."""
Indexes = Sequence[int] | None
"""Of messages in a batch; None: all of them."""


class Prepared(msgspec.Struct, frozen=True, eq=False):
    """A batch about which everything is decided: all that is left is to append it. `finish` makes the reply once the
    placements are known.
    """

    appends: Sequence[Append]
    creates: Sequence[MakeTopic]
    finish: Callable[[Sequence[Placement]], Published]
    parts: Sequence[tuple[str, int, int]]
    """(route, messages, bytes) of what will be stored, for the accounting."""
    started: float
    refused: Mapping[int, GatewayError] = msgspec.field(default_factory=dict)
    letters: Sequence[tuple[str, str, int]] = ()
    """(route, reason, messages) among the parts that are dead letters."""
    puts: Sequence[Put] = ()
    """Rows that are written by the commit that appends."""
    requires: Sequence[Require] = ()
    """What has to be so for it to be stored."""


@attrs.define(eq=False)
class Part:
    """The messages of a batch that one route takes, as far as they are still on their way."""

    route: ResolvedRoute
    columns: Columns
    indexes: Indexes

    def keep(self, kept: Sequence[int]) -> None:
        if len(kept) != self.columns.count:
            self.columns = self.columns.pick(kept)
            self.indexes = composed(self.indexes, kept)

    def members(self, count: int) -> Sequence[int]:
        """Their indexes in the batch of so many."""
        return self.indexes if self.indexes is not None else range(count)

    def member(self, index: int) -> int:
        """The index in the batch of one of them."""
        return index if self.indexes is None else self.indexes[index]


@attrs.define(eq=False)
class Failed:
    """Messages of a part that go to the dead letters, as they came, and why, by index."""

    route: ResolvedRoute
    columns: Columns
    errors: Mapping[int, GatewayError]
    reason: str = TRANSFORM


@attrs.define(eq=False)
class Share:
    """One append of a batch's primary topic, for the reply."""

    position: int
    partition: int
    indexes: Indexes


@attrs.define(eq=False)
class Publication:
    """See the module. `ready` takes it when all is decided, `failed` when it is refused as a whole."""

    caller: Caller
    batch: Batch
    schema: str
    create: bool
    started: float
    ready: Callable[[Publication], None]
    failed: Callable[[GatewayError], None]
    request: Publish | None = None
    """None for what does not come from a client's publish."""
    plain: bool = False
    """A client's publish that is neither in a transaction nor for later: parts of it may go to a broker elsewhere, or to
    the dead letters. With others somebody decides about the whole."""
    routed: bool = False
    id: bytes = b""
    parts: list[Part] = attrs.Factory(list)
    refused: dict[int, GatewayError] = attrs.Factory(dict)
    """Members of the batch that are not taken."""
    failures: list[Failed] = attrs.Factory(list)
    proxied: list[Part] = attrs.Factory(list)
    appends: list[Append] = attrs.Factory(list)
    creates: list[MakeTopic] = attrs.Factory(list)
    shares: list[Share] = attrs.Factory(list)
    puts: list[Put] = attrs.Factory(list)
    requires: list[Require] = attrs.Factory(list)
    claim: Any = None
    """What deduplication has found out."""
    ended: list[Callable[[GatewayError | None], None]] = attrs.Factory(list)
    """Who wants to know whether it was stored (None) or not."""

    @property
    def origin(self) -> Origin:
        copies = self.batch.copies
        return came_by(self.caller.origin, copies.path) if copies is not None and copies.path else self.caller.origin

    def prepared(self) -> Prepared:
        parts = [(part.route.name, part.columns.count, part.columns.value_bytes) for part in self.parts]
        letters = [(one.route.name, one.reason, len(one.errors)) for one in self.failures]
        parts += [(one.route.name, len(one.errors), sum(map(len, _failing(one)))) for one in self.failures]
        return Prepared(
            self.appends,
            self.creates,
            self._reply,
            parts,
            self.started,
            self.refused,
            letters,
            self.puts,
            self.requires,
        )

    def durable(self, store: Store) -> bool:
        """Whether a crash leaves anything of it: what goes to memory is gone then."""
        created = {create.topic: create.config for create in self.creates}
        for append in self.appends:
            state = store.topics.get(append.topic)
            config = state.config if state is not None else created[append.topic]
            if config.durability is not Durability.MEMORY:
                return True
        return False

    def end(self, error: GatewayError | None) -> None:
        for callback in self.ended:
            callback(error)

    def _reply(self, placements: Sequence[Placement]) -> Published:
        batch, shares = self.batch, self.shares
        # one append, and all of the batch: its offsets follow each other, and none has to be said for each message
        if len(shares) == 1 and shares[0].indexes is None:
            placement = placements[shares[0].position]
            return published(batch, placement, shares[0].partition)
        scattered = [(0, 0)] * batch.columns.count
        timestamp = 0
        for share in shares:
            placement = placements[share.position]
            timestamp = max(timestamp, placement.timestamp_ms)
            indexes = share.indexes if share.indexes is not None else range(batch.columns.count)
            for order, index in enumerate(indexes):
                scattered[index] = (share.partition, placement.offset(order))
        return Published(batch.address, timestamp, scattered=scattered, refused=self.refused)


def published(batch: Batch, placement: Placement, partition: int) -> Published:
    if placement.offsets is None:
        return Published(batch.address, placement.timestamp_ms, partition, placement.base_offset)
    scattered = [(partition, offset) for offset in placement.offsets]
    return Published(batch.address, placement.timestamp_ms, partition, placement.base_offset, scattered)


def _failing(failed: Failed) -> Sequence[bytes]:
    return [failed.columns.value(index) for index in failed.errors]


def composed(outer: Indexes, inner: Indexes) -> Indexes:
    if outer is None or inner is None:
        return inner if outer is None else outer
    return [outer[index] for index in inner]


def with_ttl(batch: Batch, expires_ms: int) -> Batch:
    """The same messages, each expiring at a time unless it does so earlier by itself."""
    columns = batch.columns
    own = columns.expires if columns.expires is not None else repeat(0, columns.count)
    # a lifetime can only shorten what the message itself says
    expires = [min(one, expires_ms) if one else expires_ms for one in own]
    return replace(batch, columns=Columns(columns.packed, columns.ends, columns.keys, columns.headers, expires))
