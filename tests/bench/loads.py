"""The clients of the benchmark: plain sockets and ready-made bytes, so that what is measured is the server.

Each load returns (messages, seconds). What was written is read back by `read_back`, which checks count and order.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
import zlib
from collections.abc import Mapping, Sequence

HELLO = bytes.fromhex("0000000b01000000000000000100 01".replace(" ", ""))
AUTH = bytes.fromhex("000000120200000000000000020007") + b"dev-key"
PING = bytes.fromhex("00000009070000000000000015")
PONG_SIZE = 13
PATIENCE = 60.0
"""Seconds that an answer may take."""
ARRIVAL = 300.0
"""Seconds that a message may take, behind all others."""
PRODUCED_SIZE = 17


def connect(port: int) -> socket.socket:
    """A connection without Nagle."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def receive(sock: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    buffer = bytearray(size)
    view, got = memoryview(buffer), 0
    while got < size:
        count = sock.recv_into(view[got:])
        if not count:
            raise EOFError("the server closed the connection")
        got += count
    return bytes(buffer)


def frame(payload: bytes) -> bytes:
    """u32 length and payload."""
    return struct.pack(">I", len(payload)) + payload


def blipmq(port: int) -> socket.socket:
    """A BlipMQ connection that is let in."""
    sock = connect(port)
    sock.sendall(HELLO + AUTH)
    receive(sock, 42)
    return sock


def publish(topic: bytes, qos: int, value: bytes) -> bytes:
    """A PUBLISH frame."""
    return frame(struct.pack(">BQBH", 3, 7, qos, len(topic)) + topic + value)


def publish_stream(port: int, topic: bytes, size: int, count: int) -> tuple[int, float]:
    """QoS0, as fast as the server reads."""
    with blipmq(port) as sock:
        block = publish(topic, 0, b"x" * size) * 1000
        started = time.perf_counter()
        for _ in range(count // 1000):
            sock.sendall(block)
        sock.sendall(PING)
        receive(sock, PONG_SIZE)
        return count // 1000 * 1000, time.perf_counter() - started


def ask_side_by_side(socks: Mapping[int, socket.socket], request: bytes, answer: int, rounds: int) -> float:
    """How long it takes until each connection has asked so often, one request at a time; closes them. `answer` is its length."""
    left = dict.fromkeys(socks, rounds)
    with contextlib.ExitStack() as closed, select.epoll() as poll:
        for number, sock in socks.items():
            closed.enter_context(sock)
            poll.register(number, select.EPOLLIN)
        started = time.perf_counter()
        for sock in socks.values():
            sock.sendall(request)
        done = 0
        while done < len(socks):
            ready = poll.poll(PATIENCE)
            if not ready:
                raise TimeoutError(f"{len(socks) - done} of {len(socks)} connections had no answer for {PATIENCE:g} s")
            for number, _events in ready:
                receive(socks[number], answer)
                left[number] -= 1
                if left[number]:
                    socks[number].sendall(request)
                else:
                    done += 1
        return time.perf_counter() - started


def publish_and_ping(port: int, topic: bytes, size: int, connections: int, each: int, rounds: int) -> tuple[int, float]:
    """QoS1 on many connections, each waiting for its PONG before it goes on."""
    socks = {sock.fileno(): sock for sock in (blipmq(port) for _ in range(connections))}
    block = publish(topic, 1, b"x" * size) * each + PING
    return connections * each * rounds, ask_side_by_side(socks, block, PONG_SIZE, rounds)


def create_topic(topic: bytes) -> bytes:
    """A binary CreateTopic, of one partition."""
    return frame(struct.pack(">BH", 5, len(topic)) + topic + struct.pack(">I", 1))


def rustlog(port: int, topic: bytes) -> socket.socket:
    """A RustLog connection with its topic made."""
    sock = connect(port)
    sock.sendall(create_topic(topic))
    receive(sock, struct.unpack(">I", receive(sock, 4))[0])
    return sock


def produce_frame(topic: bytes, values: Sequence[bytes]) -> bytes:
    """A binary Produce."""
    packed = b"".join(struct.pack(">I", len(value)) + value for value in values)
    return frame(struct.pack(">BH", 1, len(topic)) + topic + struct.pack(">II", 0, len(values)) + packed)


def produce(port: int, topic: bytes, size: int, records: int, window: int, requests: int) -> tuple[int, float]:
    """Produce with so many requests in flight."""
    with rustlog(port, topic) as sock:
        one = produce_frame(topic, [b"x" * size] * records)
        started = time.perf_counter()
        sent, answered = min(window, requests), 0
        sock.sendall(one * sent)
        while answered < requests * PRODUCED_SIZE:
            data = sock.recv(1 << 16)
            if not data:
                raise EOFError("the server closed the connection")
            answered += len(data)
            more = min(answered // PRODUCED_SIZE + window, requests) - sent
            if more > 0:
                sock.sendall(one * more)
                sent += more
        return requests * records, time.perf_counter() - started


def fetch(sock: socket.socket, topic: bytes, offset: int, limit: int) -> tuple[int, int, bytes]:
    """One Fetch: (records, next offset, answer)."""
    sock.sendall(frame(b"\2\0\0" + struct.pack(">H", len(topic)) + topic + struct.pack(">IQI", 0, offset, limit)))
    answer = receive(sock, struct.unpack(">I", receive(sock, 4))[0])
    if answer[0] != 2:
        raise RuntimeError(f"fetch refused: {answer[:200]!r}")
    return struct.unpack_from(">I", answer, 1)[0], struct.unpack_from(">Q", answer, len(answer) - 8)[0], answer


def fetch_all(port: int, topic: bytes, limit: int = 4 << 20) -> tuple[int, int, int, float]:
    """Read a topic from its start: (records, bytes, CRC-32 of what was read, seconds)."""
    with rustlog(port, topic) as sock:
        offset = records = size = crc = 0
        started = time.perf_counter()
        while True:
            count, following, answer = fetch(sock, topic, offset, limit)
            if following != offset + count:
                raise RuntimeError(f"a gap: {count} records from {offset}, next is {following}")
            if not count:
                return records, size, crc, time.perf_counter() - started
            crc = zlib.crc32(answer[5:-8], crc)
            offset, records, size = following, records + count, size + len(answer)


def fetch_last(port: int, topic: bytes, last: int, times: int) -> float:
    """The median time of a Fetch of the last record."""
    with rustlog(port, topic) as sock:
        taken: list[float] = []
        for _ in range(times):
            started = time.perf_counter()
            count, _next, _answer = fetch(sock, topic, last, 1)
            taken.append(time.perf_counter() - started)
            if count != 1:
                raise RuntimeError("the last record is not there")
        return sorted(taken)[len(taken) // 2]


def arrived(sock: socket.socket, topic: bytes, offset: int) -> bool:
    """Whether the far gateway has a message at an offset."""
    try:
        return fetch(sock, topic, offset, 1)[0] > 0
    except RuntimeError:  # no such topic yet
        return False


def wait(sock: socket.socket, topic: bytes, offset: int) -> float:
    """When a message was there."""
    deadline = time.monotonic() + ARRIVAL
    while not arrived(sock, topic, offset):
        if time.monotonic() > deadline:
            raise TimeoutError(f"message {offset} of {topic.decode()} has not arrived within {ARRIVAL:g} s")
        time.sleep(0.002)  # noqa: TID251  # no event loop here
    return time.perf_counter()
