"""Brokers that are not there."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
import trio

from gateway.bulk.wire import HTTP, error_of, problem_of
from gateway.errors import LogUnavailable
from gateway.store.kafka.options import KafkaOptions
from gateway.store.kafka.reading import KafkaPartition, ReadBounds, ReaderPool


async def test_what_nobody_delivers_may_be_asked_for_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()[1]
    with (
        closing(ReaderPool(KafkaOptions([f"127.0.0.1:{nobody}"], timeout=1.0))) as pool,
        trio.fail_after(120),
        pytest.raises(LogUnavailable) as raised,
    ):
        await pool.read(KafkaPartition("t", "gw.t", 0, 1), ReadBounds(0, 1, 1, 1 << 20, 0))
    assert HTTP[raised.value.status] == 502
    assert isinstance(error_of(problem_of(raised.value)), LogUnavailable)
