"""A Kafka of one node, shared by all tests of a worker, and one of three for those who break it; and where a log is, for tests of what
holds wherever it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from tests.kafka.node import Kafka

NUMBERS = itertools.count(1)
KAFKA = "kafka"
ON_KAFKA = pytest.param(KAFKA, marks=pytest.mark.kafka(shared=True))
LOGS = ["sqlite", ON_KAFKA]
"""Parameters of who says where a log is."""


@attrs.frozen
class Log:
    """Where gateways keep what they are told: one has a directory, any number have a prefix on a Kafka."""

    kafka: Kafka | None = None
    prefix: str = ""

    @property
    def shared(self) -> bool:
        """Whether several gateways may serve it."""
        return self.kafka is not None

    def storage(self, data: Path | str, more: str = "") -> str:
        """What `routes.yaml` says; `more` is for who has a directory."""
        if self.kafka is None:
            return f'{{path: "{data}"{more}}}'
        brokers = self.kafka.brokers
        return f'{{path: "{data}", kafka: {{brokers: ["{brokers}"], prefix: "{self.prefix}", replication: 1}}}}'

    def under(self, more: str) -> Log:
        """Another one at the same place."""
        return attrs.evolve(self, prefix=f"{self.prefix}{more}.")

    async def unattended(self) -> None:
        """Until a gateway that is frozen is missed, where somebody could."""
        if self.kafka is None:
            return
        from gateway.store.kafka.cluster import KafkaCluster
        from gateway.store.kafka.options import KafkaOptions

        options = KafkaOptions([self.kafka.brokers], prefix=self.prefix)
        cluster = KafkaCluster(options)
        while await trio.to_thread.run_sync(cluster.members, options.owners_group):  # noqa: ASYNC110  # nobody tells
            await trio.sleep(0.1)


def log_of(request: pytest.FixtureRequest) -> Log:
    """The one that the parameter names, with nothing in it."""
    if request.param != KAFKA:
        return Log()
    return Log(request.getfixturevalue("kafka"), f"test{next(NUMBERS)}.")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Nobody may break it, and everybody takes names of their own (`topics`)."""
    with Kafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="module")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Three nodes: whoever ends one of them starts it again."""
    with Kafka(tmp_path_factory.mktemp("kafka"), nodes=3) as running:
        yield running


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest) -> Log:
    """Each test of this runs wherever a log can be."""
    return log_of(request)


@pytest.fixture
def topics() -> str:
    """How the names begin that a test uses: no other test's do."""
    return f"test{next(NUMBERS)}."
