"""What the pages say of a gateway at work: what is wrong in red, where everything is, and values by their schemas."""

from __future__ import annotations

import json
import re
import socket

from playwright.sync_api import Locator, expect

from tests.console.conftest import TOKENS, House, Opened
from tests.console.cost import produce
from tests.console.traffic import again_and_again, flowing

AVRO = '{"type": "record", "name": "reading", "fields": [{"name": "place", "type": "string"}, {"name": "amount", "type": "long"}]}'
READING = b"\x08Oslo\x14"
"""A string of 4 bytes, and 10: both lengths and longs are zigzag (Avro 1.11, binary encoding)."""
PROTOBUF = 'syntax = "proto3"; message Visit { string page = 1; int32 seconds = 2; }'
VISIT = b"\x0a\x05/home\x10\x07"
"""Field 1, length-delimited, 5 bytes; field 2, varint 7 (protobuf, encoding)."""
RED = "rgb(179, 38, 30)"


def is_red(alarm: Locator) -> None:
    expect(alarm).to_have_css("fill", RED)


def test_what_is_refused_dead_lettered_and_held_back_is_red(opened: Opened, house: House) -> None:
    house.senders.register("reading", "avro", AVRO)
    page = opened("/")

    def alarm(node: str) -> Locator:
        return page.locator(f"[data-node='{node}'] .alarm")

    with again_and_again(lambda: house.senders.send("flymq", b"no reading", address="typed.avro")):
        expect(alarm("route:everything-else")).to_contain_text("/s refused")
        is_red(alarm("route:everything-else"))
        expect(page.locator("[data-node='route:everything-else']")).to_have_class("node bad")
    with again_and_again(lambda: house.senders.send("flymq", b"no json", address="orders.broken")):
        expect(alarm("topics:orders")).to_contain_text("/s dead letters")
        is_red(alarm("topics:orders"))

    def flood() -> None:
        with socket.create_connection(("127.0.0.1", house.served.ports["narrow"]), timeout=60) as sock:
            sock.sendall(
                produce("narrow", b"x" * 300_000) * 10
            )  # what is small is stored before anybody could be held back
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass

    with again_and_again(flood):
        expect(alarm("listener:narrow")).to_contain_text("/s held back")
        is_red(alarm("listener:narrow"))
    expect(page.locator("[data-node='listener:narrow']")).to_have_class("node")
    is_red(alarm("target:warehouse"))
    expect(page.locator("[data-node='target:nearby']")).to_have_class("node")
    expect(page.locator("#health")).to_contain_text("upstream warehouse: away for")


def test_an_arrow_has_its_rate_and_its_bytes(opened: Opened, house: House) -> None:
    page = opened("/")
    with flowing(house.senders):
        spans = page.locator("[data-edge='listener:flymq>route:orders'] .rate tspan")
        expect(spans.nth(0)).to_contain_text("/s")
        expect(spans.nth(1)).to_contain_text("B/s")


def test_values_are_shown_by_the_schema_of_their_topic(opened: Opened, house: House) -> None:
    house.senders.register("reading", "avro", AVRO)
    house.senders.register("visit", "protobuf", PROTOBUF)
    house.senders.send("flymq", READING, address="typed.avro")
    house.senders.send("flymq", VISIT, address="typed.protobuf")
    house.senders.send("flymq", b"\x00\xff", address="typed.not")
    page = opened("/topics?search=typed.avro")
    expect(page.locator("tbody tr")).to_contain_text("reading")
    for topic, kind, shown in (
        ("typed.avro", "avro", ('"place":"Oslo"', '"amount":10')),
        ("typed.protobuf", "protobuf", ('"page":"/home"', '"seconds":7')),
        ("typed.not", "binary", ("00 ff",)),
    ):
        page.goto(f"{house.url}/topic?name={topic}")
        value = page.locator("td.value").last
        expect(value.locator(".badge")).to_have_text(kind)
        text = value.locator("pre").inner_text().replace(": ", ":")
        assert all(one in text for one in shown), text
        page.get_by_role("link", name="in five languages").last.click()
        expect(page.locator("h3 .badge").first).to_have_text(kind)
        text = page.locator("section[aria-label='The message'] pre").first.inner_text().replace(": ", ":")
        assert all(one in text for one in shown), text


def test_upstreams_say_how_they_are_and_were(opened: Opened, house: House) -> None:
    page = opened("/upstreams")
    nearby = page.locator("section[aria-labelledby=up-nearby]")
    with again_and_again(lambda: house.senders.send("flymq", b"x", address="sent.a")):
        expect(nearby.locator("dl")).to_contain_text(" ms")
    expect(nearby.locator("h2")).to_contain_text("up")
    expect(nearby.locator("h2")).to_contain_text("circuit closed")
    expect(nearby.locator(".strip rect").first).to_be_attached()
    expect(nearby.locator(".strip rect.bad")).to_have_count(0)
    warehouse = page.locator("section[aria-labelledby=up-warehouse]")
    expect(warehouse.locator("h2")).to_contain_text("down")
    expect(warehouse.locator("dd div")).to_contain_text(["1. 127.0.0.1:9", "2. 127.0.0.1:19"])
    expect(warehouse.locator("dd div .badge")).to_have_text(["in use"])
    expect(warehouse.locator(".strip rect.bad").first).to_be_attached()
    expect(warehouse.locator("ul li").first).to_contain_text("cannot connect to 127.0.0.1:")


