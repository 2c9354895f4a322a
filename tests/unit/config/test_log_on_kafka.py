"""`storage.kafka`: what it may say, what it cannot do, and what `check` warns of."""

from __future__ import annotations

import pytest

from gateway import model
from gateway.config.load import Examined, examine
from gateway.librdkafka.login import login_settings

BASE = """\
version: 1
listeners:
  flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}
storage:
  kafka: {{brokers: ["10.0.0.1:9092"]{more}}}
{rest}"""


def examined(more: str = "", rest: str = "") -> Examined:
    return examine(BASE.format(more=f", {more}" if more else "", rest=rest), environ={})


def said(found: Examined) -> list[tuple[int, str, str]]:
    return [(one.line, one.path, one.message) for one in (*found.problems, *found.warnings)]


def test_what_is_not_said_is_careful() -> None:
    found = examined()
    assert said(found) == []
    assert found.config is not None
    kafka = found.config.storage.kafka
    assert kafka is not None
    assert (kafka.brokers, kafka.prefix, kafka.replication, kafka.insync) == ((("10.0.0.1", 9092),), "gw.", 3, 2)
    assert (kafka.tls, kafka.sasl, kafka.compression) == (model.TlsNone(), None, model.KafkaCompression.LZ4)


@pytest.mark.parametrize(
    ("more", "path"),
    [("replication: 1", "replication"), ("min_insync: 1", "min_insync"), ("replication: 2", "replication")],
)
def test_one_broker_is_not_many(more: str, path: str) -> None:
    found = examined(more)
    assert not found.problems
    assert [(line, where) for line, where, _text in said(found)] == [(5, f"storage.kafka.{path}")]


@pytest.mark.parametrize(
    ("more", "rest", "line", "path", "problem"),
    [
        ("replication: 2, min_insync: 3", "", 5, "storage.kafka.min_insync", "nothing is stored"),
        ("timeout: 500ms", "", 5, "storage.kafka.timeout", "1 to 300 seconds"),
        ("timeout: 6m", "", 5, "storage.kafka.timeout", "1 to 300 seconds"),
        ('prefix: "a b"', "", 5, "storage.kafka.prefix", "names on Kafka have"),
        (
            "sasl: {mechanism: scram-sha-256, username: a}",
            "",
            5,
            "storage.kafka.sasl.mechanism",
            "username and password",
        ),
        (
            "tls: system, sasl: {mechanism: oauthbearer, username: a, password: b}",
            "",
            5,
            "storage.kafka.sasl.mechanism",
            "token_url",
        ),
        ("", "  durability: memory\n", 6, "storage.durability", "no memory topics"),
        ("", 'topics: {"a.*": {durability: memory}}\n', 6, 'topics["a.*"].durability', "no memory topics"),
        (
            "",
            "routes: [{name: r, match: {}, to: [{store: {topic: t, durability: memory}}]}]\n",
            6,
            "routes[0].to[0].store.durability",
            "no memory topics",
        ),
    ],
)
def test_what_cannot_be_is_said_with_its_place(more: str, rest: str, line: int, path: str, problem: str) -> None:
    ((at, where, text),) = [(one.line, one.path, one.message) for one in examined(more, rest).problems]
    assert (at, where) == (line, path)
    assert problem in text


def test_a_secret_is_not_sent_in_the_open_unsaid() -> None:
    found = examined("sasl: {mechanism: plain, username: a, password: b}")
    assert not found.problems
    ((_line, path, text),) = said(found)
    assert (path, "without tls" in text) == ("storage.kafka.sasl.mechanism", True)


FORWARDED = """\
upstreams: {far: {protocol: felix, address: "10.0.0.9:5000", tls: system}}
routes:
  - name: r
    match: {}
    to:
      - {store: {topic: t, retention: 7d}}
      - {forward: {upstream: far, address: a, accept_loss: all}}
"""


@pytest.mark.parametrize(
    ("rest", "line", "path", "text"),
    [
        ("  free_space_floor: 1GiB\n", 6, "storage.free_space_floor", "nothing comes of it"),
        ("  page_cache: 64MiB\n", 6, "storage.page_cache", "nothing comes of it"),
        (FORWARDED, 11, "routes[0].to[0].store.retention", "asks no forward"),
    ],
)
def test_what_means_less_there_is_said(rest: str, line: int, path: str, text: str) -> None:
    found = examined("", rest)
    assert not found.problems
    ((at, where, warning),) = said(found)
    assert (at, where) == (line, path)
    assert text in warning


def test_what_the_library_is_told() -> None:
    assert login_settings(tls=False) == {"security.protocol": "plaintext"}
    assert login_settings(tls=True, ca="ca", cert="c", key="k") == {
        "security.protocol": "ssl",
        "ssl.ca.location": "ca",
        "ssl.certificate.location": "c",
        "ssl.key.location": "k",
    }
    scram = login_settings(tls=True, mechanism="scram-sha-512", username="u", password="p")
    assert scram == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    token = login_settings(
        tls=False, mechanism="oauthbearer", username="u", password="p", token_url="http://t", scope="s"
    )
    assert token["sasl.oauthbearer.token.endpoint.url"] == "http://t"
    assert (token["security.protocol"], token["sasl.oauthbearer.scope"]) == ("sasl_plaintext", "s")
