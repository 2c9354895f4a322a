"""Every pair of protocols through every failure a network has: nothing acknowledged is lost, invented, changed or reordered, wherever
the log of the gateway is that they publish to.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import trio

from tests.integration.faults import Fault
from tests.integration.oracle import Oracle
from tests.kafka.fixtures import Log

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]
DEADLINE = 400
SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))


async def suffer(oracle: Oracle, rounds: int) -> None:
    """A fault of its own for each upstream at a time, with a gateway killed, stopped or out of space meanwhile."""
    near, far = oracle.near, oracle.far
    happenings = [
        lambda: oracle.restart(near, signal.SIGKILL),
        lambda: oracle.restart(near, signal.SIGTERM),
        lambda: oracle.restart(far, signal.SIGKILL),
        lambda: oracle.restart(far, signal.SIGTERM),
        oracle.freeze if oracle.log.shared else lambda: oracle.full_disk(near),
        lambda: oracle.full_disk(far),
    ]
    oracle.chance.shuffle(happenings)
    happenings.append(oracle.reload)
    for number in range(rounds):
        oracle.chance.shuffle(FAULTS)
        for network, fault in zip(oracle.networks.values(), FAULTS, strict=False):
            network.set(fault)
        await oracle.more(oracle.chance.randint(5, 30))
        await happenings[number % len(happenings)]()
        await oracle.more(oracle.chance.randint(5, 30))
        if number % 2:
            oracle.set_faults(Fault.NONE)
            await oracle.more(5)


async def oracle_run(directory: Path, log: Log, seed: int, rounds: int, pool: int = 1) -> None:
    oracle = Oracle(directory, seed, log, pool=pool)
    try:
        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                await oracle.start(nursery)
                await suffer(oracle, rounds)
                oracle.set_faults(Fault.NONE)
                await oracle.more(5)
                oracle.stop_producing()
                await oracle.settle()
                await oracle.balanced()
                nursery.cancel_scope.cancel()
    finally:
        oracle.end()
    oracle.ledger.judge()


@pytest.mark.parametrize("seed", [1])
async def test_every_pair_survives_a_sample_of_faults(log: Log, tmp_path: Path, seed: int):
    await oracle_run(tmp_path, log, seed, rounds=3)


async def test_over_felix_each_arrives_once_whatever_becomes_of_the_gateways(log: Log, tmp_path: Path):
    oracle = Oracle(tmp_path, 5, log, upstreams=("felix",), pool=2)
    try:
        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                await oracle.start(nursery)
                for gateway in (oracle.near, oracle.far, oracle.near):
                    await oracle.swallow(20)  # something is stored there, and nobody here knows
                    await oracle.restart(gateway, signal.SIGKILL)
                    oracle.set_faults(Fault.NONE)
                    await oracle.more(20)
                await oracle.freeze()
                await oracle.more(20)
                await oracle.restart(oracle.near, signal.SIGTERM)
                await oracle.more(20)
                oracle.stop_producing()
                await oracle.settle()
                duplicates = await oracle.metric("gateway_dropped_messages_total", oracle.far, 'reason="duplicate"')
                nursery.cancel_scope.cancel()
    finally:
        oracle.end()
    oracle.ledger.judge()
    assert duplicates, "nothing was ever sent twice: this has shown nothing"


async def test_routes_and_forwards_that_change_under_load_lose_nothing(log: Log, tmp_path: Path):
    oracle = Oracle(tmp_path, 7, log, upstreams=("rustlog",))
    try:
        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                await oracle.start(nursery)
                for fault in (Fault.CUT, Fault.SLOW, Fault.SWALLOW):
                    oracle.set_faults(fault)
                    await oracle.more(10)
                    await oracle.reload()
                    await oracle.more(10)
                oracle.set_faults(Fault.NONE)
                oracle.stop_producing()
                await oracle.settle()
                await oracle.balanced()
                copied = await oracle.count("copies.rustlog.flymq")
                nursery.cancel_scope.cancel()
    finally:
        oracle.end()
    oracle.ledger.judge()
    assert 0 < copied < oracle.ledger.acks["rustlog.flymq"], "the routes never changed: this has shown nothing"


@pytest.mark.soak
async def test_every_pair_survives_every_fault(log: Log, tmp_path: Path):
    end = time.monotonic() + SECONDS
    seed = 100
    while time.monotonic() < end:
        await oracle_run(tmp_path / str(seed), log.under(str(seed)), seed, rounds=8, pool=1 + seed % 2)
        seed += 1
