"""A server that was killed and came back tells quic-go at once that it has forgotten the connection."""

from __future__ import annotations

from pathlib import Path

import trio

from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.connection import QuicLink
from gateway.transport.quic.limits import QuicLimits
from gateway.transport.quic.server import QuicServer, open_udp_sockets
from tests.quic.foreign.quicgo import quic_go_streams
from tests.quic.foreign.relay import relayed
from tests.quic.support import Heard

PATIENCE = 120


async def test_after_a_restart(quic_go: Path, certificate: CertificateFiles) -> None:
    arrived, gone = trio.Event(), trio.Event()

    def accept(link: QuicLink) -> Heard:
        heard = Heard(link)
        heard.on_received = lambda _channel, _data: arrived.set()
        return heard

    async def live(server: QuicServer) -> None:
        await server.run()
        gone.set()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            sockets = await open_udp_sockets("127.0.0.1", 0)
            first = QuicServer(sockets, {"any": accept}, certificate, limits=QuicLimits(retry_above=0))
            port = first.port
            nursery.start_soon(live, first)
            async with relayed(port) as relay, quic_go_streams(quic_go, relay.port, "any", ["-ids", "8"]) as client:
                channel = client.open(b"remember me")
                await arrived.wait()
                while not (report := await client.report())["retired"]:
                    pass  # so that it is the token of an id that was issued, not of the first
                assert report["retries"] == 1
                relay.cut = True  # killed: not a word to anybody
                first.abort()
                await gone.wait()
                again = QuicServer(await open_udp_sockets("127.0.0.1", port), {"any": accept}, certificate)
                nursery.start_soon(again.run)
                relay.cut = False
                client.send(channel, b"do you?")
                await client.until(lambda: client.gone)
                assert "stateless reset" in client.why
                assert again.connections == 0
            nursery.cancel_scope.cancel()
