"""Proxied publishes against scripted brokers: what the publisher is told in each way a network fails, bounds, order."""

from __future__ import annotations

import itertools
from pathlib import Path

import attrs
import pytest
import trio

from gateway import model
from gateway.bridges import proxy
from gateway.bridges.proxy import REFUSALS, translated
from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError, SchemaViolation, Status, TargetRefused, Throttled, Unsupported
from gateway.requests import Begin, Publish, Published
from gateway.settings import Seconds
from gateway.wire.session import Credentials
from tests.unit.bridges.blip import Blip, blipping
from tests.unit.bridges.house import Bridged, bridged, upstream
from tests.unit.bridges.peers import Peer, listening, until
from tests.unit.broker.house import publish

VALUES = [b"%04d" % number for number in range(200)]


@pytest.fixture
async def peer():
    peer = Peer()
    async with listening(peer):
        yield peer


@pytest.fixture
async def blip():
    blip = Blip()
    async with blipping(blip):
        yield blip


def live(timeout: float = 20.0, **match: object) -> model.Route:
    target = model.Proxy("far", "real.{topic}", Seconds(timeout))
    return model.Route("live", model.Match(**match), (target,))  # type: ignore[arg-type]


STORED = model.Route("stored", model.Match(), (model.StoreTarget("{topic}"),))


def accounts(gateway: Bridged, route: str = "live") -> tuple[int, int, int, int]:
    """Received, taken by the remote, refused, on the way; and the sum comes out."""
    gateway.check_accounts()
    (door,) = (one for one in gateway.house.snapshot().doors if one.route == route)
    return door.received, door.proxied, door.refused, door.proxying


async def connected(gateway: Bridged) -> None:
    with trio.fail_after(20):
        await until(lambda: gateway.bridges.pools["far"].connected)


async def test_a_batch_is_one_request_and_its_answer_the_remotes(tmp_path: Path, peer: Peer):
    async with bridged(tmp_path, [upstream(peer.port)], live()) as gateway:
        reply = await gateway.client().publish("orders", *VALUES)
        assert isinstance(reply, Published)
        assert reply.topic_address == "orders"
        assert reply.timestamp_ms > 0
        assert [reply.position(index)[1] for index in range(200)] == list(range(1, 201))
        assert peer.values() == VALUES
        assert peer.addresses == {b"real.orders"}
        assert accounts(gateway) == (200, 200, 0, 0)
        assert not gateway.store.topics


@pytest.mark.parametrize("word", ["lost", "torn", "reset"])
async def test_a_lost_connection_leaves_the_outcome_unknown_and_nothing_is_sent_twice(
    tmp_path: Path, peer: Peer, word: str
):
    peer.say = lambda _key, _value: word
    async with bridged(tmp_path, [upstream(peer.port)], live()) as gateway:
        outcome = await gateway.client().publish("orders", b"1")
        assert outcome.status is Status.UNKNOWN_OUTCOME
        assert [value for _, value in peer.seen] == [b"1"]
        assert accounts(gateway) == (1, 0, 1, 0)


async def test_no_answer_in_time_leaves_the_outcome_unknown_and_a_late_one_changes_nothing(tmp_path: Path, blip: Blip):
    far = model.Upstream("far", "blipmq", (("127.0.0.1", blip.port),), auth=Credentials(api_key="key"))
    async with bridged(tmp_path, [far], live(timeout=0.2)) as gateway:
        await connected(gateway)
        blip.mute = True
        outcome = await gateway.client().publish("orders", b"1", b"2")
        assert outcome.status is Status.UNKNOWN_OUTCOME
        assert "no answer within 0.2 s" in outcome.message
        assert accounts(gateway) == (2, 0, 2, 0)
        blip.mute = False
        assert isinstance(await gateway.client().publish("orders", b"3"), GatewayError | Published)
        assert blip.published[:2] == [b"1", b"2"]


async def test_what_cannot_be_sent_in_time_has_not_happened(tmp_path: Path):
    peer = Peer()
    async with listening(peer):
        pass  # nobody is there any more
    async with bridged(tmp_path, [upstream(peer.port)], live(timeout=0.1)) as gateway:
        outcome = await gateway.client().publish("orders", b"1")
        assert outcome.status is Status.UNAVAILABLE
        assert "nothing could be sent" in outcome.message
        assert accounts(gateway) == (1, 0, 1, 0)


async def test_who_waits_for_a_connection_gets_it(tmp_path: Path):
    peer = Peer()
    async with listening(peer):
        pass
    async with bridged(tmp_path, [upstream(peer.port)], live()) as gateway:
        client = gateway.client()
        (number,) = client.start(publish("orders", b"1"))
        async with listening(peer, peer.port):
            assert isinstance(await client.outcome(number), Published)
    assert peer.values() == [b"1"]


