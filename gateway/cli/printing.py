"""How messages are shown: a value a line, or one JSON object a line with the bytes in base64; and tables of anything."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Sequence

from gateway.cli.url import UrlTarget
from gateway.envelope import Run


def table(rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Columns of which the first are texts, and the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(c.ljust(w) if n < texts else c.rjust(w) for n, (c, w) in enumerate(cells)).rstrip())
    return "\n".join(lines)


class Printer:
    """Writes runs to standard output until it has shown `count` messages; None is without end."""

    def __init__(self, place: UrlTarget, output: str, count: int | None) -> None:
        self._place = place
        self._json = output == "json"
        self.left = count
        self.shown = 0

    def show(self, run: Run) -> None:
        """Write a run, of at most `left` messages."""
        self.shown += run.count
        if self.left is not None:
            self.left -= run.count
        if self._json:
            lines = [self._object(run, index) for index in range(run.count)]
            sys.stdout.write("".join(lines))
            sys.stdout.flush()
        else:
            sys.stdout.buffer.write(b"".join([value + b"\n" for value in run.columns.values()]))
            sys.stdout.buffer.flush()

    def _object(self, run: Run, index: int) -> str:
        # One line. What the protocol does not tell is null, not made up.
        carries = self._place.spec.carries
        key = run.columns.key(index)
        shown = {
            "address": self._place.address,
            "partition": run.partition if carries.offset else None,
            "offset": run.base_offset + index if carries.offset else None,
            "timestamp_ms": run.times[index] if carries.time else None,
            "key": b64encode(key).decode() if key is not None else None,
            "headers": [[name, b64encode(value).decode()] for name, value in run.columns.headers_of(index)],
            "value": b64encode(run.columns.value(index)).decode(),
        }
        return json.dumps(shown) + "\n"
