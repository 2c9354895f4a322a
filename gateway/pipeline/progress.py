"""How far a replay is: a file that is written before or after each step, so that the next run goes on where it ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import attrs

from gateway.errors import Conflict, StoreDamaged
from gateway.files import write_whole
from gateway.pipeline.frames import Span, is_served
from gateway.pipeline.shelves import is_remote

VERSION = 1
Place = tuple[str, int, int]
"""(topic, epoch, partition)"""


@attrs.frozen
class Wanted:
    """What is to be replayed, and where to: two runs that want the same are the same replay."""

    source: str
    target: str
    topics: str = "**"
    from_ms: int | None = None
    before_ms: int | None = None
    where: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(attrs.asdict(self)).encode()).hexdigest()[:12]


@attrs.define
class Progress:
    wanted: Wanted
    spans: Sequence[Span]
    """What there was to replay when it began; what was stored later is not part of it."""
    started_ms: int
    id: str = attrs.Factory(lambda: uuid4().hex)
    sent: int = 0
    sequence: int = 0
    """The number of the last step that was taken: what the target deduplicates by."""
    reached: dict[Place, int] = attrs.Factory(dict)
    """The next offset of each partition that is not at its start any more."""
    pending: dict[Place, int] | None = None
    """How far a step goes that was begun and may or may not have been taken; it begins at `reached`."""

    def left(self) -> Sequence[Span]:
        spans = [attrs.evolve(span, start=max(span.start, self.reached.get(span.place, 0))) for span in self.spans]
        return [span for span in spans if span.start < span.end]

    def begun(self) -> Sequence[Span]:
        """What the pending step consists of."""
        by_place = {span.place: span for span in self.left()}
        assert self.pending is not None
        return [attrs.evolve(by_place[place], end=end) for place, end in self.pending.items()]

    def taken(self, reached: Mapping[Place, int], count: int) -> None:
        self.reached.update(reached)
        self.sent += count
        self.sequence += 1
        self.pending = None


class ProgressFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, wanted: Wanted, directory: Path | None) -> ProgressFile:
        """In a directory; by default beside the source, or in this one if the source is not on this machine."""
        source = Path(wanted.source.rstrip("/").rsplit("/", 1)[-1])
        elsewhere = is_served(wanted.source) or is_remote(wanted.source)
        beside = Path.cwd() if elsewhere else Path(wanted.source).absolute().parent
        return cls((directory or beside) / f".{source.name}.replay-{wanted.digest}.json")

    def load(self, wanted: Wanted) -> Progress | None:
        """What an earlier run left; None if there is nothing. Raises StoreDamaged, Conflict."""
        try:
            found = json.loads(self.path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise StoreDamaged(f"{self.path} is no progress of a replay: {error}. Remove it to begin anew") from error
        try:
            if found["version"] != VERSION:
                raise Conflict(f"{self.path} has version {found['version']}, this program knows {VERSION}")
            if Wanted(**found["wanted"]) != wanted:
                raise Conflict(f"{self.path} is about another replay")
            pending = found["pending"]
            return Progress(
                wanted,
                [Span(*span) for span in found["spans"]],
                found["started_ms"],
                found["id"],
                found["sent"],
                found["sequence"],
                _places(found["reached"]),
                _places(pending) if pending is not None else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StoreDamaged(f"{self.path} is no progress of a replay: {error!r}. Remove it to begin anew") from error

    def save(self, progress: Progress) -> None:
        """Bring it to the disk, whole."""
        made = {
            "version": VERSION,
            "wanted": attrs.asdict(progress.wanted),
            "id": progress.id,
            "started_ms": progress.started_ms,
            "sent": progress.sent,
            "sequence": progress.sequence,
            "reached": [[*place, offset] for place, offset in progress.reached.items()],
            "pending": [[*place, offset] for place, offset in progress.pending.items()]
            if progress.pending is not None
            else None,
            "spans": [attrs.astuple(span) for span in progress.spans],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(made).encode())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _places(rows: Sequence[Sequence[object]]) -> dict[Place, int]:
    return {(str(topic), int(str(epoch)), int(str(number))): int(str(at)) for topic, epoch, number, at in rows}