async def test_a_wrong_login_is_not_the_publishers_fault(tmp_path: Path, blip: Blip):
    far = model.Upstream("far", "blipmq", (("127.0.0.1", blip.port),), auth=Credentials(api_key="wrong"))
    async with bridged(tmp_path, [far], live(timeout=0.3)) as gateway:
        outcome = await gateway.client().publish("orders", b"1")
        assert outcome.status is Status.UNAVAILABLE
        assert "invalid API key" in outcome.message
        assert dict(gateway.bridges.problems())["upstream far"] == "refuses our login: 401 invalid API key"
        assert accounts(gateway) == (1, 0, 1, 0)


async def test_single_members_may_be_refused(tmp_path: Path, peer: Peer):
    peer.say = lambda _key, value: "never" if value == b"2" else "ok"
    async with bridged(tmp_path, [upstream(peer.port)], live()) as gateway:
        reply = await gateway.client().publish("orders", b"1", b"2", b"3")
        assert {index: type(error) for index, error in reply.refused.items()} == {1: SchemaViolation}
        assert accounts(gateway) == (3, 2, 1, 0)
        outcome = await gateway.client().publish("orders", b"2")
        assert isinstance(outcome, SchemaViolation)
        assert accounts(gateway) == (4, 2, 2, 0)


async def test_a_batch_may_go_both_ways_and_has_one_answer(tmp_path: Path, peer: Peer):
    async with bridged(tmp_path, [upstream(peer.port)], live(key="live*"), STORED) as gateway:
        keys = [b"live1", b"other", b"live2", b"other"]
        reply = await gateway.client().publish("orders", *VALUES[:4], keys=keys)
        assert peer.values() == [VALUES[0], VALUES[2]]
        assert not reply.refused
        assert [reply.position(index)[1] for index in range(4)] == [1, 0, 2, 1]
        peer.say = lambda _key, _value: "never"
        reply = await gateway.client().publish("orders", *VALUES[:4], keys=keys)
        assert sorted(reply.refused) == [0, 2]
        assert [reply.position(index)[1] for index in (1, 3)] == [2, 3]
        assert accounts(gateway) == (4, 2, 2, 0)


async def test_one_publishers_batches_keep_their_order_over_several_connections(tmp_path: Path, peer: Peer):
    async with bridged(tmp_path, [upstream(peer.port, pool=4)], live()) as gateway:
        with trio.fail_after(20):
            await until(lambda: peer.connections == 4)
        clients = [gateway.client() for _ in range(3)]
        numbers = [
            (client, client.start(publish("orders", b"%d-%04d" % (index, number)))[0])
            for number in range(100)
            for index, client in enumerate(clients)
        ]
        for client, number in numbers:
            assert isinstance(await client.outcome(number), Published)
    for index in range(3):
        mine = [value for value in peer.values() if value.startswith(b"%d-" % index)]
        assert mine == [b"%d-%04d" % (index, number) for number in range(100)]


async def test_what_waits_is_bounded(tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy, "MOST_REQUESTS", 2)
    monkeypatch.setattr(proxy, "MOST_WAITING", 5)
    peer.say = lambda _key, _value: "mute"
    async with bridged(tmp_path, [upstream(peer.port)], live(timeout=0.5)) as gateway:
        await connected(gateway)
        client = gateway.client()
        numbers = list(itertools.chain.from_iterable(client.start(publish("orders", b"x")) for _ in range(7)))
        outcomes = [await client.outcome(number) for number in numbers]
        assert [type(outcome) is Throttled for outcome in outcomes] == [False] * 5 + [True] * 2
        assert len(peer.seen) == 2
        assert [outcome.status for outcome in outcomes[:5]] == [Status.UNKNOWN_OUTCOME] * 2 + [Status.UNAVAILABLE] * 3
        assert accounts(gateway) == (7, 0, 7, 0)


async def test_transactions_and_delays_do_not_go_there(tmp_path: Path, peer: Peer):
    async with bridged(tmp_path, [upstream(peer.port)], live()) as gateway:
        client = gateway.client()
        begun = await client.ask(Begin(0))
        batch = Batch("orders", Columns.of([b"1"]))
        assert isinstance(await client.ask(Publish(0, batch, begun.transaction)), Unsupported)
        assert isinstance(await client.ask(Publish(0, batch, delay_ms=1)), Unsupported)
        assert peer.seen == []
        assert accounts(gateway) == (2, 0, 2, 0)


async def test_a_filter_leaves_out_what_the_remote_need_not_see(tmp_path: Path, peer: Peer):
    route = attrs.evolve(live(), transform=(model.Filter("value.amount > 10"),))
    async with bridged(tmp_path, [upstream(peer.port)], route) as gateway:
        reply = await gateway.client().publish("orders", b'{"amount": 5}', b'{"amount": 50}')
        assert isinstance(reply, Published)
        assert not reply.refused
        assert peer.values() == [b'{"amount": 50}']
        assert accounts(gateway) == (2, 1, 0, 0)


@pytest.mark.parametrize("status", Status)
def test_every_refusal_of_a_remote_is_said_as_one_of_ours(status: Status):
    error = translated("far", TargetRefused("no", refusal=status))
    assert not isinstance(error, TargetRefused)
    assert error.status is (status if status in REFUSALS else Status.UNAVAILABLE)
