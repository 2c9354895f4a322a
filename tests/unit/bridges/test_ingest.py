"""Pulling from a scripted broker: what a network can do to it, what the broker here may refuse, and where it goes on."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pytest
import trio

from gateway import model
from gateway.bridges.bookmark import TABLE
from gateway.requests import CreateTopic
from gateway.settings import Seconds
from gateway.wire.session import Credentials
from tests.unit.bridges.blip import Blip, blipping
from tests.unit.bridges.house import Bridged, bridged
from tests.unit.bridges.peers import Peer, listening, until
from tests.unit.broker.support import full_disk

VALUES = [b"%04d" % number for number in range(300)]


@pytest.fixture
async def blip():
    blip = Blip()
    async with blipping(blip):
        yield blip


def far(*ports: int, source: str = "orders", into: str = "far.orders", key: str = "key", timeout: float = 5.0):
    """An upstream that is pulled from."""
    return model.Upstream(
        "far",
        "blipmq",
        tuple(("127.0.0.1", port) for port in ports),
        auth=Credentials(api_key=key),
        timeout=Seconds(timeout),
        ingest=(model.Ingest(source, into),),
    )


STORED = model.Route("stored", model.Match(), (model.StoreTarget("{topic}"),))


async def stored(gateway: Bridged, enough: int, topic: str = "far.orders") -> list[bytes]:
    """What a topic holds, once it holds enough."""

    def end() -> int:
        state = gateway.store.topics.get(topic)
        return state.partitions[0].end if state is not None else 0

    with trio.fail_after(20):
        await until(lambda: end() >= enough)
    result = await gateway.store.read(topic, 0, 0, 10_000, 1 << 20, 0)
    return [value for run in result.runs for value in run.columns.values()]


async def subscribed(blip: Blip, number: int = 1, topic: bytes = b"orders") -> None:
    """Until so many subscriptions exist, and the last one is asked for messages."""
    await blip.until(lambda: len(blip.queues) >= number and list(blip.queues.values())[-1].polls)
    assert list(blip.queues.values())[-1].topic == topic


def problem(gateway: Bridged) -> str:
    return dict(gateway.bridges.problems())["ingest far orders"]


async def test_what_is_taken_is_acknowledged_when_it_is_stored(tmp_path: Path, blip: Blip):
    async with bridged(tmp_path, [far(blip.port)], STORED) as gateway:
        gateway.bridges.admit()
        await subscribed(blip)
        blip.deliver(b"orders", *VALUES)
        assert await stored(gateway, 300) == VALUES
        await blip.until(lambda: len(blip.acknowledged) == 300)
        assert blip.acknowledged == VALUES
        result = await gateway.store.read("far.orders", 0, 0, 1, 1 << 20, 0)
        origin = result.runs[0].meta_of(0)[0].origin
        assert (origin.protocol, origin.listener, origin.client) == ("blipmq", "far", f"127.0.0.1:{blip.port}")
        gateway.check_accounts()


async def test_nothing_is_asked_before_the_gateway_serves(tmp_path: Path, blip: Blip):
    async with bridged(tmp_path, [far(blip.port)], STORED) as gateway:
        await blip.until(lambda: blip.connections)
        assert not blip.queues
        gateway.bridges.admit()
        await subscribed(blip)


async def test_it_starts_when_the_target_of_its_route_is_there(tmp_path: Path, blip: Blip):
    peer = Peer()
    async with listening(peer):
        pass
    target = model.Upstream("target", "flymq", (("127.0.0.1", peer.port),))
    route = model.Route("live", model.Match(), (model.Proxy("target", "{topic}"),))
    async with bridged(tmp_path, [far(blip.port), target], route) as gateway:
        gateway.bridges.admit()
        with trio.fail_after(20):
            await until(lambda: problem(gateway) == "far.orders waits for upstream target")
        assert not blip.queues
        async with listening(peer, peer.port):
            await subscribed(blip)
            blip.deliver(b"orders", b"1")
            await blip.until(lambda: blip.acknowledged == [b"1"])
        assert peer.values() == [b"1"]
        assert problem(gateway) == ""


async def test_without_a_route_nothing_is_taken(tmp_path: Path, blip: Blip):
    nothing = model.Route("r", model.Match(topic="elsewhere"), (model.StoreTarget("{topic}"),))
    async with bridged(tmp_path, [far(blip.port)], nothing) as gateway:
        gateway.bridges.admit()
        with trio.fail_after(20):
            await until(lambda: problem(gateway) == "no route takes 'far.orders'")
        assert not blip.queues


@pytest.mark.parametrize("fault", ["loses_acks", "torn"])
async def test_what_a_cut_connection_leaves_open_comes_again(tmp_path: Path, blip: Blip, fault: str):
    async with bridged(tmp_path, [far(blip.port)], STORED) as gateway:
        gateway.bridges.admit()
        await subscribed(blip)
        setattr(blip, fault, True)
        blip.deliver(b"orders", *VALUES[:10])
        await blip.until(lambda: not getattr(blip, fault))
        blip.deliver(b"orders", *VALUES[10:20])
        await blip.until(lambda: set(VALUES[:20]) <= set(blip.acknowledged))
        found = await stored(gateway, 20)
        assert list(dict.fromkeys(found)) == VALUES[:20]
        gateway.check_accounts()


async def test_a_subscription_is_gone_on_with_after_a_restart(tmp_path: Path, blip: Blip):
    async with bridged(tmp_path, [far(blip.port)], STORED) as gateway:
        gateway.bridges.admit()
        await subscribed(blip)
        blip.deliver(b"orders", *VALUES[:10])
        await blip.until(lambda: len(blip.acknowledged) == 10)
    blip.deliver(b"orders", *VALUES[10:20])  # while nobody is here
    async with bridged(tmp_path, [far(blip.port)], STORED) as gateway:
        gateway.bridges.admit()
        assert await stored(gateway, 20) == VALUES[:20]
        blip.deliver(b"orders", *VALUES[20:30])
        assert await stored(gateway, 30) == VALUES[:30]
        assert list(gateway.store.table(TABLE).values()) == [(7).to_bytes(8, "big")]


async def test_a_broker_that_started_again_is_subscribed_to_anew(tmp_path: Path, blip: Blip):
    async with bridged(tmp_path, [far(blip.port)], STORED) as gateway:
        gateway.bridges.admit()
        await subscribed(blip)
        blip.forget()
        await blip.hang_up()
        await subscribed(blip)
        assert list(blip.queues) == [1]
        blip.deliver(b"orders", b"new")
        assert await stored(gateway, 1) == [b"new"]


async def test_a_number_that_somebody_else_has_now_is_let_go(tmp_path: Path, blip: Blip):
    async with bridged(tmp_path, [far(blip.port)], STORED) as gateway:
        gateway.bridges.admit()
        await subscribed(blip)
        theirs = blip.queues[7]
        theirs.topic = b"another"
        await blip.hang_up()
        blip.deliver(b"another", b"not ours")
        await blip.until(lambda: 8 in blip.queues and blip.queues[8].polls)
        blip.deliver(b"orders", b"ours")
        assert await stored(gateway, 1) == [b"ours"]
        await blip.until(lambda: blip.acknowledged == [b"ours"])
        assert list(theirs.in_flight.values()) == [b"not ours"]  # to be delivered to them again


async def test_a_wrong_key_is_said_and_waited_for(tmp_path: Path, blip: Blip):
    blip.key = b"another"
    async with bridged(tmp_path, [far(blip.port)], STORED) as gateway:
        gateway.bridges.admit()
        with trio.fail_after(20):
            await until(lambda: problem(gateway) == "refuses our login: 401 invalid API key")
        blip.key = b"key"
        await subscribed(blip)
        assert problem(gateway) == ""


async def test_a_silent_connection_is_left_for_the_next_address(tmp_path: Path, blip: Blip):
    other = Blip()
    async with blipping(other), bridged(tmp_path, [far(blip.port, other.port, timeout=0.4)], STORED) as gateway:
        gateway.bridges.admit()
        await subscribed(blip)
        blip.mute = True  # half open: it takes what we send and says nothing any more
        await subscribed(other)
        other.deliver(b"orders", b"1")
        assert await stored(gateway, 1) == [b"1"]
        await other.until(lambda: other.acknowledged == [b"1"])


async def test_what_does_not_fit_goes_to_the_dead_letters_and_holds_nobody_up(tmp_path: Path, blip: Blip):
    bad_steps = (model.Filter("value.amount > 10"),)
    route = model.Route("r", model.Match(), (model.StoreTarget("{topic}"),), transform=bad_steps)
    async with bridged(tmp_path, [far(blip.port)], route) as gateway:
        gateway.bridges.admit()
        await subscribed(blip)
        blip.deliver(b"orders", b'{"amount": 11}', b"no json", b'{"amount": 1}', b'{"amount": 12}')
        assert await stored(gateway, 2) == [b'{"amount": 11}', b'{"amount": 12}']
        await blip.until(lambda: len(blip.acknowledged) == 4)
        ((value, reason, attempts, _, _),) = await gateway.letters("far.orders.dlq")
        assert (value, reason, attempts) == (b"no json", "transform", 1)
        assert gateway.counts.messages["dead_lettered", "transform"] == 1
        gateway.check_accounts()


async def test_a_letter_that_cannot_be_stored_is_neither_counted_nor_settled(tmp_path: Path, blip: Blip):
    only_with_a_key = model.Route("r", model.Match(key="wanted"), (model.StoreTarget("{topic}"),))
    async with bridged(tmp_path, [far(blip.port)], only_with_a_key) as gateway:
        gateway.bridges.admit()
        await subscribed(blip)
        with full_disk(gateway.store):
            blip.deliver(b"orders", b"nobody's")
            (ingest,) = gateway.bridges.ingests.all
            with trio.fail_after(20):
                await until(lambda: any(source._entry.stuck for source in ingest.sources))
            assert gateway.counts.messages["dead_lettered", "refused"] == 0
            assert blip.acknowledged == []
        await blip.until(lambda: blip.acknowledged == [b"nobody's"])
        assert gateway.counts.messages["dead_lettered", "refused"] == 1
        assert [value for value, *_ in await gateway.letters("far.orders.dlq")] == [b"nobody's"]
        gateway.check_accounts()


async def test_what_is_refused_for_now_is_tried_again_in_order(tmp_path: Path, blip: Blip):
    peer = Peer()
    tried: list[bytes] = []

    def say(_key: bytes, value: bytes) -> str:
        tried.append(value)
        return "later" if len(tried) <= 3 else "ok"

    peer.say = say
    async with listening(peer):
        target = model.Upstream("target", "flymq", (("127.0.0.1", peer.port),))
        route = model.Route("live", model.Match(), (model.Proxy("target", "{topic}"),))
        async with bridged(tmp_path, [far(blip.port), target], route) as gateway:
            gateway.bridges.admit()
            await subscribed(blip)
            blip.deliver(b"orders", b"1")
            await peer.until(lambda: bool(tried))
            blip.deliver(b"orders", b"2", b"3")
            await blip.until(lambda: set(blip.acknowledged) == {b"1", b"2", b"3"})
            assert list(dict.fromkeys(peer.values())) == [b"1", b"2", b"3"]
            assert await gateway.letters("far.orders.dlq") == []
            gateway.check_accounts()


async def test_without_a_list_of_topics_those_that_exist_here_say_which(tmp_path: Path, blip: Blip):
    upstream = far(blip.port, source="alerts.*", into="legacy.{1}")
    async with bridged(tmp_path, [upstream], STORED) as gateway:
        await gateway.client().ask(CreateTopic(0, "legacy.fire"))
        await gateway.client().ask(CreateTopic(0, "other"))
        gateway.bridges.admit()
        await subscribed(blip, topic=b"alerts.fire")
        blip.deliver(b"alerts.fire", b"1")
        assert await stored(gateway, 1, "legacy.fire") == [b"1"]
        assert len(blip.queues) == 1


async def test_many_restarts_lose_nothing(tmp_path: Path, blip: Blip):
    """The broker is cut off again and again while messages come; each is stored, those acknowledged before as well."""
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(bridged(tmp_path, [far(blip.port)], STORED))
        gateway.bridges.admit()
        await subscribed(blip)
        for start in range(0, 100, 10):
            blip.deliver(b"orders", *VALUES[start : start + 10])
            await blip.hang_up()
            await blip.until(lambda: not blip.queues[7].pending)
        await blip.until(lambda: set(VALUES[:100]) <= set(blip.acknowledged))
        found = await stored(gateway, 100)
        assert list(dict.fromkeys(found)) == VALUES[:100]


async def test_one_that_is_changed_stores_and_settles_what_it_had_and_the_next_one_goes_on(tmp_path: Path, blip: Blip):
    async with bridged(tmp_path, [far(blip.port, timeout=1)], STORED) as gateway:
        gateway.bridges.admit()
        await subscribed(blip)
        blip.deliver(b"orders", *VALUES[:100])
        await stored(gateway, 1)
        gateway.become([far(blip.port, into="other", timeout=1)], STORED)
        blip.deliver(
            b"orders", *VALUES[100:200]
        )  # has been asked for: a message given back would come behind newer ones
        with trio.fail_after(20):
            assert await gateway.bridges.handed_over() == {}
        blip.deliver(b"orders", *VALUES[200:])
        await blip.until(lambda: len(blip.acknowledged) == 300)
        found = [*await stored(gateway, 1), *await stored(gateway, 1, "other")]
        assert found == blip.acknowledged == VALUES
        plain = attrs.evolve(far(blip.port), ingest=())
        await gateway.reload([plain], STORED)
        assert not gateway.bridges.ingests.all
        blip.deliver(b"orders", b"for nobody")
        gateway.check_accounts()
