"""What a reader of the log may be told: the options of the Spark data source, which the jobs share."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence

import attrs

from gateway.errors import InvalidRequest
from gateway.pipeline.endpoint import Endpoint
from gateway.pipeline.source import KafkaLog, Source, shown

EARLIEST, LATEST = -2, -1
"""How an offset in the JSON of `startingOffsets` and `endingOffsets` says so."""

PLACE_NAMES = ("endpoint", "token", "tokenFile", "ca", "fingerprint", "insecure", "compression", "retryPatience")
"""Where a running gateway is, how it is trusted, and for how long it is asked again."""
NAMES = (
    "path",
    *PLACE_NAMES,
    "history",
    "kafka",
    "kafkaPrefix",
    "kafkaSettings",
    "kafkaReader",
    "topics",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxRecordsPerTrigger",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxRecordsPerPartition",
    "minPartitions",
    "includeHeaders",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""What a read may be told; the data source in the JVM has the same list (Options.java), and a test compares them."""
KAFKA_READERS = ("auto", "spark", "gateway")
"""What reads a log on Kafka: Spark's own source, the one in Python, or the first where it is to be had."""
RECORDS_PER_PARTITION = 1_000_000
PATIENCE_SECONDS = 10.0
TRIGGER_DELAY_MS = 15 * 60 * 1000
RETRIES, RETRY_MS = 3, 1000


@attrs.frozen
class Where:
    """An offset, or a time in milliseconds, for all partitions or for those that are named."""

    everywhere: int
    """EARLIEST, LATEST, or a time; of those that are not named."""
    named: Mapping[str, Mapping[int, int]] = attrs.Factory(dict)
    times: bool = False

    @property
    def moves(self) -> bool:
        """Whether it is another place after a while, when more has been stored."""
        named = (offset for offsets in self.named.values() for offset in offsets.values())
        return not self.times and LATEST in (self.everywhere, *named)


FROM_THE_START, TO_THE_END = Where(EARLIEST), Where(LATEST)


@attrs.frozen
class TopicSelection:
    """Which topics: names and globs. `*` is one or more characters but `.` and `/`, `**` is anything."""

    patterns: tuple[str, ...] = ("**",)
    exact: bool = False
    """Whether all patterns are names, whatever is in them."""
    regex: str = ""
    """What whole names match, instead of patterns."""
    only: Mapping[str, frozenset[int]] | None = None
    """The partitions of each topic that are meant; None: all."""

    @classmethod
    def parse(cls, text: str, option: str = "topics") -> TopicSelection:
        """A list separated by commas, or a JSON array."""
        # as Spark's source for Kafka means it: a name there is a name, whatever is in it
        exact = option == "subscribe"
        if text.lstrip().startswith("["):
            found = _json(text, option)
            if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
                raise InvalidRequest(f"{option}: a JSON array of names or globs, not {text}")
            return cls(tuple(found), exact)
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if not names:
            raise InvalidRequest(f"{option}: at least one name or glob")
        return cls(names, exact)

    @classmethod
    def assigned(cls, text: str) -> TopicSelection:
        """Topics with their partitions, as JSON."""
        hint = f"""assign: JSON like {{"orders": [0, 1]}}, not {text!r}"""
        found = _json(text, "assign")
        if not isinstance(found, dict) or not found:
            raise InvalidRequest(hint)
        for numbers in found.values():
            if (
                not isinstance(numbers, list)
                or not numbers
                or not all(type(one) is int and one >= 0 for one in numbers)
            ):
                raise InvalidRequest(hint)
        return cls(tuple(found), exact=True, only={name: frozenset(numbers) for name, numbers in found.items()})

    @classmethod
    def matching(cls, text: str) -> TopicSelection:
        """Topics whose names match a regular expression."""
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidRequest(f"subscribePattern: {error}") from None
        return cls((), regex=text)

    @property
    def names(self) -> Sequence[str]:
        """Those that are named in full."""
        return [one for one in self.patterns if self.exact or "*" not in one]

    def among(self, topics: Sequence[str]) -> list[str]:
        """Those that are meant, sorted. The gateway's own (`__...`) only where they are named in full."""
        globs = [re.compile(_regex(one), re.DOTALL) for one in self.patterns if not self.exact and "*" in one]
        globs += [re.compile(self.regex)] if self.regex else []
        return sorted(
            name
            for name in topics
            if name in self.patterns or (not name.startswith("__") and any(glob.fullmatch(name) for glob in globs))
        )

    def has(self, topic: str, partition: int) -> bool:
        """Whether a partition of one of them is meant."""
        return self.only is None or partition in self.only.get(topic, ())


