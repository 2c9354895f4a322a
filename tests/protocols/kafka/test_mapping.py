"""What the library's errors, records and settings are here; the library itself says what its numbers mean."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.envelope import Copies
from gateway.errors import Status, TargetError, TargetLost, TargetRefused
from gateway.librdkafka.login import FOREVER, expiry_of
from gateway.protocols.kafka.client.settings import settings_of
from gateway.protocols.kafka.wire.mapping import target_error
from gateway.protocols.kafka.wire.records import UNREADABLE, ids_of, runs_of
from gateway.protocols.registry import Reach
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext, Credentials, Mechanism

library = pytest.importorskip("confluent_kafka")


@pytest.mark.parametrize(
    ("name", "status", "final"),
    [
        ("SASL_AUTHENTICATION_FAILED", Status.UNAUTHENTICATED, False),
        ("_AUTHENTICATION", Status.UNAUTHENTICATED, False),
        ("UNSUPPORTED_SASL_MECHANISM", Status.UNAUTHENTICATED, False),
        ("UNKNOWN_TOPIC_OR_PART", Status.NOT_FOUND, True),
        ("_UNKNOWN_TOPIC", Status.NOT_FOUND, True),
        ("_UNKNOWN_PARTITION", Status.NOT_FOUND, True),
        ("TOPIC_EXCEPTION", Status.INVALID, True),
        ("MSG_SIZE_TOO_LARGE", Status.TOO_LARGE, True),
        ("RECORD_LIST_TOO_LARGE", Status.TOO_LARGE, True),
        ("TOPIC_AUTHORIZATION_FAILED", Status.DENIED, True),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Status.DENIED, False),
        ("GROUP_AUTHORIZATION_FAILED", Status.DENIED, False),
        ("INVALID_RECORD", Status.INVALID, True),
        ("POLICY_VIOLATION", Status.INVALID, True),
    ],
)
def test_a_refusal_says_what_it_is(name: str, status: Status, final: bool) -> None:
    error = target_error(library.KafkaError(getattr(library.KafkaError, name)))
    assert isinstance(error, TargetRefused)
    assert (error.refusal, error.final) == (status, final)
    assert error.message


@pytest.mark.parametrize(
    "name", ["_MSG_TIMED_OUT", "_TIMED_OUT", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"]
)
def test_of_what_may_have_happened_nobody_knows(name: str) -> None:
    assert isinstance(target_error(library.KafkaError(getattr(library.KafkaError, name))), TargetLost)


@pytest.mark.parametrize(
    "name", ["_TRANSPORT", "_ALL_BROKERS_DOWN", "NOT_ENOUGH_REPLICAS", "KAFKA_STORAGE_ERROR", "_PURGE_QUEUE"]
)
def test_an_outage_is_none_of_these(name: str) -> None:
    assert type(target_error(library.KafkaError(getattr(library.KafkaError, name)))) is TargetError


def reach(credentials: Credentials | None = None, tls: ClientTls | None = None) -> Reach:
    context = ClientContext(credentials or Credentials(), caller="gateway-x-sending")
    return Reach([("h", 1), ("::1", 2)], context, tls, 5.0, lambda _completions: None)


def certifi() -> str:
    """Some file of certificates."""
    import ssl

    return ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"


def test_settings_are_the_librarys() -> None:
    plain = settings_of(reach())
    assert plain["bootstrap.servers"] == "h:1,[::1]:2"
    assert plain["security.protocol"] == "plaintext"
    scram = settings_of(
        reach(Credentials(username="a", password="b", mechanism=Mechanism.SCRAM_512), ClientTls(ca="c"))
    )
    assert scram["security.protocol"] == "sasl_ssl"
    assert (scram["sasl.mechanisms"], scram["sasl.username"], scram["ssl.ca.location"]) == ("SCRAM-SHA-512", "a", "c")
    token = settings_of(reach(Credentials(token="t")))
    assert token["sasl.mechanisms"] == "OAUTHBEARER"
    assert token["oauth_cb"]("") == ("t", float(FOREVER))
    for settings in (plain, {**scram, "ssl.ca.location": certifi()}, token):
        library.Producer(dict(settings)).close()  # who knows them takes them
    with pytest.raises(TargetError):
        settings_of(reach(tls=ClientTls(server_name="other")))


@pytest.mark.parametrize(
    ("token", "expiry"),
    [("e30.eyJleHAiOiAxMjN9.x", 123), ("opaque", FOREVER), ("a.b.c", FOREVER), ("a.W10.c", FOREVER), ("a.eyJleHAiOiAieCJ9.c", FOREVER)],
)  # fmt: skip
def test_a_token_says_when_it_is_over(token: str, expiry: int) -> None:
    assert expiry_of(token) == expiry


class Record:
    def __init__(self, topic: str, partition: int, offset: int, value: bytes | None, headers: Any = None) -> None:
        self._values = topic, partition, offset, value, headers

    def topic(self) -> str:
        return self._values[0]

    def partition(self) -> int:
        return self._values[1]

    def offset(self) -> int:
        return self._values[2]

    def value(self) -> bytes | None:
        return self._values[3]

    def headers(self) -> Any:
        if isinstance(self._values[4], Exception):
            raise self._values[4]  # as the library does for names that are no text
        return self._values[4]

    def key(self) -> bytes | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 0, -1


def test_runs_end_where_partitions_do_and_at_gaps() -> None:
    records = [
        Record("t", 0, 4, b"a"),
        Record("t", 0, 5, None, [("h", None), ("h", b"1")]),
        Record("t", 0, 7, b"b"),
        Record("t", 1, 8, b"c"),
        Record("u", 1, 9, b"d"),
    ]
    runs = list(runs_of(records))
    assert [(run.topic, run.partition, run.base_offset, run.columns.values()) for run in runs] == [
        ("t", 0, 4, [b"a", b""]),
        ("t", 0, 7, [b"b"]),
        ("t", 1, 8, [b"c"]),
        ("u", 1, 9, [b"d"]),
    ]
    assert runs[0].columns.headers_of(1) == (("h", b""), ("h", b"1"))
    assert runs[0].times == [0, 0]


@pytest.mark.parametrize(
    "odd", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), SystemError("a hole")]
)
def test_headers_whose_names_are_no_text_leave_the_message_and_a_sign(odd: Exception) -> None:
    (run,) = runs_of([Record("t", 0, 4, b"a", odd), Record("t", 0, 5, b"b", [("h", b"1")])])
    assert run.columns.values() == [b"a", b"b"]
    assert run.columns.headers_of(0) == UNREADABLE
    assert run.columns.headers_of(1) == (("h", b"1"),)


def test_a_message_that_is_copied_says_which_it_is() -> None:
    copies = Copies(b"s" * 16, [(7, b"\x01\x02", 3, 2), (20, b"\xff", 0, 1)])
    assert list(ids_of(copies)) == [
        (("gateway.id", b"0102:3"),),
        (("gateway.id", b"0102:4"),),
        (("gateway.id", b"ff:0"),),
    ]
