"""Forwarding to a scripted broker: order, batches, retries, dead letters, restarts, and every way a network fails."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from gateway import model
from gateway.bridges import forwards
from gateway.bridges.lanes import LaneEntry
from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import LONGEST_TARGET_TEXT, Conflict, TargetLost
from gateway.requests import DONE, DeleteTopic, Outcome, Take
from gateway.settings import Backoff, Seconds
from tests.unit.bridges.house import bridged, forward, route, upstream
from tests.unit.bridges.peers import Peer, listening
from tests.unit.broker.house import publish
from tests.unit.broker.support import full_disk

MANY = [b"%04d" % number for number in range(1_000)]


@pytest.fixture
async def peer():
    peer = Peer()
    async with listening(peer):
        yield peer


async def test_everything_arrives_in_order_at_the_address_of_the_route(tmp_path: Path, peer: Peer):
    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
        await gateway.client().publish("orders", *MANY)
        await gateway.delivered()
        assert peer.values() == MANY
        assert peer.addresses == {b"copy.orders"}
        assert gateway.counts.messages["acknowledged", "far"] == 1_000
        assert peer.connections == 1
        handed_out: Counter[tuple[str, str, str]] = Counter()
        for one in gateway.house.latencies.take():
            handed_out[one.route, one.topic, one.protocol] += one.messages
        assert handed_out == {("r", "orders", "flymq"): 1_000}


async def test_latency_is_that_of_answers_nobody_was_meant_to_wait_for(tmp_path: Path, peer: Peer):
    """What asks for messages is answered when there are some: that says nothing about the upstream."""
    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
        pool = gateway.bridges.pools["far"]
        await peer.until(lambda: pool.connected)
        pool.timed = True
        outcomes: list[Outcome] = []
        assert pool.submit(lambda number: Take(number, 0, 1), outcomes.append)
        await peer.until(lambda: bool(outcomes))
        assert pool.latency is None
        await gateway.client().publish("orders", b"1")
        await gateway.delivered()
        assert pool.latency is not None
        assert pool.latency > 0


async def test_order_within_a_key_survives_refusals_of_any_message(tmp_path: Path, peer: Peer):
    refusals: dict[bytes, int] = {}

    def say(_key: bytes, value: bytes) -> str:
        refusals[value] = refusals.get(value, 0) + 1
        return "later" if int(value) % 7 == 0 and refusals[value] < 3 else "ok"

    peer.say = say
    keys = [b"k%d" % (number % 13) for number in range(300)]
    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
        await gateway.client().publish("orders", *MANY[:300], keys=keys)
        await gateway.delivered()
    assert sorted(peer.values()) == MANY[:300]
    for key in set(keys):
        assert peer.values(key) == sorted(peer.values(key))


async def test_a_key_that_fails_does_not_hold_the_others(tmp_path: Path, peer: Peer):
    peer.say = lambda key, _value: "later" if key == b"bad" else "ok"
    never_ends = model.Retry(10_000, Backoff(Seconds(0.005), Seconds(0.02)))
    async with bridged(tmp_path, [upstream(peer.port)], route(forward(retry=never_ends))) as gateway:
        client = gateway.client()
        await client.publish("orders", b"1", b"2", keys=[b"bad", b"bad"])
        for start in range(0, 500, 50):
            await client.publish("orders", *MANY[start : start + 50], keys=[b"good"] * 50)
        await peer.until(lambda: len(peer.taken) == 500)
        assert peer.values(b"good") == MANY[:500]
        assert gateway.backlog() >= 2
        peer.say = lambda _key, _value: "ok"
        await gateway.delivered()
        assert peer.values(b"bad") == [b"1", b"2"]


async def test_what_fails_too_often_goes_to_the_dead_letters_with_its_story(tmp_path: Path, peer: Peer):
    peer.say = lambda key, _value: "later" if key == b"bad" else "ok"
    three = model.Retry(3, Backoff(Seconds(0.001), Seconds(0.002)))
    target = forward(retry=three, dead_letter="{topic}.failed")
    async with bridged(tmp_path, [upstream(peer.port)], route(target)) as gateway:
        await gateway.client().publish("orders", b"1", b"2", b"3", keys=[b"bad", b"good", b"bad"])
        await gateway.delivered()
        assert peer.values() == [b"2"]
        assert await gateway.letters("orders.failed") == [
            (b"1", "max_deliveries", 3, "throttled", "throttled"),
            (b"3", "max_deliveries", 3, "throttled", "throttled"),
        ]
        assert gateway.counts.messages["dead_lettered", "max_deliveries"] == 2


async def test_a_final_refusal_is_not_tried_again(tmp_path: Path, peer: Peer):
    peer.say = lambda _key, value: "never" if value == b"2" else "ok"
    async with bridged(tmp_path, [upstream(peer.port)], route(forward(dead_letter="dead"))) as gateway:
        await gateway.client().publish("orders", b"1", b"2", b"3")
        await gateway.delivered()
        assert peer.values() == [b"1", b"3"]
        assert [value for _, value in peer.seen].count(b"2") == 1
        ((value, reason, attempts, _, last),) = await gateway.letters("dead")
        assert (value, reason, attempts) == (b"2", "refused", 1)
        assert last.startswith("schema validation failed")


async def test_a_letter_that_cannot_be_stored_settles_nothing(tmp_path: Path, peer: Peer):
    with ExitStack() as disk:
        async with bridged(tmp_path, [upstream(peer.port)], route(forward(dead_letter="dead"))) as gateway:

            def say(_key: bytes, value: bytes) -> str:
                if value == b"2" and gateway.store.health.writable:
                    disk.enter_context(full_disk(gateway.store))
                return "never" if value == b"2" else "ok"

            peer.say = say
            await gateway.client().publish("orders", b"1", b"2", b"3")
            await peer.until(lambda: "cannot be written" in gateway.bridges.forwards.problem("far"))
            assert (gateway.backlog(), gateway.counts.messages["dead_lettered", "refused"]) == (1, 0)
            gateway.check_accounts()
            disk.close()
            await gateway.delivered()
            assert gateway.bridges.forwards.problem("far") == ""
            assert [letter[:2] for letter in await gateway.letters("dead")] == [(b"2", "refused")]
            assert gateway.counts.messages["dead_lettered", "refused"] == 1


async def test_what_the_protocol_cannot_carry_goes_to_the_dead_letters(tmp_path: Path):
    felix = model.Upstream("far", "fujin", (("127.0.0.1", 9),))  # never reached: Fujin has no empty messages
    async with bridged(tmp_path, [felix], route(forward())) as gateway:
        await gateway.client().publish("orders", b"")
        await gateway.delivered()
        ((_, reason, attempts, _, _),) = await gateway.letters("orders.dlq")
        assert (reason, attempts) == ("size", 0)


async def test_a_target_that_is_down_is_waited_for(tmp_path: Path):
    peer = Peer()
    async with listening(peer):
        pass
    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
        await gateway.client().publish("orders", *MANY[:100])
        pool = gateway.bridges.pools["far"]
        await peer.until(lambda: "cannot connect" in pool.problem)
        assert gateway.backlog() == 100
        async with listening(peer, peer.port):
            await gateway.delivered()
    assert peer.values() == MANY[:100]


ONCE = model.Retry(1, Backoff(Seconds(0.001), Seconds(0.002)))


async def test_an_outage_costs_no_attempt_is_shown_and_its_end_is_said(tmp_path: Path):
    peer = Peer()
    async with listening(peer):
        pass
    target = forward(retry=ONCE, dead_letter="dead")
    async with bridged(tmp_path, [upstream(peer.port)], route(target)) as gateway:
        await gateway.client().publish("orders", b"1", b"2", keys=[b"a", b"b"])
        pool = gateway.bridges.pools["far"]
        await peer.until(lambda: "cannot connect" in pool.problem)
        assert (gateway.backlog(), await gateway.letters("dead")) == (2, [])
        (away,) = gateway.bridges.waiting()
        assert away[0] == "upstream far"
        assert away[1].startswith("away for 0 s: cannot connect to 127.0.0.1:")
        assert away[1].endswith("; 2 messages wait")
        assert not any(text for _name, text in gateway.bridges.problems())
        assert gateway.counts.back == []
        async with listening(peer, peer.port):
            await gateway.delivered()
            assert gateway.counts.back == ["far"]
            assert list(gateway.bridges.waiting()) == []
            assert sorted(peer.values()) == [b"1", b"2"]
            assert await gateway.letters("dead") == []


@contextmanager
def half_open(port: int) -> Iterator[None]:
    """Connections are taken, by the system, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", port)):
        yield


