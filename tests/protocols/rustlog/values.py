"""Values the RustLog tests share: sessions, runs, frames."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.protocols.rustlog.server.session import RustlogServer
from gateway.protocols.rustlog.settings import FreshGroup, RustlogSettings
from gateway.requests import Fetched, PartitionInfo, Published, TopicInfo, Topics
from gateway.settings import Limits
from gateway.wire.session import SessionContext
from tests.protocols.script import Script

META = BatchMeta(b"i" * 16, Origin("rustlog", "rustlog"))


def serving(fresh_group: FreshGroup = FreshGroup.REQUESTED, limits: Limits | None = None) -> Script:
    return Script(RustlogServer(SessionContext("rustlog", RustlogSettings(fresh_group), limits=limits or Limits())))


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def run(values: Sequence[bytes], base: int = 0, topic: str = "demo", time: int = 1_700_000_000_000) -> Run:
    return Run(topic, 0, base, Columns.of(values) if values else Columns.of([]), [time] * len(values), [(0, 0, META)])


def fetched(values: Sequence[bytes], base: int = 0, *, end: int | None = None, start: int = 0) -> Fetched:
    runs = [run(values, base)] if values else []
    following = base + len(values)
    return Fetched(runs, following, start, following if end is None else end)


def published(base: int, topic: str = "demo") -> Published:
    return Published(topic, 1, 0, base)


def topics(**ends: Sequence[int]) -> Topics:
    return Topics([TopicInfo(n, [PartitionInfo(i, 0, end) for i, end in enumerate(e)]) for n, e in ends.items()])


def refusal(code: int, text: str) -> bytes:
    raw = text.encode()
    return framed(b"\xfe" + code.to_bytes(2, "big") + len(raw).to_bytes(2, "big") + raw)


def produce(topic: str, partition: int, *values: bytes) -> bytes:
    name = topic.encode()
    head = b"\x01" + len(name).to_bytes(2, "big") + name + partition.to_bytes(4, "big")
    return framed(head + len(values).to_bytes(4, "big") + b"".join(framed(v) for v in values))


def fetch(topic: str, offset: int, max_bytes: int, group: str = "", partition: int = 0) -> bytes:
    names = b"".join(len(n.encode()).to_bytes(2, "big") + n.encode() for n in (group, topic))
    return framed(
        b"\x02" + names + partition.to_bytes(4, "big") + offset.to_bytes(8, "big") + max_bytes.to_bytes(4, "big")
    )
