"""The admin API of a whole gateway, by a client made of its own description."""

from __future__ import annotations

import base64
import gc
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import openapi_spec_validator
import pytest
import trio

from gateway.app import Gateway
from gateway.broker.publish.pipeline import Pipeline
from gateway.envelope import Batch, Columns
from gateway.protocols.registry import protocol, protocols
from gateway.requests import Publish, Published, Subscribe, Take
from gateway.routing.fidelity import Way, fidelity
from gateway.transport.client import connect
from gateway.wire.session import ClientContext, Credentials
from tests.unit.admin.api import CONFIG, TOKENS, ApiClient, Problem, serving_api


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[tuple[Gateway, ApiClient]]:
    async with serving_api(tmp_path) as (served, client):
        yield served, client


async def publish(served: Gateway, address: str, *values: bytes, keys: Any = None, headers: Any = None) -> Published:
    async with connect(protocol("flymq"), "127.0.0.1", served.ports["flymq"]) as connection:
        reply = await connection.request(Publish(0, Batch(address, Columns.of(values, keys, headers))), timeout=60)
        assert isinstance(reply, Published)
        return reply


ORDER = b'{"amount": 100}'


# --- the description ---


async def test_the_description_is_valid_and_says_who_may_do_what(api: tuple[Gateway, ApiClient]) -> None:
    _served, client = api
    openapi_spec_validator.validate(client.document)
    assert client.document["openapi"] == "3.1.0"
    assert len(client.operations) > 25
    for _method, _path, one in client.operations.values():
        assert one["summary"]
        assert one["x-role"] in TOKENS


SAMPLES: Mapping[str, tuple[Mapping[str, Any], Any]] = {
    "purge": ({"name": "orders.eu.dlq"}, None),
    "log": ({"topic": "orders.eu"}, None),
    "offset_for_time": ({"topic": "orders.eu", "timestamp_ms": 0}, None),
    "append": ({}, {"address": "by-api", "producer": "test", "values": [b64(b"x")]}),
    "producer": ({"producer": "test"}, None),
    "redrive": ({}, {"topic": "orders.eu.dlq", "epoch": 0, "partition": 0, "offsets": []}),
    "redriven": ({"topic": "orders.eu.dlq", "epoch": 0, "partition": 0, "first": 0}, None),
    "reset_group": ({}, {"group": "g", "topic": "orders.eu", "to": "earliest", "dry_run": True}),
    "reset_consumer": ({}, {"kind": "reader", "name": "r", "topic": "orders.eu", "to": "earliest", "dry_run": True}),
    "records": ({"topic": "orders.eu"}, None),
    "volume": ({"topic": "orders.eu"}, None),
    "languages": ({"topic": "orders.eu", "offset": 0}, None),
    "translate": ({}, {"topic": "orders.eu", "value": b64(ORDER), "protocol": "flymq"}),
    "explain": ({}, {"protocol": "flymq", "address": "orders.eu"}),
    "check": ({}, {"text": "version: 1"}),
    "apply": ({}, {"text": "version: 1", "seen": "nothing"}),
    "close_connection": ({"id": 1 << 50}, None),
    "letter_list": ({"topic": "orders.eu.dlq"}, None),
}
"""What each operation is asked here that needs something."""