@pytest.mark.parametrize("protocol", ["flymq", "rustlog"])
async def test_a_port_that_takes_connections_and_answers_nothing_is_not_back(tmp_path: Path, protocol: str):
    peer = Peer()
    async with listening(peer):
        pass
    target = attrs.evolve(upstream(peer.port), protocol=protocol)
    async with bridged(tmp_path, [target], route(forward())) as gateway:
        pool = gateway.bridges.pools["far"]
        await peer.until(lambda: "cannot connect" in pool.problem)
        with half_open(peer.port):
            await peer.until(lambda: pool.connected)
            assert gateway.counts.back == []
            ((_name, away),) = gateway.bridges.waiting()
            assert "connected, and nothing was answered yet" in away
        if protocol == "flymq":
            async with listening(peer, peer.port):  # nothing waits to be sent, and yet it is noticed
                await peer.until(lambda: bool(gateway.counts.back))
                assert gateway.counts.back == ["far"]
                assert list(gateway.bridges.waiting()) == []


async def test_an_outage_may_have_a_limit(tmp_path: Path, peer: Peer):
    async with listening(gone := Peer()):
        pass
    target = forward(retry=attrs.evolve(ONCE, outage=Seconds(0.3)), dead_letter="dead")
    async with bridged(tmp_path, [upstream(gone.port)], route(target)) as gateway:
        await gateway.client().publish("orders", b"1", b"2", keys=[b"a", b"b"])
        await gateway.delivered()
        letters = sorted(await gateway.letters("dead"))
        assert [letter[:3] for letter in letters] == [(b"1", "outage", 0), (b"2", "outage", 0)]
        assert "cannot connect" in letters[0][3]
        assert gateway.counts.messages["dead_lettered", "outage"] == 2
        await gateway.reload([upstream(peer.port)], route(target))
        await gateway.client().publish("orders", b"3")
        await gateway.delivered()
        assert peer.values() == [b"3"]


