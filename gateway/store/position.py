"""Where a read has got to: what comes next begins there, and nothing is read twice."""

from __future__ import annotations

from gateway.errors import CorruptChunk


class Position:
    """One read of one partition, from an offset on."""

    __slots__ = ("dense", "offset", "partition", "topic")

    def __init__(self, topic: str, partition: int, offset: int, *, dense: bool = True) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        """The offset that is read next."""
        self.dense = dense
        """Whether a gap is damage; some logs have them (`Capabilities.dense_offsets`)."""

    def skip(self, base: int, end: int) -> int:
        """[base, end) comes next: says how many of its first records were read before, and goes on behind it.

        There are such where the store has merged the chunks around the last one's end meanwhile. Raises CorruptChunk when
        there is a gap before it or nothing new in it.
        """
        offset = self.offset
        if end <= offset or (self.dense and base > offset):
            raise CorruptChunk(self.topic, self.partition, offset, max(base, offset + 1))
        self.offset = end
        return max(0, offset - base)
