"""What the operation families are made of: an operation is a generator that yields requests and returns its answer.

`reply = yield request` hands a request to the broker and waits for its reply; a refusal is raised there. What leaves the
generator as a GatewayError becomes an ERROR frame. So an operation of several steps reads like one, and none of them
knows of slots, ids or other operations.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Annotated, TypeVar

import attrs

from gateway.errors import InvalidRequest
from gateway.protocols.flymq.wire.codec import REPLIES
from gateway.protocols.flymq.wire.dialect import Speech
from gateway.protocols.flymq.wire.frames import MAX_PAYLOAD, Op, frame
from gateway.protocols.flymq.wire.mapping import Subject
from gateway.requests import Reply, Request
from gateway.settings import Says, Seconds
from gateway.wire.ordering import Answer
from gateway.wire.session import SessionContext

LONGEST_HOLD = 9.0
"""The shipped clients give up on an answer after ten seconds (FlyMQ wire 3.1)."""
LONGEST_GROUP = 512
LARGEST_LIST = MAX_PAYLOAD - (64 << 10)
"""Bytes of a list's entries: what a frame holds beside the names of the cluster and its members."""
_COUNT = struct.Struct(">I")


@attrs.frozen
class FlymqSettings:
    """Listener keys of FlyMQ's own."""

    fetch_hold: Annotated[
        Seconds,
        Says("How long an empty FETCH waits for a message, nine seconds at most."),
    ] = Seconds(0.0)
    resume: Annotated[
        bool,
        Says("Lets SUBSCRIBE earliest and latest begin at the group's committed offset, if there is one."),
    ] = False


Steps = Generator[Request, Reply, Answer]
R = TypeVar("R")


class Call:
    """One operation under way: what its generator may ask of its connection."""

    __slots__ = (
        "_ids",
        "context",
        "holds",
        "joined",
        "now",
        "op",
        "settings",
        "slot",
        "speech",
        "steps",
        "subject",
    )

    def __init__(
        self,
        op: Op,
        slot: int,
        context: SessionContext,
        speech: Speech,
        ids: Callable[[], int],
        joined: dict[tuple[str, str], None],
    ) -> None:
        self.op = op
        self.slot = slot
        self.context = context
        self.settings: FlymqSettings = context.settings
        self.speech = speech
        self.subject = Subject()
        self.holds = 0
        """Bytes of an answer, or of a payload, that are together and wait for the rest."""
        self.now = 0.0
        self.steps: Steps
        self._ids = ids
        self.joined = joined
        """(topic, group) this connection is already counted for."""

    def id(self) -> int:
        return self._ids()

    def answer(self, *values: object) -> bytes:
        return frame(self.op, REPLIES[self.op].encode(*values))

    def listed(self, pieces: Sequence[bytes], before: bytes = b"", behind: bytes = b"") -> bytes:
        """An answer that is a list of what was encoded page by page."""
        return frame(self.op, b"".join((before, _COUNT.pack(len(pieces)), *pieces, behind)))

    def fits(self, piece: bytes) -> bool:
        """Count a piece of a list. Once it is too much for a frame the list ends: there is no other way to say so."""
        self.holds += len(piece)
        return self.holds <= LARGEST_LIST


Handler = Callable[[Call, bytes], Steps]


@attrs.frozen
class Operation:
    """A row of the table. `bars`: nothing behind it is read before it is answered, because it takes several steps, or
    because it changes what follows.
    """

    handler: Handler
    bars: bool = False


Operations = Mapping[Op, Operation]


def expect(kind: type[R], reply: Reply) -> R:
    """The reply as the kind its request promises."""
    if not isinstance(reply, kind):
        raise TypeError(f"{type(reply).__name__} is not an answer to a request for {kind.__name__}")
    return reply


def check_group(group: str) -> str:
    """A group's name: any text of 1 to 512 bytes without control characters."""
    if not group or len(group.encode()) > LONGEST_GROUP or any(ord(letter) < 32 for letter in group):
        raise InvalidRequest("invalid group name")
    return group


def check_offset(offset: int) -> int:
    """An offset that can be kept; the wire's are unsigned."""
    if offset > LAST_OFFSET:
        raise InvalidRequest(f"invalid offset: {offset}")
    return offset


LAST_OFFSET = (1 << 63) - 1