async def test_a_message_that_kills_the_connection_each_time_does_not_hold_the_others(tmp_path: Path, peer: Peer):
    peer.say = lambda key, _value: "reset" if key == b"bad" else "ok"
    target = forward(retry=ONCE, dead_letter="dead")
    async with bridged(tmp_path, [upstream(peer.port)], route(target)) as gateway:
        await gateway.client().publish("orders", b"1", b"2", b"3", keys=[b"bad", b"good", b"better"])
        # what it has taken may be acknowledged, or sent again over the next connection
        await peer.until(lambda: {b"2", b"3"} <= set(peer.values()) and gateway.backlog() == 1)
        assert await gateway.letters("dead") == []


@pytest.mark.parametrize("how", ["reset", "torn", "lost", "mute"])
async def test_an_answer_that_never_comes_means_sending_again(tmp_path: Path, peer: Peer, how: str):
    once = iter([how])
    peer.say = lambda _key, value: next(once, "ok") if value == b"0050" else "ok"
    keys = [b"k%d" % (number % 5) for number in range(100)]
    target = forward(retry=ONCE, dead_letter="dead")
    async with bridged(tmp_path, [upstream(peer.port, timeout=0.3)], route(target)) as gateway:
        await gateway.client().publish("orders", *MANY[:100], keys=keys)
        await gateway.delivered()
        assert await gateway.letters("dead") == []
    assert set(peer.values()) == set(MANY[:100])
    assert peer.connections == 2
    for key in set(keys):  # what came twice aside, in order
        first_seen = list(dict.fromkeys(peer.values(key)))
        assert first_seen == sorted(first_seen)
    assert len(peer.taken) <= 100 + 256


