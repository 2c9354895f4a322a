"""A Kafka as a broker elsewhere: forwarded into, pulled from, proxied and mirrored to; the other end is a client of Kafka's."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from gateway.envelope import Batch, Columns
from gateway.errors import TargetRefused, TooLarge, UnknownSubscription, UnknownTopic, Unsupported
from gateway.protocols.kafka.client.group import GroupReader
from gateway.protocols.registry import protocol
from gateway.requests import (
    CreateTopic,
    DeleteTopic,
    DescribeTopics,
    Fetch,
    Fetched,
    PartitionInfo,
    Publish,
    Published,
    Settle,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    TopicCreated,
)
from gateway.transport.client import connect
from tests.integration.inside import gateway, metric, publish, stored
from tests.kafka.foreign import everything, make, members, produce_all, produce_unreadable, remove_members
from tests.kafka.node import PASSWORD, PATIENCE, USER, Kafka

NEAR = """
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage: {{path: "{data}", free_space_floor: 1}}
topics: {{wide: {{partitions: 3}}}}
upstreams:
  far: {{protocol: kafka, address: "{brokers}", timeout: 20s{more}}}
routes:
{routes}
  - name: others
    match: {{}}
    to: [{{store: {{topic: "{{topic}}"}}}}]
"""
FORWARD = """
  - name: sent
    match: {{topic: "{pattern}"}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{upstream: far, address: "{address}", accept_loss: all, dead_letter: lost, retry: {{max: 3, backoff: 10ms..50ms}}}}
"""
VALUES = [b"message %04d" % number for number in range(500)]


def near(kafka: Kafka, directory: Path, routes: str, more: str = "") -> str:
    return NEAR.format(data=directory, brokers=kafka.brokers, routes=routes, more=more)


async def in_kafka(kafka: Kafka, topic: str, enough: Callable[[list[Any]], bool]) -> list[Any]:
    with trio.fail_after(PATIENCE):
        while not enough(found := await trio.to_thread.run_sync(everything, kafka, topic)):  # noqa: ASYNC110
            await trio.sleep(0.05)
    return found


async def made(kafka: Kafka, topic: str, partitions: int = 1, **settings: str) -> str:
    await trio.to_thread.run_sync(lambda: make(kafka, topic, partitions, **settings))
    return topic


async def publish_keys(port: int, topic: str, messages: Sequence[tuple[bytes, bytes]]) -> None:
    async with connect(protocol("flymq"), "127.0.0.1", port) as connection:
        columns = Columns.of([value for _, value in messages], [key for key, _ in messages])
        assert isinstance(await connection.request(Publish(0, Batch(topic, columns)), timeout=PATIENCE), Published)


async def test_what_is_forwarded_is_there_once_with_key_and_id_over_restarts(kafka: Kafka, topics: str, tmp_path: Path):
    address = await made(kafka, topics + "orders", 4)
    config = near(kafka, tmp_path, FORWARD.format(pattern="orders", address=address))
    messages = [(b"key %d" % (number % 7), value) for number, value in enumerate(VALUES)]
    for part in (messages[:200], messages[200:350], messages[350:]):
        async with gateway(config) as here:
            await publish_keys(here.ports["flymq"], "orders", part)
            await metric(here, "gateway_route_acknowledged_messages_total", len(part), route="sent", target="far")
    found = await in_kafka(kafka, address, lambda found: len(found) >= 500)
    assert sorted((record.key(), record.value()) for record in found) == sorted(messages)
    for key in {key for key, _ in messages}:
        places = {record.partition() for record in found if record.key() == key}
        assert len(places) == 1
        assert [record.value() for record in found if record.key() == key] == [v for k, v in messages if k == key]
    ids = {dict(record.headers())["gateway.id"] for record in found}
    assert len(ids) == 500


async def test_a_forward_that_forgot_how_far_it_was_sends_nothing_twice(kafka: Kafka, topics: str, tmp_path: Path):
    """As after a crash between Kafka's answer and the cursor: the cursor is put back, and everything is sent again."""
    address = await made(kafka, topics + "orders")
    config = near(kafka, tmp_path, FORWARD.format(pattern="orders", address=address))
    async with gateway(config) as here:
        await publish(here.ports["flymq"], VALUES[:300])
        await metric(here, "gateway_route_acknowledged_messages_total", 300, route="sent", target="far")
    await forget_cursors(tmp_path)
    async with gateway(config) as here:
        await publish(here.ports["flymq"], VALUES[300:])
        await metric(here, "gateway_route_acknowledged_messages_total", 500, route="sent", target="far")
    found = await in_kafka(kafka, address, lambda found: len(found) >= 500)
    assert [record.value() for record in found] == VALUES


