"""Commands with very many strings, of which the end comes byte by byte: what is there is not read again for each."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from gateway.protocols.fujin.server.stream import MOST_COMMANDS
from gateway.protocols.fujin.settings import FujinSettings, WriteHeaders
from gateway.protocols.fujin.wire.bound_frames import BoundOp
from gateway.protocols.fujin.wire.frames import Op
from gateway.requests import DONE, Begin, Begun, Pause, Publish
from gateway.settings import Dialect
from tests.protocols.fujin.broker import CONNECT_WRITER, fresh, reader
from tests.protocols.fujin.test_bound_session import bound
from tests.protocols.script import Script

MANY, DRIPPED = 10_000, 500
SHORT = struct.pack(">I", 1) + b"k"
NAME = struct.pack(">I", 3) + b"pub"
COUNT, FEW = struct.pack(">I", MANY), struct.pack(">H", MANY)
UNSUBSCRIBE = bytes((BoundOp.UNSUBSCRIBE,)) + bytes(4) + b"\xfe"


def seed_writer() -> Script:
    return fresh(Dialect.DOCUMENT, FujinSettings(write_headers=WriteHeaders.ALWAYS)).feed(CONNECT_WRITER)


COMMANDS: dict[str, tuple[Callable[[], Script], bytes]] = {
    "WRITE": (seed_writer, bytes((Op.WRITE,)) + bytes(4) + NAME + FEW + SHORT * MANY + SHORT),
    "ACK of the seed's": (
        lambda: reader(push=False, auto=False),
        bytes((Op.ACK,)) + bytes(4) + COUNT + SHORT * MANY,
    ),
    "HPRODUCE": (bound, bytes((BoundOp.HPRODUCE,)) + bytes(4) + NAME + FEW + SHORT * MANY + SHORT),
    "ACK": (bound, bytes((BoundOp.ACK,)) + bytes(4) + b"\xfe" + COUNT + SHORT * MANY),
}


def read_by(act: Callable[[], object]) -> int:
    """How many numbers are read out of bytes meanwhile."""
    count = 0

    def look(_frame: FrameType, event: str, what: object) -> None:
        nonlocal count
        count += event == "c_call" and getattr(what, "__name__", "") == "unpack_from"

    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def published(script: Script) -> list[bytes]:
    return [value for one in script.asked if isinstance(one, Publish) for value in one.batch.columns.values()]


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_there_is_read_once(name: str) -> None:
    make, command = COMMANDS[name]
    whole = make().feed(command)
    script = make().feed(command[:-DRIPPED])
    numbers = read_by(lambda: script.feed_each_byte(command[-DRIPPED:]))
    # a few times, since the length of what follows them has four bytes; and not DRIPPED times
    assert numbers <= 6 * MANY + 10 * DRIPPED
    assert script.sent() == whole.sent()
    assert published(script) == published(whole)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("step", [5, 77, 4_999])
def test_pieces_of_any_size_make_the_same_command(name: str, step: int) -> None:
    make, command = COMMANDS[name]
    whole, script = make().feed(command * 2), make()
    for at in range(0, 2 * len(command), step):
        script.feed((command * 2)[at : at + step])
    assert script.sent() == whole.sent()
    assert published(script) == published(whole)


@pytest.mark.parametrize("command", [bytes((BoundOp.PONG,)), UNSUBSCRIBE, bytes((BoundOp.COMMIT,)) + bytes(4)])
def test_after_many_short_commands_others_have_the_loop(command: bytes) -> None:
    script = bound().feed(command * (MOST_COMMANDS + 1))
    some = script.sent()
    script.answer(Pause, DONE)
    assert len(some) + len(script.sent()) == len(bound().feed(command).sent()) * (MOST_COMMANDS + 1)
    script.quiet()


def test_after_much_that_is_passed_over_others_have_the_loop() -> None:
    script = fresh().feed(CONNECT_WRITER + bytes((Op.BEGIN, 0, 0, 0, 1))).answer(Begin, Begun("tx"))
    script.sent()
    script.feed(b"\x20" * (MOST_COMMANDS + 1)).answer(Pause, DONE).quiet()
