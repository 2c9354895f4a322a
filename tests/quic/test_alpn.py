"""Which protocol a client gets, by the ClientHello: on a shared port and alone."""

from __future__ import annotations

import pytest
import trio

from gateway.transport.quic.certificates import CertificateFiles
from tests.quic.support import World, until

NO_APPLICATION_PROTOCOL = 0x178
FELIX, FUJIN = None, "fujin"


@pytest.mark.parametrize(
    ("served", "offered", "accepted"),
    [
        ([FELIX, FUJIN], FELIX, True),
        ([FELIX, FUJIN], FUJIN, True),
        ([FELIX, FUJIN], "h3", False),
        ([FELIX], FELIX, True),
        # the stock broker aborts the handshake with alert 120 (Felix wire 2.1)
        ([FELIX], FUJIN, False),
        ([FUJIN], FUJIN, True),
        # no ALPN, or another one: crypto error 0x178 (Fujin wire 1.1)
        ([FUJIN], FELIX, False),
        ([FUJIN], "h3", False),
    ],
)
async def test_the_hello_chooses(
    certificate: CertificateFiles,
    autojump_clock: trio.testing.MockClock,
    served: list[str | None],
    offered: str | None,
    accepted: bool,
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, alpns=served)
        if accepted:
            _client, _server, link, serving = await world.pair(alpn=offered)
            assert link.alpn == serving.alpn == offered
            assert serving.server_name == "localhost"
        else:
            client = world.dial(alpn=offered)
            assert client.link is not None
            await client.link.over.wait()
            assert client.link.core.end is not None
            assert client.link.core.end[:2] == (NO_APPLICATION_PROTOCOL, False)
            assert not world.accepted
        nursery.cancel_scope.cancel()


async def test_one_of_several_offers_is_enough(
    certificate: CertificateFiles, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        world = World.start(nursery, certificate, alpns=[FELIX, FUJIN])
        client = world.dial(alpn=("h3", FUJIN))
        await until(lambda: client.link is not None and client.link.alpn == FUJIN)
        nursery.cancel_scope.cancel()