async def forget_cursors(directory: Path) -> None:
    from gateway.bridges.forward_rows import stored_cursors
    from gateway.broker.identity import TABLE
    from gateway.store.interface import Put, Unit
    from gateway.store.sqlite import open_store

    async with open_store(directory) as store:
        rows = dict(store.table(TABLE).items())
        keys = [key for key, value in rows.items() if any(True for _ in stored_cursors([(key, value)]))]
        assert keys
        done = trio.Event()
        store.submit(Unit(puts=[Put(TABLE, key, None) for key in keys])).on_done(lambda _ticket: done.set())
        await done.wait()


async def test_what_kafka_refuses_for_good_is_a_dead_letter_and_holds_nobody(kafka: Kafka, topics: str, tmp_path: Path):
    address = await made(kafka, topics + "small", max_message_bytes="2000")
    config = near(kafka, tmp_path, FORWARD.format(pattern="orders", address=address))
    async with gateway(config) as here:
        await publish(here.ports["flymq"], [b"before", b"x" * 5000, b"behind"])
        letters = await stored(here.ports["flymq"], "lost", lambda found: len(found) == 1)
        assert letters == [b"x" * 5000]
        found = await in_kafka(kafka, address, lambda found: len(found) >= 2)
    assert [record.value() for record in found] == [b"before", b"behind"]


async def test_what_kafka_gets_comes_in_with_key_and_headers_and_goes_on_after_a_restart(
    kafka: Kafka, topics: str, tmp_path: Path
):
    address = await made(kafka, topics + "orders")
    more = f", ingest: [{{from: {address}, into: far.orders, group: {topics}g}}]"
    config = near(kafka, tmp_path, "", more)
    await trio.to_thread.run_sync(produce_all, kafka, address, VALUES[:200], b"k")
    async with gateway(config) as here:
        await stored(here.ports["flymq"], "far.orders", lambda found: len(found) >= 200)
        await trio.to_thread.run_sync(produce_all, kafka, address, VALUES[200:300], b"k")
        await stored(here.ports["flymq"], "far.orders", lambda found: len(found) >= 300)
        await metric(here, "gateway_ingest_messages_total", 300, upstream="far", source=address)
    await trio.to_thread.run_sync(produce_all, kafka, address, VALUES[300:], b"k")
    async with gateway(config) as here:
        found = await stored(here.ports["flymq"], "far.orders", lambda found: len(found) >= 500)
        assert found == VALUES
        async with connect(protocol("flymq"), "127.0.0.1", here.ports["flymq"]) as connection:
            reply = await connection.request(Fetch(0, "far.orders", 0, 0, 10, 1 << 20))
        assert isinstance(reply, Fetched)
        assert reply.runs[0].columns.keys is not None
        assert set(reply.runs[0].columns.keys) == {b"k"}
    from gateway.store.reader import LogReader

    with LogReader(tmp_path) as reader:
        run = next(iter(reader.read_chunks("far.orders", 0, 0, 1)))
        assert run.columns.headers_of(0) == (("from", b"elsewhere"),)


async def test_a_header_whose_name_is_no_text_holds_up_no_ingest(kafka: Kafka, topics: str, tmp_path: Path):
    address = await made(kafka, topics + "orders")
    await trio.to_thread.run_sync(produce_unreadable, kafka, address, b"odd")
    await trio.to_thread.run_sync(produce_all, kafka, address, [b"behind"])
    more = f", ingest: [{{from: {address}, into: far.orders, group: {topics}g}}]"
    async with gateway(near(kafka, tmp_path, "", more)) as here:
        assert await stored(here.ports["flymq"], "far.orders", lambda found: len(found) >= 2) == [b"odd", b"behind"]


