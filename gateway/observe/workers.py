"""One answer for several processes: metrics added up, and what keeps any of them from being ready.

Counters and histograms add up, and so do gauges that say how much there is. A gauge that says how it is (a store that takes
writes, an upstream that is up) is the same for all, or the worst of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import trio
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

PATIENCE = 2.0
"""Seconds that another process has for its answer: of one that has none the last one counts."""
LEAST = min
"""What is bad while it is 0."""
SAME = max
"""What is the same for all, or bad while it is not 0."""
JOINED: Mapping[str, Callable[..., float]] = {
    "gateway_store_writable": LEAST,
    "gateway_config_last_reload_success": LEAST,
    "gateway_upstream_connected": SAME,
    "gateway_upstream_login_refused": SAME,
    "gateway_ingest_state": SAME,
    "gateway_phase": SAME,
    "gateway_build_info": SAME,
    "gateway_store_topics": SAME,
    "gateway_store_size_bytes": SAME,
    "gateway_store_free_bytes": SAME,
    "gateway_group_lag_messages": SAME,
    "gateway_forward_backlog_messages": SAME,
    "process_start_time_seconds": LEAST,
    "python_info": SAME,
}
"""What does not add up."""


def joined(parts: Sequence[Iterable[Metric]]) -> Iterator[Metric]:
    """The families of all processes as one."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for part in parts:
        for family in part:
            known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            found = values.setdefault(known.name, {})
            for sample in family.samples:
                place = sample.name, tuple(sorted(sample.labels.items()))
                join = JOINED.get(family.name)
                if place not in found:
                    found[place] = sample.value
                elif join is None:
                    found[place] += sample.value
                else:
                    found[place] = join(found[place], sample.value)
    for name, family in families.items():
        family.samples = [Sample(sample, dict(labels), value) for (sample, labels), value in values[name].items()]
        yield family


class Families:
    """Something that an encoder asks for its families."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Others:
    """The other processes, by the Unix sockets at which they answer."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._texts: dict[Path, str] = {}

    async def joined(self, own: Callable[[], Iterable[Metric]]) -> Families:
        """With theirs, what this process has to show."""
        await self._ask_all("/metrics", self._texts.__setitem__)
        theirs = [list(text_string_to_metric_families(text)) for text in self._texts.values()]
        return Families(list(joined([list(own()), *theirs])))

    async def problems(self) -> Sequence[str]:
        """What keeps them from being ready."""
        found: dict[Path, Sequence[str]] = {path: ["does not answer"] for path in self._paths}

        def read(path: Path, text: str) -> None:
            found[path] = json.loads(text)["problems"]

        await self._ask_all("/readyz", read)
        return [f"{path.name.replace('metrics-', 'worker ')}: {one}" for path, each in found.items() for one in each]

    async def _ask_all(self, target: str, take: Callable[[Path, str], None]) -> None:
        async def ask(path: Path) -> None:
            with trio.move_on_after(PATIENCE):
                try:
                    take(path, await _get(path, target))
                except (OSError, ValueError):
                    return  # it is being started again

        async with trio.open_nursery() as nursery:
            for path in self._paths:
                nursery.start_soon(ask, path)


async def _get(path: Path, target: str) -> str:
    async with await trio.open_unix_socket(str(path)) as stream:
        await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join([chunk async for chunk in stream])
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator or b"content-length" not in head.lower():
        raise ValueError("no answer")
    return body.decode()
