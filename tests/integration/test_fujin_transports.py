"""Fujin 0.5 and v1 over byte streams of the real process: TCP in the clear and under TLS, on a port with FlyMQ, a Unix socket, and
WebSocket, asked by a client that is somebody else's. The bytes are those of wire 6.2.
"""

from __future__ import annotations

import signal
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import websocket

from tests.integration.flymq_raw import frame
from tests.integration.running import Served
from tests.protocols.script import hexed

CONFIG = """
version: 1
listeners:
  tcp:    {{protocol: fujin, transport: tcp, bind: "127.0.0.1:0"}}
  tls:    {{protocol: fujin, transport: tcp, bind: "127.0.0.1:0", tls: self-signed}}
  shared: {{protocol: [flymq, fujin], transport: tcp, bind: "127.0.0.1:0"}}
  local:  {{protocol: fujin, transport: unix, bind: "{dir}/fujin.sock", mode: "0660"}}
  web:    {{protocol: fujin, transport: websocket, bind: "127.0.0.1:0", origins: ["https://app.example"]}}
  webs:   {{protocol: fujin, transport: websocket, bind: "127.0.0.1:0", tls: self-signed}}
storage: {{path: "{dir}/data"}}
"""
HELLO = hexed("00 01 01 01 00000001 74 00000001 30")
GREETED = hexed("13 00 01 01 00000007 67617465776179")
BIND = hexed("01 00000003 6d656d 0000 0000")
PRODUCE = hexed("02 00000001 00000003 707562 00000005 68656c6c6f")
PRODUCED = hexed("03 00000001 00")
BYE, LEFT = b"\x0e", b"\x0f"
PATIENCE = 60


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for the module."""
    directory = tmp_path_factory.mktemp("streams")
    served = Served(directory, CONFIG.format(dir=directory))
    served.start()
    try:
        yield served
    finally:
        assert served.end(signal.SIGTERM) == 0
        assert not (directory / "fujin.sock").exists()


def tcp(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def whole(sock: socket.socket) -> bytes:
    """Everything until the end."""
    parts = []
    while part := sock.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def speaks(sock: socket.socket) -> None:
    """A session from its HELLO to its end."""
    with closing(sock):
        sock.sendall(HELLO + BIND)
        got = b""
        while not got.startswith(GREETED + hexed("10 00")):
            got += sock.recv(1)
        for _ in range(int.from_bytes(_exactly(sock, 4))):
            size = int.from_bytes(_exactly(sock, 4))
            _exactly(sock, size + 4)
        sock.sendall(PRODUCE * 3 + BYE)
        assert whole(sock) == PRODUCED * 3 + LEFT


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data))
    return data


def test_tcp_in_the_clear_and_under_tls(gateway: Served) -> None:
    speaks(tcp(gateway.ports["tcp"]))
    speaks(unverified().wrap_socket(tcp(gateway.ports["tls"])))


def test_v1_and_what_is_neither(gateway: Served) -> None:
    with closing(tcp(gateway.ports["tcp"])) as sock:
        sock.sendall(BIND)
        assert _exactly(sock, 2) == hexed("10 00")
    for first in (b"\2\1\1\0\0\0\3sub", b"GET / HTTP/1.1\r\n\r\n", b"\xaf"):
        with closing(tcp(gateway.ports["tcp"])) as sock:
            sock.sendall(first)
            assert whole(sock) == b""
    with closing(tcp(gateway.ports["tcp"])) as sock:
        sock.sendall(hexed("00 02"))
        assert whole(sock)[:3] == hexed("13 0c 01")


def test_a_port_with_flymq(gateway: Served) -> None:
    speaks(tcp(gateway.ports["shared"]))
    with closing(tcp(gateway.ports["shared"])) as sock:
        sock.sendall(frame(0x08))  # LIST_TOPICS
        head = _exactly(sock, 8)
        assert head[0] == 0xAF
        assert b"pub" in _exactly(sock, int.from_bytes(head[4:]))


def test_a_unix_socket_has_the_mode_it_was_given(gateway: Served) -> None:
    path = gateway.data.parent / "fujin.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE)
    sock.connect(str(path))
    speaks(sock)


@contextmanager
def web(gateway: Served, name: str = "web", path: str = "/fujin", origin: str = "") -> Iterator[websocket.WebSocket]:
    """The library's connection, on a socket that is closed whatever it makes of it."""
    sock: socket.socket = tcp(gateway.ports[name])
    if name == "webs":
        sock = unverified().wrap_socket(sock)
    url = f"ws://127.0.0.1:{gateway.ports[name]}{path}"
    with closing(sock):
        yield websocket.create_connection(url, socket=sock, origin=origin, suppress_origin=not origin)


