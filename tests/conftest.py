"""What holds for all tests: examples are made without a look at the clock, and the same ones each time where it counts; those
with Spark share one worker.
"""

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings

import gateway.protocols
from tests.kafka.fixtures import kafka, kafka_cluster, topics

__all__ = ["kafka", "kafka_cluster", "topics"]  # for every test; whoever uses one is marked `kafka`

if "GATEWAY_MORE_PROTOCOLS" in os.environ:  # a folder of them, before anybody asks the registry
    gateway.protocols.__path__.append(os.environ["GATEWAY_MORE_PROTOCOLS"])

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", settings.get_profile("house"), derandomize=True, database=None)
settings.load_profile("gate" if "CI" in os.environ else "house")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """With several workers (`--dist loadgroup`) Spark starts once, and takes one core of them."""
    for item in items:
        if not {"kafka", "kafka_cluster"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")
        if item.get_closest_marker("spark") is not None or "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
