"""A load whose server goes away, or says nothing, ends and says so."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
import trio

from tests.bench import loads, loads_quic
from tests.bench.forwarded import Reader
from tests.bench.loads_quic import Dialled


def test_who_asks_a_silent_server_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "PATIENCE", 0.05)
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(TimeoutError, match="1 of 1 connections"):
        loads.ask_side_by_side({ours.fileno(): ours}, b"?", 1, 1)
    assert ours.fileno() < 0


def test_who_reads_where_nobody_is_any_more_hears_of_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, closing(theirs):
        theirs.close()
        with pytest.raises(EOFError):
            Reader(ours, 300).read()


def test_a_message_that_does_not_arrive_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "ARRIVAL", 0.05)
    monkeypatch.setattr(loads, "fetch", lambda *_args: (0, 0, b""))
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError, match="message 7 of t "):
        loads.wait(ours, b"t", 7)


@pytest.mark.parametrize(
    ("lost", "patience", "why"), [(True, 60.0, "the connection was lost"), (False, 0.05, "not within 0.05 s")]
)
async def test_who_waits_for_an_answer_over_quic_hears_why_there_is_none(
    monkeypatch: pytest.MonkeyPatch, lost: bool, patience: float, why: str
) -> None:
    monkeypatch.setattr(loads_quic, "PATIENCE", patience)
    with loads_quic.bare("acked") as process:
        async with Dialled(process.ports["quic"], None) as client:
            if lost:
                client.link.abort()
            with pytest.raises(RuntimeError, match=f"the answer: {why}"):
                await client.until(trio.Event(), "the answer")
            with pytest.raises(RuntimeError, match=why):  # and so does who comes later
                await client.until(trio.Event(), "the answer")
