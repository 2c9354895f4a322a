"""Publishes that follow each other to one stream: the makings of one batch."""

from __future__ import annotations

from gateway.envelope import Columns, Copies, Delivery
from gateway.protocols.felix.binary import Names
from gateway.protocols.felix.replies import Sender


class Gathering:
    """Publishes that follow each other to one stream: the makings of one batch."""

    __slots__ = ("columns", "copies", "delivery", "names", "senders", "source", "values")

    def __init__(self, names: Names, delivery: Delivery, source: bytes) -> None:
        self.names = names
        self.delivery = delivery
        self.source = source
        """Of what they are copies; empty for what no other gateway forwards."""
        self.copies: list[tuple[int, bytes, int, int]] = []
        self.columns: list[Columns] = []
        self.values: list[bytes] = []
        self.senders: list[tuple[Sender, int]] = []
        """Who is to be answered, and for how many messages, in order."""

    def joined(self) -> Columns:
        """Everything gathered."""
        self.gather_values()
        return Columns.concat(self.columns)

    def copied(self) -> Copies | None:
        """What all of it is copies of."""
        return Copies(self.source, self.copies) if self.source else None

    def gather_values(self) -> None:
        """Pack the values that came one by one."""
        if self.values:
            self.columns.append(Columns.of(self.values))
            self.values = []
