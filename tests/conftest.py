"""What holds for all tests: examples are made without a look at the clock, and the same ones each time where it counts; what is
dear to start is started once, and its tests share a worker.
"""

import os
import signal
import zlib

import pytest
from hypothesis import HealthCheck, settings

import gateway.protocols
from tests.kafka.fixtures import kafka, kafka_cluster, log, topics

__all__ = ["kafka", "kafka_cluster", "log", "topics"]  # for every test; whoever uses one is marked `kafka`

if "GATEWAY_MORE_PROTOCOLS" in os.environ:  # a folder of them, before anybody asks the registry
    gateway.protocols.__path__.append(os.environ["GATEWAY_MORE_PROTOCOLS"])

# whoever is started in the background of a shell ignores interrupts, and so would the processes that tests interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", settings.get_profile("house"), derandomize=True, database=None)
settings.load_profile("gate" if "CI" in os.environ else "house")


HEAVY = {"spark": "spark", "browser": "browser", "kafka": "kafka", "kafka_cluster": "kafka"}
"""The fixtures that start what takes seconds to start, and the markers of who asks for one, which needs none of its own; a test with the
marker alone starts it by itself, in any worker, and one of whose parameters it depends has it with `shared`. Who uses two of them goes
with the later one, which is dearer."""


IN_HALVES = "kafka"
"""What most of them use is started twice, in two workers: they wait for time-outs rather than for a core, and all in one row they would be
what a whole run waits for."""


QUICK = ("tests/conformance/", "tests/properties/", "tests/protocols/", "tests/unit/")
"""Rooms whose tests take milliseconds, but for those that are marked."""


def shared(item: pytest.Function) -> str | None:
    """The name of what it shares with others, so that they go to one worker (`--dist loadgroup`), one after the other: a heavy
    thing, or a module with a fixture of its own. The modules of the quick rooms stay whole as well: to send thousands of tests
    one by one is dearer than most of them are, and what a module has parsed or compiled its next test can use.
    """
    for heavy, marker in HEAVY.items():
        told = item.get_closest_marker(marker)
        if heavy in item.fixturenames or (told is not None and "shared" in told.kwargs):
            item.add_marker(marker)
            whole = item.path.stem if of_its_module(item) else item.nodeid
            return f"{heavy}-{zlib.crc32(whole.encode()) % 2}" if heavy == IN_HALVES else heavy
    return item.path.stem if is_quick(item) or of_its_module(item) else None


def of_its_module(item: pytest.Function) -> bool:
    used = item._fixtureinfo.name2fixturedefs.values()
    return any(made.scope in {"module", "package"} for makers in used for made in makers)


def is_quick(item: pytest.Item) -> bool:
    return item.nodeid.startswith(QUICK) and marked(item).isdisjoint({*HEAVY.values(), "processes"})


def marked(item: pytest.Item) -> set[str]:
    return {marker.name for marker in item.iter_markers()}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long in one piece begins, and small pieces fill up what is left of the time of each worker."""
    places: dict[pytest.Item, int] = {}
    for item in items:
        group = shared(item) if isinstance(item, pytest.Function) else None
        quick = is_quick(item)
        order = (
            group is not None and group.partition("-")[0] in HEAVY,
            group is not None and not quick,
            not marked(item).isdisjoint(HEAVY.values()),
            not quick,
            True,
        )
        places[item] = order.index(True)
        if group is not None and "workerinput" in vars(item.config):
            # what an `xdist_group` would do: the plugin writes the group where pytest 9.2 does not look for it any more
            item._id = type(item.id).parse(f"{item.nodeid}@{group}")
    items.sort(key=places.__getitem__)