async def test_two_gateways_share_a_group_and_one_goes_on_for_both(kafka: Kafka, topics: str, tmp_path: Path):
    address = await made(kafka, topics + "shared", 4)
    more = f", ingest: [{{from: {address}, into: far.shared, group: {topics}g}}]"
    one, two = (near(kafka, tmp_path / name, "", more) for name in ("one", "two"))

    async def have(gateways: Sequence[Any], wanted: set[bytes]) -> None:
        """Until what was published is stored by one or the other."""
        with trio.fail_after(PATIENCE):
            while True:
                found: set[bytes] = set()
                for each in gateways:
                    found |= await values_at(each.ports["flymq"], "far.shared")
                if wanted <= found:
                    return
                await trio.sleep(0.1)

    async with gateway(two) as second:
        async with gateway(one) as first:
            for half in (VALUES[:150], VALUES[150:300]):
                await trio.to_thread.run_sync(produce_all, kafka, address, half)
                await have((first, second), set(half))
        await trio.to_thread.run_sync(produce_all, kafka, address, VALUES[300:])
        await have((second,), set(VALUES[300:]))


async def values_at(port: int, topic: str) -> set[bytes]:
    async with connect(protocol("flymq"), "127.0.0.1", port) as connection:
        try:
            reply = await connection.request(Fetch(0, topic, 0, 0, 5_000, 1 << 20), timeout=PATIENCE)
        except (UnknownTopic, TargetRefused):
            return set()
    assert isinstance(reply, Fetched)
    return {value for run in reply.runs for value in run.columns.values()}


