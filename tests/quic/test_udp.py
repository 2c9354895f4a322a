"""The socket: runs of datagrams where the kernel takes them, plain calls where it does not, any size either way."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence

import pytest
import trio

from gateway.transport.quic.udp import RUN_BYTES, RUN_SEGMENTS, Datagram, UdpSocket, open_socket

LOCAL = ("127.0.0.1", 0)


@pytest.fixture(params=[True, False], ids=["offload", "plain"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[UdpSocket, UdpSocket]]:
    sockets = [open_socket(socket.AF_INET, LOCAL, offload=request.param) for _ in range(2)]
    yield sockets[0], sockets[1]
    for sock in sockets:
        sock.close()


async def receive_all(sock: UdpSocket, count: int) -> list[Datagram]:
    got: list[Datagram] = []
    with trio.fail_after(5):
        while len(got) < count:
            await sock.wait_readable()
            got += sock.receive(32)
    return got


async def test_datagrams_of_any_size_arrive_as_they_were_sent(pair: tuple[UdpSocket, UdpSocket]) -> None:
    one, two = pair
    sizes = [1, 1200, 1200, 1200, 700, 1452, 8192, 8192, 4096, 16_336, 65_507, 1200]
    datagrams = [(bytes([n]) * size, two.address) for n, size in enumerate(sizes)]
    assert not one.send(datagrams)
    got = await receive_all(two, len(sizes))
    assert [data for data, _ in got] == [data for data, _ in datagrams]
    assert {address for _, address in got} == {one.address}


async def test_long_runs_keep_their_order(pair: tuple[UdpSocket, UdpSocket]) -> None:
    one, two = pair
    datagrams = [(n.to_bytes(2, "big") * 600, two.address) for n in range(500)]
    assert not one.send(datagrams)
    assert [data for data, _ in await receive_all(two, 500)] == [data for data, _ in datagrams]


async def test_datagrams_to_several_peers_reach_each_its_own() -> None:
    one, two, three = (open_socket(socket.AF_INET, LOCAL) for _ in range(3))
    one.send([(b"a" * 1200, two.address), (b"b" * 1200, two.address), (b"c" * 1200, three.address)])
    assert [data[:1] for data, _ in await receive_all(two, 2)] == [b"a", b"b"]
    assert [data[:1] for data, _ in await receive_all(three, 1)] == [b"c"]
    for sock in (one, two, three):
        sock.close()


class Refusing:
    """A socket object whose `sendmsg` or options are refused, as on kernels and devices without offload."""

    def __init__(self, inner: socket.socket, *, options: bool, sends: int) -> None:
        self._inner = inner
        self._options = options
        self._sends = sends

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if level == socket.IPPROTO_UDP and self._options:
            raise OSError(errno.ENOPROTOOPT, "no such option")
        self._inner.setsockopt(level, option, value)

    def sendmsg(self, buffers: Sequence[bytes], *rest: object) -> int:
        raise OSError(self._sends, "refused")

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.mark.parametrize("refusal", [errno.EIO, errno.EINVAL])
async def test_a_refused_run_is_sent_singly_and_said_so(refusal: int, capsys: pytest.CaptureFixture[str]) -> None:
    inner = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    inner.bind(LOCAL)
    one = UdpSocket(Refusing(inner, options=False, sends=refusal))  # type: ignore[arg-type]
    two = open_socket(socket.AF_INET, LOCAL)
    if not one.gso:
        pytest.skip("this kernel has no GSO to lose")
    one.send([(bytes([n]) * 1200, two.address) for n in range(40)])
    assert [data[0] for data, _ in await receive_all(two, 40)] == list(range(40))
    assert not one.gso
    assert "udp_offload_unavailable" in "".join(capsys.readouterr())
    one.close()
    two.close()


async def test_a_kernel_without_offload_is_served_by_plain_calls(capsys: pytest.CaptureFixture[str]) -> None:
    inner = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    inner.bind(LOCAL)
    one = UdpSocket(Refusing(inner, options=True, sends=errno.EIO))  # type: ignore[arg-type]
    two = open_socket(socket.AF_INET, LOCAL)
    assert (one.gso, one.gro) == (False, False)
    assert "".join(capsys.readouterr()).count("udp_offload_unavailable") == 2
    one.send([(b"x" * 1200, two.address)] * 3)
    two.send([(b"y" * 1200, one.address)] * 3)
    assert len(await receive_all(two, 3)) == len(await receive_all(one, 3)) == 3
    one.close()
    two.close()


class Full(Refusing):
    """A socket object whose buffer has room for a few datagrams only."""

    def __init__(self, inner: socket.socket, room: int) -> None:
        super().__init__(inner, options=True, sends=0)
        self.room = room

    def sendto(self, data: bytes, address: object) -> int:
        if not self.room:
            raise BlockingIOError
        self.room -= 1
        return len(data)


def test_what_does_not_fit_is_given_back() -> None:
    inner = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock = UdpSocket(Full(inner, room=3))  # type: ignore[arg-type]
    datagrams = [(bytes([n]), ("127.0.0.1", 9)) for n in range(5)]
    assert list(sock.send(datagrams)) == datagrams[3:]
    sock.close()


def test_what_the_network_refuses_is_lost_and_nothing_else() -> None:
    one, two = (open_socket(socket.AF_INET, LOCAL) for _ in range(2))
    one.send([(bytes(65_508), two.address), (b"next", two.address)])  # one byte more than UDP can carry
    assert [data for data, _ in two.receive(32)] == [b"next"]
    one.close()
    two.close()


@pytest.mark.parametrize(
    ("sizes", "end"),
    [
        ([1200], 1),
        ([1200, 1200, 1200], 3),
        ([1200, 1200, 500, 1200], 3),  # a shorter one may only be the last
        ([500, 1200], 1),
        ([1200] * 40, RUN_SEGMENTS),
        ([8192] * 40, RUN_BYTES // 8192),
    ],
)
def test_runs_are_what_one_send_may_carry(sizes: list[int], end: int) -> None:
    assert UdpSocket._run_end([(bytes(size), LOCAL) for size in sizes], 0) == end
