"""That the Kafka of the tests is one: everybody gets in who may, and what a majority took survives whoever dies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.kafka.foreign import consume, make, produce
from tests.kafka.node import PASSWORD, USER, Kafka
from tests.kafka.tokens import LIFE

confluent_kafka = pytest.importorskip("confluent_kafka")


def security(kafka: Kafka, how: str) -> Mapping[str, Any]:
    listener = {"tls": "TLS", "mtls": "MTLS", "plain": "PLAIN"}.get(how, "SASL")
    where = {"bootstrap.servers": kafka.listening(listener)}
    trust = {"security.protocol": "ssl", "ssl.ca.location": str(kafka.certificates.ca)}
    if how == "plain":
        return where
    if how == "tls":
        return {**where, **trust}
    if how == "mtls":
        own = str(kafka.certificates.client)
        return {**where, **trust, "ssl.certificate.location": own, "ssl.key.location": own}
    sasl = {"security.protocol": "sasl_plaintext", "sasl.mechanism": how}
    if how == "OAUTHBEARER":
        return {**where, **sasl, "oauth_cb": lambda _asked: (kafka.issuer.token(), time.time() + LIFE)}
    return {**where, **sasl, "sasl.username": USER, "sasl.password": PASSWORD}


@pytest.mark.parametrize("how", ["plain", "tls", "mtls", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_client_gets_in_by_every_listener_and_reads_what_it_wrote(kafka: Kafka, topics: str, how: str) -> None:
    settings = security(kafka, how)
    make(kafka, topics + how)
    assert produce(topics + how, b"hello", **settings).offset() == 0
    (message,) = consume(topics + how, 1, **settings)
    assert (message.key(), message.value(), message.headers()) == (b"key", b"hello", [("a", b"1"), ("a", b"2")])


@pytest.mark.parametrize("how", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_does_not_get_in(kafka: Kafka, topics: str, how: str) -> None:
    seen: list[Any] = []
    settings = {**security(kafka, how), "sasl.password": "wrong", "message.timeout.ms": 3000, "error_cb": seen.append}
    error = produce(topics + "closed", b"hello", **settings)
    assert error.code() == confluent_kafka.KafkaError._MSG_TIMED_OUT
    assert confluent_kafka.KafkaError._AUTHENTICATION in {one.code() for one in seen}


def test_a_cluster_loses_its_leader_and_its_controller_and_no_message(kafka_cluster: Kafka, topics: str) -> None:
    topic, settings = topics + "orders", {"bootstrap.servers": kafka_cluster.brokers, "acks": "all"}
    make(kafka_cluster, topic)
    assert produce(topic, b"1", **settings).offset() == 0
    leader = kafka_cluster.leader(topic)
    leader.kill()
    assert produce(topic, b"2", **settings).offset() == 1
    assert kafka_cluster.leader(topic) is not leader
    ports = leader.addresses
    leader.start()
    assert leader.addresses == ports
    controller = kafka_cluster.controller()
    controller.kill()
    assert produce(topic, b"3", **settings).offset() == 2
    controller.start()
    assert [message.value() for message in consume(topic, 3, **settings)] == [b"1", b"2", b"3"]


def test_without_a_majority_nothing_is_taken(kafka_cluster: Kafka, topics: str) -> None:
    topic, settings = topics + "orders", {"bootstrap.servers": kafka_cluster.brokers, "acks": "all"}
    make(kafka_cluster, topic)
    assert produce(topic, b"1", **settings).offset() == 0
    leader = kafka_cluster.leader(topic)
    others = [node for node in kafka_cluster.nodes if node is not leader]
    for node in others:
        node.kill()
    refused = produce(topic, b"2", **settings, **{"message.timeout.ms": 4000})
    assert isinstance(refused, confluent_kafka.KafkaError)
    kafka_cluster.start()
    assert produce(topic, b"3", **settings).offset() >= 1
