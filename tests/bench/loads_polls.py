"""BlipMQ, QoS 0, polled while it is published at full speed: messages that are delivered in a second, and what each costs the server.

A process publishes as fast as it is read, this one polls in blocks, some of them under way. What is delivered is compared byte by byte
with what was to come: messages are numbered, and the POLLs too. The server's time is for one message that is delivered,
with all that was published meanwhile.
"""

from __future__ import annotations

import select
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from tests.bench.loads import PING, PONG_SIZE, blipmq, frame, publish, receive
from tests.bench.processes import Process, bare_process

SIZE = 100
BLOCK = 500
"""POLLs that are sent together."""
UNDER_WAY = 4
"""Blocks."""
NUMBERED = 2 * BLOCK
"""Messages, until their numbers begin again."""
WARM = 400
"""Blocks before it is measured."""
BLOCKS = 3_000
ROUNDS = 3
Report = Callable[[str, str, str, str], None]


@attrs.frozen
class Polled:
    """By the clock, in a second; and the server's seconds for a message that was delivered."""

    delivered: float
    published: float
    processor: float


def messages() -> list[bytes]:
    return [b"%06d" % number + b"x" * (SIZE - 6) for number in range(NUMBERED)]


def publish_until_told(port: int, topic: bytes) -> None:
    """As fast as it is read, until standard input ends; prints a line when there is something, and then how many in a second."""
    block = b"".join(publish(topic, 0, message) for message in messages())
    with blipmq(port) as sock:
        count, started = 0, time.perf_counter()
        while not select.select([sys.stdin], [], [], 0)[0]:
            sock.sendall(block)
            if not count:
                print(flush=True)
            count += NUMBERED
        sock.sendall(PING)
        receive(sock, PONG_SIZE)
        print(count / (time.perf_counter() - started))


@contextmanager
def publishing(port: int, topic: bytes) -> Iterator[Callable[[], float]]:
    """Another process does, until it is asked how many it has published in a second."""
    command = [sys.executable, "-m", "tests.bench.loads_polls", str(port), topic.decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield lambda: float(process.communicate()[0])
        finally:
            process.terminate()


def polled(server: Process, topic: bytes) -> Polled:
    port, numbered = server.ports["blipmq"], messages()
    with blipmq(port) as sock:
        sock.sendall(frame(struct.pack(">BQH", 4, 1, len(topic)) + topic + b"\0"))
        subscription = int.from_bytes(receive(sock, 21)[13:], "big")
        polls = b"".join(frame(struct.pack(">BQQ", 9, cid, subscription)) for cid in range(BLOCK))
        expected = [
            b"".join(_delivery(cid, topic, numbered[first + cid]) for cid in range(BLOCK))
            for first in range(0, NUMBERED, BLOCK)
        ]
        with publishing(port, topic) as published:
            sock.sendall(polls * UNDER_WAY)
            for number in range(WARM + BLOCKS):
                if number == WARM:
                    started, used = time.perf_counter(), server.processor()
                if receive(sock, len(expected[0])) != expected[number % len(expected)]:
                    raise RuntimeError(f"not what was to come: block {number} of {BLOCK}")
                sock.sendall(polls)
            taken, used = time.perf_counter() - started, server.processor() - used
            return Polled(BLOCKS * BLOCK / taken, published(), used / (BLOCKS * BLOCK))


def _delivery(cid: int, topic: bytes, message: bytes) -> bytes:
    return frame(struct.pack(">BQBH", 3, cid, 0, len(topic)) + topic + message)


def polls(process: Process, report: Report) -> None:
    """The gateway and the bare loop in turns."""
    ours: list[Polled] = []
    theirs: list[Polled] = []
    for number in range(ROUNDS):
        with bare_process("blipmq", "polled") as other:  # a new one each time: it keeps what nobody polls
            theirs.append(polled(other, b"memory.polled"))
        ours.append(polled(process, b"memory.polled.%d" % number))
    for name, found, best, unit, meant in (
        ("delivered", [one.delivered for one in ours], [one.delivered for one in theirs], "/s", "1 M/s"),
        ("published", [one.published for one in ours], [one.published for one in theirs], "/s", "-"),
        (
            "server's time",
            [one.processor * 1e6 for one in ours],
            [one.processor * 1e6 for one in theirs],
            " µs",
            "0.9 µs",
        ),
    ):
        mine, mark = statistics.median(found), statistics.median(best)
        shown = "{:,.0f}" if mine > 100 else "{:.2f}"
        figure, ratio = shown.format(mine) + unit, f"{mine / mark:.2f} of " + shown.format(mark)
        report(f"BlipMQ QoS 0 100 B polled while published, memory: {name}", figure, ratio, meant)


if __name__ == "__main__":
    publish_until_told(int(sys.argv[1]), sys.argv[2].encode())
