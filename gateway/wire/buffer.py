"""Incoming bytes of one channel until they make whole frames."""

from __future__ import annotations


class ReceiveBuffer:
    """Joins what is left of the last read with the next one, and nothing else: a read that ends on a frame's border is
    parsed where it is, without a copy. The owner bounds it by refusing a frame's length before its bytes are awaited.

    While a long frame is incomplete the pieces are only collected; they are joined once, when `wanted` bytes are there.
    """

    __slots__ = ("_pieces", "size", "wanted")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0
        """Bytes that are kept."""
        self.wanted = 0
        """How many bytes the next frame needs; fewer need not be looked at."""

    def feed(self, data: bytes) -> bytes:
        """Add bytes; returns everything unparsed as one piece once there is enough, else nothing."""
        if not self._pieces:
            self._pieces.append(data)
            self.size = len(data)
        else:
            self._pieces.append(data)
            self.size += len(data)
        if self.size < self.wanted:
            return b""
        whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self.size = 0
        self.wanted = 0
        return whole

    def keep(self, rest: bytes, wanted: int = 0) -> None:
        """Put back what did not make a whole frame, and say how many bytes it will take."""
        if rest:
            self._pieces.insert(0, rest)
            self.size += len(rest)
        self.wanted = wanted

    def clear(self) -> None:
        self._pieces.clear()
        self.size = 0
        self.wanted = 0
