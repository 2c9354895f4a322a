"""The mark for Felix and Fujin: the least a server on aioquic can do with the same frames, a process of its own.

`batches` hands each binary batch to everybody who subscribed; `acked` answers each publish; `write` answers each WRITE;
`push` sends so many messages to each reader. One thread, plain sockets, all waiting datagrams before one
`datagrams_to_send` per connection. Nothing is routed, checked, kept, credited or counted.
"""

from __future__ import annotations

import argparse
import select
import socket
import struct
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from aioquic.buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived
from aioquic.quic.packet import QuicPacketType, pull_quic_header

from gateway.transport.quic.certificates import self_signed

HEADER = struct.Struct(">4sHHI")
U32 = struct.Struct(">I")
DATAGRAM = 8192


def felix(flags: int, payload: bytes) -> bytes:
    """A frame."""
    return HEADER.pack(b"FLX1", 1, flags, len(payload)) + payload


class Bare:
    """One server."""

    def __init__(self, mode: str, pushed: int) -> None:
        identity = self_signed(Path(tempfile.mkdtemp())).current()
        self.configuration = QuicConfiguration(
            is_client=False,
            alpn_protocols=["fujin"] if mode in {"write", "push"} else None,
            max_data=64 << 20,
            max_stream_data=16 << 20,
            max_datagram_size=DATAGRAM,
        )
        self.configuration.certificate, self.configuration.private_key = identity.certificate, identity.key
        self.act = {"batches": self.batches, "acked": self.acked, "write": self.write, "push": self.push}[mode]
        self.pushed = pushed
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self.sock.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
        self.by_cid: dict[bytes, QuicConnection] = {}
        self.rest: dict[tuple[QuicConnection, int], bytes] = defaultdict(bytes)
        self.subscribers: list[tuple[QuicConnection, int]] = []

    def serve(self) -> None:
        """For ever."""
        while True:
            links = list(dict.fromkeys(self.by_cid.values()))
            timers = [timer for link in links if (timer := link.get_timer()) is not None]
            select.select([self.sock], [], [], max(0.0, min(timers, default=time.monotonic() + 1) - time.monotonic()))
            now = time.monotonic()
            for _ in range(32):
                try:
                    data, address = self.sock.recvfrom(65_535)
                except BlockingIOError:
                    break
                header = pull_quic_header(Buffer(data=data), host_cid_length=8)
                link = self.by_cid.get(header.destination_cid)
                if link is None:
                    if header.packet_type is not QuicPacketType.INITIAL:
                        continue  # of one that is over
                    link = QuicConnection(
                        configuration=self.configuration,
                        original_destination_connection_id=header.destination_cid,
                    )
                    self.by_cid[header.destination_cid] = self.by_cid[link.host_cid] = link
                    links.append(link)
                link.receive_datagram(data, address, now)
            for link in links:
                timer = link.get_timer()
                if timer is not None and timer <= now:
                    link.handle_timer(now)
                while (event := link.next_event()) is not None:
                    if isinstance(event, StreamDataReceived):
                        self.act(link, event.stream_id, event.data)
                    elif isinstance(event, ConnectionTerminated):
                        self.by_cid = {cid: other for cid, other in self.by_cid.items() if other is not link}
                        self.subscribers = [one for one in self.subscribers if one[0] is not link]
            for link in links:
                for data, address in link.datagrams_to_send(now):
                    self.sock.sendto(data, address)

    def frames(self, link: QuicConnection, stream: int, data: bytes) -> list[tuple[int, bytes]]:
        """Whole Felix frames."""
        data = self.rest[link, stream] + data
        found, position = [], 0
        while len(data) - position >= 12:
            _magic, _version, flags, length = HEADER.unpack_from(data, position)
            if position + 12 + length > len(data):
                break
            found.append((flags, data[position + 12 : position + 12 + length]))
            position += 12 + length
        self.rest[link, stream] = data[position:]
        return found

    def batches(self, link: QuicConnection, stream: int, data: bytes) -> None:
        for flags, payload in self.frames(link, stream, data):
            if flags & 1:
                position = 0
                for _ in range(3):
                    position += 2 + int.from_bytes(payload[position : position + 2])
                event = felix(2, struct.pack(">Q", 1) + payload[position:])
                for other, events in self.subscribers:
                    other.send_stream_data(events, event)
            elif b'"subscribe"' in payload:
                link.send_stream_data(stream, felix(0, b'{"type":"subscribed","subscription_id":1}'))
                events = link.get_next_available_stream_id(is_unidirectional=True)
                link.send_stream_data(events, felix(0, b'{"type":"event_stream_hello","subscription_id":1}'))
                self.subscribers.append((link, events))
            else:
                link.send_stream_data(stream, felix(0, b'{"type":"ok"}'))

    def acked(self, link: QuicConnection, stream: int, data: bytes) -> None:
        for _flags, _payload in self.frames(link, stream, data):
            link.send_stream_data(stream, felix(0, b'{"type":"publish_ok","request_id":1}'))

    def write(self, link: QuicConnection, stream: int, data: bytes) -> None:
        data = self.rest[link, stream] + data
        position, answers = 0, []
        while len(data) - position >= 5:
            if data[position] == 1:
                position += 5
                continue
            if len(data) - position < 9:
                break
            topic = position + 9 + U32.unpack_from(data, position + 5)[0]
            if len(data) < topic + 4:
                break
            end = topic + 4 + U32.unpack_from(data, topic)[0]
            if len(data) < end:
                break
            answers.append(b"\2" + data[position + 1 : position + 5] + b"\0")
            position = end
        self.rest[link, stream] = data[position:]
        if answers:
            link.send_stream_data(stream, b"".join(answers))

    def push(self, link: QuicConnection, stream: int, data: bytes) -> None:
        if data[:1] == b"\2":
            link.send_stream_data(stream, b"\1\0")
            run = (b"\6" + U32.pack(32) + bytes(32)) * 1000
            for _ in range(self.pushed // 1000):
                link.send_stream_data(stream, run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("pushed", type=int)
    arguments = parser.parse_args()
    bare = Bare(arguments.mode, arguments.pushed)
    print(f"listening quic: bare on udp 127.0.0.1:{bare.sock.getsockname()[1]}", flush=True)
    print("ready", flush=True)
    bare.serve()
