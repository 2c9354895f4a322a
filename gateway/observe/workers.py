"""One answer for several processes: metrics added up, and what keeps any of them from being ready.

Counters and histograms add up, and so do gauges that say how much there is. A gauge that says how it is (a store that takes
writes, an upstream that is up) is the same for all, or the worst of them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import trio
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

PATIENCE = 2.0
"""Seconds that another process has for its answer: of one that has none the last one counts."""
AGAIN = 1.0
"""Seconds until one whose events have ended is followed again."""
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

    def __init__(self, paths: Mapping[int, Path]) -> None:
        self._paths = paths
        self._metrics: dict[int, bytes] = {}

    @property
    def numbers(self) -> Sequence[int]:
        return list(self._paths)

    async def joined(self, own: Callable[[], Iterable[Metric]]) -> Families:
        """With theirs, what this process has to show."""
        self._metrics |= await self.ask("GET", "/metrics")
        theirs = [list(text_string_to_metric_families(text.decode())) for text in self._metrics.values()]
        return Families(list(joined([list(own()), *theirs])))

    async def problems(self) -> Sequence[str]:
        """What keeps them from being ready."""
        found: dict[int, Sequence[str]] = {number: ["does not answer"] for number in self._paths}
        for number, answer in (await self.ask("GET", "/readyz", good=(200, 503))).items():
            with suppress(ValueError):
                found[number] = json.loads(answer)["problems"]
        return [f"worker {number}: {one}" for number, each in found.items() for one in each]

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        only: int | None = None,
        good: Sequence[int] = (200,),
    ) -> Mapping[int, bytes]:
        """What each answers, or one of them: those that do, in time. One that does not is being started again. `body`: JSON."""
        found: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            with trio.move_on_after(PATIENCE):
                try:
                    status, answer = await _ask(self._paths[number], method, target, body)
                except (OSError, trio.BrokenResourceError, ValueError):
                    return
                if status in good:
                    found[number] = answer

        async with trio.open_nursery() as nursery:
            for number in self._paths if only is None else [only]:
                if number in self._paths:
                    nursery.start_soon(ask, number)
        return found

    async def follow(self, number: int, target: str) -> AsyncGenerator[tuple[str, bytes] | None]:
        """Live events of one, for as long as it lives, and then of the one that follows it."""
        while True:
            try:
                async with await trio.open_unix_socket(str(self._paths[number])) as stream:
                    await stream.send_all(_request("GET", target, version="1.0"))
                    async for event in _events(stream):
                        yield event
            except (OSError, trio.BrokenResourceError, ValueError):
                pass  # it is being started again
            await trio.sleep(AGAIN)


def _request(method: str, target: str, body: bytes = b"", version: str = "1.1") -> bytes:
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return f"{method} {target} HTTP/{version}\r\nHost: worker\r\nConnection: close\r\n{kind}\r\n".encode() + body


async def _ask(path: Path, method: str, target: str, asked: bytes) -> tuple[int, bytes]:
    async with await trio.open_unix_socket(str(path)) as stream:
        await stream.send_all(_request(method, target, asked))
        answer = b"".join([chunk async for chunk in stream])
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator or b"content-length" not in head.lower():
        raise ValueError("no answer")
    return int(head.split(b" ", 2)[1]), body


async def _events(stream: trio.SocketStream) -> AsyncGenerator[tuple[str, bytes] | None]:
    # of an answer in HTTP/1.0: it has no chunks, and ends with its connection
    buffer, headed, name = b"", False, ""
    async for data in stream:
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            field, _, rest = line.rstrip(b"\r").partition(b": ")
            if not headed:
                headed = not field
            elif field == b"event":
                name = rest.decode()
            elif field == b"data":
                yield name, rest
