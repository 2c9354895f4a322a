"""The cache: values by cache and key, each for as long as it was put for.

What has expired is dropped when somebody asks for it, or when room is needed. The cache is bounded by bytes: room is made
by dropping what was used longest ago, which is what a cache may do and a log may not. A value that is put `durable` is in
the store before its put is answered and comes back after a restart; otherwise it lives in memory alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import attrs
import msgspec

from gateway.broker.service import Caller, Clock, Handler
from gateway.errors import InvalidRequest, NotFound, Throttled, TooLarge
from gateway.recorder import Recorder
from gateway.requests import DONE, CacheGet, CachePut, CacheValue, Request
from gateway.store.interface import Put, Require, Store, Ticket, Unit

TABLE = "cache"
MOST_BYTES = 64 << 20
MOST_CACHES = 10_000
"""Clients make entries, and caches where `create` lets them: both need an end."""
LONGEST_NAME = 65_535
"""Bytes of a cache's name, and of a key (Felix wire 2.8)."""
OVERHEAD = 256
"""Bytes that an entry takes beside its key and value."""
_NEVER = 0
_END_OF_TIME = (1 << 64) - 1
"""A time to live may be any u64 of milliseconds (Felix wire 2.8), and the sum with now has to fit a row."""


@attrs.frozen
class _CacheRow:
    cache: str
    key: str
    value: bytes
    expires_ms: int

    @property
    def size(self) -> int:
        return OVERHEAD + len(self.cache) + len(self.key) + len(self.value)


class CacheService:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._most_bytes = most_bytes
        self._entries: OrderedDict[tuple[str, str], _CacheRow] = OrderedDict()
        """The one used longest ago first."""
        self._names: set[str] = set()
        self._stored: set[tuple[str, str]] = set()
        """The entries that have a row in the store."""
        self._under_way: dict[tuple[str, str], list[_CacheRow]] = {}
        """Durable values that are on their way to the store, unless a volatile one came after them."""
        self._bytes = 0
        for raw in list(store.table(TABLE).values()):
            row = msgspec.msgpack.decode(raw, type=_CacheRow)
            self._names.add(row.cache)
            self._stored.add((row.cache, row.key))
            self._keep(row)
        store.on_rows(TABLE, self._put_elsewhere)

    def _put_elsewhere(self, rows: Mapping[bytes, bytes | None]) -> None:
        for key, raw in rows.items():
            if raw is not None:
                row = msgspec.msgpack.decode(raw, type=_CacheRow)
                self._names.add(row.cache)
                self._stored.add((row.cache, row.key))
                self._keep(row)
                continue
            place = _place(key)
            self._stored.discard(place)
            if place in self._entries:
                self._drop(place)

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {CachePut: self.put, CacheGet: self.get}

    def put(self, caller: Caller, request: CachePut) -> None:
        self._open(request.cache, create=request.create)
        if len(request.key.encode()) > LONGEST_NAME:
            raise InvalidRequest(f"a key has at most {LONGEST_NAME} bytes")
        expires_ms = _NEVER
        if request.ttl_ms is not None:
            expires_ms = min(self._clock.now_ms() + request.ttl_ms, _END_OF_TIME)
        row = _CacheRow(request.cache, request.key, request.value, expires_ms)
        if row.size > self._most_bytes:
            raise TooLarge(f"the cache holds at most {self._most_bytes} bytes")
        place = row.cache, row.key
        if not request.durable:
            if place in self._stored:
                self._drop(place)  # or the older value would come back
            if self._under_way.pop(place, None) is not None:
                self._store.submit(
                    Unit(puts=[Put(TABLE, _key(*place), None)], synced=False)
                )  # behind what is under way
            self._keep(row)
            caller.answer(request.id, DONE)
            return
        coming = self._under_way.setdefault(place, [])
        coming.append(row)

        def done(ticket: Ticket) -> None:
            if self._under_way.get(place) is coming:  # still the newest of its kind
                coming.remove(row)
                if not coming:
                    del self._under_way[place]
                if ticket.error is None:
                    self._stored.add(place)
                    self._keep(row)
            caller.answer(request.id, ticket.error or DONE)

        put = Put(TABLE, _key(row.cache, row.key), msgspec.msgpack.encode(row))
        self._store.submit(Unit(puts=[put])).on_done(done)

    def get(self, caller: Caller, request: CacheGet) -> None:
        self._open(request.cache, create=request.create)
        place = request.cache, request.key
        row = self._entries.get(place)
        if row is not None and row.expires_ms != _NEVER and row.expires_ms <= self._clock.now_ms():
            self._drop(place)
            row = None
        if row is not None:
            self._entries.move_to_end(place)
        caller.answer(request.id, CacheValue(row.value if row is not None else None))

    def _open(self, cache: str, *, create: bool) -> None:
        if cache in self._names:
            return
        if not create:
            raise NotFound(f"cache scope not found: {cache}")
        if not cache or len(cache.encode()) > LONGEST_NAME:
            raise InvalidRequest("a cache's name is empty or too long")
        if len(self._names) >= MOST_CACHES:
            raise Throttled(f"at most {MOST_CACHES} caches")
        self._names.add(cache)

    def _keep(self, row: _CacheRow) -> None:
        place = row.cache, row.key
        before = self._entries.pop(place, None)
        self._bytes += row.size - (before.size if before is not None else 0)
        self._entries[place] = row
        if self._bytes > self._most_bytes:
            self._recorder.limit_hit("", "cache")
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._entries)))

    def _drop(self, place: tuple[str, str]) -> None:
        row = self._entries.pop(place)
        self._bytes -= row.size
        if place in self._stored:
            self._stored.discard(place)
            key = _key(*place)
            # only this row, not one that is on its way; and unsynced: a row that a power cut brings back has expired,
            # or is dropped again for want of room
            same = Require(TABLE, key, msgspec.msgpack.encode(row))
            self._store.submit(Unit(puts=[Put(TABLE, key, None)], requires=[same], synced=False))


def _place(key: bytes) -> tuple[str, str]:
    size = int.from_bytes(key[:2], "big") + 2
    return key[2:size].decode(), key[size:].decode()


def _key(cache: str, key: str) -> bytes:
    name = cache.encode()
    return len(name).to_bytes(2, "big") + name + key.encode()
