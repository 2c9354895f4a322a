"""An upstream that does not let us in: everything waits, visibly, and nothing goes to the dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gateway import model
from gateway.errors import LONGEST_TARGET_TEXT
from gateway.settings import Backoff, Seconds
from gateway.wire.session import Credentials
from tests.unit.bridges.blip import Blip, blipping
from tests.unit.bridges.house import bridged, forward, route
from tests.unit.bridges.peers import until

TWICE = model.Retry(2, Backoff(Seconds(0.001), Seconds(0.002)))


@pytest.fixture
async def blip():
    blip = Blip()
    async with blipping(blip):
        yield blip


def upstream(blip: Blip, key: str = "key", timeout: float = 5.0) -> model.Upstream:
    auth = Credentials(api_key=key)
    return model.Upstream("far", "blipmq", (("127.0.0.1", blip.port),), auth=auth, timeout=Seconds(timeout))


async def test_a_backlog_survives_a_wrong_key_and_leaves_when_it_is_right(tmp_path: Path, blip: Blip):
    blip.key = b"another"
    target = forward(retry=TWICE, dead_letter="dead")
    async with bridged(tmp_path, [upstream(blip)], route(target)) as gateway:
        await gateway.client().publish("orders", b"1", b"2", keys=[b"a", b"b"])
        await blip.until(lambda: blip.logins >= 4)
        assert dict(gateway.bridges.problems())["upstream far"] == "refuses our login: 401 invalid API key"
        assert gateway.backlog() == 2
        assert gateway.counts.messages["dead_lettered", "refused"] == 0
        assert await gateway.letters("dead") == []
        blip.key = b"key"
        await gateway.delivered()
        assert blip.published == [b"1", b"2"]
        assert dict(gateway.bridges.problems())["upstream far"] == ""


async def test_long_words_of_a_refusal_are_cut_where_they_are_shown(tmp_path: Path, blip: Blip):
    blip.key, blip.refusal = b"another", b"n" * 60_000
    async with bridged(tmp_path, [upstream(blip)], route(forward())) as gateway:
        await blip.until(lambda: bool(gateway.bridges.pools["far"].refused))
        pool = gateway.bridges.pools["far"]
        assert len(pool.refused) == len(pool.problem) == LONGEST_TARGET_TEXT
        await blip.until(lambda: blip.logins >= 4)
        assert gateway.counts.problems == [("far", pool.refused)]  # once, not at each attempt


async def test_why_an_upstream_is_left_is_said(tmp_path: Path, blip: Blip):
    async with bridged(tmp_path, [upstream(blip)], route(forward())) as gateway:
        await gateway.client().publish("orders", b"1")
        await gateway.delivered()
        await blip.hang_up()
        with trio.fail_after(20):
            await until(lambda: bool(gateway.counts.problems))
        assert gateway.counts.problems[0][0] == "far"
        assert "connection" in gateway.counts.problems[0][1]


async def test_who_never_answers_the_login_is_not_connected(tmp_path: Path, blip: Blip):
    blip.mute = True
    other = Blip()
    async with blipping(other):
        both = model.Upstream(
            "far",
            "blipmq",
            (("127.0.0.1", blip.port), ("127.0.0.1", other.port)),
            auth=Credentials(api_key="key"),
            timeout=Seconds(0.3),
        )
        async with bridged(tmp_path, [both], route(forward())) as gateway:
            await gateway.client().publish("orders", b"1")
            await gateway.delivered()
    assert other.published == [b"1"]
    assert blip.published == []


async def test_who_answers_the_login_and_was_asked_nothing_since_an_outage_is_away_for_a_reason(
    tmp_path: Path, blip: Blip
):
    once = model.Retry(1, Backoff(Seconds(0.001), Seconds(0.002)), outage=Seconds(0.3))
    async with bridged(
        tmp_path, [upstream(blip, timeout=0.3)], route(forward(retry=once, dead_letter="dead"))
    ) as gateway:
        pool = gateway.bridges.pools["far"]
        await blip.until(lambda: pool.connected)
        blip.mute = True
        await gateway.client().publish("orders", b"1")
        await gateway.delivered()
        blip.mute = False
        await blip.until(lambda: pool.connected)
        ((_name, away),) = gateway.bridges.waiting()
        assert away.endswith("s: connected, and nothing was answered yet; 0 messages wait")


async def test_a_login_that_is_refused_later_on_blames_no_message(tmp_path: Path, blip: Blip):
    target = forward(retry=TWICE, dead_letter="dead")
    async with bridged(tmp_path, [upstream(blip)], route(target)) as gateway:
        await gateway.client().publish("orders", b"1")
        await gateway.delivered()
        blip.key = b"another"
        await blip.hang_up()
        await gateway.client().publish("orders", b"2")
        with trio.fail_after(20):
            await until(lambda: bool(gateway.bridges.pools["far"].refused))
        blip.key = b"key"
        await gateway.delivered()
        assert blip.published == [b"1", b"2"]
        assert await gateway.letters("dead") == []
