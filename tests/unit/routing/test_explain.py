"""The explanation of a message's way says what the table does."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.load import parse
from gateway.errors import InvalidRequest, NotRouted
from gateway.routing.explain import Explanation, Question, explain
from gateway.routing.table import compile_table
from tests.unit.config.toys import TOYS

TEXT = """
version: 1
listeners:
  fly: {protocol: flymq, bind: "127.0.0.1:1"}
  lix: {protocol: felix, bind: "127.0.0.1:2", tls: self-signed}
upstreams:
  far: {protocol: rustlog, address: "h:1"}
routes:
  - name: eu
    match: {protocol: flymq, topic: "orders.*", key: "eu-*", header: {kind: order}}
    transform:
      - {set_header: {region: eu}}
      - {remove_header: debug}
      - {rename_header: {a: b}}
      - {rewrite: {key: value.id}}
      - {filter: value.amount > 10}
      - {project: {id: value.id}}
    to: [{store: {topic: "eu.{1}"}}]
  - name: orders
    match: {protocol: flymq, topic: "orders.*"}
    to:
      - store: {topic: "orders.{1}", partitions: 2, retention: {time: 1h, bytes: 1KiB}, durability: {interval: 5ms}, schema: s}
      - bridge: {protocol: felix, address: "acme/shop/orders-{1}", accept_loss: all}
      - forward: {upstream: far, address: "far.{1}", dead_letter: "dead.{1}", accept_loss: all}
      - forward: {upstream: far, address: "wait.{1}", name: waits, accept_loss: all}
      - mirror: {upstream: far, address: "m.{1}", percent: 5}
  - {name: live, match: {topic: "live.*"}, to: [{proxy: {upstream: far, address: "p.{1}", timeout: 2s}}]}
  - name: moved
    match: {topic: "old.*"}
    transform: [{rewrite: {address: "new.{1}"}}, {rewrite: {address: "{topic}.again"}}]
    to: [{store: {topic: "{topic}"}}]
  - {name: keyed, match: {topic: "keyed", key: "x"}, to: [{store: {topic: k}}]}
"""
CONFIG = parse(TEXT, "r.yaml", {}, TOYS)
TABLE = compile_table(CONFIG, TOYS)
CARRIES = {name: spec.carries for name, spec in TOYS.items()}


def ask(address: str, protocol: str = "flymq", listener: str = "fly", **rest: Any) -> Explanation:
    return explain(TABLE, CONFIG, CARRIES, Question(protocol, listener, address, **rest))


def test_the_way_of_an_order() -> None:
    answer = ask("orders.x")
    assert (answer.route, answer.topic, answer.read_topic) == ("orders", "orders.x", "eu.x")
    steps = {(step.kind, step.where): step.notes for step in answer.steps}
    assert steps["store", "orders.x"] == (
        "2 partitions", "durability interval 5ms", "kept 1h", "kept up to 1KiB", "schema s",
    )  # fmt: skip
    assert steps["read", "felix: acme/shop/orders-x"] == ("on listener 'lix'",)
    pace = "10 attempts, 100ms..30s apart"
    assert steps["forward", "rustlog: far.x at far (h:1)"][:2] == ("cursor orders-far", f"{pace}, then to dead.x")
    assert "waits without limit, while the upstream is away" in steps["forward", "rustlog: far.x at far (h:1)"]
    assert "headers lost" in steps["forward", "rustlog: far.x at far (h:1)"]
    assert steps["forward", "rustlog: wait.x at far (h:1)"][:2] == ("cursor waits", f"{pace}, then it waits")
    assert steps["mirror", "rustlog: m.x at far (h:1)"] == ("5 % of the messages",)
    assert "key lost" in steps["bridge", "felix: acme/shop/orders-x"]


def test_keys_and_headers_decide() -> None:
    answer = ask("orders.x", key=b"eu-1", headers=(("kind", b"order"),))
    assert (answer.route, answer.topic) == ("eu", "eu.x")
    assert [(step.kind, step.where) for step in answer.steps][:7] == [
        ("set_header", "region: eu"),
        ("remove_header", "debug"),
        ("rename_header", "a: b"),
        ("rewrite", "key: value.id"),
        ("filter", "value.amount > 10"),
        ("project", "id: value.id"),
        ("store", "eu.x"),
    ]
    assert ask("orders.x", key=b"eu-1").route == "orders"


def test_a_bridge_leads_to_the_topic_it_shows() -> None:
    answer = ask("acme/shop/orders-x", "felix", "lix")
    assert (answer.route, answer.topic, answer.read_topic) == ("orders", "orders.x", "orders.x")


def test_a_proxy_has_no_topic() -> None:
    answer = ask("live.a")
    assert (answer.topic, answer.read_topic) == ("", "")
    assert [(s.kind, s.where, s.notes) for s in answer.steps] == [
        ("proxy", "rustlog: p.a at far (h:1)", ("the answer is the remote's, within 2s",))
    ]


def test_what_no_route_takes() -> None:
    with pytest.raises(NotRouted, match="no route takes 'other'"):
        ask("other")
    with pytest.raises(NotRouted, match="'keyed' would take 'keyed', but not with this key"):
        ask("keyed", key=b"y")
    with pytest.raises(InvalidRequest):
        ask("orders.\x01")


def test_rewritten_addresses_are_expanded() -> None:
    steps = ask("old.x").steps
    assert [step.where for step in steps if step.kind == "rewrite"] == ["address: new.x", "address: new.x.again"]
    assert ("store", "new.x.again") in {(step.kind, step.where) for step in steps}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"id": 7, "amount": 12}', ("becomes", '{"id":7}', ("key: 7", "header kind: order", "header region: eu"))),
        (b'{"id": 7, "amount": 1}', ("filtered", "this message is not stored", ())),
        (b"no JSON", ("fails", "the payload is not JSON", ("it goes to the dead letters",))),
    ],
)
def test_a_value_goes_through_the_transform(value: bytes, expected: tuple[str, str, tuple[str, ...]]) -> None:
    answer = ask("orders.x", key=b"eu-1", headers=(("kind", b"order"), ("debug", b"1")), value=value)
    (found,) = (step for step in answer.steps if step.kind == expected[0])
    assert found.where.startswith(expected[1])
    assert found.notes == expected[2]
