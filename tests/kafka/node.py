"""A real Kafka of its published jars: one node, or several that die and come back, on ports that the system chose."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import attrs
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from tests.kafka.tokens import Issuer
from tests.once import made

JARS = Path(".deps/jars/kafka")
CLUSTER = "Z2F0ZXdheS10ZXN0LWthZg"
"""The id of every cluster here: 16 bytes in base64, as Kafka writes them."""
USER, PASSWORD = "alice", "alice-secret"
"""Who may log in to the listener SASL: by PLAIN, by SCRAM, and by OAUTHBEARER with a token of `Kafka.issuer`."""
PATIENCE = 120.0
"""Seconds for a start or an end, on a machine with other things to do."""
LISTENERS = {"PLAIN": "PLAINTEXT", "TLS": "SSL", "MTLS": "SSL", "SASL": "SASL_PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
LOGGING = """\
status=error
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %m (%c)%n
logger.config.name=org.apache.kafka.common.config
logger.config.level=warn
"""
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAIN",
    "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "broker.heartbeat.interval.ms": "200",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "listener.name.sasl.plain.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    ),
    "listener.name.sasl.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
        ' unsecuredLoginStringClaim_sub="broker";'
    ),
    "listener.name.sasl.oauthbearer.sasl.server.callback.handler.class": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    ),
    **{
        f"listener.name.sasl.scram-sha-{bits}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        )
        for bits in (256, 512)
    },
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "listener.name.mtls.ssl.client.auth": "required",
}


@attrs.frozen
class Certificates:
    """Whom the listeners TLS and MTLS are, and one that MTLS lets in."""

    ca: Path
    server: Path
    client: Path
    """A certificate and its key, in one file."""

    @classmethod
    def make(cls, directory: Path, *hosts: str) -> Self:
        authority = trustme.CA()
        made = cls(directory / "ca.pem", directory / "server.pem", directory / "client.pem")
        authority.cert_pem.write_to_path(str(made.ca))
        for path, names in ((made.server, hosts), (made.client, ("client.example",))):
            issued = authority.issue_cert(*names)
            key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
            chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
            path.write_bytes(
                chain
                + key.private_bytes(  # the only encoding of a key that Kafka reads
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
            )
        return made


@functools.cache
def java() -> tuple[str, int]:
    """A Java that runs Kafka 4, and which; skips the test, saying why, where there is none or the jars are not there."""
    from gateway.errors import Unsupported
    from gateway.pipeline.session import find_java

    if not JARS.is_dir():
        pytest.skip(
            "Kafka's jars are not here: `make setup` fetches them where there is Maven, or Debian to get it from"
        )
    try:
        path, release = find_java()
        return str(path), release
    except Unsupported as error:
        pytest.skip(str(error))


def command(directory: Path, *arguments: str, jars: Path = JARS) -> list[str]:
    """A call of a class of Kafka's: a small heap, and quick to start rather than quick for long."""
    logging = directory / "log4j2.properties"
    logging.write_text(LOGGING)
    options = "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xlog:disable"
    classes = ":".join(sorted(str(jar.resolve()) for jar in jars.glob("*.jar")))
    return [java()[0], *options, f"-Dlog4j2.configurationFile={logging}", "-cp", classes, *arguments]


@functools.cache
def read_classes() -> str:
    """The option of a Java that finds Kafka's classes as another one has read them, which is half of a start."""
    _path, release = java()
    jars = hashlib.sha256((JARS / ".lock").read_bytes()).hexdigest()[:16]
    return f"-XX:SharedArchiveFile={made(f'kafka-{jars}-java-{release}.jsa', _learned)}"


