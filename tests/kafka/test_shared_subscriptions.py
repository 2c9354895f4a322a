"""Clients of one subscription at several gateways: one of these has it, and the others pass on what their clients ask."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import msgspec
import pytest
import trio

from gateway.broker.assembly import House
from gateway.broker.consume import shared
from gateway.broker.consume.names import FORMER_HOMES, job_of
from gateway.errors import Conflict, NotFound, OwnerAway, TooLarge
from gateway.link import answering
from gateway.link.members import TABLE, LinkIdentity, MemberRow
from gateway.link.opening import LinkPlace, open_links
from gateway.moving.tables import COPIED_TABLES, KNOWN_TABLES
from gateway.recorder import Recorder
from gateway.requests import Cancel, ConsumerReset, Redelivery, ResetTo, Settle, Start, Take
from gateway.store.interface import Put
from gateway.store.kafka.engine import KafkaStore
from gateway.store.kafka.opening import open_kafka_store
from gateway.store.kafka.options import KafkaOptions
from tests.kafka.node import Kafka
from tests.kafka.test_fencing import deaf
from tests.store.kit import open_on_kafka, unit
from tests.unit.bridges.peers import until
from tests.unit.broker.house import Client, opened_on, tags, values

PATIENCE = 120
NAMED = {"name": "shared", "acknowledge": True, "start": Start.EARLIEST}


class Counted(Recorder):
    def __init__(self) -> None:
        self.passed_on: list[str] = []
        self.failures: list[str] = []

    def passed(self, request: str) -> None:
        self.passed_on.append(request)

    def link_failed(self, reason: str) -> None:
        self.failures.append(reason)


@attrs.define(eq=False)
class Gateway:
    """One of several, in this process."""

    house: House
    store: KafkaStore
    place: LinkPlace
    counted: Counted
    _end: trio.CancelScope

    def client(self, protocol: str = "toy") -> Client:
        return Client(self.house, protocol)

    def has(self, number: int) -> bool:
        return self.house.owners.owns(job_of(number))


@asynccontextmanager
async def gateway(kafka: Kafka, prefix: str, directory: Path) -> AsyncIterator[Gateway]:
    options = KafkaOptions([kafka.brokers], prefix=prefix, timeout=30.0)
    counted = Counted()
    host, _, port = kafka.brokers.split(",")[0].rpartition(":")
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_kafka_store(options))
        house = (await stack.enter_async_context(opened_on(store, recorder=counted))).house
        place = await stack.enter_async_context(
            open_links(house, store, counted, LinkPlace(), [(host, int(port))], directory)
        )
        scope = stack.enter_context(trio.CancelScope())
        yield Gateway(house, store, place, counted, scope)


@asynccontextmanager
async def gateways(kafka: Kafka, prefix: str, directory: Path, count: int = 2) -> AsyncIterator[Sequence[Gateway]]:
    """All of them with jobs."""
    async with AsyncExitStack() as stack:
        some = [await stack.enter_async_context(gateway(kafka, prefix, directory)) for _ in range(count)]
        await until(lambda: all(one.house.owners.held for one in some) and all_held(some))
        yield some


def all_held(some: Sequence[Gateway]) -> bool:
    return sum(one.house.owners.held for one in some) == some[0].store.slots


async def test_two_clients_share_each_message_is_settled_once(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    expected = {b"%d" % number for number in range(1_000)}
    got: list[tuple[int, bytes]] = []
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both, trio.open_nursery() as nursery:
            await both[0].client().publish("orders", *sorted(expected))
            first: set[int] = set()

            async def read(which: int) -> None:
                client, number = await named(both[which])
                while len(got) < len(expected):
                    taken = await client.take(number, 10, 1.0)
                    got.extend((which, value) for value in values(taken))
                    first.add(which)
                    await until(lambda: len(first) == 2)
                    assert all(await client.settle(number, *tags(taken)))

            for which in range(2):
                nursery.start_soon(read, which)
    assert sorted(value for _which, value in got) == sorted(expected)  # each once
    assert {which for which, _value in got} == {0, 1}
    assert {"subscribe", "take", "settle"} <= {*both[0].counted.passed_on, *both[1].counted.passed_on}


async def test_each_of_three_passes_on_to_each(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path, count=3) as three:
            await three[0].client().publish("orders", *[b"%d" % number for number in range(3)])
            for owner in three:
                number = await owner.client().subscribe(
                    "orders", acknowledge=True, durable_grace=PATIENCE, start=Start.EARLIEST
                )
                assert owner.has(number)  # made where it is used
                got = [values(await one.client().take(number, 1, 30)) for one in three]
                assert got == [[b"0"], [b"1"], [b"2"]]


async def named(gateway: Gateway, **more: object) -> tuple[Client, int]:
    """A client of `shared`, and its number."""
    client = gateway.client()
    return client, await client.subscribe("orders", **{**NAMED, **more})


def apart(both: Sequence[Gateway], number: int) -> tuple[Gateway, Gateway]:
    """Who has it, and the one beside him."""
    owner = next(one for one in both if one.has(number))
    return owner, next(one for one in both if one is not owner)


async def cut_off(gateway: Gateway) -> None:
    """All connections end that it asks over."""
    for link in list(gateway.house.shared.way._links.values()):
        if link.stream is not None:
            await trio.aclose_forcefully(link.stream._stream.transport_stream)


async def test_the_owner_counts_attempts_and_writes_the_dead_letter(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    redelivery = Redelivery(max_deliveries=3, first_delay=0.05, longest_delay=0.1, unanswered=False)
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            await both[0].client().publish("orders", b"bad", b"good")
            _client, number = await named(both[0], redelivery=redelivery)
            owner, other = apart(both, number)
            (near, _), (far, _) = [await named(one, redelivery=redelivery) for one in (owner, other)]
            subscription = owner.house.subscriptions._subscriptions[number]
            attempts = []

            def refused() -> bool:
                return bool(subscription.again) or not subscription.outstanding

            for client in (far, near, far):
                taken = await client.take(number, 1, trio.current_time() + PATIENCE)
                assert values(taken) == [b"bad"]
                attempts.append(taken.deliveries[0].attempt)
                # refused: it comes again before what nobody has seen, when its time has come, to whoever asks
                assert all(await client.settle(number, *tags(taken), accepted=False))
                await until(refused)
            assert attempts == [1, 2, 3]
            taken = await far.take(number, 1, 30)
            assert values(taken) == [b"good"]
            assert all(await far.settle(number, *tags(taken)))
            await until(lambda: [one.dead_lettered for one in owner.house.snapshot().consumers] == [1])
            assert await far.settle(number, *tags(taken)) == [False]  # what is settled is not known any more


async def test_what_is_delivered_as_it_is_handed_out_is_not_lost_with_the_way(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            _client, number = await named(both[0], acknowledge=False)
            owner, other = apart(both, number)
            far, _ = await named(other, acknowledge=False)
            publisher = owner.client()
            await publisher.publish("orders", b"1")
            assert values(await far.take(number, 1, 30)) == [b"1"]
            # the answer is written and does not arrive: the gateway there hears nothing more of this connection
            waiting = far.start(Take(0, number, 5, hold_until=float("inf")))[0]
            subscription = owner.house.subscriptions._subscriptions[number]
            await until(lambda: bool(subscription.takes))
            (link,) = other.house.shared.way._links.values()
            link.stream._frames.feed = lambda _data: iter(())
            await publisher.publish("orders", b"2")
            await until(lambda: not subscription.takes)
            await cut_off(other)
            assert values(await far.outcome(waiting)) == [b"2"]
            await until(lambda: not subscription.outstanding)
            assert values(await far.take(number, 1)) == []


async def test_who_is_gone_gives_back_at_once(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """A client of another gateway that ends, one whose gateway is cut off, and one that unsubscribes."""
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            await both[0].client().publish("orders", b"1")
            near, number = await named(both[0])
            owner, other = apart(both, number)
            near, _ = await named(owner)
            for how in ("ends", "cut"):
                far, _ = await named(other)
                taken = await far.take(number, 1, 30)
                assert values(taken) == [b"1"]
                waiting = near.start(Take(0, number, 1, hold_until=float("inf")))[0]
                if how == "ends":
                    far.side.detach()
                else:
                    await cut_off(other)
                again = await near.outcome(waiting)
                assert values(again) == [b"1"]
                assert tags(again) == tags(taken)
                assert [one is None for one in (await near.ask(Settle(0, number, tags(again), False, False))).results]
            # who was cut off is connected again when he asks, and what he had is somebody else's or nobody's
            assert values(await far.take(number, 1, 30)) == [b"1"]
            assert all(await far.settle(number, *tags(taken)))
            assert other.counted.failures


async def test_the_owner_hands_over_and_all_go_on(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """Clients at both gateways wait, have something unsettled, and stay connected."""
    with trio.fail_after(2 * PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            publisher = both[0].client()
            await publisher.publish("orders", b"1", b"2", b"3")
            _client, number = await named(both[0])
            owner, other = apart(both, number)
            (near, _), (far, _) = await named(owner), await named(other)
            settled = await far.take(number, 1, 30)
            assert all(await far.settle(number, *tags(settled)))
            kept = [await one.take(number, 1, 30) for one in (near, far)]
            assert [values(one) for one in (settled, *kept)] == [[b"1"], [b"2"], [b"3"]]
            waiting = [one.start(Take(0, number, 1, hold_until=float("inf")))[0] for one in (near, far)]
            await trio.to_thread.run_sync(owner.store._slots.close)  # Kafka hands its slots to the other one
            await until(lambda: other.has(number))
            # what was settled does not come again; what was not does, to whoever waits
            again = [await one.outcome(asked) for one, asked in zip((near, far), waiting, strict=True)]
            assert sorted(value for one in again for value in values(one)) == [b"2", b"3"]
            for one, had in zip((near, far), kept, strict=True):
                assert await one.settle(number, *tags(had)) == [False]
            for one, had in zip((near, far), again, strict=True):
                assert await one.settle(number, *tags(had)) == [True]
            await publisher.publish("orders", b"4")
            assert values(await near.take(number, 1, 30)) == [b"4"]
            assert "take" in owner.counted.passed_on


async def test_who_froze_and_wakes_up_writes_nothing(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """It does not know that it has lost the subscription: what its client settles there is not written, and comes again."""
    with trio.fail_after(2 * PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            await both[0].client().publish("orders", b"1", b"2")
            _client, number = await named(both[0])
            owner, other = apart(both, number)
            (near, _), (far, _) = await named(owner), await named(other)
            taken = await near.take(number, 2, 30)
            assert values(taken) == [b"1", b"2"]
            async with deaf(owner.store):
                await trio.to_thread.run_sync(owner.store._slots.close)
                # its own part of the group says so at once: that, too, it does not hear
                await until(lambda: other.has(number))
                rows = dict(other.store.table("cursors"))
                again = await far.take(number, 2, 60)
                assert values(again) == [b"1", b"2"]
                near.start(Settle(0, number, tags(taken)))
            assert all(await far.settle(number, *tags(again)))
            await until(lambda: other.store.table("cursors") != rows)
            await until(lambda: not owner.has(number))
            assert owner.house.subscriptions._subscriptions.get(number) is None


async def test_one_without_a_name_is_kept_while_its_client_is_there_whoever_has_it(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    """As a BlipMQ client that polls at another gateway than the one that it subscribed at, and then not for a while."""
    with trio.fail_after(2 * PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            client = both[0].client()
            number = await client.subscribe("orders", acknowledge=True, durable_grace=1.0, start=Start.EARLIEST)
            owner, other = apart(both, number)
            assert owner is both[0]  # made where it is used
            far = other.client()
            assert values(await far.take(number, 1)) == []
            client.side.detach()
            await trio.to_thread.run_sync(owner.store._slots.close)
            await until(lambda: other.has(number))
            await trio.sleep(1.5)  # longer than it would be kept for nobody
            await far.publish("orders", b"1")
            assert values(await far.take(number, 1, 30)) == [b"1"]
            far.side.detach()
            await until(lambda: not other.house.subscriptions.has(number))
            stranger = owner.client()
            with trio.fail_after(30):
                assert await stranger.settle(number, 1) == [False]


async def test_who_cannot_be_reached_is_waited_for_and_then_said_to_be_away(
    kafka: Kafka, topics: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PATIENCE", 3.0)
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            _client, number = await named(both[0])
            owner, other = apart(both, number)
            far, _ = await named(other)
            await cut_off(other)
            way, other.house.shared.way = other.house.shared.way, None
            assert isinstance(await far.ask(Take(0, number, 1, hold_until=float("inf"))), OwnerAway)
            assert values(await far.take(number, 1, 0.2)) == []  # whoever waits for a time waits for that
            asked = far.start(Take(0, number, 1, hold_until=float("inf")))[0]
            await far.ask(Cancel(0, asked))
            assert values(await far.outcome(asked)) == []
            waits = far.start(Take(0, number, 1, hold_until=float("inf")))[0]
            other.house.shared.way = way
            await owner.client().publish("orders", b"1")
            assert values(await far.outcome(waits)) == [b"1"]


async def test_all_who_wait_are_looked_at_by_one_timer(
    kafka: Kafka, topics: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not by twice as many each time, until nothing else is done any more."""
    monkeypatch.setattr(shared, "LOOK_AGAIN", 0.02)
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            _client, number = await named(both[0])
            _owner, other = apart(both, number)
            other.house.shared.way = None
            far = other.client()
            far.start(*(Take(0, number, 1, hold_until=float("inf")) for _ in range(2)))
            for _ in range(6):  # each is answered by a look
                assert values(await far.take(number, 1, 0.0)) == []
            look = other.house.shared._look
            assert sum(callback == look for _when, _number, callback in other.house.pump._heap) == 1


