"""What brokers say of a log that is to be on them, before anybody serves it: nothing is made, and nothing is written.

each address ─► does it answer, is it new enough ─► are we let in ─► are there enough brokers ─► what we may do
                                                                                             └► what is there already
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic, ResourceType

from gateway.store.kafka.options import KafkaOptions

METADATA, WITH_TOPIC_IDS = 3, 10
"""A request, and the version of it that tells which life of a topic is spoken of."""
OLDEST = "2.8"
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
MOST_ANSWER = 1 << 16
TLS_ALERT = b"\x15\x03"
"""How an answer begins of somebody who was spoken to in the open and wants TLS."""
_UNAUTHENTICATED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})  # noqa: SLF001
_DENIED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
NEEDED = {
    AclOperation.READ: "read",
    AclOperation.WRITE: "write",
    AclOperation.DESCRIBE_CONFIGS: "describe the settings of",
    AclOperation.ALTER_CONFIGS: "alter the settings of",
    AclOperation.DELETE: "delete",
}
TOO_LONG_MS = 1 << 30
"""A transaction as long as this no broker begins: it looks at the right to it before, and nothing of it stays."""
STATISTICS_MS = 50


class _Silence:
    """Takes what the library has to say: what there is to say is said here."""

    def log(self, *_said: object) -> None:
        pass


@attrs.frozen
class BrokerFinding:
    """Something that is not as it has to be, by the key of the configuration that it is about."""

    key: str
    message: str
    warning: bool = False


def examine_brokers(options: KafkaOptions) -> Iterator[BrokerFinding]:
    """Blocks, for as long as brokers may take to answer."""
    problems = [(address, _version_problem(options, address)) for address in options.brokers]
    for address, problem in problems:
        if problem:
            yield BrokerFinding("brokers", f"{address} {problem}")
    if all(problem for _address, problem in problems):
        return
    refusals: list[KafkaError] = []
    refused = threading.Event()

    def heard(error: KafkaError) -> None:
        if error.code() in _UNAUTHENTICATED:
            refusals.append(error)
            refused.set()

    admin = AdminClient(options.client(error_cb=heard))
    nodes = _nodes(admin, options, refused)
    if nodes is None:
        said = refusals[0].str() if refusals else "nobody answers with what is asked"
        yield BrokerFinding("sasl" if refusals else "brokers", f"the brokers do not let us in: {said}")
        return
    if nodes < options.replication:
        yield BrokerFinding("replication", f"{options.replication} copies are wanted, and there are {nodes} brokers")
        return
    yield from _rights(admin, options)
    yield from _there_already(admin, options)


def _version_problem(options: KafkaOptions, address: str) -> str:
    # Why this broker will not do; empty if it will. Asked before any login, as every client of Kafka asks.
    host, _colon, port = address.rpartition(":")
    try:
        plain = socket.create_connection((host.strip("[]"), int(port)), options.timeout)
        with plain, _wrapped(options.security, plain, host.strip("[]")) as link:
            link.sendall(API_VERSIONS)
            begin = _exactly(link, 4)
            if begin[:2] == TLS_ALERT:
                return "wants TLS (storage.kafka.tls)"
            (size,) = struct.unpack(">i", begin)
            if not 10 <= size <= MOST_ANSWER:
                return "is no Kafka"
            answer = _exactly(link, size)
    except ssl.SSLError as error:
        return f"does not agree on TLS: {error.reason or error}"
    except OSError as error:
        return f"does not answer: {error.strerror or error}"
    listed = answer[10 : 10 + 6 * ((size - 10) // 6)]
    versions = {key: most for key, _least, most in struct.iter_unpack(">hhh", listed)}
    if versions.get(METADATA, -1) < WITH_TOPIC_IDS:
        return f"is older than Kafka {OLDEST}"
    return ""


def _wrapped(security: Mapping[str, str], plain: socket.socket, host: str) -> socket.socket:
    if "ssl" not in security.get("security.protocol", ""):
        return plain
    context = ssl.create_default_context(cafile=security.get("ssl.ca.location"))
    certificate = security.get("ssl.certificate.location")
    if certificate is not None:
        context.load_cert_chain(certificate, security.get("ssl.key.location"))
    return context.wrap_socket(plain, server_hostname=host)


def _exactly(link: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = link.recv(size - len(found))
        if not more:
            raise OSError("it hangs up")
        found += more
    return found


def _nodes(admin: Any, options: KafkaOptions, refused: threading.Event) -> int | None:
    # how many brokers there are; None if that is not to be had
    asked = admin.describe_cluster(request_timeout=options.timeout)
    while not asked.done() and not refused.is_set():
        admin.poll(0.05)
    if refused.is_set():
        return None
    try:
        return len(asked.result().nodes)
    except KafkaException:
        return None


def _rights(admin: Any, options: KafkaOptions) -> Iterator[BrokerFinding]:
    # whether topics may be made: asked for, and not done
    name = f"{options.prefix}__gateway.check"
    settings = {"min.insync.replicas": str(options.min_insync)}
    new = NewTopic(name, 1, options.replication, config=settings)
    try:
        admin.create_topics([new], validate_only=True, request_timeout=options.timeout)[name].result()
    except KafkaException as error:
        problem = error.args[0]
        if problem.code() in _DENIED:
            yield BrokerFinding("sasl", f"we may not make topics that begin with {options.prefix}: {problem.str()}")
        elif problem.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            yield BrokerFinding("brokers", f"a topic cannot be made: {problem.str()}")
    group = admin.describe_consumer_groups(
        [options.owners_group], include_authorized_operations=True, request_timeout=options.timeout
    )[options.owners_group]
    member = True
    try:
        operations = group.result().authorized_operations
        member = operations is None or AclOperation.READ in operations
    except KafkaException as error:
        member = error.args[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED
    if not member:
        yield BrokerFinding("sasl", f"we may not be a member of the group {options.owners_group} (Read)")
    if not _may_write_once(options):
        yield BrokerFinding(
            "sasl", "we may not write each record once (IdempotentWrite on the cluster, or Write on some topic)"
        )
    if not _may_transact(options):
        wanted = f"whose ids begin with {options.own} (Write and Describe on TransactionalId)"
        yield BrokerFinding("sasl", f"we may not have transactions {wanted}")


def _may_write_once(options: KafkaOptions) -> bool:
    # a producer asks for its number at once; whether it has it is in nothing but its statistics
    assigned: list[bool] = []

    def told(text: str) -> None:
        if json.loads(text).get("eos", {}).get("idemp_state") == "Assigned":
            assigned.append(True)

    settings = {"statistics.interval.ms": STATISTICS_MS, "stats_cb": told}
    until = time.monotonic() + options.timeout
    try:
        producer = Producer(options.producer(**settings), logger=_Silence())
        while not assigned and time.monotonic() < until:
            producer.poll(STATISTICS_MS / 1000)
    except KafkaException as error:
        return bool(error.args[0].code() != KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    return True


def _may_transact(options: KafkaOptions) -> bool:
    name = f"{options.own}check"
    settings = options.producer(**{"transactional.id": name, "transaction.timeout.ms": TOO_LONG_MS})
    del settings["enable.gapless.guarantee"], settings["delivery.timeout.ms"]
    try:
        Producer(settings, logger=_Silence()).init_transactions(options.timeout)
    except KafkaException as error:
        return bool(error.args[0].code() != KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return True


def _there_already(admin: Any, options: KafkaOptions) -> Iterator[BrokerFinding]:
    # what the topics of all gateways are, where they are there: so will be what is made
    from confluent_kafka import TopicCollection

    state = options.state_topic
    names = [state, options.owners_topic]
    asked = admin.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=options.timeout
    )
    there = False
    for name in names:
        try:
            found = asked[name].result()
        except KafkaException:
            continue
        there = there or name == state
        copies = min(len(one.replicas) for one in found.partitions)
        if copies < options.replication:
            message = f"{name} is on {copies} brokers, and not on {options.replication}"
            yield BrokerFinding("replication", message, warning=True)
        if found.authorized_operations is not None:
            missing = [verb for one, verb in NEEDED.items() if one not in found.authorized_operations]
            if missing:
                yield BrokerFinding("sasl", f"we may not {', '.join(missing)} {name}")
                there = False
    if not there:
        return
    settings = _settings(admin, options, state)
    insync = int(settings.get("min.insync.replicas", options.min_insync))
    if insync < options.min_insync:
        message = (
            f"{state} is acknowledged by {insync} brokers, and not by {options.min_insync} (its min.insync.replicas)"
        )
        yield BrokerFinding("min_insync", message, warning=True)
    if settings.get("unclean.leader.election.enable") == "true":
        message = f"{state} may be led by a broker that has not all of it (unclean.leader.election.enable): what was"
        yield BrokerFinding("min_insync", f"{message} acknowledged may be lost", warning=True)


def _settings(admin: Any, options: KafkaOptions, topic: str) -> Mapping[str, str]:
    (asked,) = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, topic)], request_timeout=options.timeout
    ).values()
    try:
        return {key: entry.value for key, entry in asked.result().items()}
    except KafkaException:
        return {}
