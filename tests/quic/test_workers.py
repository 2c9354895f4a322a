"""Several processes on one UDP port: a connection's packets reach the one that has it, wherever the network puts them."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio

from gateway.transport.quic.certificates import CertificateFiles
from gateway.transport.quic.server import QuicServer
from gateway.transport.workers import Handover, Worker
from gateway.wire.session import Kind
from tests.quic.support import SERVER, Heard, Network, World, settle, until


@attrs.define(eq=False)
class Both:
    """Two servers that share an address; the network gives each packet to the one that `to` says."""

    sockets: list
    to: int = 0

    def arrive(self, data: bytes, source: object) -> None:
        self.sockets[self.to].arrive(data, source)


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("w")


async def serves(client: Heard, accepted: list[tuple[int, Heard]], worker: int) -> Heard:
    """Until the worker has the connection, and the client all ids that it is given."""
    await until(lambda: client.link is not None and client.link.phase.name == "OPEN" and len(accepted) > worker)
    number, serving = accepted[worker]
    assert number == worker
    await settle(0.2)
    assert serving.link is not None
    ids = serving.link.core.host_ids
    assert len(ids) == 8
    assert {cid[0] for cid in ids} == {worker}
    return serving


async def hears(client: Heard, serving: Heard) -> None:
    assert client.link is not None
    client.link.open(-1, Kind.DUPLEX)
    client.link.send(-1, b"to whom it may concern")
    await until(lambda: b"".join(serving.data.values()) == b"to whom it may concern")


async def test_packets_that_come_to_another_process_reach_their_connection(
    certificate: CertificateFiles, directory: Path
) -> None:
    network = Network()
    accepted: list[tuple[int, Heard]] = []
    handovers = [Handover(Worker(number, 2, directory)) for number in range(2)]
    async with trio.open_nursery() as nursery:
        servers = []
        sockets = []
        for number, handover in enumerate(handovers):

            def accept(link, number=number):
                heard = Heard(link)
                accepted.append((number, heard))
                return heard

            sockets.append(network.socket(SERVER))
            servers.append(QuicServer([sockets[-1]], {None: accept}, certificate, handover=handover))
        both = network._sockets[SERVER] = Both(sockets)
        nursery.start_soon(network.run)
        for one in (*servers, *handovers):
            nursery.start_soon(one.run)
        world = World(nursery, network, certificate, servers[0], [])
        for worker in (0, 1):
            both.to = worker
            client = world.dial(host=f"198.51.100.{worker + 1}")
            serving = await serves(client, accepted, worker)
            both.to = 1 - worker  # as if the client's address had changed
            await hears(client, serving)
            assert handovers[worker].taken
            assert handovers[1 - worker].given
            assert len(accepted) == worker + 1, "nobody took it for a new client"
            assert not client.gone
        nursery.cancel_scope.cancel()
    for handover in handovers:
        handover.close()


async def test_what_nobody_knows_is_answered_by_whom_it_names_or_by_whom_it_reached(
    certificate: CertificateFiles, directory: Path
) -> None:
    """The one it names is down: a reset comes from here, by which the client knows at once."""
    handover = Handover(Worker(0, 3, directory))
    gives = handover.gives((0, 0))
    assert not gives(bytes([0]) + bytes(7), b"x", ("127.0.0.1", 1)), "ours"
    assert not gives(bytes([200]) + bytes(7), b"x", ("127.0.0.1", 1)), "nobody's"
    assert not gives(bytes([2]) + bytes(7), b"x", ("127.0.0.1", 1)), "of one that is down"
    other = Handover(Worker(2, 3, directory))
    assert gives(bytes([2]) + bytes(7), b"x", ("127.0.0.1", 1))
    got: list[tuple[bytes, object]] = []
    other.receive((0, 0), lambda data, address: got.append((data, address)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.run)
        await until(lambda: bool(got))
        nursery.cancel_scope.cancel()
    assert got == [(b"x", ("127.0.0.1", 1))]
    other.close()
    handover.close()