async def test_every_operation_asks_for_its_role_and_answers_as_described(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    await publish(served, "orders.eu", ORDER, b"no json")
    for name, (_method, _path, described) in client.operations.items():
        if "text/event-stream" in described["responses"]["200"]["content"]:
            continue
        query, body = SAMPLES.get(name, ({}, None))
        for role, token in TOKENS.items():
            allowed = list(TOKENS).index(role) >= list(TOKENS).index(described["x-role"])
            try:
                await client(name, body, token=token, **query)
                refused = None
            except Problem as problem:
                refused = problem.body
            assert refused is None or refused["status"] != "internal"
            if allowed:
                assert refused is None or refused["type"] != "Denied", (name, role, refused)
            else:
                assert refused is not None, (name, role)
                assert (refused["type"], refused["status"]) == ("Denied", "denied")
        with pytest.raises(Problem) as nobody:
            await client(name, body, token="nobody's", **query)
        assert nobody.value.status == 401


async def test_what_cannot_be_read_is_said_with_its_place(api: tuple[Gateway, ApiClient]) -> None:
    _served, client = api
    headers = {"Authorization": "Bearer root"}
    for path, said in (
        ("/v1/records", "topic"),
        ("/v1/records?topic=t&limit=0", "limit"),
        ("/v1/records?topic=t&offset=-1", "offset"),
        ("/v1/records?topic=t&offset=9999999999999999999999", "offset"),
        ("/v1/records?topic=t&colour=red", "colour"),
        ("/v1/tap?stage=sideways", "stage"),
    ):
        answer = await client.http.get(path, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["type"] == "InvalidRequest"
        assert said in answer.json()["message"]
    form = await client.http.post("/v1/explain", data={"protocol": "flymq"}, headers=headers)
    assert form.status_code == 400  # a form of some page


# --- the log ---


async def test_topics_are_searched_and_paged(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    for number in range(25):
        await publish(served, f"many.{number:02}", b"x")
    first = await client("topics", search="MANY", limit=10)
    assert (first["total"], first["following"]) == (25, "many.09")
    last = await client("topics", search="many", after="many.19", limit=10)
    assert [one["name"] for one in last["topics"]] == [f"many.{number:02}" for number in range(20, 25)]
    assert not last["following"]


async def test_records_from_an_offset_a_time_a_key_and_the_newest(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    before = int(time.time() * 1000)
    values = [b"%d" % number for number in range(50)]
    await publish(served, "t", *values, keys=[b"k%d" % (number % 7) for number in range(50)])

    def shown(found: Mapping[str, Any]) -> list[str]:
        return [one["value"]["text"] for one in found["records"]]

    assert shown(await client("records", topic="t", offset=10, limit=3)) == ["10", "11", "12"]
    newest = await client("records", topic="t", limit=5)
    assert shown(newest) == ["45", "46", "47", "48", "49"]
    assert (newest["start"], newest["end"], newest["following"], newest["previous"]) == (0, 50, 50, 40)
    assert shown(await client("records", topic="t", time_ms=before, limit=2)) == ["0", "1"]
    keyed = await client("records", topic="t", key="k3", limit=4)
    assert shown(keyed) == ["3", "10", "17", "24"]
    rest = await client("records", topic="t", key="k3", offset=keyed["following"], limit=100)
    assert shown(rest) == ["31", "38", "45"]
    with pytest.raises(Problem, match="no topic"):
        await client("records", topic="missing")
    with pytest.raises(Problem, match="partitions"):
        await client("records", topic="t", partition=1)


async def test_values_are_shown_as_what_they_are(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    await publish(served, "kinds", ORDER, b"plain", bytes(range(256)), b"\xff", b"", b"a\x00b", b"[" * 1000)
    found = (await client("records", topic="kinds"))["records"]
    assert [one["value"]["format"] for one in found] == ["json", "text", "binary", "binary", "text", "binary", "text"]
    assert base64.b64decode(found[2]["value"]["data"]) == bytes(range(256))
    await publish(served, "kinds", b"x" * 200_000)
    (large,) = (await client("records", topic="kinds", limit=1))["records"]
    assert large["value"]["size"] == 200_000
    assert len(large["value"]["text"]) == 64 << 10


async def test_the_bars_of_a_volume_add_up_to_the_messages(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    for _ in range(3):
        await publish(served, "t", b"a", b"b")
    found = await client("volume", topic="t", bars=10)
    assert found["counted"]
    assert sum(found["messages"]) == 6
    assert found["step_ms"] % 60_000 == 0


# --- one message in five languages ---


async def test_a_message_in_every_language_is_what_is_served_and_what_is_lost_is_said(
    api: tuple[Gateway, ApiClient],
) -> None:
    _served, client = api
    sent = {
        "address": "t",
        "producer": "p",
        "values": [b64(ORDER)],
        "keys": [b64(b"k")],
        "headers": [[["h", b64(b"v")]]],
    }
    await client("append", sent)
    found = await client("languages", topic="t", offset=0)
    specs = protocols()
    carries = {name: spec.carries for name, spec in specs.items()}
    has = {"key": True, "headers": True, "expiry": False, "partition": True, "offset": True, "time": True}
    assert {one["protocol"] for one in found["tongues"]} == {
        name for name, spec in specs.items() if spec.server is not None
    }
    for one in found["tongues"]:
        assert one["served"]
        this = attrs.evolve(carries[one["protocol"]], **has)
        expected = fidelity("this", one["protocol"], {**carries, "this": this}, Way.BRIDGE)
        assert [(f["name"], f["fate"]) for f in one["fields"]] == [(f.name, f.fate.value) for f in expected.fields]
        assert one["frames"]
        for frame in one["frames"]:
            raw = base64.b64decode(frame["data"])
            assert len(raw) == frame["size"]
            assert [part["start"] for part in frame["parts"]] == [0, *(part["end"] for part in frame["parts"][:-1])]
            assert frame["parts"][-1]["end"] == len(raw)
            (held,) = [part for part in frame["parts"] if part["holds"] == "value"]
            bytes_held = raw[held["start"] : held["end"]]
            # as it is, in base64, or as numbers in the document's JSON
            numbers = json.dumps(list(ORDER), separators=(",", ":")).encode()
            assert bytes_held == ORDER or b64(ORDER).encode() in bytes_held or numbers in bytes_held


async def test_a_dialect_that_carries_more_has_its_own_frames_and_its_own_losses(
    api: tuple[Gateway, ApiClient],
) -> None:
    _served, client = api
    sent = {"topic": "t", "value": b64(b"hi"), "key": b64(b"k"), "headers": [{"name": "h", "value": b64(b"v")}]}
    tongues = (await client("translate", sent))["tongues"]
    (fujin,) = [one for one in tongues if one["protocol"] == "fujin"]
    lost = {f["name"] for f in fujin["fields"] if f["fate"] == "lost"}
    assert {"key", "headers"} <= lost
    frames = {one["title"].partition(",")[0]: one for one in fujin["frames"]}
    assert list(frames) == ["MSG", "0.5 and v1: HMSG", "0.5 and v1: MSG", "0.5 and v1: HFETCH"]
    for title, one in frames.items():
        kept = {f["name"] for f in one.get("fields", ()) if f["fate"] == "kept"}
        assert ({"key", "headers"} <= kept) is title.endswith(("HMSG", "HFETCH"))
    # HMSG, reader, 4 strings, h: v, x-gateway-key: k, id, value (Fujin wire 6.2)
    assert base64.b64decode(frames["0.5 and v1: HMSG"]["data"]).hex() == (
        "0900" + "0004" + "0000000168" + "0000000176" + "0000000d782d676174657761792d6b6579" + "000000016b"
        "00000009010000000100000001" + "000000026869"
    )
    large = (await client("translate", {"topic": "t", "value": b64(bytes(70_000))}))["tongues"]
    (fujin,) = [one for one in large if one["protocol"] == "fujin"]
    assert {one["title"].partition(",")[0] for one in fujin["frames"]} == {name for name in frames if name != "MSG"}


async def test_what_a_language_cannot_carry_says_so(api: tuple[Gateway, ApiClient]) -> None:
    _served, client = api
    found = await client("translate", {"topic": "t", "value": b64(bytes(70_000)), "protocol": "flymq"})
    problems = {one["protocol"]: one["problem"] for one in found["tongues"]}
    assert "70000" in problems["fujin"]
    assert not problems["felix"]


# --- routes ---


async def test_a_message_is_explained_and_put_through_the_transform(api: tuple[Gateway, ApiClient]) -> None:
    _served, client = api
    found = await client(
        "explain", {"protocol": "flymq", "address": "orders.eu", "value": b64(ORDER), "key": b64(b"k")}
    )
    assert (found["route"], found["topic"]) == ("orders", "orders.eu")
    assert {"set_header", "filter", "becomes", "store", "read"} <= {one["kind"] for one in found["steps"]}
    assert found["after"]["text"] == ORDER.decode()
    with pytest.raises(Problem, match="no protocol"):
        await client("explain", {"protocol": "smtp", "address": "x"})


async def test_a_changed_text_is_checked_planned_and_applied(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    shown = await client("routes")
    assert shown["in_force"]
    text = shown["text"].replace("name: away\n", "name: far-away\n")
    checked = await client("check", {"text": text}, token="do")
    assert checked["good"]
    assert set(checked["plan"]) == {"route far-away: added", "route away: removed"}
    broken = await client("check", {"text": text.replace("match: {}", "match: {colour: red}")}, token="do")
    assert [one["line"] > 0 for one in broken["problems"]] == [True]
    with pytest.raises(Problem, match="has changed since"):
        await client("apply", {"text": text, "seen": "another"})
    assert (await client("apply", {"text": text, "seen": shown["digest"]}))["outcome"] == "applied"
    after = await client("routes")
    assert [one["name"] for one in after["routes"]] == ["orders", "far-away", "everything-else"]
    assert await trio.Path(after["file"]).read_text() == text
    assert await publish(served, "orders.eu", ORDER)


@pytest.mark.parametrize(("change", "outcome"), [("version: 2", "invalid"), ("durability: fsync", "refused")])
async def test_what_cannot_be_applied_leaves_file_and_gateway_as_they_were(
    api: tuple[Gateway, ApiClient], change: str, outcome: str
) -> None:
    _served, client = api
    shown = await client("routes")
    text = shown["text"].replace(
        {"version": "version: 1", "durability": "durability: memory"}[change.split(":", maxsplit=1)[0]], change
    )
    found = await client("apply", {"text": text, "seen": shown["digest"]})
    assert found["outcome"] == outcome
    assert found["why"]
    assert await client("routes") == shown


async def test_secrets_are_shown_to_nobody_who_may_not_administer(api: tuple[Gateway, ApiClient]) -> None:
    _served, client = api
    assert "hush-hush" in (await client("routes"))["text"]
    for role in ("read", "operate"):
        text = (await client("routes", token=TOKENS[role]))["text"]
        assert "everything-else" in text
        for secret in ("hush-hush", "dev-key", "root", "token: look", "token: do,"):
            assert secret not in text
    assert CONFIG.count("hush-hush") == 1


# --- who is there ---


async def test_connections_say_dialect_and_sign_and_can_be_closed(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    raw_stream = await trio.open_tcp_stream("127.0.0.1", served.ports["flymq"])
    async with connect(protocol("rustlog"), "127.0.0.1", served.ports["rustlog"]), raw_stream as raw:
        await raw.send_all(bytes.fromhex("af010100000000020000"))  # a frame with flags 0x00
        with trio.fail_after(60):
            while True:
                found = await client("connections", search="flymq")
                if found["connections"] and found["connections"][0]["dialect"] == "stock":
                    break
                await trio.sleep(0.02)
        (one,) = found["connections"]
        assert one["sign"] == "a frame with flags 0x00"
        assert one["last_error"] or one["in_flight"] >= 0
        everybody = await client("connections", limit=1)
        assert everybody["total"] >= 2
        assert everybody["following"] is not None
        closed = await client("close_connection", id=one["id"], token="do")
        assert closed["closed"]["peer"] == one["peer"]
        with trio.fail_after(60):
            while await raw.receive_some():
                pass
    with pytest.raises(Problem, match="may have ended"):
        await client("close_connection", id=one["id"])


async def test_consumers_upstreams_and_what_waits_for_them(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    await publish(served, "away.x", b"1", b"2", b"3")
    found = await client("consumers", search="away")
    (forward,) = found["consumers"]
    assert (forward["kind"], forward["backlog"], forward["unaccounted"]) == ("forward", 3, 0)
    (upstream,) = (await client("upstreams"))["upstreams"]
    assert (upstream["name"], upstream["connected"], upstream["backlog"]) == ("far", False, 3)
    assert len(upstream["addresses"]) == 2


async def test_what_was_handed_out_again_is_under_way(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    info = protocol("blipmq")
    await publish(served, "queue", b"0")
    context = ClientContext(Credentials(api_key="dev-key"))
    async with connect(info, "127.0.0.1", served.ports["blipmq"], context=context) as connection:
        subscribed = await connection.request(Subscribe(0, "queue", acknowledge=True), timeout=60)
        await publish(served, "queue", b"1")
        for _ in range(2):  # nobody acknowledges it
            taken = await connection.request(
                Take(0, subscribed.subscription, 1, hold_until=trio.current_time() + 60), timeout=60
            )
            assert taken.deliveries
        found = await client("consumers")
    tried = [one for one in found["under_way"] if one["topic"] == "queue"]
    assert [one["attempts"] >= 1 for one in tried] == [True]


# --- live ---


async def test_the_pulse_counts_what_flows(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    async with client.events("events") as events:
        assert (await events.next("pulse"))["ready"]
        await publish(served, "orders.eu", *[ORDER] * 10)
        rates: dict[str, float] = {}
        while not rates.get("listener:flymq>route:orders"):
            pulse = await events.next("pulse")
            rates = {one["edge"]: one.get("messages", 0) for one in pulse["flows"]}
        assert pulse["unaccounted"] == 0
        assert pulse["connections"].keys() == {"blipmq", "flymq", "rustlog", "felix", "fujin"}
    named = {one["source"] + ">" + one["target"] for one in (await client("map"))["edges"]}
    assert {"listener:flymq>route:orders", "route:orders>topics:orders", "topics:orders>target:felix"} <= named
    history = await client("history")
    assert len(history["times_ms"]) == len(history["received"]) >= 1


async def test_a_tap_shows_both_sides_of_a_transform_and_is_gone_with_its_reader(
    api: tuple[Gateway, ApiClient],
) -> None:
    served, client = api
    pipeline = pipeline_of(served)
    assert pipeline.tap is None
    async with client.events("tap", route="ord*", expression="value.amount > 50") as events:
        await events.next("report")
        await publish(served, "else", b'{"amount": 99}')
        values = [b64(one) for one in (b'{"amount": 5}', ORDER)]
        sent = {"address": "orders.eu", "protocol": "flymq", "producer": "p", "values": values}
        await client("append", {**sent, "headers": [[], [["h", b64(b"v")]]]})
        one = (await events.next("message"))["message"]
    assert (one["route"], one["changed"]) == ("orders", ["headers"])
    assert [h["name"] for h in one["before"]["headers"]] == ["h"]
    assert [h["name"] for h in one["after"]["headers"]] == ["h", "region"]
    with trio.fail_after(60):
        while pipeline.tap is not None:  # noqa: ASYNC110  # it goes when the server notices
            await trio.sleep(0.02)
    async with client.events("tap", redact="true") as events:
        await events.next("report")
        await publish(served, "orders.eu", b'{"amount": 5}', b"no json", keys=[b"secret", None])
        found = [(await events.next("message"))["message"] for _ in range(2)]
    assert [one["fate"] for one in found] == ["filtered", "failed"]
    assert found[0]["before"]["value"] == {"size": 13, "data": "", "format": "redacted"}
    assert "secret" not in json.dumps(found)


async def test_a_tap_drops_what_it_has_no_time_for_and_says_how_much(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    async with client.events("tap") as events:
        await events.next("report")
        for _ in range(40):
            await publish(served, "flood", *[b"x"] * 1000)
            await publish(served, "flood", *[b"x"] * 20)  # no multiple of what is kept of one batch
        report = {"seen": 0}
        while report["seen"] < 40_800:
            report = (await events.next("report"))["report"]
    assert report["dropped"] + report["matched"] == 40_800
    assert report["dropped"] > 30_000
    assert (await client("records", topic="flood", limit=1))["end"] == 40_800  # nobody who publishes noticed


async def test_what_cannot_be_looked_for_is_said_before_anything_is_sent(api: tuple[Gateway, ApiClient]) -> None:
    _served, client = api
    answer = await client.http.get("/v1/tap?expression=value.(", headers={"Authorization": "Bearer root"})
    assert (answer.status_code, answer.json()["type"]) == (400, "InvalidRequest")


# --- dead letters ---


async def test_letters_are_grouped_edited_sent_again_and_dropped(api: tuple[Gateway, ApiClient]) -> None:
    served, client = api
    await publish(served, "orders.eu", b"no json", b"neither", keys=[b"a", b"b"])
    ((listed),) = (await client("letters"))["topics"]
    assert listed["topic"] == "orders.eu.dlq"
    assert [(one["reason"], one["letters"], one["redriven"]) for one in listed["groups"]] == [("transform", 2, 0)]
    shown = await client("letter_list", topic="orders.eu.dlq", reason="transform")
    newest, oldest = shown["letters"]
    assert [one["value"]["text"] for one in (oldest, newest)] == ["no json", "neither"]
    again = {
        "topic": "orders.eu.dlq",
        "epoch": shown["epoch"],
        "partition": 0,
        "offsets": [oldest["offset"]],
        "to": "orders.eu",
        "protocol": "flymq",
        "edited": {"value": b64(ORDER), "key": b64(b"a"), "headers": [["fixed", b64(b"yes")]]},
    }
    assert (await client("redrive", {**again, "dry_run": True}))["letters"][0]["outcome"] == "would"
    assert (await client("redrive", again, token="do"))["letters"][0]["outcome"] == "done"
    assert (await client("redrive", again))["letters"][0]["outcome"] == "before"
    with pytest.raises(Problem, match="one letter at a time"):
        await client("redrive", {**again, "offsets": [0, 1]})
    found = [one for p in (0, 1) for one in (await client("records", topic="orders.eu", partition=p))["records"]]
    (sent,) = found
    assert sent["value"]["text"] == ORDER.decode()
    assert "fixed" in {one["name"] for one in sent["headers"]}
    assert (await client("letters"))["topics"][0]["groups"][0]["redriven"] == 1
    await client("purge", name="orders.eu.dlq", epoch=listed["epoch"], end=listed["end"])
    assert (await client("letters"))["topics"] == []


def pipeline_of(served: Gateway) -> Any:
    """To see that nothing of a tap stays in it."""
    (found,) = [one for one in gc.get_objects() if isinstance(one, Pipeline) and one._recorder is served.recorder]
    return found
