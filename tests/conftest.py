"""What holds for all tests: examples are made without a look at the clock, and the same ones each time where it counts; what is
dear to start is started once, and its tests share a worker.
"""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

import gateway.protocols
from tests.kafka.fixtures import kafka, kafka_cluster, topics

__all__ = ["kafka", "kafka_cluster", "topics"]  # for every test; whoever uses one is marked `kafka`

if "GATEWAY_MORE_PROTOCOLS" in os.environ:  # a folder of them, before anybody asks the registry
    gateway.protocols.__path__.append(os.environ["GATEWAY_MORE_PROTOCOLS"])

# whoever is started in the background of a shell ignores interrupts, and so would the processes that tests interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", settings.get_profile("house"), derandomize=True, database=None)
settings.load_profile("gate" if "CI" in os.environ else "house")


HEAVY = {"spark": {"spark"}, "kafka": {"kafka", "kafka_cluster"}, "browser": {"browser"}}
"""What takes seconds to start, and the fixtures that start it. A test that asks for one of them has the marker, and needs none of
its own; a test with the marker alone starts it by itself, in any worker."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one group go to one worker (`--dist loadgroup`), one after the other: those that use the same heavy thing, and
    those of a module that has a fixture of its own. The heavy ones begin, so that the others fill up what is left of the time.
    """
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        group = None
        for heavy, fixtures in HEAVY.items():
            if not fixtures.isdisjoint(item.fixturenames):
                item.add_marker(heavy)
                group = heavy
        used = item._fixtureinfo.name2fixturedefs.values()
        if group is None and any(made.scope in {"module", "package"} for makers in used for made in makers):
            group = item.path.stem
        if group is not None and "workerinput" in vars(item.config):
            # what an `xdist_group` would do: the plugin writes the group where pytest 9.2 does not look for it any more
            item._id = type(item.id).parse(f"{item.nodeid}@{group}")
    items.sort(key=lambda item: not any(item.get_closest_marker(heavy) is not None for heavy in HEAVY))