def test_everybody_who_reads_on_has_a_position(opened: Opened, house: House) -> None:
    house.senders.send("flymq", *[b"%d" % n for n in range(5)], address="sent.b")
    house.senders.send("flymq", *[b"%d" % n for n in range(5)], address="grouped.b")
    house.senders.commit("grouped.b", "readers-of-b", 3)
    page = opened("/consumers?search=sent.b")
    expect(page.locator("#durable tbody tr").first).to_contain_text("forward")
    expect(page.locator("#durable tbody tr").first).to_contain_text("5 of 5")
    expect(page.locator("#bridges")).to_contain_text("5 of 5")
    page.goto(f"{house.url}/consumers?search=readers-of-b")
    expect(page.locator("#groups tbody tr")).to_contain_text(["3 of 0–5"])
    expect(page.locator("#groups tbody tr path").first).to_have_attribute("d", re.compile("^M.*L"))  # its lag over time
    page.goto(f"{house.url}/consumers?search=nearby")
    expect(page.locator("#bridges")).to_contain_text("jobs")
    expect(page.locator("#bridges")).to_contain_text("kept there")


def test_a_connection_says_by_which_sign_its_dialect_is_known(opened: Opened) -> None:
    page = opened("/connections?search=fujin")
    expect(page.locator("tbody tr").first).to_contain_text("a session that begins with HELLO")


def test_fujin_is_shown_in_its_dialects_with_what_each_loses(opened: Opened, house: House) -> None:
    house.senders.send("flymq", b"in all dialects", address="spoken", keys=[b"key-1"])
    page = opened("/message?topic=spoken&partition=0&offset=0")
    fujin = page.locator("section[aria-labelledby=tongue-fujin]")
    expect(fujin.locator(":scope > .fates .lost s").first).to_have_text("key key-1")
    for frame in fujin.locator("details").all():
        if not frame.get_attribute("open"):
            frame.locator("summary").click()
    headed = fujin.locator("details", has_text="0.5 and v1: HMSG")
    expect(headed.locator(".fates .kept").first).to_contain_text("key")
    expect(headed.locator("tbody")).to_contain_text("x-gateway-key")
    expect(fujin.locator("details", has_text="0.5 and v1: MSG").locator(".fates .lost s").first).to_have_text(
        "key key-1"
    )


def test_the_tap_takes_what_is_asked_for_alone(opened: Opened, house: House) -> None:
    page = opened("/tap")
    form = page.locator("form[data-action=tap]")
    form.locator("[name=protocol]").select_option("rustlog")
    form.locator("[name=redact]").check()
    form.get_by_role("button", name="Start").click()
    expect(page.locator("#report")).to_contain_text("0 seen")
    house.senders.send("flymq", b"secret of flymq", address="tapped")
    house.senders.send("rustlog", b"secret of rustlog", address="tapped")
    entry = page.locator(".tapped").first
    expect(entry).to_contain_text("17 bytes")
    expect(page.locator(".tapped")).to_have_count(1)
    assert "secret" not in page.content()
    form.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Clear").click()
    form.locator("[name=redact]").uncheck()
    form.locator("[name=protocol]").select_option("")
    form.locator("[name=sample]").fill("10")
    form.get_by_role("button", name="Start").click()
    expect(page.locator("#report")).to_contain_text("0 seen")
    for number in range(20):
        house.senders.send("flymq", b"%d" % number, address="tapped")
    expect(page.locator("#report")).to_contain_text("20 seen, 2 shown")
    expect(page.locator(".tapped")).to_have_count(2)


def test_the_tap_counts_what_there_is_no_time_for(opened: Opened, house: House) -> None:
    """A burst is more than is shown; one who looks and hardly reads holds up neither who publishes nor who else looks."""
    large = b"x" * 40_000
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(60)
        slow.connect(("127.0.0.1", house.served.ports["admin"]))
        slow.sendall(
            b"GET /v1/tap?route=everything-else HTTP/1.0\r\nHost: 127.0.0.1\r\n"
            b"Authorization: Bearer %s\r\n\r\n" % TOKENS["read"].encode()
        )
        assert slow.recv(1) == b"H"  # it is looked for
        page = opened("/tap")
        form = page.locator("form[data-action=tap]")
        form.locator("[name=route]").fill("everything-else")
        form.locator("[name=stage]").select_option("before")
        form.get_by_role("button", name="Start").click()
        expect(page.locator("#report")).to_contain_text("0 seen")
        taken = bytearray()
        # The kernel cuts off whose window stays closed for five seconds, and a part of what is in the buffer does not open it: so this
        # one takes all that its small buffer has, ten times a second, however long the burst is.
        with again_and_again(lambda: taken.extend(slow.recv(1 << 20))):
            for _ in range(60):
                house.senders.send("rustlog", *[large] * 20, address="burst")
        while b'"seen":1200' not in taken:
            more = slow.recv(1 << 20)
            assert more, "it was cut off"
            taken = taken[-100_000:] + more
        report = json.loads(re.findall(rb'{"report":({"seen":1200,[^}]*})', taken)[0])
        assert report["matched"] + report["dropped"] == 1200
        assert report["dropped"] >= 720
        expect(page.locator("#report")).to_contain_text("1200 seen")
    seen, shown, left_out = map(int, re.findall(r"\d+", page.locator("#report").inner_text()))
    assert seen == shown + left_out
    assert left_out >= 720  # of twenty at once, eight at most
    expect(page.locator(".tapped")).to_have_count(min(shown, 200))
