"""Who has a log on Kafka is let in as the brokers want it, and `gateway check --live` says what they will not have."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from gateway.app import kafka_options
from gateway.config.load import parse
from gateway.errors import GatewayError
from gateway.store.interface import AlterTopic, DropTopic, Put, TopicConfig
from gateway.store.kafka.examination import examine_brokers
from gateway.store.kafka.opening import open_kafka_store
from gateway.store.kafka.options import KafkaOptions
from tests.kafka.foreign import make
from tests.kafka.node import PASSWORD, USER, Kafka
from tests.store.kit import append, create, everything, publish, unit

PATIENCE = 120
CONFIG = """
version: 1
listeners: {{in: {{protocol: flymq, bind: "127.0.0.1:0"}}}}
storage: {{path: "{data}", kafka: {{brokers: [{brokers}], prefix: "{prefix}", replication: {copies}, timeout: 5s{more}}}}}
"""


def login(kafka: Kafka, how: str, token_url: str) -> tuple[str, str]:
    """Where, and what the configuration says of it."""
    trusted, own = kafka.certificates.ca, kafka.certificates.client
    if how == "tls":
        return "TLS", f', tls: {{ca: "{trusted}"}}'
    if how == "mtls":
        return "MTLS", f', tls: {{ca: "{trusted}", cert: "{own}", key: "{own}"}}'
    more = f', token_url: "{token_url}"' if how == "oauthbearer" else ""
    return "SASL", f", sasl: {{mechanism: {how}, username: {USER}, password: {PASSWORD}{more}}}"


def config(kafka: Kafka, listener: str, prefix: str, more: str, *, copies: int = 1, data: str = "x") -> str:
    brokers = ", ".join(f'"{one}"' for one in kafka.listening(listener).split(","))
    return CONFIG.format(data=data, brokers=brokers, prefix=prefix, copies=copies, more=more)


def options(text: str) -> KafkaOptions:
    read = parse(text)
    assert read.storage.kafka is not None
    return kafka_options(read, read.storage.kafka)


@pytest.mark.parametrize("how", ["tls", "mtls", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer"])
async def test_it_is_let_in(kafka: Kafka, topics: str, how: str) -> None:
    with trio.fail_after(PATIENCE), kafka.issuer.endpoint() as tokens:
        listener, more = login(kafka, how, tokens)
        asked = options(config(kafka, listener, topics, more))
        async with open_kafka_store(asked) as store:
            await create(store, "orders")
            await publish(store, "orders", b"hello")
            assert await everything(store, "orders") == [b"hello"]
        assert await trio.to_thread.run_sync(list, examine_brokers(asked)) == []


async def live(path: Path, text: str) -> tuple[int, list[str]]:
    """The exit code of `gateway check --live`, and what it says of the brokers."""
    file = path / "routes.yaml"
    await trio.Path(file).write_text(text)
    done = await trio.run_process(
        [sys.executable, "-m", "gateway", "check", str(file), "--live"], capture_stdout=True, check=False
    )
    return done.returncode, [line for line in done.stdout.decode().splitlines() if "storage.kafka" in line]


async def test_what_the_brokers_say_is_said_with_its_place(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    wrong = f", sasl: {{mechanism: scram-sha-256, username: {USER}, password: wrong}}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()[1]
    with trio.fail_after(PATIENCE):
        code, said = await live(tmp_path, config(kafka, "SASL", topics, wrong, data=data))
        assert code == 1
        assert "routes.yaml:4: storage.kafka.sasl: the brokers do not let us in: " in said[0]
        code, said = await live(tmp_path, config(kafka, "PLAIN", topics, "", copies=3, data=data))
        assert code == 1
        assert "storage.kafka.replication: 3 copies are wanted, and there are 1 brokers" in said[0]
        text = config(kafka, "PLAIN", topics, "", data=data)
        code, said = await live(tmp_path, text.replace("brokers: [", f'brokers: ["127.0.0.1:{nobody}", '))
        assert code == 1
        assert f"storage.kafka.brokers: 127.0.0.1:{nobody} does not answer: Connection refused" in said[0]
        code, said = await live(tmp_path, config(kafka, "TLS", topics, "", data=data))
        assert code == 1
        assert said[0].endswith(" wants TLS (storage.kafka.tls)")
        code, said = await live(tmp_path, config(kafka, "TLS", topics, ", tls: system", data=data))
        assert code == 1
        assert "does not agree on TLS: " in said[0]
        code, said = await live(tmp_path, text)
        assert (code, len(said)) == (0, 1)
        assert "a message is acknowledged when one broker has it" in said[0]
        make(kafka, f"{topics}__gateway.state", unclean_leader_election_enable="true")
        code, said = await live(tmp_path, text)
        assert code == 0
        assert "unclean.leader.election.enable" in said[-1]
        assert f"{topics}__gateway.check" not in kafka.admin.list_topics().topics


async def test_a_start_says_what_the_brokers_say(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    wrong = f", sasl: {{mechanism: scram-sha-256, username: {USER}, password: wrong}}"
    file = trio.Path(tmp_path / "routes.yaml")
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
    with trio.fail_after(PATIENCE):
        for listener, more, reason in (("SASL", wrong, "the brokers do not let us in: "), ("TLS", "", " wants TLS")):
            await file.write_text(config(kafka, listener, topics, more, data=str(tmp_path / "data")))
            done = await trio.run_process(command, capture_stderr=True, check=False)
            said = done.stderr.decode()
            assert done.returncode == 2
            assert "gateway: the log on Kafka cannot be opened: " in said
            assert reason in said


async def test_what_is_no_kafka_is_said(tmp_path: Path) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
            port = listener.socket.getsockname()[1]
            text = CONFIG.format(data="x", brokers=f'"127.0.0.1:{port}"', prefix="gw.", copies=1, more="")
            (found,) = await trio.to_thread.run_sync(list, examine_brokers(options(text)))
            nursery.cancel_scope.cancel()
    assert (found.key, found.message) == ("brokers", f"127.0.0.1:{port} is no Kafka")


def allow(kafka: Kafka, *rights: tuple[ResourceType, str, Sequence[AclOperation]]) -> None:
    """USER may do this to all whose names begin so."""
    rules = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL if kind is ResourceType.BROKER else ResourcePatternType.PREFIXED,
            f"User:{USER}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for kind, name, operations in rights
        for operation in operations
    ]
    for made in kafka.admin.create_acls(rules).values():
        made.result(PATIENCE)


@pytest.mark.kafka
async def test_rights_that_are_missing_are_said(tmp_path: Path, topics: str) -> None:
    """One after the other, as they are given; with all of them it is served."""
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    make_topics = f"we may not make topics that begin with {topics}"
    membership = f"we may not be a member of the group {topics}__gateway.owners (Read)"
    once = "we may not write each record once (IdempotentWrite on the cluster, or Write on some topic)"
    transactions = (
        f"we may not have transactions whose ids begin with {topics}__gateway. (Write and Describe on TransactionalId)"
    )
    everywhere = AclBindingFilter(
        ResourceType.BROKER, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    reading = [AclOperation.READ, AclOperation.DESCRIBE]
    changing = [AclOperation.ALTER, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.DELETE]
    with Kafka(tmp_path / "kafka", settings=rules) as kafka, trio.fail_after(2 * PATIENCE):
        listener, more = login(kafka, "scram-sha-512", "")
        text = config(kafka, listener, topics, more, data=str(tmp_path / "data"))
        asked = options(text)

        async def said() -> list[str]:
            found = await trio.to_thread.run_sync(list, examine_brokers(asked))
            assert {one.key for one in found} <= {"sasl"}
            return [one.message.split(": ")[0] for one in found]

        assert await said() == [make_topics, membership, once, transactions]
        allow(kafka, (ResourceType.TOPIC, topics, [*reading, AclOperation.CREATE]))
        assert await said() == [membership, once, transactions]
        allow(kafka, (ResourceType.GROUP, topics, reading))
        assert await said() == [once, transactions]
        async with open_kafka_store(
            attrs.evolve(asked, prefix=f"{topics}early.")
        ) as store:  # nobody waits for what can never be taken
            for _ in range(3):
                with pytest.raises(GatewayError):
                    await create(store, "early")
            assert not store.health.writable
        allow(kafka, (ResourceType.BROKER, "kafka-cluster", [AclOperation.IDEMPOTENT_WRITE]))
        assert await said() == [transactions]
        allow(kafka, (ResourceType.TRANSACTIONAL_ID, topics, [AclOperation.DESCRIBE]))
        code, lines = await live(tmp_path, text)
        assert code == 1
        assert any(f"routes.yaml:4: storage.kafka.sasl: {transactions}" in line for line in lines), lines
        allow(kafka, (ResourceType.TRANSACTIONAL_ID, topics, [AclOperation.WRITE]))
        assert await said() == []
        make(kafka, f"{topics}__gateway.owners")
        refused = f"write, describe the settings of, alter the settings of, delete {topics}__gateway.owners"
        assert await said() == [f"we may not {refused}"]
        allow(kafka, (ResourceType.TOPIC, topics, [*changing, AclOperation.WRITE]))
        assert await said() == []
        for made in kafka.admin.delete_acls([everywhere]).values():
            assert made.result(PATIENCE)
        async with open_kafka_store(asked) as store:
            await create(store, "orders", "more")
            await store.submit(unit(append("orders", b"a"), append("more", b"b"), puts=[Put("t", b"k", b"v")])).wait()
            await store.submit(unit(alters=[AlterTopic("orders", TopicConfig(3))])).wait()
            assert await everything(store, "orders") == [b"a"]
            await store.submit(unit(deletes=[DropTopic("more")])).wait()
        assert await said() == []
