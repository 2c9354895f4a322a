"""What was gathered may end before the turn that asks for it, with it, or after it: its bytes count until then, and no longer."""

from __future__ import annotations

import socket

import pytest
import trio

from gateway.recorder import NullRecorder
from gateway.settings import Limits
from gateway.transport.driver import Driver, DriverContext
from gateway.transport.limits import Budget
from gateway.transport.tcp import TcpLink
from gateway.wire.session import SessionContext
from tests.unit.transport.toy import EchoBroker, LineSession

PUBLISH = b"pub something\n"


@pytest.mark.parametrize("lines", [1, 3])
@pytest.mark.parametrize("ends", ["before", "with", "after"])
async def test_the_bytes_of_a_publish_count_until_it_has_ended(lines: int, ends: str):
    theirs, ours = socket.socketpair()
    with theirs, ours:
        async with trio.open_nursery() as nursery:
            broker, budget = EchoBroker(later=ends != "with"), Budget(1 << 20)
            link = TcpLink(ours, "peer", nursery, trio.current_time)
            context = DriverContext("toy", Limits(), budget, NullRecorder(), trio.current_time)
            driver = Driver(context, LineSession(SessionContext("toy", None)), link, broker.attach)
            for _ in range(2):
                driver.gather(0, PUBLISH * lines, trio.current_time())
                if ends == "before":
                    broker.release()
                driver.turn(trio.current_time())
                if ends == "after":
                    assert budget.used >= lines * (len(PUBLISH) - 1)
                    assert budget.writers == 1
                    broker.release()
                assert budget.used == budget.writers == 0
                assert theirs.recv(1000) == b"stored\n" * lines
            driver.lost()
