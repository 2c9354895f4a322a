"""The benchmark of the page: a gateway, brokers that everybody knows and the bare loops, by all workloads that have a name.

    python -m tests.bench.compared [--rounds 5] [--into gateway/docs/images] [workload ...]

Prints a table for each workload, and writes what was found and its plot where it is told to.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import trio

from gateway.bench.bare import KINDS, bare_target
from gateway.bench.figures import MEASURED, WORKLOADS, Comparison, Round, Workload, as_json, table
from gateway.bench.loops import BenchTarget, Fill, compared, run_round
from gateway.bench.plot import plot
from gateway.cli.bench import PlaceTarget
from gateway.cli.connection import Dialling
from gateway.cli.url import parse
from gateway.settings import Dialect
from gateway.wire.session import Credentials
from tests.bench.processes import gateway
from tests.bench.yardsticks import YARDSTICKS, NotHere

ROUND_SECONDS = 120.0
OURS = (("durable", "fsync"), ("memory", "memory"))
"""The first part of an address that a route gives its durability, and what the table calls it."""


def ours(port: int, pid: int) -> Sequence[BenchTarget]:
    dialling = Dialling(Credentials(), False, "", "", False, "", Dialect.AUTO, 60.0)
    return [
        PlaceTarget(parse(f"flymq://127.0.0.1:{port}/{where}.bench"), dialling, pid, f"gateway, {title}")
        for where, title in OURS
    ]


@asynccontextmanager
async def everybody(directory: Path) -> AsyncIterator[Sequence[BenchTarget]]:
    """All targets, for as long as the block lasts; who is not installed is left out, and said to be."""
    async with AsyncExitStack() as stack:
        here = directory / "gateway"
        here.mkdir()
        process = stack.enter_context(gateway(str(here)))
        found: list[BenchTarget] = [*ours(process.ports["flymq"], process.pid)]
        for start in YARDSTICKS:
            try:
                found.append(await stack.enter_async_context(start(directory)))
            except NotHere as missing:
                print(f"left out: {missing}", flush=True)
        yield [*found, *[await stack.enter_async_context(bare_target(kind)) for kind in KINDS]]


async def measure(workload: str, targets: Sequence[BenchTarget], rounds: int) -> Comparison:
    async def run(target: BenchTarget, plan: Workload) -> Round:
        with trio.fail_after(ROUND_SECONDS):
            return await run_round(target, plan, [Fill(plan, number) for number in range(plan.connections)])

    plan = WORKLOADS[workload]
    warm = msgspec.structs.replace(plan, messages=max(plan.connections, plan.messages // 20))
    for target in targets:
        await run(target, warm)
    return await compared(workload, plan, targets, rounds, run)


async def main(workloads: Sequence[str], rounds: int, into: Path | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        async with everybody(Path(name)) as targets:
            for workload in workloads:
                found = await measure(workload, targets, rounds)
                print(table(found), end="\n\n", flush=True)
                if into is not None:
                    (into / f"bench-{workload}.json").write_bytes(as_json(found) + b"\n")
                    (into / f"bench-{workload}.svg").write_text(plot(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="*", default=list(MEASURED))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--into", type=Path)
    given = parser.parse_args()
    trio.run(main, given.workloads, given.rounds, given.into)
