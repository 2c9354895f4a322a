"""What is kept of forwards: one row for each partition, (forward, topic, partition) to the topic's epoch, what is settled,
and the account of how it came there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

import attrs
import msgspec

from gateway.broker.consume.consumer import Tally
from gateway.broker.identity import TABLE, identity_of
from gateway.errors import StoreDamaged
from gateway.store.ack_window import MAX_SPAN, AckWindow
from gateway.store.interface import Put, Store


class _ForwardRow(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    window: bytes
    tally: tuple[int, ...] | None = None


def known_row(forward: str) -> Put:
    """That a forward exists: from now on a topic without a cursor is one that is new."""
    return Put(TABLE, forward.encode(), b"1")


def source_of(store: Store, forward: str, topic: str, epoch: int, partition: int, repeated: int = 0) -> bytes:
    """What tells a log, and who reads it, from all others: other gateways know by it what they were sent before. `repeated`: how
    many messages it was told to send once more; they are no copies of what went before.
    """
    text = b"\0".join((identity_of(store), forward.encode(), topic.encode(), b"%d %d" % (epoch, partition)))
    if repeated:
        text += b"\0%d" % repeated
    return hashlib.blake2b(text, digest_size=16).digest()


def row_key(forward: str, topic: str, partition: int) -> bytes:
    """A cursor's key. Names have no control characters, so nothing else makes the same one."""
    return b"\0".join((forward.encode(), topic.encode(), str(partition).encode()))


def cursor_row(forward: str, topic: str, partition: int, epoch: int, window: AckWindow, tally: Tally) -> Put:
    row = _ForwardRow(epoch, window.to_bytes(), attrs.astuple(tally))
    return Put(TABLE, row_key(forward, topic, partition), msgspec.msgpack.encode(row))


def read_cursor(value: bytes, max_span: int) -> tuple[int, AckWindow, Tally]:
    """A row's epoch, window and account."""
    try:
        row = msgspec.msgpack.decode(value, type=_ForwardRow)
    except msgspec.DecodeError as error:
        raise StoreDamaged("a forward's cursor cannot be read") from error
    window = AckWindow.from_bytes(row.window, max_span)
    tally = Tally(*row.tally) if row.tally is not None else Tally(window.low, acknowledged=window.settled_above)
    return row.epoch, window, tally


def stored_cursors(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, str, int, bytes]]:
    """(forward, topic, partition, row) of every cursor in the table."""
    for key, value in rows:
        names = key.decode().split("\0")
        if len(names) == 3:
            yield names[0], names[1], int(names[2]), value


def stored_floor(store: Store) -> Callable[[str, int], int | None]:
    """How far retention may go by what is written: until the forwards themselves are there to ask."""
    if store.lost.touches(TABLE):
        return lambda _topic, _partition: 0  # nobody knows who has been how far
    lows: dict[tuple[str, int], int] = {}
    for _forward, topic, partition, value in stored_cursors(store.table(TABLE).items()):
        low = read_cursor(value, MAX_SPAN)[1].low
        lows[topic, partition] = min(low, lows.get((topic, partition), low))
    return lambda topic, partition: lows.get((topic, partition))