def _learned(archive: Path) -> None:
    # it is written at the end of one that was up, had a topic and took a record
    from confluent_kafka import Producer
    from confluent_kafka.admin import NewTopic

    with (
        TemporaryDirectory() as directory,
        Kafka(Path(directory) / "kafka", classes=f"-XX:ArchiveClassesAtExit={archive}") as kafka,
    ):
        (topic,) = kafka.admin.create_topics([NewTopic("one", 1)]).values()
        topic.result(PATIENCE)
        producer = Producer({"bootstrap.servers": kafka.brokers, "log_level": 0})
        producer.produce("one", b"value")
        assert producer.flush(PATIENCE) == 0
        kafka.nodes[0].stop()
    archive.touch()  # not every Java can; what is empty is none


def properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


class Node:
    """A broker that is a controller too."""

    def __init__(
        self, number: int, host: str, directory: Path, names: Sequence[str], classes: str, tokens: str
    ) -> None:
        self.number = number
        self._options = classes, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens}"
        self.directory = directory
        self.data = directory / "data"
        self.log = directory / "kafka.log"
        directory.mkdir(parents=True)
        # bound and never listening: nobody else is given these ports, also while the node is down
        self._reserved = {name: socket.socket() for name in names}
        for one in self._reserved.values():
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, 0))
        self.addresses = {name: "{}:{}".format(*one.getsockname()) for name, one in self._reserved.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self._up = threading.Event()
        self._reader: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        assert self._process is None, "it runs"
        self._up, begun = threading.Event(), threading.Event()
        self._reader = threading.Thread(target=self._run, args=(self._up, begun), daemon=True)
        self._reader.start()
        begun.wait()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until it serves: a cluster's nodes wait for each other, so they are all started before one is waited for."""
        assert self._up.wait(PATIENCE), f"no start within {PATIENCE:g} s: {self.last_words()}"
        assert self._process is not None
        assert self._process.poll() is None, self.last_words()

    def kill(self) -> None:
        """As a power cut: `kill -9`."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As an operator does it: partitions are handed over first."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def close(self) -> None:
        if self.running:
            self.kill()
        for one in self._reserved.values():
            one.close()

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        assert process is not None, "it does not run"
        process.send_signal(number)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
        assert self._reader is not None
        self._reader.join()

    def _run(self, up: threading.Event, begun: threading.Event) -> None:
        """A thread of its own, because the system ends a process with the thread that started it, if it is to end it at all:
        of a test run that is killed nothing stays.
        """
        mortal = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        try:
            self._process = process = subprocess.Popen(
                [
                    *mortal,
                    *command(self.directory, *self._options, "kafka.Kafka", str(self.directory / "server.properties")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        finally:
            begun.set()
        assert process.stdout is not None
        with process.stdout as out, self.log.open("ab") as log:
            for line in out:
                log.write(line)
                log.flush()
                if b"Kafka Server started (kafka.server" in line:
                    up.set()
        up.set()  # whoever waits sees that it is over


class Kafka:
    """Some nodes that are one cluster."""

    def __init__(
        self,
        directory: Path,
        nodes: int = 1,
        settings: Mapping[str, str] | None = None,
        hosts: Sequence[str] = ("127.0.0.1",),
        classes: str = "",
    ) -> None:
        classes = classes or read_classes()  # without Java no test
        self.directory = directory
        self.issuer = Issuer(USER, PASSWORD)
        keys = directory / "keys.json"
        hosts = [hosts[number % len(hosts)] for number in range(nodes)]
        self.nodes = [
            Node(number + 1, host, directory / str(number + 1), list(LISTENERS), classes, keys.as_uri())
            for number, host in enumerate(hosts)
        ]
        keys.write_text(self.issuer.keys())
        self.certificates = Certificates.make(directory, "localhost", *dict.fromkeys(hosts))
        copies = str(min(nodes, 3))
        cluster = {
            **SETTINGS,
            # one voter elects itself at once; several are patient, because the machine may be busy
            "controller.quorum.election.timeout.ms": "100" if nodes == 1 else "2000",
            "controller.quorum.fetch.timeout.ms": "4000",
            "broker.session.timeout.ms": "9000" if nodes == 1 else "5000",
            "controller.quorum.voters": ",".join(
                f"{node.number}@{node.addresses['CONTROLLER']}" for node in self.nodes
            ),
            "default.replication.factor": copies,
            "min.insync.replicas": "1" if nodes < 3 else "2",
            **{f"{topic}.replication.factor": copies for topic in ("offsets.topic", "transaction.state.log")},
            "transaction.state.log.min.isr": "1" if nodes < 3 else "2",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": "1",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "ssl.keystore.location": str(self.certificates.server),
            "ssl.truststore.location": str(self.certificates.ca),
            **(settings or {}),
        }
        for node in self.nodes:
            where = ",".join(f"{name}://{address}" for name, address in node.addresses.items())
            own = {
                "node.id": str(node.number),
                "log.dirs": str(node.data),
                "listeners": where,
                "advertised.listeners": ",".join(one for one in where.split(",") if not one.startswith("CONTROLLER")),
            }
            (node.directory / "server.properties").write_text(properties({**cluster, **own}))
            self._format(node)

    @property
    def brokers(self) -> str:
        """Where a client begins, as it wants to be told."""
        return self.listening("PLAIN")

    def listening(self, listener: str) -> str:
        """The addresses of PLAIN, TLS, MTLS or SASL."""
        return ",".join(node.addresses[listener] for node in self.nodes)

    def start(self) -> None:
        """All nodes that are down, together."""
        for node in self.nodes:
            if not node.running:
                node.start(wait=False)
        for node in self.nodes:
            node.wait()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @functools.cached_property
    def admin(self) -> Any:
        """Kept: what was asked of one ends with it."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})

    def leader(self, topic: str, partition: int = 0) -> Node:
        described = self.admin.list_topics(topic, timeout=PATIENCE).topics[topic]
        return self._numbered(described.partitions[partition].leader)

    def controller(self) -> Node:
        """The controller that is active, as the nodes' own logs tell: a client is only told of some broker."""
        led: dict[int, int] = {}
        for node in self.nodes:
            if node.running:
                for line in node.log.read_text(errors="replace").splitlines():
                    if "Completed transition to Leader(" in line:
                        led[int(line.split(", epoch=", 1)[1].split(",", 1)[0])] = node.number
        return self._numbered(led[max(led)])

    def _numbered(self, number: int) -> Node:
        (node,) = (node for node in self.nodes if node.number == number)
        return node

    def _format(self, node: Node) -> None:
        """What `StorageTool format` makes, called once and kept: only two numbers in it differ between nodes."""
        shutil.copytree(formatted(node.directory), node.data)
        identity = hashlib.blake2b(str(node.data).encode(), digest_size=16).digest()
        text = properties(
            {
                "version": "1",
                "cluster.id": CLUSTER,
                "node.id": str(node.number),
                "directory.id": base64.urlsafe_b64encode(identity).decode().rstrip("="),
            }
        )
        (node.data / "meta.properties").write_text(text)


def formatted(directory: Path) -> Path:
    """A log directory as Kafka's own tool lays it out, with the users that may log in."""
    users = [
        argument
        for bits in (256, 512)
        for argument in ("--add-scram", f"SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]")
    ]
    asked = hashlib.sha256(repr((users, CLUSTER, (JARS / ".lock").read_text())).encode()).hexdigest()[:16]
    return made(f"kafka-formatted-{asked}", functools.partial(_laid_out, directory, users))


def _laid_out(directory: Path, users: Sequence[str], fresh: Path) -> None:
    settings = directory / "format.properties"
    settings.write_text(
        properties(
            {
                **SETTINGS,
                "node.id": "1",
                "log.dirs": str(fresh),
                "controller.quorum.voters": "1@127.0.0.1:1",
                "listeners": "PLAIN://127.0.0.1:2,CONTROLLER://127.0.0.1:1",
                "advertised.listeners": "PLAIN://127.0.0.1:2",
            }
        )
    )
    told = subprocess.run(  # noqa: TID251  # nothing else is to go on meanwhile
        command(directory, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings), *users),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE,
        check=False,
    )
    assert told.returncode == 0, told.stdout.decode(errors="replace")[-2000:]
