"""Dead letters: messages that could not be delivered, kept as ordinary records of `<topic>.dlq`.

A letter has the message's key, value and headers, and headers of ours that say what happened. It carries no expiry of its
own, so that it is still there when somebody looks; a replay gives it back. Readers of a dead-letter topic who fail have
dead letters too, in a topic one further: no message goes in circles by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import attrs

from gateway.broker.identity import LOOP, VIA
from gateway.envelope import BatchMeta, Columns, Headers, Run
from gateway.errors import GatewayError
from gateway.routing.address import LONGEST
from gateway.routing.table import RoutingTable
from gateway.store.interface import Append, MakeTopic, Store

SUFFIX = ".dlq"
PREFIX = "x-dead-letter-"
_LONGEST_ERROR = 512


def letters_topic(topic: str) -> str:
    if len(topic.encode()) + len(SUFFIX) <= LONGEST:
        return topic + SUFFIX
    short = topic.encode()[: LONGEST - 40].decode(errors="ignore")
    return f"{short}~{hashlib.sha256(topic.encode()).hexdigest()[:16]}{SUFFIX}"


@attrs.frozen
class Facts:
    reason: str = ""
    attempts: int = 0
    first_error: str = ""
    last_error: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = 0
    expires_ms: int = 0
    count: int = 1
    """How often the message has died."""

    def headers(self) -> Headers:
        return tuple(
            (PREFIX + name.replace("_", "-"), str(value).encode()) for name, value in attrs.asdict(self).items()
        )


_TEXTS = frozenset(("reason", "first_error", "last_error", "topic"))
_NUMBERS = frozenset(field.name for field in attrs.fields(Facts)) - _TEXTS


def split_headers(headers: Headers) -> tuple[Headers, Facts]:
    """A letter's own headers, and the facts. What a client wrote by hand may be incomplete or nonsense."""
    own: list[tuple[str, bytes]] = []
    found: dict[str, str | int] = {}
    for name, value in headers:
        if not name.startswith(PREFIX):
            own.append((name, value))
            continue
        field = name.removeprefix(PREFIX).replace("-", "_")
        text = value[: 4 * _LONGEST_ERROR].decode("utf-8", "replace")
        if field in _TEXTS:
            found[field] = text
        elif field in _NUMBERS and len(text) <= 20 and text.isascii() and text.isdecimal():
            found[field] = int(text)
    return tuple(own), Facts(**found)  # type: ignore[arg-type]  # each by its kind, see above


class Letters:
    def __init__(self, store: Store, table: RoutingTable) -> None:
        self._store = store
        self._table = table

    def dead_letter_append(
        self,
        run: Run,
        index: int,
        *,
        reason: str,
        attempts: int,
        first_error: str,
        last_error: str,
        topic: str = "",
    ) -> tuple[Sequence[MakeTopic], Append]:
        """The operations that put one message into its topic's dead letters, or into the `topic` that is given."""
        target = topic or letters_topic(run.topic)
        columns = run.columns
        meta, inner = run.meta_of(index)
        headers = columns.headers_of(index)
        own, before = split_headers(headers)
        facts = Facts(
            reason=reason,
            attempts=attempts,
            first_error=first_error[:_LONGEST_ERROR],
            last_error=last_error[:_LONGEST_ERROR],
            topic=run.topic,
            partition=run.partition,
            offset=run.base_offset + index,
            expires_ms=columns.expires[index] if columns.expires is not None else 0,
            count=before.count + 1 if len(own) != len(headers) else 1,
        )
        if reason == LOOP:  # who sends it again does so knowing that it has been here
            own = tuple([one for one in own if one[0] != VIA])
        letter = Columns.of([columns.value(index)], [columns.key(index)], [own + facts.headers()])
        creates = () if target in self._store.topics else (MakeTopic(target, self._table.topic_config(target)),)
        return creates, Append(target, 0, letter, meta, indexes=[inner])

    def of_refused(
        self,
        topic: str,
        columns: Columns,
        meta: BatchMeta,
        errors: Mapping[int, GatewayError],
        reason: str,
        attempts: int,
    ) -> tuple[Sequence[MakeTopic], Append]:
        """The same for those of a batch that were never stored, by index: one append, however many they are."""
        run = Run(topic, 0, 0, columns, [0] * columns.count, [(0, 0, meta)])
        letters = [
            self.dead_letter_append(run, index, reason=reason, attempts=attempts, first_error=text, last_error=text)
            for index, text in sorted((index, error.message) for index, error in errors.items())
        ]
        creates, first = letters[0]
        together = Columns.concat([letter.columns for _creates, letter in letters])
        return creates, Append(first.topic, 0, together, meta, indexes=sorted(errors))
