"""What a reader of the log may be told: the options of the Spark data source, which the jobs share."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence

import attrs

from gateway.errors import InvalidRequest
from gateway.pipeline.endpoint import Endpoint
from gateway.pipeline.source import Source, shown

EARLIEST, LATEST = -2, -1
"""How an offset in the JSON of `startingOffsets` and `endingOffsets` says so."""

PLACE_NAMES = ("endpoint", "token", "tokenFile", "ca", "fingerprint", "insecure")
"""Where a running gateway is, and how it is trusted."""
NAMES = (
    "path",
    *PLACE_NAMES,
    "topics",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "maxRecordsPerTrigger",
    "maxRecordsPerPartition",
    "failOnDataLoss",
)
RECORDS_PER_PARTITION = 1_000_000
Offsets = int | Mapping[str, Mapping[int, int]]
"""EARLIEST, LATEST, or an offset for each topic and partition that is named."""


@attrs.frozen
class TopicSelection:
    """Which topics: names and globs. `*` is one or more characters but `.` and `/`, `**` is anything."""

    patterns: tuple[str, ...] = ("**",)

    @classmethod
    def parse(cls, text: str) -> TopicSelection:
        """A list separated by commas, or a JSON array."""
        if text.lstrip().startswith("["):
            found = _json(text, "topics")
            if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
                raise InvalidRequest(f"topics: a JSON array of names or globs, not {text}")
            return cls(tuple(found))
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if not names:
            raise InvalidRequest("topics: at least one name or glob")
        return cls(names)

    def among(self, topics: Sequence[str]) -> list[str]:
        """Those that are meant, sorted. The gateway's own (`__...`) only where they are named in full."""
        globs = [re.compile(_regex(pattern), re.DOTALL) for pattern in self.patterns if "*" in pattern]
        return sorted(
            name
            for name in topics
            if name in self.patterns or (not name.startswith("__") and any(glob.fullmatch(name) for glob in globs))
        )


def _regex(glob: str) -> str:
    parts = re.split(r"(\*\*|\*)", glob)
    return "".join({"**": ".*", "*": "[^./]+"}.get(part) or re.escape(part) for part in parts)


@attrs.frozen
class ReadOptions:
    """The options, checked."""

    source: Source
    topics: TopicSelection = TopicSelection()
    starting: Offsets | None = None
    """Where reading begins; None for the earliest in a batch, the latest in a stream."""
    ending: Offsets = LATEST
    starting_ms: int | None = None
    per_trigger: int | None = None
    per_partition: int = RECORDS_PER_PARTITION
    fail_on_data_loss: bool = True

    @property
    def where(self) -> str:
        return shown(self.source)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """From Spark's options, whose names have no case. Raises InvalidRequest."""
        given = checked(options, NAMES)
        starting = given.get("startingoffsets")
        starting_ms = given.get("startingtimestamp")
        if starting is not None and starting_ms is not None:
            raise InvalidRequest("startingOffsets and startingTimestamp exclude each other")
        per_trigger = given.get("maxrecordspertrigger")
        return cls(
            source=_source(given),
            topics=TopicSelection.parse(given.get("topics", "**")),
            starting=_offsets(starting, "startingOffsets") if starting is not None else None,
            ending=_offsets(given.get("endingoffsets", "latest"), "endingOffsets"),
            starting_ms=milliseconds(starting_ms) if starting_ms is not None else None,
            per_trigger=_positive(per_trigger, "maxRecordsPerTrigger") if per_trigger is not None else None,
            per_partition=_positive(
                given.get("maxrecordsperpartition", str(RECORDS_PER_PARTITION)), "maxRecordsPerPartition"
            ),
            fail_on_data_loss=flag(given.get("failondataloss", "true"), "failOnDataLoss"),
        )


def checked(options: Mapping[str, str], names: Sequence[str]) -> Mapping[str, str]:
    """Options by their names in small letters. Raises InvalidRequest for one there is not."""
    given = {key.lower(): value for key, value in options.items()}
    unknown = sorted(set(given) - {name.lower() for name in names})
    if unknown:
        raise InvalidRequest(f"unknown option {', '.join(unknown)}; there are {', '.join(names)}")
    return given


def _source(given: Mapping[str, str]) -> Source:
    path, url = given.get("path"), given.get("endpoint")
    if path and url:
        raise InvalidRequest("path and endpoint exclude each other: the directory of a store, or a running gateway")
    if url:
        return endpoint_of(given)
    if not path:
        raise InvalidRequest("the option path is needed (the directory of a store), or endpoint (a running gateway)")
    if path.startswith(("http://", "https://")):
        raise InvalidRequest(f"path: the directory of a store, not {path}: a running gateway is the option endpoint")
    lost = [name for name in PLACE_NAMES if name.lower() in given]
    if lost:
        raise InvalidRequest(f"{', '.join(lost)}: about an endpoint, not about a path")
    return path


def endpoint_of(given: Mapping[str, str]) -> Endpoint:
    return Endpoint.of(
        given.get("endpoint", ""),
        token=given.get("token", ""),
        token_file=given.get("tokenfile", ""),
        ca=given.get("ca", ""),
        fingerprint=given.get("fingerprint", ""),
        insecure=flag(given.get("insecure", "false"), "insecure"),
    )


def milliseconds(text: str) -> int:
    """A point in time: milliseconds since the epoch, or ISO 8601 (UTC unless it says otherwise)."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"not a time: {text!r} (milliseconds since the epoch, or 2024-01-31T12:00:00)") from None
    return round((time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def _offsets(text: str, option: str) -> Offsets:
    if text.lower() in {"earliest", "latest"}:
        return EARLIEST if text.lower() == "earliest" else LATEST
    hint = f'{option}: earliest, latest, or JSON like {{"orders": {{"0": 17, "1": -2}}}} (-2 earliest, -1 latest)'
    found = _json(text, option) if text.lstrip().startswith("{") else None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{hint}, not {text!r}")
    offsets: dict[str, dict[int, int]] = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict):
            raise InvalidRequest(hint)
        offsets[topic] = {}
        for partition, offset in partitions.items():
            if not partition.isdigit() or type(offset) is not int or offset < EARLIEST:
                raise InvalidRequest(f"{hint}; {topic} has {partition!r}: {offset!r}")
            offsets[topic][int(partition)] = offset
    return offsets


def _json(text: str, option: str) -> object:
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} is not JSON: {error}") from None
    return found


def _positive(text: str, option: str) -> int:
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise InvalidRequest(f"{option}: a number from 1 on, not {text!r}")
    return int(text)


def flag(text: str, option: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidRequest(f"{option}: true or false, not {text!r}")
    return text.lower() == "true"
