"""The log on Kafka beside a bare librdkafka loop on the same node, in turns: producing, one at a time, reading; a start on much
that is shared; two gateways beside one.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import NewTopic

from tests.bench import loads
from tests.bench.processes import Process, running
from tests.kafka.node import Kafka

CONFIG = """
version: 1
listeners:
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
storage: {{path: "{path}", kafka: {{brokers: ["{brokers}"], prefix: "{prefix}", replication: 1}}}}
"""
ROUNDS = 3
VALUE = b"x" * 100
BATCHES, BATCH, WINDOW = 200, 1_000, 4
SINGLES = 300
TOPICS, ROWS = 1_000, 1_000_000
Report = Callable[[str, str, str, str], None]


@contextmanager
def gateway(kafka: Kafka, directory: str, prefix: str, name: str = "one") -> Iterator[Process]:
    path = Path(directory) / name
    path.mkdir(exist_ok=True)
    config = path / "gateway.yaml"
    config.write_text(CONFIG.format(path=path / "data", brokers=kafka.brokers, prefix=prefix))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--log-level", "error"]
    with running(command) as process:
        yield process


def producer(kafka: Kafka, topic: str) -> Any:
    """As careful as the gateway's."""
    made = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.brokers, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
    )
    made.list_topics(topic, 30)
    return made


def bare_batches(kafka: Kafka, topic: str) -> float:
    """Records a second, with as many batches on their way as the gateway's client has."""
    made, answered = producer(kafka, topic), [0]

    def delivered(_error: object, _message: object) -> None:
        answered[0] += 1

    started = time.perf_counter()
    for sent in range(BATCHES):
        while sent - answered[0] >= WINDOW:
            made.poll(0.01)
        for _ in range(BATCH - 1):
            made.produce(topic, VALUE, partition=0)
        made.produce(topic, VALUE, partition=0, on_delivery=delivered)
        made.poll(0)
    made.flush()
    return BATCHES * BATCH / (time.perf_counter() - started)


def bare_single(kafka: Kafka, topic: str) -> float:
    """The median milliseconds of one record, one at a time."""
    made = producer(kafka, topic)

    def one() -> float:
        started = time.perf_counter()
        made.produce(topic, VALUE, partition=0)
        made.flush()
        return time.perf_counter() - started

    return statistics.median(one() for _ in range(SINGLES)) * 1e3


def single(port: int, topic: bytes) -> float:
    frame = loads.produce_frame(topic, [VALUE])
    with loads.rustlog(port, topic) as sock:

        def one() -> float:
            started = time.perf_counter()
            sock.sendall(frame)
            loads.receive(sock, loads.PRODUCED_SIZE)
            return time.perf_counter() - started

        return statistics.median(one() for _ in range(SINGLES)) * 1e3


def bare_read(kafka: Kafka, topic: str) -> float:
    """Records a second from the start of what the bare loop has written."""
    settings = {
        "bootstrap.servers": kafka.brokers,
        "group.id": "bare",
        "fetch.queue.backoff.ms": 5,
    }  # or it rests for a second
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    got = len([consumer.poll(30)])
    size, started = 0, time.perf_counter()
    while got < BATCHES * BATCH:
        messages = consumer.consume(5_000, 0.05)
        size += sum(len(message.value()) for message in messages)
        got += len(messages)
    consumer.close()
    return got / (time.perf_counter() - started)


def make(kafka: Kafka, *topics: str) -> None:
    for future in kafka.admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result(120)


