"""The cache: expiry, bounds, and durability by choice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.broker import cache as module
from gateway.broker.cache import CacheService
from gateway.errors import GatewayError, InvalidRequest, NotFound, Throttled, TooLarge
from gateway.recorder import Recorder
from gateway.requests import DONE, CacheGet, CachePut, Outcome
from gateway.store.committer import Mode
from gateway.store.interface import Store
from gateway.store.sqlite import open_store
from tests.unit.broker.support import OPTIONS, FakeClock, RecordingCaller

CACHE = "t1/default/primary"
Ask = Callable[..., Outcome]


@asynccontextmanager
async def opened(
    path: Path, clock: FakeClock, *, durable: bool = False, **options: Any
) -> AsyncIterator[tuple[Ask, Store]]:
    async with open_store(path, OPTIONS, mode=Mode.INLINE, now_ms=clock.now_ms) as store:
        service = CacheService(store, clock, Recorder(), **options)
        caller = RecordingCaller()
        handlers = service.handlers()

        def ask(kind: type, *arguments: Any, **more: Any) -> Outcome:
            kept = {"durable": durable} if kind is CachePut else {}
            request = kind(len(caller.answers), *arguments, **kept, **more)
            try:
                handlers[kind](caller, request)
            except GatewayError as refusal:
                caller.answer(request.id, refusal)
            return caller.answers[request.id]

        yield ask, store


def value(outcome: Any) -> bytes | None:
    return outcome.value  # type: ignore[no-any-return]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_value_is_there_until_it_expires(tmp_path: Path, durable: bool) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock, durable=durable) as (ask, _store):
        assert value(ask(CacheGet, CACHE, "k")) is None
        assert ask(CachePut, CACHE, "k", b"v", 1000) == DONE
        assert ask(CachePut, CACHE, "", b"") == DONE  # legal (Felix wire 2.7)
        assert ask(CachePut, CACHE, "gone", b"v", 0) == DONE
        assert ask(CachePut, CACHE, "long", b"v", 2**64 - 1) == DONE
        assert value(ask(CacheGet, CACHE, "k")) == b"v"
        assert value(ask(CacheGet, CACHE, "")) == b""
        assert value(ask(CacheGet, CACHE, "gone")) is None
        assert value(ask(CacheGet, "t1/default/other", "k")) is None
        clock.seconds += 0.999
        assert value(ask(CacheGet, CACHE, "k")) == b"v"
        clock.seconds += 0.001
        assert value(ask(CacheGet, CACHE, "k")) is None
        ask(CachePut, CACHE, "k", b"again")
        clock.seconds += 1e6
        assert value(ask(CacheGet, CACHE, "k")) == b"again"
        assert value(ask(CacheGet, CACHE, "long")) == b"v"


@pytest.mark.parametrize(("durable", "after"), [(False, None), (True, b"v2")])
async def test_a_restart(tmp_path: Path, durable: bool, after: bytes | None) -> None:
    clock = FakeClock()
    async with opened(tmp_path, clock, durable=durable) as (ask, _store):
        ask(CachePut, CACHE, "k", b"v1")
        ask(CachePut, CACHE, "k", b"v2")
        ask(CachePut, CACHE, "short", b"v", 500)
        clock.seconds += 0.5
        assert value(ask(CacheGet, CACHE, "short")) is None  # its row goes as well
    async with opened(tmp_path, clock, durable=durable) as (ask, store):
        assert value(ask(CacheGet, CACHE, "k")) == after
        assert value(ask(CacheGet, CACHE, "short")) is None
        assert len(store.table(module.TABLE)) == (1 if durable else 0)


async def test_an_expired_row_never_takes_a_newer_one_with_it(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_store(tmp_path, OPTIONS, mode=Mode.STEPWISE, now_ms=clock.now_ms) as store:
        service, caller = CacheService(store, clock, Recorder()), RecordingCaller()
        service.put(caller, CachePut(1, CACHE, "k", b"old", 100, durable=True))
        store.committer.step()
        clock.seconds += 1.0
        service.put(caller, CachePut(2, CACHE, "k", b"new", durable=True))  # on its way
        service.get(caller, CacheGet(3, CACHE, "k"))
        assert value(caller.answers[3]) is None
        store.committer.step()
        store.committer.step()
        assert caller.answers[2] == DONE
        (row,) = store.table(module.TABLE).values()
        assert b"new" in row


async def test_a_volatile_value_is_not_overwritten_by_an_older_durable_one_on_its_way(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_store(tmp_path, OPTIONS, mode=Mode.STEPWISE, now_ms=clock.now_ms) as store:
        service, caller = CacheService(store, clock, Recorder()), RecordingCaller()
        service.put(caller, CachePut(1, CACHE, "k", b"old", durable=True))
        service.put(caller, CachePut(2, CACHE, "other", b"kept", durable=True))
        service.put(caller, CachePut(3, CACHE, "k", b"new"))
        assert caller.answers == {3: DONE}
        for _ in range(3):
            store.committer.step()
        assert caller.answers == {1: DONE, 2: DONE, 3: DONE}
        service.get(caller, CacheGet(4, CACHE, "k"))
        assert value(caller.answers[4]) == b"new"
        service.put(caller, CachePut(5, CACHE, "k", b"durable again", durable=True))
        store.committer.step()
        service.get(caller, CacheGet(6, CACHE, "k"))
        assert value(caller.answers[6]) == b"durable again"
        service.put(caller, CachePut(7, CACHE, "k", b"volatile again"))
        store.committer.step()
        (row,) = store.table(module.TABLE).values()
        assert b"kept" in row  # and nothing of k would come back after a restart


@pytest.mark.parametrize("durable", [False, True])
async def test_room_is_made_by_dropping_what_was_used_longest_ago(tmp_path: Path, durable: bool) -> None:
    size = module.OVERHEAD + len("c") + 1 + 100
    async with opened(tmp_path, FakeClock(), durable=durable, most_bytes=3 * size) as (ask, store):
        for key in "abc":
            ask(CachePut, "c", key, b"x" * 100)
        ask(CacheGet, "c", "a")
        ask(CachePut, "c", "d", b"x" * 100)
        assert [value(ask(CacheGet, "c", key)) is not None for key in "abcd"] == [True, False, True, True]
        ask(CachePut, "c", "d", b"x" * 50)  # smaller than before: nothing has to go
        assert [value(ask(CacheGet, "c", key)) is not None for key in "acd"] == [True, True, True]
        assert isinstance(ask(CachePut, "c", "e", b"x" * 4 * size), TooLarge)
        assert len(store.table(module.TABLE)) == (3 if durable else 0)


async def test_a_closed_list_of_caches(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeClock()) as (ask, _store):
        refusal = ask(CacheGet, CACHE, "k", create=False)
        assert isinstance(refusal, NotFound)
        assert refusal.message == f"cache scope not found: {CACHE}"  # Felix wire 2.7
        assert isinstance(ask(CachePut, CACHE, "k", b"", create=False), NotFound)
        ask(CachePut, CACHE, "k", b"v")
        assert value(ask(CacheGet, CACHE, "k", create=False)) == b"v"


async def test_names_and_their_number_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CACHES", 2)
    async with opened(tmp_path, FakeClock()) as (ask, _store):
        for name in ("a", "b", "a"):
            assert ask(CachePut, name, "k", b"v") == DONE
        assert isinstance(ask(CachePut, "c", "k", b"v"), Throttled)
        assert isinstance(ask(CacheGet, "", "k"), InvalidRequest)
        assert isinstance(ask(CacheGet, "n" * 65_536, "k"), InvalidRequest)
        assert isinstance(ask(CachePut, "a", "k" * 65_536, b"v"), InvalidRequest)
