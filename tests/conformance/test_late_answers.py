"""Protocols whose answers keep the order of requests: what one late answer has kept back does not leave all at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.protocols.flymq.wire.frames import Op
from gateway.requests import Fetch, Fetched
from gateway.wire.session import TURN_BYTES
from tests.protocols.flymq import made as flymq
from tests.protocols.rustlog import values as rustlog
from tests.protocols.script import Script

META = BatchMeta(b"i" * 16, Origin("flymq", "flymq"))
READERS: dict[str, tuple[Callable[[], Script], bytes]] = {
    "flymq": (flymq.server, flymq.fr(Op.FETCH, flymq.s("demo") + flymq.i32(0) + flymq.u64(0) + flymq.i32(1))),
    "rustlog": (rustlog.serving, rustlog.fetch("demo", 0, 600_000)),
}


@pytest.mark.parametrize("name", READERS)
def test_what_one_late_answer_has_kept_back_leaves_turn_by_turn(name: str) -> None:
    make, asked = READERS[name]
    script = make().feed(asked * 4)
    requests = [script.expect(Fetch) for _ in range(4)]
    script.in_turns = True
    for number in (3, 2, 1, 0):
        assert not script.bytes_of
        assert not script.session.unsaid
        value = bytes([65 + number]) * 500_000
        run = Run("demo", 0, 0, Columns.of([value]), [0], [(0, 0, META)])
        script.complete(requests[number], Fetched([run], 1, 0, 1))
    for left in (3, 2, 1, 0):
        said = script.sent()
        assert 500_000 < len(said) < 500_000 + TURN_BYTES
        assert bytes([68 - left]) * 500_000 in said
        assert script.session.unsaid is (left > 0)
        assert (script.session.rests_until() is None) is (left > 0)
        script.gather()
    script.quiet()