def measured(kafka: Kafka, port: int, report: Report) -> None:
    """The three figures in turns."""
    found: dict[str, list[float]] = {
        name: [] for name in ("batch", "bare batch", "one", "bare one", "read", "bare read")
    }
    for number in range(ROUNDS):
        bare, topic = f"bare.{number}", b"batch.%d" % number
        make(kafka, bare)
        found["bare batch"].append(bare_batches(kafka, bare))
        count, seconds = loads.produce(port, topic, len(VALUE), BATCH, WINDOW, BATCHES)
        found["batch"].append(count / seconds)
        found["bare read"].append(bare_read(kafka, bare))
        records, _size, _crc, seconds = loads.fetch_all(port, topic)
        if records != count:
            raise RuntimeError(f"read back {records} of {count} records")
        found["read"].append(records / seconds)
        make(kafka, bare + ".single")
        found["bare one"].append(bare_single(kafka, bare + ".single"))
        found["one"].append(single(port, b"single.%d" % number))
    middle = {name: statistics.median(figures) for name, figures in found.items()}
    for name, key, meant in (
        ("Kafka: RustLog Produce 1000 x 100 B, window 4", "batch", "0.70"),
        ("Kafka: RustLog Fetch, sequential, 100 B records", "read", "0.50"),
    ):
        ratio = f"{middle[key] / middle['bare ' + key]:.2f} of {middle['bare ' + key]:,.0f}"
        report(name, f"{middle[key]:,.0f}/s", ratio, meant)
    beyond = f"{middle['one'] - middle['bare one']:+.2f} to {middle['bare one']:.2f}"
    report("Kafka: RustLog Produce 1 x 100 B, one at a time", f"{middle['one']:.2f} ms", beyond, "at most +1.5 ms")


def side_by_side(ports: list[int], topic: bytes) -> float:
    """Records a second of as many clients, each at its gateway."""
    threads = [
        threading.Thread(target=loads.produce, args=(port, topic + b".%d" % number, len(VALUE), BATCH, WINDOW, BATCHES))
        for number, port in enumerate(ports)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(ports) * BATCHES * BATCH / (time.perf_counter() - started)


def two(kafka: Kafka, first: Process, directory: str, report: Report) -> None:
    """Two gateways beside one: what the cores of the machine allow; and what a record costs them, which no other load hides."""
    with gateway(kafka, directory, "bench.", "two") as second:
        ports = [process.ports["rustlog"] for process in (first, second)]
        alone, both = [], []
        spent = [0.0, 0.0]
        for number in range(ROUNDS):
            marks = [first.processor() + second.processor()]
            alone.append(side_by_side([ports[0]] * 2, b"alone.%d" % number))
            marks.append(first.processor() + second.processor())
            both.append(side_by_side(ports, b"both.%d" % number))
            marks.append(first.processor() + second.processor())
            spent = [spent[0] + marks[1] - marks[0], spent[1] + marks[2] - marks[1]]
    one, more = statistics.median(alone), statistics.median(both)
    cores = f"1.60 ({os.cpu_count()} cores, Kafka and clients on them too)"
    report("Kafka: two gateways, a client each", f"{more:,.0f}/s", f"{more / one:.2f} of {one:,.0f}", cores)
    records = ROUNDS * len(ports) * BATCHES * BATCH
    costs = [f"{seconds / records * 1e6:.2f}" for seconds in spent]
    report(
        "Kafka: CPU of two gateways a record",
        f"{costs[1]} us",
        f"{spent[1] / spent[0]:.2f} of one's {costs[0]}",
        "1.00",
    )


def start_on_much(kafka: Kafka, directory: str, report: Report) -> None:
    """A start with many topics and rows."""
    with gateway(kafka, directory, "much.", "much"):
        pass
    make(kafka, *[f"much.topic.{number}" for number in range(TOPICS)])
    made = producer(kafka, "much.__gateway.state")
    for number in range(ROWS):
        while True:
            try:
                made.produce("much.__gateway.state", b"v" * 16, b"bench\0%08d" % number)
                break
            except BufferError:
                made.poll(0.1)
    made.flush()
    with gateway(kafka, directory, "much.", "much"):
        pass  # a broker that has just been asked for a thousand topics takes seconds until it has them
    with gateway(kafka, directory, "much.", "much") as process:
        name = f"Kafka: start on {TOPICS:,} topics and {ROWS:,} rows"
        report(name, f"{process.started:.2f} s", "", "5 s")


def kafka(report: Report) -> None:
    """All of it, on one node."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        node = stack.enter_context(Kafka(Path(directory) / "kafka"))
        with gateway(node, directory, "bench.") as process:
            measured(node, process.ports["rustlog"], report)
            two(node, process, directory, report)
        start_on_much(node, directory, report)
