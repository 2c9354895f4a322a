"""Checkpoints of Spark's that a kill has left, so that the stream comes up again by itself.

    Spark writes   offsets/.0.UUID.tmp ──renamed──► offsets/0 ──► state, sink ──► commits/0

Who is killed before that rename, in the very first micro-batch, leaves the first name and nothing behind it. Spark tells by
`offsets/0` whether a stream was ever started, and refuses a first start (since 4.1: STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY)
where there is any file in `offsets`, `state` or `commits`, even that one, and so for good. Nothing had been read by then: nothing
is lost with it. At every later moment there is an `offsets/0`, and Spark passes over what was not renamed.
"""

from __future__ import annotations

import re
from pathlib import Path

from gateway.pipeline.shelves import shelf_at

OFFSETS = "offsets"
LOGS = (OFFSETS, "state", "commits")
"""What Spark wants to be empty where it starts a stream for the first time."""
_UNNAMED = re.compile(rf"{OFFSETS}/\.{{1,2}}\d+\.[0-9a-f-]{{36}}\.tmp(\.crc)?")
"""A file of the log of offsets before its rename, and what Hadoop keeps beside one."""


def checkpoint_at(place: Path | str) -> str:
    """The place, for the option `checkpointLocation` of a stream that is about to start.

    What a driver left there that was killed before its first micro-batch is taken away; all else stays, and is Spark's to judge.
    A directory of this machine, or a place in an object store.

    Raises InvalidRequest for a place of another kind, StoreError.
    """
    shelf = shelf_at(place)
    # a store may show the directory itself as a file without a name
    found = [name for log in LOGS for name in shelf.files(log) if name.rstrip("/") not in LOGS]
    if all(_UNNAMED.fullmatch(name) for name in found):
        for name in found:
            shelf.remove(name)
    return str(place)