async def test_two_gateways_on_one_log_forward_it_once(kafka: Kafka, topics: str, tmp_path: Path):
    """Each owns some of the partitions, and which changes when one of them goes."""
    address = await made(kafka, topics + "out", 4)
    log = f', kafka: {{brokers: ["{kafka.brokers}"], prefix: "{topics}log.", replication: 1}}'
    one, two = (
        near(kafka, tmp_path / name, FORWARD.format(pattern="wide", address=address)).replace(
            ", free_space_floor: 1", log
        )
        for name in ("one", "two")
    )
    messages = [(b"key %d" % (number % 20), value) for number, value in enumerate(VALUES)]
    async with gateway(two) as second:
        async with gateway(one) as first:
            await metric(first, "gateway_owned_slots", lambda slots: 0 < slots < 32)
            for start in range(0, 300, 20):
                each = (first, second)[start // 20 % 2]
                await publish_keys(each.ports["flymq"], "wide", messages[start : start + 20])
            await in_kafka(kafka, address, lambda found: len(found) >= 300)
        await publish_keys(second.ports["flymq"], "wide", messages[300:])
        found = await in_kafka(kafka, address, lambda found: len(found) >= 500)
    assert sorted((record.key(), record.value()) for record in found) == sorted(messages)
    for key in {key for key, _ in messages}:
        assert [record.value() for record in found if record.key() == key] == [v for k, v in messages if k == key]


async def test_two_gateways_on_one_log_mirror_it_once(kafka: Kafka, topics: str, tmp_path: Path):
    """What is written at either of them, from the beginning of a topic on; each has some of the partitions."""
    address = await made(kafka, topics + "shadow")
    routes = (
        "  - name: sent\n    match: {topic: wide}\n"
        f'    to: [{{store: {{topic: wide}}}}, {{mirror: {{upstream: far, address: "{address}"}}}}]\n'
    )
    log = f', kafka: {{brokers: ["{kafka.brokers}"], prefix: "{topics}log.", replication: 1}}'
    one, two = (
        near(kafka, tmp_path / name, routes)
        .replace(", free_space_floor: 1", log)
        .replace("partitions: 3", "partitions: 8")
        for name in ("one", "two")
    )
    messages = [(b"key %d" % (number % 50), value) for number, value in enumerate(VALUES)]
    async with gateway(two) as second, gateway(one) as first:
        for each in (first, second):
            await metric(each, "gateway_owned_slots", 16)
            await metric(each, "gateway_upstream_connected", 1, upstream="far")
        for start in range(0, 500, 20):
            each = (first, second)[start // 20 % 2]
            await publish_keys(each.ports["flymq"], "wide", messages[start : start + 20])
        found = await in_kafka(kafka, address, lambda found: len(found) >= 500)
    assert sorted((record.key(), record.value()) for record in found) == sorted(messages)


async def test_the_answer_to_a_proxied_publish_is_kafkas(kafka: Kafka, topics: str, tmp_path: Path):
    address = await made(kafka, topics + "orders", max_message_bytes="2000")
    routes = f'  - name: live\n    match: {{topic: "live.*"}}\n    to: [{{proxy: {{upstream: far, address: "{topics}{{1}}", timeout: 60s}}}}]\n'
    await trio.to_thread.run_sync(produce_all, kafka, address, [b"first"])
    async with gateway(near(kafka, tmp_path, routes)) as here:
        port = here.ports["flymq"]
        reply = await publish(port, VALUES[:100], "live.orders")
        assert reply.position(0) == (0, 1)
        async with connect(protocol("flymq"), "127.0.0.1", port) as connection:
            with pytest.raises((TooLarge, TargetRefused)) as refused:
                await connection.request(Publish(0, Batch("live.orders", Columns.of([b"x" * 3000]))), timeout=PATIENCE)
            assert "too large" in refused.value.message.lower()
            with pytest.raises((UnknownTopic, TargetRefused)):
                await connection.request(Publish(0, Batch("live.nowhere", Columns.of([b"x"]))), timeout=PATIENCE)
    found = await in_kafka(kafka, address, lambda found: len(found) >= 101)
    assert [record.value() for record in found] == [b"first", *VALUES[:100]]


async def test_a_mirror_compares_what_kafka_has_stored(kafka: Kafka, topics: str, tmp_path: Path):
    address = await made(kafka, topics + "shadow")
    mirror = f'mirror: {{upstream: far, address: "{address}", compare: [ack, payload]}}'
    routes = f"  - name: sent\n    match: {{topic: orders}}\n    to: [{{store: {{topic: orders}}}}, {{{mirror}}}]\n"
    async with gateway(near(kafka, tmp_path, routes)) as here:
        await metric(here, "gateway_upstream_connected", 1, upstream="far")
        await publish(here.ports["flymq"], VALUES[:50])
        await metric(here, "gateway_mirror_messages_total", 50, route="sent", outcome="taken")
        await metric(here, "gateway_mirror_compared_messages_total", lambda n: n >= 1, kind="payload", outcome="same")
        await metric(here, "gateway_mirror_compared_messages_total", 0, kind="payload", outcome="different")
    assert [record.value() for record in await in_kafka(kafka, address, lambda found: len(found) >= 50)] == VALUES[:50]


@pytest.mark.parametrize("how", ["tls", "mtls", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_it_is_let_in_by_every_listener(kafka: Kafka, topics: str, tmp_path: Path, how: str):
    address = await made(kafka, topics + "orders")
    brokers, more = login(kafka, how)
    config = near(kafka, tmp_path, FORWARD.format(pattern="orders", address=address), more)
    async with gateway(config.replace(kafka.brokers, brokers)) as here:
        await publish(here.ports["flymq"], VALUES[:5])
        await metric(here, "gateway_route_acknowledged_messages_total", 5, route="sent", target="far")


def login(kafka: Kafka, how: str) -> tuple[str, str]:
    """Where, and what an upstream says of it."""
    certificates = kafka.certificates
    if how == "tls":
        return kafka.listening("TLS"), f", tls: {{ca: {certificates.ca}}}"
    if how == "mtls":
        own = f"cert: {certificates.client}, key: {certificates.client}"
        return kafka.listening("MTLS"), f", tls: {{ca: {certificates.ca}, {own}}}"
    if how == "OAUTHBEARER":
        return kafka.listening("SASL"), f", auth: {{token: {kafka.issuer.token()}}}"
    return kafka.listening("SASL"), f", auth: {{username: {USER}, password: {PASSWORD}, mechanism: {how}}}"


async def test_a_login_that_is_refused_is_waited_for_and_said(kafka: Kafka, topics: str, tmp_path: Path):
    address = await made(kafka, topics + "orders")
    more = f", auth: {{username: {USER}, password: wrong, mechanism: PLAIN}}"
    config = near(kafka, tmp_path, FORWARD.format(pattern="orders", address=address), more)
    async with gateway(config.replace(kafka.brokers, kafka.listening("SASL"))) as here:
        await publish(here.ports["flymq"], VALUES[:5])
        await metric(here, "gateway_upstream_login_refused", 1, upstream="far")
    right = config.replace(kafka.brokers, kafka.listening("SASL")).replace("wrong", PASSWORD)
    async with gateway(right) as here:
        found = await in_kafka(kafka, address, lambda found: len(found) >= 5)
        assert [record.value() for record in found] == VALUES[:5]


async def test_certificates_that_are_none_are_said_and_end_nothing(kafka: Kafka, topics: str, tmp_path: Path):
    (tmp_path / "ca.pem").write_text("nothing")
    config = near(kafka, tmp_path, FORWARD.format(pattern="orders", address="x"), f", tls: {{ca: {tmp_path}/ca.pem}}")
    async with gateway(config) as here:
        await publish(here.ports["flymq"], VALUES[:5])
        await metric(here, "gateway_forward_backlog_messages", 5, forward="sent-far")


async def linked(kafka: Kafka) -> Any:
    host, port = kafka.brokers.split(":")
    return connect(protocol("kafka"), host, int(port), timeout=PATIENCE)


async def test_a_client_of_ours_does_there_what_it_does_elsewhere(kafka: Kafka, topics: str):
    topic = topics + "plain"
    async with await linked(kafka) as remote:

        async def ask(request: Any) -> Any:
            return await remote.request(request, timeout=PATIENCE)

        assert await ask(CreateTopic(0, topic, 2)) == TopicCreated(created=True, partitions=2)
        assert await ask(CreateTopic(0, topic, 5)) == TopicCreated(created=False, partitions=2)
        reply = await ask(Publish(0, Batch(topic, Columns.of([b"a", b"b"], None, [(("h", b"1"),), ()]), partition=1)))
        assert (reply.partition, reply.base_offset) == (1, 0)
        (info,) = (await ask(DescribeTopics(0, topic))).topics
        assert info.partitions == [PartitionInfo(0, 0, 0), PartitionInfo(1, 0, 2)]
        fetched = await ask(Fetch(0, topic, 1, 0, 10, 1 << 20))
        assert [run.columns.values() for run in fetched.runs] == [[b"a", b"b"]]
        assert fetched.runs[0].columns.headers_of(0) == (("h", b"1"),)
        assert (fetched.next_offset, fetched.log_end) == (2, 2)
        subscribed = await ask(Subscribe(0, topic, topic + "g", acknowledge=True, start=Start.EARLIEST))
        taken = await ask(Take(0, subscribed.subscription, 1, 1 << 20, trio.current_time() + PATIENCE))
        assert [one.run.columns.values() for one in taken.deliveries] == [[b"a"]]
        settled = await ask(Settle(0, subscribed.subscription, [taken.deliveries[0].first_tag]))
        assert settled.results == [None]
        with pytest.raises(Unsupported):
            await ask(Publish(0, Batch(topic, Columns.of([b"later"])), delay_ms=5))
    async with await linked(kafka) as remote:
        subscribed = await remote.request(
            Subscribe(0, topic, topic + "g", acknowledge=True, start=Start.EARLIEST), timeout=PATIENCE
        )
        assert isinstance(subscribed, Subscribed)
        taken = await remote.request(
            Take(0, subscribed.subscription, 10, 1 << 20, trio.current_time() + PATIENCE), timeout=PATIENCE
        )
        assert isinstance(taken, Taken)
        assert [one.run.columns.values() for one in taken.deliveries] == [[b"b"]], "the first was settled"
        await remote.request(DeleteTopic(0, topic), timeout=PATIENCE)


async def place_of(kafka: Kafka, group: str, topic: str) -> int:
    """How far the group is in the topic's one partition, as Kafka has it."""
    asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
    kept = await trio.to_thread.run_sync(kafka.admin.list_consumer_group_offsets(asked)[group].result, PATIENCE)
    return int(kept.topic_partitions[0].offset)


async def test_nothing_is_told_as_settled_that_the_group_does_not_know(kafka: Kafka, topics: str):
    """The member is removed between a take and its settling: it is refused, and what it was about comes again."""
    topic = await made(kafka, topics + "refused")
    await trio.to_thread.run_sync(produce_all, kafka, topic, VALUES[:20])
    told = repeated = refused = 0
    with trio.fail_after(PATIENCE):
        async with await linked(kafka) as remote:

            async def ask(request: Any) -> Any:
                return await remote.request(request, timeout=PATIENCE)

            number = (await ask(Subscribe(0, topic, topics, acknowledge=True, start=Start.EARLIEST))).subscription
            while told < 20:
                taken = await ask(Take(0, number, 5, 1 << 20, trio.current_time() + 1))
                for one in taken.deliveries:
                    assert one.run.base_offset >= told, "it was told as settled, and comes again"
                    repeated += one.run.next_offset <= 5
                    if not refused:
                        await trio.to_thread.run_sync(remove_members, kafka, topics)
                    tags = [one.first_tag + index for index in range(one.run.count)]
                    results = set(map(type, (await ask(Settle(0, number, tags))).results))
                    assert len(results) == 1
                    if results == {type(None)}:
                        told = one.run.next_offset
                        assert await place_of(kafka, topics, topic) >= told
                    else:
                        assert results == {UnknownSubscription}
                        refused += 1
    assert (repeated > 1, refused > 0) == (True, True)


async def test_what_is_settled_too_late_is_not_written_over_what_another_member_wrote(kafka: Kafka, topics: str):
    """The partition goes to another client while our event loop has no time to hear of it, and settles what it still holds."""
    topic = await made(kafka, topics + "late")
    await trio.to_thread.run_sync(produce_all, kafka, topic, VALUES[:20])
    answers: dict[int, Any] = {}
    failed: list[Any] = []
    settings = {"bootstrap.servers": kafka.brokers}
    reader = GroupReader(settings, topics, Start.EARLIEST, answers.__setitem__, failed.append)

    async def answer(request: int) -> Any:
        while request not in answers:  # noqa: ASYNC110
            await trio.sleep(0.02)
        return answers[request]

    try:
        with trio.fail_after(PATIENCE):
            reader.subscribe(1, topic, True)
            reader.take(1, 1, 5, 1 << 20, wait=True)
            (taken,) = (await answer(1)).deliveries
            another_takes_over(kafka, topics, topic)  # blocks
            reader.settle(2, 1, range(taken.first_tag, taken.first_tag + taken.run.count), accepted=True)
            assert {type(one) for one in (await answer(2)).results} == {UnknownSubscription}
    finally:
        await trio.to_thread.run_sync(reader.close)
    assert await place_of(kafka, topics, topic) == 20
    assert failed == []


def another_takes_over(kafka: Kafka, group: str, topic: str) -> None:
    """Another client reads and commits all there is, while who was thrown out joins again and is given nothing."""
    remove_members(kafka, group)
    other = Consumer(
        {
            "bootstrap.servers": kafka.brokers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    other.subscribe([topic])
    seen = 0
    while seen < 20:
        message = other.poll(0.1)
        seen += message is not None and message.error() is None
    written = False
    while not written or len(members(kafka, group)) < 2:
        other.poll(0.1)
        with contextlib.suppress(KafkaException):  # who was thrown out may be joining at this moment
            other.commit(asynchronous=False)
            written = True
    other.close()


async def test_the_commands_reach_it(kafka: Kafka, topics: str):
    topic = topics + "commands"
    url = f"kafka://{kafka.brokers}/{topic}"

    async def gateway_says(*args: str, code: int = 0) -> str:
        line = [sys.executable, "-m", "gateway", *args]
        done = await trio.run_process(line, stdin=b"", capture_stdout=True, capture_stderr=True, check=False)
        assert done.returncode == code, done.stderr.decode()
        return (done.stderr if code else done.stdout).decode()

    await gateway_says("topics", url, "--create", "--partitions", "2")
    await gateway_says("pub", url, "--key", "k", "--header", "h=1", "--data", "one", "--data", "two")
    found = await gateway_says("topics", url, "--output", "json")
    assert sum(part["end"] for part in json.loads(found)[0]["partitions"]) == 2
    (record, _) = await in_kafka(kafka, topic, lambda found: len(found) == 2)
    assert (record.key(), record.headers()) == (b"k", [("h", b"1")])
    read = await gateway_says(
        "sub", url, "--group", topics + "g", "--from", "earliest", "--count", "2", "--timeout", "60"
    )
    assert {"one", "two"} <= set(read.split())
    assert "no answer within" in await gateway_says("topics", "kafka://127.0.0.1:1", code=2)
