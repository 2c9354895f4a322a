"""The listener keys of Fujin."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated

import attrs

from gateway.requests import Start
from gateway.settings import Backoff, Says, Seconds


class WriteHeaders(enum.Enum):
    """Whether WRITE commands carry headers (wire 1.6)."""

    DIALECT = "dialect"  # `always` for `dialect: document`, else `never`
    NEVER = "never"
    ALWAYS = "always"
    AUTO = "auto"  # told apart at the first WRITE of each stream


@attrs.frozen
class PingSettings:
    """How the server looks whether a client is there (wire 1.2)."""

    interval: Annotated[Seconds, Says("How often a silent client is asked whether it is there.")] = Seconds(2.0)
    timeout: Annotated[Seconds, Says("How long its answer may take.")] = Seconds(5.0)
    retries: Annotated[
        int, Says("Pings in a row that may fail before a client of 0.5 or v1 is closed; the seed's is at the first.")
    ] = 3


@attrs.frozen
class ConnectorSettings:
    """What a connector's name stands for (Fujin 0.5 and v1)."""

    topics: Annotated[tuple[str, ...], Says("The topics it shows, as its routes.")]


@attrs.frozen
class ReaderSettings:
    """What a reader's name stands for."""

    topic: Annotated[str, Says("The topic it reads.")]
    start: Annotated[Start, Says("Where it begins the first time.")] = Start.LATEST


@attrs.frozen
class FujinSettings:
    """What `routes.yaml` can say about a Fujin listener."""

    ping: Annotated[PingSettings, Says("How the server looks whether a client is there.")] = PingSettings()
    write_headers: Annotated[
        WriteHeaders,
        Says(
            "Whether WRITE carries headers; `dialect`: always with `dialect: document`, otherwise never; `auto`: "
            "as the first WRITE of each stream shows."
        ),
    ] = WriteHeaders.DIALECT
    fetch_wait: Annotated[Seconds, Says("How long FETCH waits for a message.")] = Seconds(8.0)
    # stock clients give up after 10 s (wire 0, rule 3)
    max_deliveries: Annotated[int, Says("Deliveries that end in a NACK before a message goes to `<topic>.dlq`.")] = 16
    backoff: Annotated[Backoff, Says("First and longest wait before what was answered with NACK comes again.")] = (
        Backoff(Seconds(0.1), Seconds(30.0))
    )
    readers: Annotated[
        Mapping[str, ReaderSettings],
        Says("The readers there are, by name; without any, a name is a topic, read from the tail the first time."),
    ] = attrs.Factory(dict)
    connectors: Annotated[
        Mapping[str, ConnectorSettings],
        Says(
            "The connectors there are for clients of 0.5 and v1, by name; without any, every name is one for all topics."
        ),
    ] = attrs.Factory(dict)
