"""The listener keys of Fujin."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from gateway.requests import Start
from gateway.settings import Seconds


class WriteHeaders(enum.Enum):
    """Whether WRITE commands carry headers (wire 1.6)."""

    DIALECT = "dialect"  # `always` for `dialect: document`, else `never`
    NEVER = "never"
    ALWAYS = "always"
    AUTO = "auto"  # told apart at the first WRITE of each stream


@attrs.frozen
class PingSettings:
    """How the server looks whether a client is there (wire 1.2)."""

    interval: Seconds = Seconds(2.0)
    timeout: Seconds = Seconds(5.0)


@attrs.frozen
class ReaderSettings:
    """What a reader's name stands for."""

    topic: str
    start: Start = Start.LATEST


@attrs.frozen
class FujinSettings:
    """What `routes.yaml` can say about a Fujin listener."""

    ping: PingSettings = PingSettings()
    write_headers: WriteHeaders = WriteHeaders.DIALECT
    fetch_wait: Seconds = Seconds(8.0)
    """How long FETCH waits for a message; stock clients give up after 10 s (wire 0, rule 3)."""
    readers: Mapping[str, ReaderSettings] = attrs.Factory(dict)
    """The readers there are. Without any, a name is a topic, read from the tail the first time."""
