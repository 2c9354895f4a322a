"""The cluster: who is in it, and whether they answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.broker.administration import cluster as module
from gateway.broker.administration.cluster import ClusterService, connects, parse_address
from gateway.errors import InvalidRequest, Throttled
from gateway.requests import Cluster, ClusterAnswer, ClusterJoin, ClusterLeave, ClusterStatus
from gateway.store.committer import Mode
from gateway.store.sqlite import open_store
from tests.unit.broker.support import OPTIONS, RecordingCaller


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[ClusterService]:
    async with open_store(path, OPTIONS, mode=Mode.INLINE) as store:
        yield ClusterService(store, id="gateway", address="10.0.0.1:9600", **options)


def ask(service: ClusterService, request: Any) -> Any:
    caller = RecordingCaller()
    service.handlers()[type(request)](caller, request)
    return caller.answers[request.id]


def members(service: ClusterService) -> dict[str, bool]:
    status = ask(service, ClusterStatus(1))
    assert isinstance(status, Cluster)
    return {member.address: member.healthy for member in status.members}


async def test_a_cluster_of_one_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        status = ask(service, ClusterStatus(1))
        assert (status.id, [(m.id, m.address, m.healthy, m.is_self) for m in status.members]) == (
            "gateway",
            [("gateway", "10.0.0.1:9600", True, True)],
        )
        assert ask(service, ClusterLeave(2)) == ClusterAnswer(False, "the last member cannot leave")


async def test_joining_changes_the_status_and_survives_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as service:
        assert ask(service, ClusterJoin(1, "b.example:9600")).done
        assert ask(service, ClusterJoin(2, "b.example:9600")) == ClusterAnswer(
            True, "b.example:9600 is a member already"
        )
        assert ask(service, ClusterJoin(3, "10.0.0.1:9600")) == ClusterAnswer(False, "10.0.0.1:9600 is this gateway")
        assert ask(service, ClusterJoin(4, "[::1]:9600")).done
        assert members(service) == {"10.0.0.1:9600": True, "[::1]:9600": False, "b.example:9600": False}
        ids = [member.id for member in ask(service, ClusterStatus(5)).members]
        assert len(set(ids)) == 3
    async with opened(tmp_path) as service:
        assert [member.id for member in ask(service, ClusterStatus(5)).members] == ids


async def test_leaving_is_kept_too_even_against_the_configuration(tmp_path: Path) -> None:
    peers = ("c.example:1",)
    async with opened(tmp_path, peers=peers) as service:
        ask(service, ClusterJoin(1, "b.example:1"))
        assert len(members(service)) == 3
        assert ask(service, ClusterLeave(2)).done
        assert len(members(service)) == 1
        assert not ask(service, ClusterLeave(3)).done
    async with opened(tmp_path, peers=peers) as service:
        assert len(members(service)) == 1
        assert ask(service, ClusterJoin(4, "c.example:1")).done
        assert set(members(service)) == {"10.0.0.1:9600", "c.example:1"}


async def test_health_is_what_the_probe_says(tmp_path: Path, mock_clock: MockClock) -> None:
    up = {"b.example:1"}
    asked: list[str] = []

    async def probe(address: str) -> bool:
        asked.append(address)
        if address == "slow.example:1":
            await trio.sleep(60)
        return address in up

    async with (
        opened(tmp_path, peers=("b.example:1", "slow.example:1"), probe=probe) as service,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(service.run)
        await wait_all_tasks_blocked()
        mock_clock.jump(module.PROBE_TIMEOUT)
        await wait_all_tasks_blocked()
        assert members(service) == {"10.0.0.1:9600": True, "b.example:1": True, "slow.example:1": False}
        up.clear()
        mock_clock.jump(module.PROBE_EVERY)
        await wait_all_tasks_blocked()
        mock_clock.jump(module.PROBE_TIMEOUT)
        await wait_all_tasks_blocked()
        assert members(service)["b.example:1"] is False
        up.add("d.example:1")
        ask(service, ClusterJoin(1, "d.example:1"))  # looked at at once, not in five seconds
        await wait_all_tasks_blocked()
        assert members(service)["d.example:1"] is True
        mock_clock.jump(module.PROBE_TIMEOUT)
        await wait_all_tasks_blocked()
        ask(service, ClusterLeave(2))
        await wait_all_tasks_blocked()
        asked.clear()
        mock_clock.jump(100)
        await wait_all_tasks_blocked()
        assert asked == []
        nursery.cancel_scope.cancel()


async def test_the_probe_of_a_real_peer() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    assert await connects(f"127.0.0.1:{port}")
    await listener.aclose()
    assert not await connects(f"127.0.0.1:{port}")


async def test_a_member_by_no_name_at_all_ends_nobody(tmp_path: Path) -> None:
    """A store may have one from before such names were refused, and the probe looks at whatever is there."""
    async with opened(tmp_path, peers=["a..b:1", "x" * 64 + ":1"]) as service, trio.open_nursery() as nursery:
        await nursery.start(service.run)
        await wait_all_tasks_blocked()
        assert members(service) == {"10.0.0.1:9600": True, "a..b:1": False, "x" * 64 + ":1": False}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "bad", ["", "host", ":1", "host:", "host:0", "host:65536", "host:-1", "host:x", "a b:1", "a/b:1", "u@h:1", "::1:9", "[::1]", "h\n:1", "é:1", "x" * 260 + ":1", "a..b:1", "x" * 64 + ":1"]
)  # fmt: skip
def test_addresses_that_are_none(bad: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_address(bad)


async def test_the_number_of_members_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PEERS", 2)
    async with opened(tmp_path) as service:
        for number in range(2):
            ask(service, ClusterJoin(number, f"h{number}:1"))
        with pytest.raises(Throttled):
            ask(service, ClusterJoin(5, "h5:1"))