def heard(connection: websocket.WebSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv()
    assert len(data) == size
    return data


@pytest.mark.parametrize("name", ["web", "webs"])
def test_websocket_by_another_library(gateway: Served, name: str) -> None:
    with web(gateway, name) as connection:
        for byte in HELLO + BIND:  # the borders of messages mean nothing
            connection.send_binary(bytes((byte,)))
        got = b""
        while not got.startswith(GREETED + hexed("10 00")):
            got += connection.recv()
        connection.ping(b"still there?")
        value = bytes(range(256)) * 8192  # two messages' worth, in more than one frame
        route = len(name).to_bytes(4) + name.encode()
        connection.send_binary(hexed("02 00000009") + route + len(value).to_bytes(4) + value)
        while not got.endswith(hexed("03 00000009 00")):
            got += connection.recv()
        connection.send_binary(hexed("0b 00000001 01") + route)
        assert heard(connection, 7) == hexed("01 00000001 00 00")
        connection.send_binary(hexed("02 00000002") + route + len(value).to_bytes(4) + value)
        back = b""
        while len(back) < len(value) + 12:
            back += connection.recv()
        assert value in back
        assert hexed("03 00000002 00") in back
        connection.send_binary(BYE)
        assert heard(connection, 1) == LEFT


def test_whom_a_websocket_listener_lets_in(gateway: Served) -> None:
    with web(gateway, origin="https://app.example"):
        pass
    for name, path, origin, status in (
        ("web", "/fujin", "https://elsewhere.example", "403"),
        ("webs", "/fujin", "https://app.example", "403"),  # that one names none
        ("web", "/other", "", "404"),
    ):
        with pytest.raises(websocket.WebSocketBadStatusException, match=status), web(gateway, name, path, origin):
            pass
    with closing(tcp(gateway.ports["web"])) as sock:
        sock.sendall(HELLO)
        sock.shutdown(socket.SHUT_WR)
        assert HELLO not in whole(sock)


def test_text_and_what_is_too_large_end_a_websocket(gateway: Served) -> None:
    with web(gateway) as connection:
        connection.send("text")
        assert connection.recv_data(control_frame=True)[1][:2] == (1003).to_bytes(2)
    with web(gateway) as connection:
        connection.send_binary(bytes((0, 1)) + bytes(2) + bytes(5 << 20))
        opcode, data = connection.recv_data(control_frame=True)
        while opcode != websocket.ABNF.OPCODE_CLOSE:  # a HELLO that is none is answered before
            opcode, data = connection.recv_data(control_frame=True)
        assert data[:2] in ((1009).to_bytes(2), (1000).to_bytes(2))


def test_a_socket_that_a_process_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "fujin.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    config = f'version: 1\nlisteners: {{local: {{protocol: fujin, transport: unix, bind: "{path}"}}}}\nstorage: {{path: "{tmp_path}/data"}}\n'
    served = Served(tmp_path, config)
    served.start()
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        sock.connect(str(path))
        speaks(sock)
    finally:
        served.end(signal.SIGTERM)