async def test_no_more_than_a_window_is_under_way(tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forwards, "STOP_SECONDS", 0.01)  # who never answers is not waited for
    peer.say = lambda _key, _value: "mute"
    async with bridged(tmp_path, [upstream(peer.port)], route(forward(window=40))) as gateway:
        await gateway.client().publish("orders", *MANY)
        await peer.until(lambda: len(peer.seen) >= 40)
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        assert len(peer.seen) == 40


async def test_a_restart_goes_on_where_it_was(tmp_path: Path, peer: Peer):
    for start in (0, 100, 200):
        async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
            await gateway.client().publish("orders", *MANY[start : start + 100])
            await gateway.delivered()
    assert peer.values() == MANY[:300]


async def test_attempts_and_settled_messages_survive_a_restart(tmp_path: Path, peer: Peer):
    peer.say = lambda key, _value: "later" if key == b"bad" else "ok"
    slow = model.Retry(2, Backoff(Seconds(0.05), Seconds(0.05)))
    routes = route(forward(retry=slow, dead_letter="dead"))
    async with bridged(tmp_path, [upstream(peer.port)], routes) as gateway:
        await gateway.client().publish("orders", b"1", b"2", keys=[b"bad", b"good"])
        await peer.until(lambda: len(peer.seen) >= 2)
    async with bridged(tmp_path, [upstream(peer.port)], routes) as gateway:
        await gateway.delivered()
        assert [attempts for _, _, attempts, _, _ in await gateway.letters("dead")] == [2]
    assert peer.values() == [b"2"]


async def test_a_new_forward_begins_where_it_is_told(tmp_path: Path, peer: Peer):
    async with bridged(tmp_path, [], route()) as gateway:
        await gateway.client().publish("old", b"1", b"2")
    now = forward(name="far", start=model.ForwardStart.NOW)
    async with bridged(tmp_path, [upstream(peer.port)], route(now)) as gateway:
        await gateway.client().publish("old", b"3")
        await gateway.client().publish("new", b"4")
        await gateway.delivered()
    assert sorted(peer.values()) == [b"3", b"4"]


async def test_other_routes_messages_are_passed_over(tmp_path: Path, peer: Peer):
    mine = model.Route("mine", model.Match(topic="a.*"), (model.StoreTarget("all.{1}"), forward()))
    other = model.Route("other", model.Match(topic="b.*"), (model.StoreTarget("all.{1}"),))
    async with bridged(tmp_path, [upstream(peer.port)], mine, other) as gateway:
        client = gateway.client()
        for number in range(6):
            await client.publish("a.x" if number % 2 else "b.x", b"%d" % number)
        await gateway.delivered()
        assert [one.filtered for one in gateway.house.snapshot().consumers] == [3]
    assert peer.values() == [b"1", b"3", b"5"]


async def test_a_topic_that_is_not_delivered_cannot_be_deleted(tmp_path: Path, peer: Peer):
    peer.say = lambda _key, _value: "mute"
    async with bridged(tmp_path, [upstream(peer.port, timeout=0.2)], route(forward())) as gateway:
        client = gateway.client()
        await client.publish("orders", b"1")
        refused = await client.ask(DeleteTopic(0, "orders"))
        assert isinstance(refused, Conflict)
        assert gateway.bridges.forwards.floor("orders", 0) == 0
        peer.say = lambda _key, _value: "ok"
        await gateway.delivered()
        assert await client.ask(DeleteTopic(0, "orders")) == DONE
        await client.publish("orders", b"again")
        await gateway.delivered()
    assert peer.values() == [b"1", b"again"]


