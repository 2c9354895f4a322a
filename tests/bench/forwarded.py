"""How much later a message is at a second gateway than at the first one, at 1 000 a second.

One process produces, paced, and does as little as it can; this one reads at both ends, plain sockets both, and notes when
each message arrived where: the difference is what forwarding has added to that very message. Beside it the least that two
hops can be, measured in turns with it: a loop that syncs what it reads to its disk and passes it on, and a second one.
"""

from __future__ import annotations

import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.bench import loads, loads_flymq
from tests.bench.processes import running

SIZE = 256
EACH_SECOND, SECONDS, ROUNDS = 1_000, 3, 3
WARM = 200
TOPIC = b"latency"
STAMP = struct.Struct(">dI")
POLLS = 64
Report = Callable[[str, str, str, str], None]


@attrs.frozen
class Run:
    """Milliseconds, message by message: from its producer to a reader of the first, and from there to one of the second."""

    first: list[float]
    added: list[float]


class Reader:
    """One end: frames of one size, each with a stamp at a known place."""

    def __init__(self, sock: socket.socket, frame: int, again: bytes = b"") -> None:
        self.sock = sock
        self.times: dict[int, tuple[float, float]] = {}
        self._frame, self._again = frame, again
        self._rest = b""
        self._owed = 0

    def read(self) -> None:
        """What has arrived. Who has to ask for each message asks for many at once."""
        new, now = self.sock.recv(1 << 18), time.perf_counter()
        if not new:
            raise EOFError("the server closed the connection")
        data = self._rest + new
        count = len(data) // self._frame
        for index in range(count):
            sent, number = STAMP.unpack_from(data, (index + 1) * self._frame - SIZE)
            self.times[number] = sent, now
        self._rest = data[count * self._frame :]
        self._owed += count
        if self._again and self._owed >= POLLS // 2:
            self.sock.send(self._again * self._owed)
            self._owed = 0


def subscribed(port: int) -> Reader:
    """A reader over BlipMQ."""
    sock = loads.blipmq(port)
    sock.sendall(loads.frame(struct.pack(">BQH", 4, 9, len(TOPIC)) + TOPIC + b"\0"))
    number = loads.receive(sock, 21)[13:]
    poll = loads.frame(struct.pack(">BQ", 9, 9) + number)
    sock.sendall(poll * POLLS)
    return Reader(sock, 4 + 9 + 3 + len(TOPIC) + SIZE, poll)


def paced(kind: str, port: int, near: Reader, far: Reader) -> Run:
    """A producer in a process of its own, and both readers here."""
    count = EACH_SECOND * SECONDS
    readers = {reader.sock.fileno(): reader for reader in (near, far)}
    waiting = select.epoll()
    for number in readers:
        waiting.register(number, select.EPOLLIN)
    command = [sys.executable, "-m", "tests.bench.forwarded", kind, str(port)]
    with subprocess.Popen(command) as producer, waiting:
        while len(near.times) < count or len(far.times) < count:
            ready = waiting.poll(30)
            if not ready:
                raise RuntimeError(f"{len(near.times)} and {len(far.times)} arrived of {count}")
            for number, _events in ready:
                readers[number].read()
                if len(readers[number].times) == count:  # a bare hop ends with its source
                    waiting.unregister(number)
        producer.wait(30)
    for reader in readers.values():
        reader.sock.close()
    pairs = [(*near.times[number], far.times[number][1]) for number in range(WARM, count)]
    return Run(
        [1e3 * (here - sent) for sent, here, _there in pairs], [1e3 * (there - here) for _, here, there in pairs]
    )


