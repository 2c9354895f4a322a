"""Values the Felix tests share: sessions, frames, messages, vectors."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway import requests
from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.protocols.felix.server.session import FelixServer
from gateway.protocols.felix.settings import EventSettings, FelixSettings
from gateway.settings import Dialect
from gateway.wire.session import SessionContext
from tests.protocols.script import Script

VECTORS = Path(__file__).parent / "vectors"
STREAM = {"tenant_id": "t1", "namespace": "default", "stream": "demo"}
META = BatchMeta(b"i" * 16, Origin("felix", "felix"))
IDENTITY = requests.Identity(authenticated=True, name="t1")


def vectors(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((VECTORS / name).read_text())
    return loaded


FRAMES = {vector["name"]: bytes.fromhex(vector["hex"]) for vector in vectors("frame_valid.json")}


def framed(payload: bytes, flags: int = 0) -> bytes:
    return struct.pack(">IHHI", 0x464C5831, 1, flags, len(payload)) + payload


def js(**fields: object) -> bytes:
    """A JSON frame, compact, fields in the order given."""
    return framed(json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode())


def split_frames(data: bytes) -> list[tuple[int, bytes]]:
    frames = []
    while data:
        magic, version, flags, length = struct.unpack_from(">IHHI", data)
        assert (magic, version) == (0x464C5831, 1)
        assert len(data) >= 12 + length
        frames.append((flags, data[12 : 12 + length]))
        data = data[12 + length :]
    return frames


def serving(
    dialect: Dialect = Dialect.AUTO,
    *,
    auth: bool = False,
    create: bool = True,
    scope: str = "t1/default",
    events: EventSettings | None = None,
    channel: int | None = 0,
) -> Script:
    settings = FelixSettings(scope, create, events or EventSettings(delay=0.0))
    return Script(FelixServer(SessionContext("felix", settings, dialect, auth)), channel=channel)


def run(values: Sequence[bytes], base: int = 0) -> Run:
    return Run("demo", 0, base, Columns.of(values), [1] * len(values), [(0, 0, META)])


def taken(*values: bytes, base: int = 0, ended: bool = False) -> requests.Taken:
    return requests.Taken([requests.Delivered(run(values, base))] if values else [], ended)


def batch(
    *values: bytes, names: tuple[str, str, str] = ("t1", "default", "demo"), request: tuple[int, int] | None = None
) -> bytes:
    head = b"" if request is None else struct.pack(">QB", *request)
    parts = b"".join(len(n.encode()).to_bytes(2, "big") + n.encode() for n in names)
    packed = b"".join(len(v).to_bytes(4, "big") + v for v in values)
    return framed(head + parts + len(values).to_bytes(4, "big") + packed, 1 if request is None else 9)


PUBLISHED = requests.Published("demo", 1)
