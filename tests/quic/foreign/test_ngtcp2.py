"""ngtcp2's client. It speaks only HTTP/3, so the server here is the smallest one that answers it, in bytes (RFC 9114, 9204);
it answers when what a test is about has happened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from aioquic.tls import Epoch

from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.server import QuicServer, open_udp_sockets
from gateway.wire.session import CONNECTION, Kind
from tests.quic.foreign.relay import relayed

SETTINGS = bytes.fromhex("000400")
"""A control stream with empty SETTINGS."""
ANSWER = bytes.fromhex("010300 00d9") + b"\0\x44\0" + bytes(1024)
""":status 200, and a kilobyte."""
PATIENCE = 120
CONTROL = -1


class Http:
    """A handler that answers every request once it may."""

    def __init__(self, link: QuicLink, may: Callable[[QuicLink], bool]) -> None:
        self.link = link
        self.may = may
        self.kinds: dict[int, Kind] = {}
        self.asked: list[int] = []
        self.answered = 0
        self.gone = False
        self.heard = bytearray()
        link.open(CONTROL, Kind.WRITE_ONLY)
        link.send(CONTROL, SETTINGS)

    def opened(self, channel: int, kind: Kind) -> None:
        self.kinds[channel] = kind

    def received(self, channel: int, data: bytes) -> None:
        self.heard += data

    def eof(self, channel: int) -> None:
        if channel != CONNECTION and self.kinds.get(channel) is Kind.DUPLEX:
            self.asked.append(channel)

    def reset(self, channel: int, code: int) -> None: ...

    def stopped(self, channel: int, code: int) -> None: ...

    def room(self, channel: int) -> None: ...

    def turn(self, now: float) -> None:
        while self.asked and self.may(self.link):
            channel = self.asked.pop()
            self.link.send(channel, ANSWER)
            self.link.finish(channel)
            self.answered += 1

    def lost(self) -> None:
        self.gone = True


def has_moved(link: QuicLink) -> bool:
    """To another address, which is proven."""
    path: Any = link.core._network_paths[0]
    return path.addr[:2] != link.first_address[:2] and bool(path.is_validated)


def has_other_keys(link: QuicLink) -> bool:
    core: Any = link.core
    return bool(core._cryptos[Epoch.ONE_RTT].recv.key_phase)


def always(_link: QuicLink) -> bool:
    return True


def moved_with_another_id(link: QuicLink) -> bool:
    core: Any = link.core
    return has_moved(link) and bool(core._peer_cid.sequence_number) and bool(core._host_cids[0].sequence_number)


TRIALS: dict[str, tuple[Sequence[str], Callable[[QuicLink], bool]]] = {
    "plain": ([], always),
    "without ids": (["--scid="], always),
    "moves": (["--change-local-addr=1ms"], moved_with_another_id),
    "moves unawares": (["--change-local-addr=1ms", "--nat-rebinding"], has_moved),
    "keys updated": (["--key-update=1ms"], has_other_keys),
}


@asynccontextmanager
async def serving(
    certificate: CertificateFiles, may: Callable[[QuicLink], bool] = always, limits: QuicLimits | None = None
) -> AsyncIterator[int]:
    """The port of a server that has one request to answer."""
    handlers: list[Http] = []

    def accept(link: QuicLink) -> Http:
        handlers.append(Http(link, may))
        return handlers[-1]

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            server = QuicServer(
                list(await open_udp_sockets("127.0.0.1", 0)), {"h3": accept}, certificate, limits=limits
            )
            nursery.start_soon(server.run)
            yield server.port
            assert [handler.answered for handler in handlers] == [1]
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", TRIALS)
async def test_a_request_is_answered(ngtcp2: str, certificate: CertificateFiles, tmp_path: Path, name: str) -> None:
    options, may = TRIALS[name]
    async with serving(certificate, may) as port:
        await ask(ngtcp2, port, options, tmp_path)


async def test_a_request_passes_a_bad_network(ngtcp2: str, certificate: CertificateFiles, tmp_path: Path) -> None:
    async with serving(certificate) as port, relayed(port, loss=0.1, disorder=0.2, double=0.1) as relay:
        await ask(ngtcp2, relay.port, [], tmp_path)


async def test_an_address_is_proven_by_a_retry(ngtcp2: str, certificate: CertificateFiles, tmp_path: Path) -> None:
    async with serving(certificate, limits=QuicLimits(retry_above=0)) as port, relayed(port) as relay:
        await ask(ngtcp2, relay.port, [], tmp_path)
        assert relay.retries


async def test_a_version_is_negotiated(ngtcp2: str, certificate: CertificateFiles, tmp_path: Path) -> None:
    async with serving(certificate) as port, relayed(port) as relay:
        await ask(ngtcp2, relay.port, ["--version=0x1a2a3a4a", "--preferred-versions=v1"], tmp_path)
        assert relay.versions == {0x1A2A3A4A, 0, 1}


async def ask(program: str, port: int, options: Sequence[str], directory: Path) -> None:
    """One request, its answer in a file."""
    flags = ["--quiet", "--exit-on-all-streams-close", f"--download={directory}", *options]
    done = await trio.run_process(
        [program, *flags, "127.0.0.1", str(port), "https://localhost/answer"],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert (directory / "answer").read_bytes() == bytes(1024)