async def test_one_is_put_elsewhere_by_any_gateway(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """By its name or its number, where it is and where it is not; refused where it has clients, wherever those are."""
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            await both[0].client().publish("orders", *[b"%d" % number for number in range(5)])
            nameless = (
                await both[0].client().subscribe("orders", acknowledge=True, durable_grace=600.0, start=Start.EARLIEST)
            )
            _client, number = await named(both[0])
            for kind, name, one in (("reader", "shared", number), ("subscription", str(nameless), nameless)):
                owner, other = apart(both, one)
                far = other.client()
                taken = await far.take(one, 5, 30)
                assert len(values(taken)) == 5
                assert all(await far.settle(one, *tags(taken)))
                for asked_at in (owner, other):
                    wanted = ConsumerReset(kind=kind, name=name, topic="orders", to=ResetTo.OFFSET, value=3)
                    with pytest.raises(Conflict, match="connections read from"):
                        await asked_at.house.shared.reset(wanted)
                    dry = msgspec.structs.replace(wanted, dry_run=True, force=True)
                    (shown,) = await asked_at.house.shared.reset(dry)
                    assert (shown.before, shown.after, shown.repeated) == (5, 3, 2)
                    (moved,) = await asked_at.house.shared.reset(msgspec.structs.replace(dry, dry_run=False))
                    assert moved == shown
                    taken = await far.take(one, 5, 30)
                    assert values(taken) == [b"3", b"4"]
                    assert all(await far.settle(one, *tags(taken)))
                for missing in ("nobody", "7000", ""):
                    with pytest.raises(NotFound):
                        await other.house.shared.reset(msgspec.structs.replace(wanted, name=missing))
            # where nobody has taken anything yet, and another gateway has written
            idle = await both[0].client().subscribe("idle", acknowledge=True, durable_grace=600.0, start=Start.EARLIEST)
            owner, other = apart(both, idle)
            await other.client().publish("idle", b"1", b"2")
            wanted = ConsumerReset(
                kind="subscription", name=str(idle), topic="idle", to=ResetTo.LATEST, dry_run=True, force=True
            )
            for asked_at in (owner, other):
                assert [(one.after, one.end) for one in await asked_at.house.shared.reset(wanted)] == [(2, 2)]
            assert "reset" in {*both[0].counted.passed_on, *both[1].counted.passed_on}
            assert not [user for one in both for user in one.house.shared._users if user < 0]


async def test_an_answer_that_is_too_large_for_a_frame_comes_in_parts(
    kafka: Kafka, topics: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "LARGEST_ANSWER", 20_000)
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as both:
            _client, number = await named(both[0])
            owner, other = apart(both, number)
            far, _ = await named(other)
            some = [bytes([index]) * 8_000 for index in range(4)]
            await owner.client().publish("orders", *some)
            found = []
            while len(found) < 4:
                taken = await far.take(number, 4, 30)
                found += values(taken)
                assert all(await far.settle(number, *tags(taken)))
            assert found == some
            await owner.client().publish("orders", bytes(30_000))
            assert isinstance(await far.ask(Take(0, number, 4, hold_until=float("inf"))), TooLarge)
            near, _ = await named(owner)
            assert values(await near.take(number, 1, 30)) == [bytes(30_000)]  # nobody lost it


async def test_only_members_are_let_in(
    kafka: Kafka, topics: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "LOGIN_SECONDS", 1.0)
    monkeypatch.setattr(answering, "MOST_STRANGERS", 1)
    intruder = LinkIdentity(tmp_path)
    with trio.fail_after(PATIENCE):
        async with gateways(kafka, topics, tmp_path) as (one, two):
            row = msgspec.msgpack.decode(two.store.table(TABLE)[one.store.member], type=MemberRow)
            intruder.know(row.certificate)
            without = ssl.create_default_context()
            without.check_hostname, without.verify_mode = False, ssl.CERT_NONE
            for context in (intruder.asking, without):
                async with await trio.open_tcp_stream(one.place.advertise, one.place.port) as stream:
                    tls = trio.SSLStream(stream, context)
                    await tls.do_handshake()
                    with pytest.raises(trio.BrokenResourceError):  # with TLS 1.3 the client hears of it behind that
                        await tls.receive_some()
            await until(lambda: one.counted.failures.count("stranger") == 2)
            # who says nothing is not waited for, and as long as he is waited for nobody else is
            async with (
                await trio.open_tcp_stream(one.place.advertise, one.place.port) as silent,
                await trio.open_tcp_stream(one.place.advertise, one.place.port) as another,
            ):
                assert [await each.receive_some() for each in (another, silent)] == [b"", b""]
            assert sorted(one.counted.failures[2:]) == ["login", "strangers"]
            # who was taken for dead is none of them, until he hears of it and says that he lives
            _client, number = await named(one)
            owner, other = apart((one, two), number)
            far, _ = await named(other)
            async with deaf(other.store), open_on_kafka(kafka.brokers, topics) as third:
                await third.submit(unit(puts=[Put(TABLE, other.store.member, None)])).wait()
                await until(lambda: other.store.member not in owner.store.table(TABLE))
                await cut_off(other)
                asked = far.start(Take(0, number, 1, hold_until=float("inf")))[0]
                await until(lambda: owner.counted.failures[-1:] == ["stranger"])
            await until(lambda: other.store.member in owner.store.table(TABLE))
            await owner.client().publish("orders", b"1")
            assert values(await far.outcome(asked)) == [b"1"]


async def test_readers_go_on_while_another_gateway_starts(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """Each takes as it goes, settles nothing, and what is published meanwhile comes to one of them."""
    got: dict[int, list[bytes]] = {}
    published: list[bytes] = []
    with trio.fail_after(PATIENCE):
        async with gateway(kafka, topics, tmp_path) as first, trio.open_nursery() as nursery:
            await until(lambda: all_held([first]))
            publisher = first.client()

            async def read(which: int, one: Gateway) -> None:
                client, number = await named(one, redelivery=Redelivery(unanswered=False))
                got[which] = []
                while True:
                    taken = await client.take(number, 50, float("inf"))
                    assert not taken.ended
                    got[which] += values(taken)

            async def publish(until_there: int) -> None:
                while len(published) < until_there:
                    published.append(b"%05d" % len(published))
                    await publisher.publish("orders", published[-1])

            nursery.start_soon(read, 0, first)
            await publish(10)
            async with gateway(kafka, topics, tmp_path) as second:
                nursery.start_soon(read, 1, second)
                await publish(20)
                while not (second.house.owners.held and all_held([first, second])):
                    await publish(len(published) + 1)
                await publish(len(published) + 20)
                await until(lambda: {*got[0], *got[1]} == {*published})
                await until(lambda: bool(got[1]))
            nursery.cancel_scope.cancel()


async def test_what_an_earlier_version_has_written_of_homes_counts_for_nothing(
    kafka: Kafka, topics: str, tmp_path: Path
) -> None:
    """A row said which gateway had a subscription at last. They stay where they are, and are not copied elsewhere."""
    assert FORMER_HOMES in KNOWN_TABLES
    assert FORMER_HOMES not in COPIED_TABLES
    with trio.fail_after(PATIENCE):
        for expected in (b"1", b"2"):
            async with gateway(kafka, topics, tmp_path) as one:
                client, number = await named(one)
                if expected == b"1":
                    await client.publish("orders", b"1", b"2")
                    home = Put(FORMER_HOMES, number.to_bytes(8, "big"), b"a gateway that is gone")
                    await one.store.submit(unit(puts=[home])).wait()
                taken = await client.take(number, 1, 30)
                assert values(taken) == [expected]
                assert all(await client.settle(number, *tags(taken)))