def produce(kind: str, port: int) -> None:
    """A message each millisecond; what is answered is read now and then."""
    head, tail = b"", b""
    if kind == "flymq":
        whole = loads_flymq.produce_frame(TOPIC, SIZE)
        head, tail = whole[: -SIZE - 4], b"\xff" * 4
    padding = bytes(SIZE - STAMP.size)
    with loads.connect(port) as sock:
        answers = 0
        started = time.perf_counter() + 0.05
        for number in range(EACH_SECOND * SECONDS):
            left = started + number / EACH_SECOND - time.perf_counter()
            if left > 0:
                time.sleep(left)  # noqa: TID251  # no event loop here
            sock.sendall(head + STAMP.pack(time.perf_counter(), number) + padding + tail)
            if number % 100 == 99 and select.select([sock], [], [], 0)[0]:
                new = len(sock.recv(1 << 18))
                if not new:
                    raise EOFError("the server closed the connection")
                answers += new
        if kind == "flymq":
            loads.receive(sock, EACH_SECOND * SECONDS * (loads_flymq.FIXED + len(TOPIC)) - answers)


def relay(directory: str, following: int) -> None:
    """The bare hop: whatever is read is on disk before anybody has it. The last to connect is who sends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(f"listening relay: bare on tcp 127.0.0.1:{server.getsockname()[1]}\nready", flush=True)
        out = [loads.connect(following)] if following else []
        reader, _address = server.accept()
        reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        source, _address = server.accept()
        with (Path(directory) / f"relay-{os.getpid()}").open("wb", buffering=0) as log:
            while data := source.recv(1 << 18):
                log.write(data)
                os.fdatasync(log.fileno())
                for sock in (reader, *out):
                    sock.sendall(data)


@contextmanager
def hop(directory: Path, following: int) -> Iterator[int]:
    """A bare hop; yields its port."""
    with running([sys.executable, "-m", "tests.bench.forwarded", "relay", str(directory), str(following)]) as process:
        yield process.ports["relay"]


def bare(directory: Path) -> Run:
    """Two bare hops. The second one's reader has to be there before the first one connects."""
    with hop(directory, 0) as second:
        far = Reader(loads.connect(second), SIZE)
        with hop(directory, second) as first:
            return paced("bare", first, Reader(loads.connect(first), SIZE), far)


def synced(directory: Path) -> float:
    """Milliseconds that the disk takes for a fdatasync of 16 KiB appended, now."""
    taken: list[float] = []
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(bytes(16_384))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e3


def centile(values: list[float], share: float) -> float:
    """The value below which that share of them is."""
    return sorted(values)[int(share * len(values))]


def latency(directory: Path, near: Mapping[str, int], far: Mapping[str, int], report: Report) -> None:
    """Both in turns; medians over the rounds."""
    with loads.connect(near["flymq"]) as sock:
        sock.sendall(loads_flymq.produce_frame(TOPIC, SIZE))  # makes the topic
        loads.receive(sock, loads_flymq.FIXED + len(TOPIC))
    with loads.rustlog(far["rustlog"], TOPIC) as sock:
        loads.wait(sock, TOPIC, 0)
    disk: list[float] = []
    ours: list[Run] = []
    theirs: list[Run] = []
    for _ in range(ROUNDS):
        disk.append(synced(directory))
        theirs.append(bare(directory))
        ours.append(paced("flymq", near["flymq"], subscribed(near["blipmq"]), subscribed(far["blipmq"])))

    def line(name: str, what: Callable[[Run], float], meant: str) -> None:
        mine, mark = statistics.median(map(what, ours)), statistics.median(map(what, theirs))
        report(name, f"{mine:.2f} ms", f"{mine / mark:.1f} of {mark:.2f} ms", meant)

    line("added by a forward at 1 000/s, median", lambda run: statistics.median(run.added), "3 ms")
    line("  99 of 100", lambda run: centile(run.added, 0.99), "")
    line("  before that, from PRODUCE to a reader, median", lambda run: statistics.median(run.first), "")
    each = ", ".join(f"{statistics.median(run.added):.2f}" for run in ours)
    report("  added, run by run; the disk's fdatasync", f"{each} ms", f"{statistics.median(disk):.2f} ms", "")


if __name__ == "__main__":
    if sys.argv[1] == "relay":
        relay(sys.argv[2], int(sys.argv[3]))
    else:
        produce(sys.argv[1], int(sys.argv[2]))
