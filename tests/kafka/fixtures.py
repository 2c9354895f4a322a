"""A Kafka of one node, shared by all tests of a worker, and one of three for those who break it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.kafka.node import Kafka

NUMBERS = itertools.count(1)


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


@pytest.fixture
def topics() -> str:
    """How the names begin that a test uses: no other test's do."""
    return f"test{next(NUMBERS)}."
