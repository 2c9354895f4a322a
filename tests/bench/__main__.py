"""`make bench`: every figure beside the bare trio loop that handles the same frames in the same run.

Machines differ and are noisy; the ratio is what counts. Each pair is measured alternately, several times, and the
medians are printed. What was written is read back: count, order, and a checksum over two passes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable

import trio

from gateway.bench.figures import MEASURED
from tests.bench import compared, fair, loads, loads_bridges, loads_flymq, loads_idle, loads_polls, loads_quic
from tests.bench.processes import Process, bare, gateway

ROUNDS = 3
Load = Callable[[int, bytes], tuple[int, float]]


def report(name: str, figure: str, ratio: str, meant: str) -> None:
    """One line."""
    print(f"{name:<76} {figure:>13} {ratio:>22}   {meant}", flush=True)


def compare(name: str, served: int, protocol: str, mode: str, topic: bytes, load: Load, meant: str) -> None:
    """The gateway and the bare loop in turns."""
    ours: list[float] = []
    theirs: list[float] = []
    with bare(protocol, mode) as port:
        for number in range(ROUNDS):
            count, seconds = load(port, topic)
            theirs.append(count / seconds)
            count, seconds = load(served, topic + b".%d" % number)
            ours.append(count / seconds)
    mine, mark = statistics.median(ours), statistics.median(theirs)
    report(name, f"{mine:,.0f}/s", f"{mine / mark:.2f} of {mark:,.0f}", meant)


def blipmq(process: Process) -> None:
    """Publishing over BlipMQ."""
    port = process.ports["blipmq"]
    compare(
        "BlipMQ PUBLISH QoS0 100 B, pipelined, memory", port, "blipmq", "memory", b"memory.q0",
        lambda port, topic: loads.publish_stream(port, topic, 100, 500_000), "500 k/s",
    )  # fmt: skip
    compare(
        "BlipMQ PUBLISH QoS1 100 B, 50 x 50 + PING, fsync", port, "blipmq", "fsync", b"durable.q1",
        lambda port, topic: loads.publish_and_ping(port, topic, 100, 50, 50, 20), "400 k/s",
    )  # fmt: skip


def rustlog(process: Process) -> None:
    """Producing and fetching over RustLog."""
    port = process.ports["rustlog"]
    for name, mode, topic, records, window, requests, meant in (
        ("RustLog Produce 1000 x 100 B, window 4, fsync", "fsync", b"durable.batch", 1000, 4, 800, "1.2 M/s"),
        ("RustLog Produce 1 x 100 B, window 64, fsync", "fsync", b"durable.window", 1, 64, 30_000, "120 k/s"),
        ("RustLog Produce 1 x 100 B, one at a time, fsync", "fsync", b"durable.single", 1, 1, 1_500, "0.80 of bare"),
        ("RustLog Produce 1 x 100 B, one at a time, 5 ms", "unsynced", b"lazy.single", 1, 1, 4_000, "10 k/s"),
    ):
        compare(
            name, port, "rustlog", mode, topic,
            lambda port, topic, records=records, window=window, requests=requests: loads.produce(
                port, topic, 100, records, window, requests
            ),
            meant,
        )  # fmt: skip
    fetching(port)


def fetching(port: int) -> None:
    """Reading what was written: all of it, and the last record of a short log and of a long one."""
    topic = b"durable.batch.0"
    first = loads.fetch_all(port, topic)
    records, size, crc, seconds = loads.fetch_all(port, topic)
    if (records, crc) != (800_000, first[2]):
        raise RuntimeError(f"read back {records} records, checksums {crc:08x} and {first[2]:08x}")
    with bare("rustlog", "memory") as mark:
        _records, _size, _crc, least = loads.fetch_all(mark, topic)
        last = loads.fetch_last(mark, topic, 799_999, 400)
    name = "RustLog Fetch, sequential, 100 B records"
    report(name, f"{size / seconds / 1e6:,.0f} MB/s", f"{least / seconds:.2f} of {size / least / 1e6:,.0f}", "300 MB/s")
    for count in (100_000, 2_000_000):
        long = b"durable.long.%d" % count
        loads.produce(port, long, 100, 1000, 4, count // 1000)
        median = loads.fetch_last(port, long, count - 1, 400)
        name = f"RustLog Fetch of the last of {count:,} records"
        ratio = f"{last / median:.2f} of {last * 1e3:.3f}"
        report(name, f"{median * 1e3:.3f} ms", ratio, "0.300 ms, both alike")


def flymq(process: Process) -> None:
    """Producing and fetching over FlyMQ."""
    loads_flymq.flymq(process, report)


def main() -> None:
    """Everything, or what is named."""
    chosen = set(sys.argv[1:]) or {
        "blipmq",
        "polls",
        "rustlog",
        "flymq",
        "fair",
        "quic",
        "bridges",
        "idle",
        "kafka",
        "restart",
    }
    report("what", "gateway", "ratio to the bare loop", "meant")
    with tempfile.TemporaryDirectory() as directory:
        with gateway(directory) as process:
            for part in (blipmq, rustlog, flymq):
                if part.__name__ in chosen:
                    part(process)
            if "polls" in chosen:
                loads_polls.polls(process, report)
            if "fair" in chosen:
                fair.fair(process, report)
        if "idle" in chosen:
            loads_idle.idle(report)
        if "quic" in chosen:
            loads_quic.quic(report)
        if "bridges" in chosen:
            loads_bridges.bridges(report)
        if "kafka" in chosen:
            from tests.bench import loads_kafka  # needs the extra `kafka`, Java and Kafka's jars

            loads_kafka.kafka(report)
        if "restart" in chosen:
            loads_idle.restart(report)
    if "compared" in chosen:  # only when it is named: it takes minutes, and brokers of others
        trio.run(compared.main, MEASURED, ROUNDS, None)


if __name__ == "__main__":
    main()
