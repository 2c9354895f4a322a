"""Each action of the console, to its effect in the log."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import House, Opened


def until(found: Callable[[], Any]) -> Any:
    """What is found as soon as something is."""
    deadline = time.monotonic() + 60
    while not (value := found()):
        assert time.monotonic() < deadline
    return value


def confirm(page: Page) -> None:
    page.locator("#dialog button.main").click()


def test_publishing_by_the_routes(opened: Opened, house: House) -> None:
    page = opened("/topic?name=alerts")
    form = page.locator("form[data-action=publish]")
    form.locator("[name=address]").fill("orders.published")
    form.locator("[name=protocol]").select_option("flymq")
    form.locator("[name=key]").fill("k")
    form.locator("[name=headers]").fill("who: me")
    form.locator("[name=value]").fill('{"amount": 77, "name": "Müller"}')
    form.get_by_role("button").click()
    expect(form.locator("output a")).to_contain_text("orders.published/")
    form.locator("output a").click()
    expect(page.locator("dl.facts")).to_contain_text("who: me")
    found = [one for partition in (0, 1) for one in house.records("orders.published", partition)]
    assert [(one["key"]["text"], one["value"]["text"], one["route"]) for one in found] == [
        ("k", '{"amount": 77, "name": "Müller"}', "orders")
    ]
    assert {one["name"] for one in found[0]["headers"]} == {"who", "region"}


def test_what_a_transform_leaves_out_is_said(opened: Opened, house: House) -> None:
    page = opened("/topic?name=alerts")
    form = page.locator("form[data-action=publish]")
    form.locator("[name=address]").fill("orders.eu")
    form.locator("[name=protocol]").select_option("flymq")
    form.locator("[name=value]").fill('{"amount": 1}')
    form.get_by_role("button").click()
    expect(form.locator("output")).to_contain_text("left it out")
    form.locator("[name=value]").fill("no json")
    form.get_by_role("button").click()
    expect(form.locator("output .bad")).to_contain_text("not JSON")


def test_browsing_by_offset_time_and_key_and_taking_a_range_along(opened: Opened, house: House) -> None:
    house.senders.send(
        "flymq", *[b"%d" % n for n in range(60)], address="many", keys=[b"k%d" % (n % 7) for n in range(60)]
    )
    page = opened("/topic?name=many")
    offsets = page.locator("tbody td:first-child")
    expect(offsets.first).to_have_text("40")
    page.get_by_role("link", name="Earlier").click()
    expect(offsets.first).to_have_text("20")
    page.fill("[name=offset]", "55")
    page.get_by_role("button", name="Show").click()
    expect(offsets).to_have_text(["55", "56", "57", "58", "59"])
    page.fill("[name=offset]", "0")
    page.fill("[name=key]", "k3")
    page.get_by_role("button", name="Show").click()
    expect(offsets).to_have_text([str(n) for n in range(60) if n % 7 == 3])
    page.goto(f"{house.url}/topic?name=many&time=2020-01-01T00:00")
    expect(offsets.first).to_have_text("0")
    ranged = page.get_by_role("form", name="Download a range")
    for first, last in ((0, 60), (7, 31)):
        ranged.locator("[name=start]").fill(str(first))
        ranged.locator("[name=end]").fill(str(last))
        with page.expect_download() as download:
            ranged.get_by_role("button").click()
        lines = [json.loads(line) for line in download.value.path().read_text().splitlines()]
        assert [one["offset"] for one in lines] == list(range(first, last))
    assert "60 messages" in str(page.locator("svg.bars").get_attribute("aria-label"))


def test_explaining_the_way_of_a_message(opened: Opened) -> None:
    page = opened("/routes")
    form = page.locator("form[data-action=explain]")
    form.locator("[name=address]").fill("orders.us")
    form.locator("[name=value]").fill('{"amount": 50}')
    form.get_by_role("button").click()
    expect(form.locator("output")).to_contain_text("Route orders, stored as orders.us")
    for step in ("set_header: region: eu", "forward: flymq", "bridge: felix: acme/shop/orders-us", "key lost"):
        expect(form.locator("output ol")).to_contain_text(step)
    form.locator("[name=address]").fill("a//b")
    form.get_by_role("button").click()
    expect(form.locator("output .bad")).to_be_visible()


def test_a_configuration_is_checked_planned_and_applied(opened: Opened, house: House) -> None:
    page = opened("/routes")
    form = page.locator("form[data-action=configuration]")
    text, output, apply = form.locator("textarea"), form.locator("output"), form.get_by_role("button", name="Apply")
    before = text.input_value()
    expect(apply).to_be_disabled()
    text.fill(before.replace("value.amount > 10", "value.amount >"))
    form.get_by_role("button", name="Check").click()
    expect(output).to_contain_text("cannot be applied")
    expect(output).to_contain_text("line ")
    expect(apply).to_be_disabled()
    text.fill(before.replace("- name: sensors", "- name: thermometers"))
    form.get_by_role("button", name="Check").click()
    expect(output).to_contain_text("route thermometers: added")
    apply.click()
    confirm(page)
    expect(output).to_contain_text("Applied.")
    assert [one["name"] for one in house.ask("/v1/routes")["routes"]] == [
        "orders",
        "thermometers",
        "sent",
        "everything-else",
    ]
    text.fill(before)
    form.get_by_role("button", name="Check").click()
    expect(output).to_contain_text("route thermometers: removed")
    apply.click()
    confirm(page)
    expect(output).to_contain_text("Applied.")
    assert house.ask("/v1/routes")["text"] == before


def previewed(form: Locator, *cells: str) -> None:
    form.get_by_role("button", name="Preview").click()
    expect(form.locator("output tbody td")).to_have_text(list(cells))


def test_a_group_is_put_elsewhere_after_a_preview(opened: Opened, house: House) -> None:
    house.senders.send("flymq", *[b"%d" % n for n in range(10)], address="grouped")
    house.senders.commit("grouped", "billing", 7)
    page = opened("/consumers?search=billing", role="operate")
    page.get_by_role("button", name="Move group billing on grouped").click()
    form = page.locator("#place")
    expect(form.locator("[name=to]")).to_be_focused()
    form.locator("[name=to]").select_option("offset")
    form.get_by_role("button", name="Preview").click()
    expect(form.locator("output .bad")).to_have_text("Say which offset.")
    form.locator("[name=value]").fill("2")
    previewed(form, "0", "7", "2", "0", "5", "8")
    assert house.ask("/v1/groups", group="billing")["positions"][0]["committed"] == 7
    form.locator("[name=value]").fill("9")  # what was shown is not what would be done now
    expect(form.get_by_role("button", name="Do it")).to_have_count(0)
    previewed(form, "0", "7", "9", "2", "0", "1")
    form.get_by_role("button", name="Do it").click()
    expect(form.locator("output")).to_contain_text("billing is there")
    assert house.ask("/v1/groups", group="billing")["positions"][0]["committed"] == 9
    expect(page.locator("#groups")).to_contain_text("9 of 0–10")


def consumer(house: House, name: str, topic: str) -> Mapping[str, Any]:
    """The account of one, which adds up."""
    (found,) = [one for one in house.ask("/v1/consumers", search=name)["consumers"] if one["topic"] == topic]
    assert found["unaccounted"] == 0
    return found


def test_a_subscription_is_put_elsewhere_though_it_is_being_read(opened: Opened, house: House) -> None:
    house.senders.send("blipmq", *[b"%d" % n for n in range(5)], address="placed")
    house.senders.subscribe("blipmq", "placed", acknowledge=True)
    house.senders.send("blipmq", *[b"%d" % n for n in range(5)], address="placed")
    until(lambda: house.ask("/v1/consumers", search="placed")["consumers"])
    page = opened("/consumers?search=placed", role="operate")
    row = page.locator("#durable tbody tr")
    expect(row).to_contain_text("subscription")
    row.get_by_role("button").click()
    form = page.locator("#place")
    form.locator("[name=to]").select_option("latest")
    form.get_by_role("button", name="Preview").click()
    expect(form.locator("output .bad")).to_contain_text("1 connections read from subscription")
    form.locator("[name=force]").check()
    previewed(form, "0", "5", "10", "5", "0", "0")
    form.get_by_role("button", name="Do it").click()
    expect(form.locator("output .good")).to_contain_text("is there")
    expect(row).to_contain_text("10 of 10")
    expect(row).to_contain_text("balanced")
    found = consumer(house, "placed", "placed")
    assert (found["skipped"], found["repeated"], found["backlog"]) == (5, 0, 0)
    form.locator("[name=to]").select_option("earliest")
    previewed(form, "0", "10", "0", "0", "10", "10")
    form.get_by_role("button", name="Do it").click()
    expect(form.locator("output .good")).to_contain_text("is there")
    found = consumer(house, "placed", "placed")
    assert (found["skipped"], found["repeated"], found["backlog"]) == (5, 10, 10)


def test_a_forward_sends_once_more_what_it_is_put_back_to(opened: Opened, house: House) -> None:
    house.senders.send("flymq", *[b"%d" % n for n in range(6)], address="sent.again")
    until(lambda: house.ask("/v1/consumers", search="sent.again")["consumers"])
    until(lambda: not consumer(house, "nearby", "sent.again")["backlog"])
    page = opened("/consumers?search=sent.again", role="operate")
    row = page.locator("#durable tbody tr", has_text="forward")
    row.get_by_role("button").click()
    form = page.locator("#place")
    form.locator("[name=to]").select_option("time")
    form.locator("[name=time]").fill("2020-01-01T00:00:00")
    previewed(form, "0", "6", "0", "0", "6", "6")
    form.locator("[name=to]").select_option("offset")
    form.locator("[name=value]").fill("4")
    previewed(form, "0", "6", "4", "0", "2", "2")
    form.get_by_role("button", name="Do it").click()
    expect(form.locator("output .good")).to_contain_text("is there")
    until(lambda: not consumer(house, "nearby", "sent.again")["backlog"])
    found = consumer(house, "nearby", "sent.again")
    assert (found["repeated"], found["acknowledged"]) == (2, 8)
    expect(row).to_contain_text("balanced")


def test_a_connection_is_closed(opened: Opened, house: House) -> None:
    with socket.create_connection(("127.0.0.1", house.served.ports["rustlog"]), timeout=60) as sock:
        peer = f"127.0.0.1:{sock.getsockname()[1]}"
        until(lambda: house.ask("/v1/connections", search=peer)["connections"])
        page = opened("/connections", role="operate")
        row = page.locator("tr", has_text=peer)
        expect(row).to_contain_text("binary")
        row.get_by_role("button").click()
        confirm(page)
        expect(page.locator("#said")).to_contain_text(f"{peer} is closed")
        assert sock.recv(1) == b""
        expect(row).to_have_count(0)


def test_letters_are_tried_edited_sent_again_and_dropped(opened: Opened, house: House) -> None:
    house.senders.send("flymq", b"broken", b"worse", address="orders.letters", keys=[b"a", b"b"])
    page = opened("/letters?search=orders.letters")
    expect(page.locator("tbody tr")).to_contain_text(["2"])
    page.get_by_role("link", name="transform").click()
    form = page.locator("form[data-action=redrive]")
    page.get_by_role("checkbox", name="Letter 0:0").check()
    form.get_by_role("button", name="Dry run").click()
    expect(form.locator("output")).to_contain_text("could not transform")
    page.get_by_label("Edit letter 0:0").click()
    dialog = page.locator("#dialog")
    dialog.get_by_label("Value", exact=True).fill('{"amount": 99}')
    dialog.get_by_label("To an address").fill("orders.letters")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.locator("output")).to_contain_text("Would go to orders.letters")
    dialog.get_by_role("button", name="Send this").click()
    expect(dialog.locator("output")).to_contain_text("Sent to orders.letters")
    sent = [one["value"]["text"] for partition in (0, 1) for one in house.records("orders.letters", partition)]
    assert sent == ['{"amount": 99}']
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("checkbox", name="Letter 0:1").check()
    form.get_by_label("To another address").fill("letters.elsewhere")
    form.get_by_role("button", name="Send again").click()
    confirm(page)
    expect(form.locator("output")).to_contain_text("sent again")
    assert [one["value"]["text"] for one in house.records("letters.elsewhere")] == ["worse"]
    form.get_by_role("button", name="Drop all").click()
    confirm(page)
    page.wait_for_url(f"{house.url}/letters")
    assert house.ask("/v1/letters", search="orders.letters")["topics"] == []


def test_the_tap_shows_both_sides_pauses_and_translates(opened: Opened, house: House) -> None:
    page = opened("/tap")
    form = page.locator("form[data-action=tap]")
    form.locator("[name=expression]").fill("value.amount >")
    form.get_by_role("button", name="Start").click()
    expect(page.locator("#said .bad")).to_be_visible()
    form.locator("[name=expression]").fill("value.amount > 40")
    form.locator("[name=route]").fill("orders")
    form.get_by_role("button", name="Start").click()
    expect(page.locator("#report")).to_contain_text("0 seen")
    house.senders.send("flymq", b'{"amount": 41}', b'{"amount": 12}', keys=[b"x", b"y"])
    entry = page.locator(".tapped").first
    expect(entry).to_contain_text("changed: headers")
    expect(entry.locator(".sides .changed")).to_have_text("region: eu")
    expect(page.locator(".tapped")).to_have_count(1)
    entry.get_by_role("button").click()
    expect(page.locator("#dialog section")).to_have_count(5)
    page.locator("#dialog").get_by_role("button", name="Close").click()
    form.get_by_role("button", name="Pause").click()
    house.senders.send("flymq", b'{"amount": 42}')
    expect(page.locator("#report")).to_contain_text("2 shown")
    expect(page.locator(".tapped")).to_have_count(1)
    form.get_by_role("button", name="Clear").click()
    expect(page.locator("#none")).to_be_visible()


def test_logging_out_ends_it(opened: Opened, house: House) -> None:
    page = opened("/topics")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{house.url}/login")
    page.goto(f"{house.url}/topics")
    expect(page.locator("input[name=token]")).to_be_visible()