def _regex(glob: str) -> str:
    parts = re.split(r"(\*\*|\*)", glob)
    return "".join({"**": ".*", "*": "[^./]+"}.get(part) or re.escape(part) for part in parts)


@attrs.frozen
class ReadOptions:
    """The options, checked."""

    source: Source
    topics: TopicSelection = TopicSelection()
    starting: Where | None = None
    """Where reading begins; None for the earliest in a batch, the latest in a stream."""
    ending: Where = TO_THE_END
    strict_times: bool = False
    """Whether a time to begin at that is behind the last record is an error."""
    per_trigger: int | None = None
    least_per_trigger: int | None = None
    trigger_delay_ms: int = TRIGGER_DELAY_MS
    per_partition: int = RECORDS_PER_PARTITION
    least_partitions: int = 0
    headers: bool = True
    kafka_reader: str = "auto"
    history: str = ""
    """Where the archive is whose records come before the log's; empty: none."""
    fail_on_data_loss: bool = True

    @property
    def where(self) -> str:
        return shown(self.source)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """From Spark's options, whose names have no case. Raises InvalidRequest."""
        given = checked(options, NAMES)
        most = _positive(given, _one(given, "maxRecordsPerTrigger", "maxOffsetsPerTrigger"))
        least = _positive(given, "minOffsetsPerTrigger")
        if most is not None and least is not None and least > most:
            raise InvalidRequest("minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
        history = given.get("history", "")
        both = [name for name in NAMES if name.startswith(("starting", "ending")) and name.lower() in given]
        if history and both:
            raise InvalidRequest(
                f"history and {both[0]} exclude each other: all there is is read, but for what conditions rule out"
            )
        strategy = given.get("startingoffsetsbytimestampstrategy", "latest").lower()
        if strategy not in {"error", "latest"}:
            raise InvalidRequest(f"startingOffsetsByTimestampStrategy: error or latest, not {strategy!r}")
        return cls(
            source=_source(given),
            topics=_topics(given),
            starting=_where(given, "starting"),
            ending=_where(given, "ending") or TO_THE_END,
            strict_times=strategy == "error",
            per_trigger=most,
            least_per_trigger=least,
            trigger_delay_ms=duration_ms(given.get("maxtriggerdelay", "15m"), "maxTriggerDelay"),
            per_partition=_positive(given, "maxRecordsPerPartition") or RECORDS_PER_PARTITION,
            least_partitions=_positive(given, "minPartitions") or 0,
            kafka_reader=_kafka_reader(given),
            headers=flag(given.get("includeheaders", "true"), "includeHeaders"),
            history=history,
            fail_on_data_loss=flag(given.get("failondataloss", "true"), "failOnDataLoss"),
        )


def _one(given: Mapping[str, str], *names: str) -> str:
    # which of some names of one thing is given; empty for none
    found = [name for name in names if name.lower() in given]
    if len(found) > 1:
        raise InvalidRequest(f"{' and '.join(found)} exclude each other")
    return found[0] if found else ""


def _topics(given: Mapping[str, str]) -> TopicSelection:
    how = _one(given, "topics", "subscribe", "subscribePattern", "assign")
    text = given.get(how.lower(), "**")
    if how == "assign":
        return TopicSelection.assigned(text)
    return TopicSelection.matching(text) if how == "subscribePattern" else TopicSelection.parse(text, how or "topics")


def checked(options: Mapping[str, str], names: Sequence[str]) -> Mapping[str, str]:
    """Options by their names in small letters. Raises InvalidRequest for one there is not."""
    given = {key.lower(): value for key, value in options.items()}
    unknown = sorted(set(given) - {name.lower() for name in names})
    if unknown:
        # Spark itself ignores what it does not know, and a misspelt bound would read everything
        raise InvalidRequest(f"unknown option {', '.join(unknown)}; there are {', '.join(names)}")
    return given


def _source(given: Mapping[str, str]) -> Source:
    path, url = given.get("path"), given.get("endpoint")
    if brokers := given.get("kafka"):
        return _kafka(given, brokers)
    if path and url:
        # which of two logs was meant nobody can say afterwards: they may even hold the same topics
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


def _kafka(given: Mapping[str, str], brokers: str) -> KafkaLog:
    others = [name for name in ("path", *PLACE_NAMES) if name.lower() in given]
    if others:
        raise InvalidRequest(f"{', '.join(others)} and kafka exclude each other: brokers hold the log themselves")
    settings = _json(given.get("kafkasettings", "{}"), "kafkaSettings")
    if not isinstance(settings, dict) or not all(isinstance(value, str) for value in settings.values()):
        raise InvalidRequest("""kafkaSettings: JSON like {"security.protocol": "ssl"}, of librdkafka's own settings""")
    return KafkaLog(brokers, given.get("kafkaprefix", "gw."), settings)


def _kafka_reader(given: Mapping[str, str]) -> str:
    found = given.get("kafkareader", "auto").lower()
    if found not in KAFKA_READERS:
        raise InvalidRequest(f"kafkaReader: {', '.join(KAFKA_READERS[:-1])} or {KAFKA_READERS[-1]}, not {found!r}")
    return found


def endpoint_of(given: Mapping[str, str]) -> Endpoint:
    patience = duration_ms(given.get("retrypatience", f"{PATIENCE_SECONDS:g}s"), "retryPatience") / 1000
    if "fetchoffset.numretries" in given or "fetchoffset.retryintervalms" in given:
        times, pause = _positive(given, "fetchOffset.numRetries"), _positive(given, "fetchOffset.retryIntervalMs")
        patience = (times or RETRIES) * (pause or RETRY_MS) / 1000
    found = Endpoint.of(
        given.get("endpoint", ""),
        token=given.get("token", ""),
        token_file=given.get("tokenfile", ""),
        ca=given.get("ca", ""),
        fingerprint=given.get("fingerprint", ""),
        insecure=flag(given.get("insecure", "false"), "insecure"),
    )
    compression = given.get("compression", "none").lower()
    if compression not in {"none", "gzip"}:
        raise InvalidRequest(f"compression: none or gzip, not {compression!r}")
    return attrs.evolve(found, patience=patience, gzip=compression == "gzip")


def milliseconds(text: str) -> int:
    """A point in time: milliseconds since the epoch, or ISO 8601 (UTC unless it says otherwise)."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"not a time: {text!r} (milliseconds since the epoch, or 2024-01-31T12:00:00)") from None
    return round((time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def _where(given: Mapping[str, str], which: str) -> Where | None:
    offsets, time, times = f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    how = _one(given, offsets, time, times)
    if not how:
        return None
    text = given[how.lower()]
    if how == time:
        return Where(milliseconds(text), times=True)
    if how == offsets and text.lower() in {"earliest", "latest"}:
        return FROM_THE_START if text.lower() == "earliest" else TO_THE_END
    hint = f'{how}: earliest, latest, or JSON like {{"orders": {{"0": 17, "1": -2}}}} (-2 earliest, -1 latest)'
    if how == times:
        hint = f'{how}: JSON like {{"orders": {{"0": 1700000000000}}}}'
    found = _json(text, how) if text.lstrip().startswith("{") else None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{hint}, not {text!r}")
    least = 0 if how == times else EARLIEST
    named: dict[str, dict[int, int]] = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict):
            raise InvalidRequest(hint)
        named[topic] = {}
        for partition, offset in partitions.items():
            if not partition.isdigit() or type(offset) is not int or offset < least:
                raise InvalidRequest(f"{hint}; {topic} has {partition!r}: {offset!r}")
            named[topic][int(partition)] = offset
    return Where(EARLIEST if which == "starting" else LATEST, named, times=how == times)


def _json(text: str, option: str) -> object:
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{option} is not JSON: {error}") from None
    return found


def _positive(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise InvalidRequest(f"{option}: a number from 1 on, not {text!r}")
    return int(text)


_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}


def duration_ms(text: str, option: str) -> int:
    """As Spark writes one: 500ms, 30s, 15m, 1h; a number alone is milliseconds."""
    found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise InvalidRequest(f"{option}: a time like 30s or 15m, not {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def flag(text: str, option: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidRequest(f"{option}: true or false, not {text!r}")
    return text.lower() == "true"
