"""What has come by this gateway before, or by too many, is not stored again; who it came by is remembered for the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.broker.administration.dead_letters import split_headers
from gateway.broker.identity import MOST_HOPS, VIA, identity_of, via_in, with_via
from gateway.envelope import Batch, Columns, Copies, Run
from gateway.requests import Publish, Published
from tests.unit.bridges.house import Bridged, bridged, route


def copied(path: tuple[bytes, ...], *values: bytes) -> Publish:
    """Messages of another log, that came by these gateways."""
    copies = Copies(b"s" * 16, [(5, b"b" * 16, 0, len(values))], path)
    return Publish(0, Batch("copy", Columns.of(values), copies=copies))


async def runs(place: Bridged, topic: str) -> list[Run]:
    if topic not in place.store.topics:
        return []
    return list((await place.store.read(topic, 0, 0, 100, 1 << 20, 0)).runs)


def hop(number: int) -> bytes:
    return bytes([number]) * 16


@pytest.mark.parametrize("hops", [MOST_HOPS, 100])
async def test_what_came_by_too_many_gateways_is_a_dead_letter_once(tmp_path: Path, hops: int) -> None:
    path = tuple(hop(number) for number in range(1, hops + 1))
    async with bridged(tmp_path, [], route()) as place:
        client = place.client()
        for _ in range(2):  # it is sent again: the answer was lost
            assert isinstance(await client.ask(copied(path, b"a", b"b")), Published)
        assert await runs(place, "copy") == []
        (run,) = await runs(place, "copy.dlq")
        assert run.columns.values() == [b"a", b"b"]
        assert split_headers(run.columns.headers_of(0))[1].reason == "loop"
        assert place.counts.messages["dead_lettered", "loop"] == 2
        place.check_accounts()


async def test_who_finds_himself_there_stops_it(tmp_path: Path) -> None:
    async with bridged(tmp_path, [], route()) as place:
        await place.client().ask(copied((hop(1), identity_of(place.store), hop(2)), b"a"))
        assert await runs(place, "copy") == []
        assert len(await runs(place, "copy.dlq")) == 1


async def test_by_whom_it_came_is_kept_with_it(tmp_path: Path) -> None:
    async with bridged(tmp_path, [], route()) as place:
        await place.client().ask(copied((hop(1), hop(2)), b"a"))
        await place.client().publish("copy", b"b")
    async with bridged(tmp_path, [], route()) as place:
        vias = [meta.origin.via for run in await runs(place, "copy") for _first, _inner, meta in run.batches]
        assert vias == [(hop(1).hex(), hop(2).hex()), ()]
        clients = {meta.origin.client for run in await runs(place, "copy") for _first, _inner, meta in run.batches}
        assert clients == {"peer"}


async def test_a_header_says_it_for_each_message_and_is_gone_from_the_letter(tmp_path: Path) -> None:
    async with bridged(tmp_path, [], route()) as place:
        ours, other = identity_of(place.store), hop(1)
        ways = [(other,), (other, ours), tuple(hop(number) for number in range(MOST_HOPS))]
        headers = [*(with_via((("h", b"1"), (VIA, b"old")), way) for way in ways), ((VIA, b"nonsense"),), ()]
        client = place.client()
        for _ in range(2):  # the second time the way is known
            columns = Columns.of([b"a", b"b", b"c", b"d", b"e"], None, headers)
            reply = await client.ask(Publish(0, Batch("copy", columns)))
            assert isinstance(reply, Published)
            assert reply.refused == {}
        kept = [
            (run.columns.value(at), via_in(run.columns.headers_of(at)))
            for run in await runs(place, "copy")
            for at in range(run.count)
        ]
        assert kept == [(b"a", (other.hex(),)), (b"d", ()), (b"e", ())] * 2
        letters = [
            split_headers(run.columns.headers_of(at))
            for run in await runs(place, "copy.dlq")
            for at in range(run.count)
        ]
        assert [(own, facts.reason, facts.count) for own, facts in letters] == [((("h", b"1"),), "loop", 1)] * 4
        place.check_accounts()