async def test_a_dead_target_changes_nothing_for_its_sibling(
    tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(forwards, "STOP_SECONDS", 0.01)  # who never answers is not waited for
    dead = Peer()
    dead.say = lambda _key, _value: "mute"
    async with listening(dead):
        targets = (forward(), forward(name="dead"))
        both = [upstream(peer.port), upstream(dead.port, name="dead")]
        async with bridged(tmp_path, both, route(*targets)) as gateway:
            await gateway.client().publish("orders", *MANY)
            await gateway.delivered()
            assert gateway.backlog("dead") == 1_000
            gateway.check_accounts()
            assert gateway.counts.messages["acknowledged", "far"] == 1_000
            await trio.aclose_forcefully(await trio.open_tcp_stream("127.0.0.1", dead.port))
    assert peer.values() == MANY


async def test_the_second_address_serves_while_the_first_is_down(tmp_path: Path):
    first, second = Peer(), Peer()
    async with listening(first):
        pass
    async with listening(second), bridged(tmp_path, [upstream(first.port, second.port)], route(forward())) as gateway:
        await gateway.client().publish("orders", b"1")
        await gateway.delivered()
    assert (first.values(), second.values()) == ([], [b"1"])


async def test_a_target_that_refuses_everything_is_left_alone_for_a_while(tmp_path: Path, peer: Peer):
    peer.say = lambda _key, _value: "later"
    never_ends = model.Retry(10_000, Backoff(Seconds(0.001), Seconds(0.001)))
    async with bridged(tmp_path, [upstream(peer.port)], route(forward(retry=never_ends))) as gateway:
        await gateway.client().publish("orders", b"1")
        breaker = gateway.bridges.pools["far"].breaker
        await peer.until(lambda: breaker.opens_until > 0.0)
        peer.say = lambda _key, _value: "ok"
        await gateway.delivered()
        assert breaker.state.value == "closed"


async def test_a_full_park_stops_a_forward_and_says_so(tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.bridges.lanes.PARK_MESSAGES", 50)
    peer.say = lambda _key, _value: "later"
    never_ends = model.Retry(10_000, Backoff(Seconds(60.0), Seconds(60.0)))
    async with bridged(tmp_path, [upstream(peer.port)], route(forward(retry=never_ends, window=8))) as gateway:
        client = gateway.client()
        for _ in range(20):
            await client.ask(publish("orders", *MANY[:20], keys=[b"bad"] * 20))
        await peer.until(lambda: bool(gateway.bridges.forwards.problem("far")))
        assert "wait for a retry" in gateway.bridges.forwards.problem("far")
        gateway.check_accounts()


async def test_empty_store_keeps_the_accounts(tmp_path: Path, peer: Peer):
    async with bridged(tmp_path, [upstream(peer.port)], route(forward())) as gateway:
        gateway.check_accounts()
        assert gateway.backlog() == 0


async def test_an_address_that_takes_requests_and_answers_none_is_left_for_the_next(tmp_path: Path, peer: Peer):
    (deaf,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, swallow, [deaf])
        target = upstream(deaf.socket.getsockname()[1], peer.port, timeout=0.1)
        async with bridged(tmp_path, [target], route(forward())) as gateway:
            await gateway.client().publish("orders", b"1", b"2")
            await gateway.delivered()
            assert peer.values() == [b"1", b"2"]
        nursery.cancel_scope.cancel()


async def swallow(stream: trio.SocketStream) -> None:
    async for _ in stream:
        pass


async def test_many_keys_that_expire_while_they_are_parked(tmp_path: Path, peer: Peer):
    peer.say = lambda _key, _value: "later"
    often = model.Retry(1_000, Backoff(Seconds(0.2), Seconds(0.2)))
    async with bridged(tmp_path, [upstream(peer.port)], route(forward(retry=often, window=2_000))) as gateway:
        soon = gateway.house.clock.now_ms() + 300
        keys = [b"%d" % number for number in range(1_500)]
        await gateway.client().publish("orders", *keys, keys=keys, expires=[soon] * 1_500)
        await peer.until(lambda: gateway.house.clock.now_ms() > soon)
        await gateway.delivered()
        assert gateway.counts.messages["dropped", "expired"] == 1_500


def test_what_an_upstream_says_is_kept_up_to_a_length():
    some = LaneEntry(Run("t", 0, 0, Columns.of([b"x"]), [0], [(0, 0, BatchMeta(b"", Origin("toy", "door")))]), 0)
    some.failed(TargetLost("x" * 100_000))
    assert len(some.first_error) == len(some.last_error) == LONGEST_TARGET_TEXT
