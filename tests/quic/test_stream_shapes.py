"""trio's own conformance checks over real sockets, and what the shapes promise beyond them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.stream import (
    QuicConnection,
    QuicStream,
    open_quic_connection,
    open_quic_listener,
)
from gateway.transport.tls import ClientTls

SMALL = QuicLimits(stream_window=65_536, connection_window=1 << 20, low_water=16_384, streams=100)


@contextlib.asynccontextmanager
async def connected(
    certificate: CertificateFiles, limits: QuicLimits = SMALL
) -> AsyncIterator[tuple[QuicConnection, QuicConnection]]:
    tls = ClientTls(ca=str(certificate.path), server_name="localhost")
    async with (
        open_quic_listener("127.0.0.1", 0, certificate=certificate, limits=limits) as listener,
        open_quic_connection("127.0.0.1", listener.port, tls=tls, limits=limits) as client,
    ):
        yield client, await listener.accept()


async def stream_pair(client: QuicConnection, server: QuicConnection) -> tuple[QuicStream, QuicStream]:
    ours = await client.open_stream()
    await ours.send_all(b"?")
    theirs = await server.accept()
    assert await theirs.receive_some(1) == b"?"
    return ours, theirs


async def clog(stream: QuicStream) -> None:
    """Fill it: the peer has acknowledged all it granted, and what may wait beyond that waits. However long that takes."""
    side = stream._sending
    link, channel = side._link, side._channel

    async def fill() -> None:
        while True:
            await stream.send_all(bytes(65_536))

    def clogged() -> bool:
        sender = link.core._streams[link._channels.by_number[channel].stream_id].sender
        return sender._buffer_start == SMALL.stream_window and link.buffered(channel) >= side._high_water

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            while not clogged():  # noqa: ASYNC110 (it is the kernel that carries it there)
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()


async def test_trios_check_of_half_closeable_streams(certificate: CertificateFiles) -> None:
    async with connected(certificate) as (client, server):

        async def make() -> tuple[QuicStream, QuicStream]:
            return await stream_pair(client, server)

        async def make_clogged() -> tuple[QuicStream, QuicStream]:
            ours, theirs = await make()
            for stream in (ours, theirs):
                await clog(stream)
            return ours, theirs

        await trio.testing.check_half_closeable_stream(make, make_clogged)


async def test_unidirectional_streams_carry_bytes_and_their_end(certificate: CertificateFiles) -> None:
    async with connected(certificate) as (client, server):
        sending = await client.open_uni()
        await sending.send_all(b"one way")
        await sending.aclose()
        receiving = await server.accept_uni()
        assert b"".join([part async for part in receiving]) == b"one way"


async def test_a_stream_waits_for_the_peers_limit(certificate: CertificateFiles) -> None:
    few = QuicLimits(streams=2)
    async with connected(certificate, few) as (client, server):
        first, second = [await stream_pair(client, server) for _ in range(2)]
        async with trio.open_nursery() as nursery:
            opened: list[QuicStream] = []

            async def third() -> None:
                opened.append(await client.open_stream())

            nursery.start_soon(third)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not opened
            for stream in first:
                await stream.aclose()
        assert len(opened) == 1
        del second


async def test_closing_a_connection_ends_its_users(certificate: CertificateFiles) -> None:
    async with connected(certificate) as (client, server):
        ours, theirs = await stream_pair(client, server)
        async with trio.open_nursery() as nursery:

            async def reader() -> None:
                with pytest.raises(trio.BrokenResourceError):
                    await theirs.receive_some()

            async def acceptor() -> None:
                with pytest.raises(trio.BrokenResourceError):
                    await server.accept()

            nursery.start_soon(reader)
            nursery.start_soon(acceptor)
            await trio.testing.wait_all_tasks_blocked()
            await client.aclose()
        with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            await ours.send_all(b"x")


async def test_a_listener_that_is_closed_accepts_nobody(certificate: CertificateFiles) -> None:
    async with open_quic_listener("127.0.0.1", 0, certificate=certificate) as listener, trio.open_nursery() as nursery:

        async def acceptor() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await listener.accept()

        nursery.start_soon(acceptor)
        await trio.testing.wait_all_tasks_blocked()
        await listener.aclose()
