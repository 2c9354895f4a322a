"""The links of one gateway while it serves a log with others."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import attrs
import trio

from gateway.broker.assembly import House
from gateway.errors import GatewayError, TargetError
from gateway.link.answering import LinksFromOthers
from gateway.link.asking import LinksToOwners
from gateway.link.members import LinkIdentity, LinkMembers
from gateway.notation import is_everywhere
from gateway.recorder import Recorder
from gateway.store.interface import Store

LEAVE_SECONDS = 5.0


@attrs.frozen
class LinkPlace:
    """Where other gateways reach this one; what is empty is found out."""

    host: str = ""
    port: int = 0
    advertise: str = ""


class CannotLink(TargetError):
    """Other gateways could not reach this one."""


@contextlib.asynccontextmanager
async def open_links(
    house: House,
    store: Store,
    recorder: Recorder,
    place: LinkPlace,
    brokers: Sequence[tuple[str, int]],
    directory: Path,
) -> AsyncIterator[LinkPlace]:
    """Inside the block clients are passed on to the gateways that have what they ask for. Gives where this one is reached."""
    shared = house.shared
    assert shared is not None
    nowhere = not place.host or is_everywhere(place.host)
    own = await _own_address(brokers) if nowhere or not place.advertise else ""
    host = place.host or own
    advertised = place.advertise or (own if is_everywhere(host) else host)
    try:
        listeners = await trio.open_tcp_listeners(place.port, host=host)
    except OSError as error:
        raise CannotLink(f"storage.kafka.link: cannot bind {host}:{place.port}: {error}") from error
    port = listeners[0].socket.getsockname()[1]
    identity = LinkIdentity(directory)
    members = LinkMembers(store, house.owners, house.clock, house.pump, house.start_soon, identity)
    async with trio.open_nursery() as nursery:
        answering = LinksFromOthers(shared, members, house.clock, recorder)
        nursery.start_soon(partial(trio.serve_listeners, answering.serve, listeners))
        await members.come(advertised, port)
        shared.way = LinksToOwners(shared, members, house.clock, recorder, nursery)
        try:
            yield LinkPlace(host, port, advertised)
        finally:
            leaving = trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_SECONDS)
            with leaving, contextlib.suppress(GatewayError):
                # first of all: until others have them, what they ask is answered here, by who has it then
                await house.owners.close()
                await members.leave()
            shared.way = None
            nursery.cancel_scope.cancel()


async def _own_address(brokers: Sequence[tuple[str, int]]) -> str:
    # that of this machine from which a broker is reached: other gateways are where the brokers are
    for host, port in brokers:
        with contextlib.suppress(OSError):
            for family, kind, protocol, _name, address in await trio.socket.getaddrinfo(
                host, port, type=trio.socket.SOCK_DGRAM
            ):
                with contextlib.suppress(OSError), trio.socket.socket(family, kind, protocol) as probe:
                    await probe.connect(address)  # of a datagram socket: nothing is sent
                    return str(probe.getsockname()[0])
    raise CannotLink("storage.kafka.link: no broker's name is known here, so say `bind` and `advertise`")
