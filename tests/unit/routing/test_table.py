"""The routing table: which route takes what, which topic an address is, and the way back."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import parse
from gateway.envelope import Columns
from gateway.errors import InvalidRequest, NotRouted
from gateway.routing import table as module
from gateway.routing.table import RoutingTable, compile_table
from gateway.store.interface import Durability, TopicConfig
from tests.unit.config.toys import TOYS

LISTENERS = """
version: 1
listeners:
  fly:   {protocol: flymq, bind: "127.0.0.1:1"}
  fly2:  {protocol: flymq, bind: "127.0.0.1:2"}
  log:   {protocol: rustlog, bind: "127.0.0.1:3"}
  felix: {protocol: felix, bind: "127.0.0.1:4", tls: self-signed}
  shop:  {protocol: felix, bind: "127.0.0.1:5", tls: self-signed, scope: acme/shop}
storage: {durability: {interval: 7ms}}
upstreams:
  far: {protocol: flymq, address: "h:1", ingest: [{from: "alerts.**", into: "far.{1}"}, {from: exact, into: here}]}
"""

BRIDGED = """
routes:
  - name: orders
    match: {protocol: flymq, topic: "orders.*"}
    to:
      - store:  {topic: "orders.{1}", partitions: 4, retention: 7d, durability: memory, schema: order}
      - bridge: {protocol: felix, address: "acme/shop/orders-{1}", accept_loss: all}
  - name: everything-else
    match: {}
    to: [{store: {topic: "{topic}"}}]
"""


def table(routes: str, topics: str = "") -> RoutingTable:
    return compile_table(parse(LISTENERS + topics + routes, "r.yaml", {}, TOYS), TOYS)


def route(rest: str, name: str = "r") -> str:
    return f"  - {{name: {name}, {rest}}}\n"


def chosen(
    routing: RoutingTable, protocol: str, listener: str, address: str, principal: str = ""
) -> tuple[str, tuple[str, ...]]:
    resolved = routing.writer(protocol, listener, address, principal).route
    assert resolved is not None
    return resolved.name, resolved.topics


# --- identity ---


def test_without_routes_an_address_is_the_topic_of_the_same_name() -> None:
    routing = table("")
    for protocol, listener in (("flymq", "fly"), ("felix", "felix"), ("rustlog", "log"), ("unheard-of", "nowhere")):
        assert chosen(routing, protocol, listener, "a.b/c") == ("identity", ("a.b/c",))
        assert routing.reader(protocol, listener, "a.b/c") == "a.b/c"
        assert routing.address_of(protocol, listener, "a.b/c") == "a.b/c"


@given(st.text(min_size=1, max_size=20))
def test_identity_is_the_identity_or_a_refusal(name: str) -> None:
    try:
        assert IDENTITY.reader("flymq", "fly", name) == name
    except InvalidRequest:
        with pytest.raises(InvalidRequest):
            IDENTITY.writer("flymq", "fly", name)
    else:
        assert IDENTITY.address_of("flymq", "fly", name) == name


IDENTITY = table("")


@pytest.mark.parametrize("address", ["", "__x", "a//b", "a\n", "x" * 513, "x" * 5_000_000])
def test_an_address_whose_topic_cannot_be_is_refused_for_writing_and_reading(address: str) -> None:
    with pytest.raises(InvalidRequest):
        IDENTITY.writer("flymq", "fly", address)
    with pytest.raises(InvalidRequest):
        IDENTITY.reader("flymq", "fly", address)


# --- precedence ---

PRECEDENCE = """
routes:
  - {name: listener, match: {listener: fly2, topic: "a.**"}, to: [{store: {topic: "two.{1}"}}]}
  - {name: principal, match: {principal: "shop-*", topic: "a.*"}, to: [{store: {topic: "shop.{1}"}}]}
  - {name: protocol, match: {protocol: [rustlog, felix], topic: "a.*"}, to: [{store: {topic: "logs.{1}"}}, {store: {topic: "all"}}]}
  - {name: exact, match: {topic: "a.b"}, to: [{store: {topic: "exactly"}}]}
  - {name: deep, match: {topic: "a.**"}, to: [{store: {topic: "deep/{1}"}}]}
"""


@pytest.mark.parametrize(
    ("protocol", "listener", "address", "principal", "name", "topics"),
    [
        ("flymq", "fly", "a.b", "", "exact", ("exactly",)),
        ("flymq", "fly", "a.c", "", "deep", ("deep/c",)),
        ("flymq", "fly", "a.c", "shop-1", "principal", ("shop.c",)),
        ("flymq", "fly", "a.c", "other", "deep", ("deep/c",)),
        ("flymq", "fly2", "a.c", "shop-1", "listener", ("two.c",)),
        ("rustlog", "log", "a.b", "", "protocol", ("logs.b", "all")),
        ("rustlog", "log", "a.b.c", "", "deep", ("deep/b.c",)),
    ],
)
def test_the_first_route_that_matches_takes_it(
    protocol: str, listener: str, address: str, principal: str, name: str, topics: tuple[str, ...]
) -> None:
    assert chosen(table(PRECEDENCE), protocol, listener, address, principal) == (name, topics)


def test_reading_looks_at_protocol_listener_and_topic_only() -> None:
    routing = table(PRECEDENCE)
    assert routing.reader("flymq", "fly", "a.c") == "shop.c"  # the principal is not asked
    assert routing.reader("rustlog", "log", "a.c") == "shop.c"
    assert routing.reader("flymq", "fly2", "a.c") == "two.c"
    keyed = table('routes:\n  - {name: r, match: {key: "x*", topic: a}, to: [{store: {topic: b}}]}\n')
    assert keyed.reader("flymq", "fly", "a") == "b"


def test_no_match_is_a_refusal() -> None:
    routing = table(PRECEDENCE)
    for look in (routing.writer, routing.reader):
        with pytest.raises(NotRouted, match="'b'"):
            look("flymq", "fly", "b")


# --- conditions on each message ---

KEYED = """
routes:
  - {name: eu, match: {topic: "o.*", key: "eu-*"}, to: [{store: {topic: "eu.{1}"}}]}
  - {name: big, match: {topic: "o.*", header: {size: big, kind: "*"}}, to: [{store: {topic: "big.{1}"}}]}
"""
REST = '  - {name: rest, match: {topic: "o.*"}, to: [{store: {topic: "rest.{1}"}}]}\n'


def mixed() -> Columns:
    return Columns.of(
        [b"0", b"1", b"2", b"3", b"4"],
        [b"eu-1", b"us-1", None, b"eu-", b"eu-2"],
        [
            (),
            (("kind", b"a"), ("size", b"small"), ("size", b"big")),
            (("size", b"big"),),
            (),
            (("kind", b"a"), ("size", b"big")),
        ],
    )


def test_messages_of_one_batch_may_part() -> None:
    plan = table(KEYED + REST).writer("flymq", "fly", "o.x")
    assert plan.route is None
    parts, refused = plan.split(mixed())
    assert [(route.name, route.topics, indexes) for route, indexes in parts] == [
        ("eu", ("eu.x",), [0, 4]),
        ("big", ("big.x",), [1]),
        ("rest", ("rest.x",), [2, 3]),
    ]
    assert list(refused) == []


def test_messages_that_no_route_takes_are_named() -> None:
    parts, refused = table(KEYED).writer("flymq", "fly", "o.x").split(mixed())
    assert [indexes for _, indexes in parts] == [[0, 4], [1]]
    assert list(refused) == [2, 3]


def test_a_batch_that_goes_one_way_is_not_taken_apart() -> None:
    plan = table(KEYED + REST).writer("flymq", "fly", "o.x")
    for columns, name in (
        (Columns.of([b"1", b"2"]), "rest"),
        (Columns.of([b"1", b"2"], [b"eu-1", b"eu-2"]), "eu"),
    ):
        parts, refused = plan.split(columns)
        assert [(route.name, indexes) for route, indexes in parts] == [(name, None)]
        assert list(refused) == []


def test_a_sure_route_needs_no_look_at_the_messages() -> None:
    plan = table(REST.join(["routes:\n", ""])).writer("flymq", "fly", "o.x")
    assert plan.route is not None
    assert [(route.name, indexes) for route, indexes in plan.split(mixed())[0]] == [("rest", None)]


# --- bridges ---


def test_a_bridge_is_the_topic_it_shows_for_reading_and_writing() -> None:
    routing = table(BRIDGED)
    assert chosen(routing, "flymq", "fly", "orders.eu") == ("orders", ("orders.eu",))
    assert chosen(routing, "felix", "felix", "acme/shop/orders-eu") == ("orders", ("orders.eu",))
    assert routing.reader("felix", "felix", "acme/shop/orders-eu") == "orders.eu"
    assert (
        routing.reader("felix", "felix", "acme/shop/orders-a.b") == "acme/shop/orders-a.b"
    )  # identity: * takes no dot
    assert routing.reader("flymq", "fly", "acme/shop/orders-eu") == "acme/shop/orders-eu"  # the bridge is Felix's


def test_in_its_own_scope_a_bridge_goes_by_its_short_name() -> None:
    routing = table(BRIDGED)
    assert routing.reader("felix", "shop", "orders-eu") == "orders.eu"
    assert routing.reader("felix", "felix", "orders-eu") == "orders-eu"
    assert routing.address_of("felix", "shop", "orders.eu") == "orders-eu"
    assert routing.address_of("felix", "felix", "orders.eu") == "acme/shop/orders-eu"
    assert routing.address_of("flymq", "fly", "orders.eu") == "orders.eu"


def test_a_listener_the_file_does_not_know_sees_bridges_as_written() -> None:
    assert table(BRIDGED).reader("felix", "far", "acme/shop/orders-eu") == "orders.eu"


def test_what_is_written_to_a_bridge_goes_to_the_topic_it_shows_alone() -> None:
    routing = table(
        """
routes:
  - name: r
    match: {protocol: flymq, topic: "*.*"}
    to: [{store: {topic: "a.{1}"}}, {store: {topic: "b.{2}"}}, {bridge: {protocol: rustlog, address: "see.{1}", accept_loss: all}}]
"""
    )
    assert chosen(routing, "flymq", "fly", "x.y") == ("r", ("a.x", "b.y"))
    assert chosen(routing, "rustlog", "log", "see.x") == ("r", ("a.x",))


# --- the way back ---

RENAMED = """
routes:
  - {name: a, match: {protocol: flymq, topic: "in.*.*"}, to: [{store: {topic: "{2}/{1}"}}]}
  - {name: b, match: {protocol: flymq, topic: "fold.*"}, to: [{store: {topic: folded}}]}
  - {name: c, match: {topic: "x/y"}, to: [{store: {topic: elsewhere}}]}
  - {name: rest, match: {}, to: [{store: {topic: "{topic}"}}]}
"""


@pytest.mark.parametrize(
    ("protocol", "topic", "address"),
    [
        ("flymq", "b/a", "in.a.b"),
        ("rustlog", "b/a", "b/a"),
        ("flymq", "folded", "folded"),  # by its own name; fold.* does not say which
        ("flymq", "elsewhere", "x/y"),
        ("flymq", "x/y", "in.y.x"),
        ("rustlog", "x/y", None),  # nobody reaches it: the address leads elsewhere
        ("flymq", "__stats", None),
    ],
)
def test_the_address_of_a_topic(protocol: str, topic: str, address: str | None) -> None:
    assert table(RENAMED).address_of(protocol, "fly", topic) == address


names = st.text("ab./-", min_size=1, max_size=8)


@given(names, st.sampled_from([("flymq", "fly"), ("felix", "felix"), ("felix", "shop")]))
def test_an_address_that_is_given_out_leads_to_the_topic(topic: str, client: tuple[str, str]) -> None:
    for routing in (BACK, FORTH):
        address = routing.address_of(*client, topic)
        if address is not None:
            assert routing.reader(*client, address) == topic


BACK, FORTH = table(RENAMED), table(BRIDGED)


# --- settings ---

TOPICS = 'topics:\n  "orders.*": {partitions: 9, retention: {bytes: 5}}\n  "**": {retention: 1d, schema: any}\n'


def test_the_first_store_that_can_make_the_name_decides_then_the_globs_then_the_default() -> None:
    routing = table(BRIDGED, TOPICS)
    assert routing.topic_config("orders.eu") == TopicConfig(
        partitions=4, durability=Durability.MEMORY, retention_seconds=604_800.0, schema="order"
    )
    assert routing.topic_config("other") == TopicConfig(
        partitions=1, durability=Durability.INTERVAL, interval=0.007, retention_seconds=86_400.0, schema="any"
    )
    bare = table('routes:\n  - {name: r, match: {}, to: [{store: {topic: "{topic}"}}]}\n', TOPICS)
    assert bare.topic_config("orders.eu") == TopicConfig(
        partitions=9, durability=Durability.INTERVAL, interval=0.007, retention_bytes=5, schema="any"
    )


def test_who_decides_the_partitions() -> None:
    routing = table(BRIDGED, TOPICS)
    assert routing.decides_partitions("orders.eu")
    assert not routing.decides_partitions("other")


def test_no_retention_is_a_decision_too() -> None:
    routing = table('routes:\n  - {name: r, match: {}, to: [{store: {topic: "{topic}", retention: none}}]}\n', TOPICS)
    assert routing.topic_config("orders.eu").retention_bytes is None
    assert routing.topic_config("orders.eu").retention_seconds is None


# --- remote targets ---


def test_forwards_mirrors_and_dead_letters_are_named_after_the_topic() -> None:
    routing = table(
        """
routes:
  - name: r
    match: {protocol: flymq, topic: "in.*.**"}
    to:
      - store: {topic: "t.{1}/{2}"}
      - forward: {upstream: far, address: "out.{2}.{1}", dead_letter: "dead.{1}"}
      - forward: {upstream: far, address: "fixed", name: waits}
      - mirror: {upstream: far, address: "shadow.{topic}", percent: 5}
"""
    )
    first, second = routing.forwards
    assert (first.route, first.target.upstream) == ("r", "far")
    assert first.remote_address("t.a/b.c") == "out.b.c.a"
    assert first.remote_address("t.a") is None
    assert (first.dead_letter("t.a/b.c"), second.dead_letter("t.a/b.c")) == ("dead.a", "")
    assert second.remote_address("t.a/b.c") == "fixed"
    assert routing.mirrors[0].remote_address("t.a/b.c") == "shadow.in.a.b.c"


def test_a_proxy_stores_nothing_and_is_not_read() -> None:
    routing = table(
        'routes:\n  - {name: p, match: {topic: "live.**"}, to: [{proxy: {upstream: far, address: "{topic}"}}]}\n'
    )
    resolved = routing.writer("flymq", "fly", "live.x").route
    assert resolved is not None
    assert resolved.proxy is not None
    assert (resolved.topics, resolved.proxy.upstream, resolved.proxy.address, resolved.proxy.timeout) == (
        (),
        "far",
        "live.x",
        5.0,
    )
    with pytest.raises(NotRouted, match="elsewhere"):
        routing.reader("flymq", "fly", "live.x")


def test_a_new_address_counts_for_everything_behind_the_match() -> None:
    routing = table(
        """
routes:
  - name: r
    match: {protocol: flymq, topic: "a.*"}
    transform: [{rewrite: {address: "b.{topic}"}}, {rewrite: {address: "{topic}.c"}}]
    to: [{store: {topic: "{topic}"}}, {forward: {upstream: far, address: "{topic}"}}]
"""
    )
    assert chosen(routing, "flymq", "fly", "a.x") == ("r", ("b.a.x.c",))
    assert routing.reader("flymq", "fly", "a.x") == "b.a.x.c"
    assert routing.address_of("flymq", "fly", "b.a.x.c") == "a.x"
    assert routing.forwards[0].remote_address("b.a.x.c") == "b.a.x.c"


def test_what_is_pulled_in_gets_its_address_here() -> None:
    wide, exact = table("").ingests["far"]
    assert wide.address("alerts.fire.eu") == "far.fire.eu"
    assert wide.address("other") is None
    assert (wide.exact, exact.exact, exact.address("exact")) == (None, "exact", "here")


# --- remembering ---


def test_what_is_remembered_is_bounded_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED", 3)
    routing = table(BRIDGED)
    for _ in range(2):
        for number in range(10):
            assert chosen(routing, "flymq", "fly", f"orders.{number}") == ("orders", (f"orders.{number}",))
            assert routing.reader("felix", "felix", f"acme/shop/orders-{number}") == f"orders.{number}"
            assert routing.address_of("felix", "felix", f"orders.{number}") == f"acme/shop/orders-{number}"
    assert {len(cache) for cache in (routing._plans, routing._readers, routing._names)} == {3}


def test_the_same_question_gives_the_same_plan() -> None:
    routing = table(BRIDGED)
    assert routing.writer("flymq", "fly", "a", "me") is routing.writer("flymq", "fly", "a", "me")
    assert routing.writer("flymq", "fly", "a", "me") is not routing.writer("flymq", "fly", "a", "you")


def test_a_refusal_is_not_remembered() -> None:
    routing = table(PRECEDENCE)
    with pytest.raises(NotRouted):
        routing.writer("flymq", "fly", "b")
    assert routing._plans == {}


def test_protocols_that_the_table_was_not_told_of_change_nothing() -> None:
    config = parse(LISTENERS + BRIDGED, "r.yaml", {}, TOYS)
    assert compile_table(config, {}).reader("felix", "felix", "acme/shop/orders-eu") == "orders.eu"
    other = {**TOYS, "felix": attrs.evolve(TOYS["felix"], local_address=lambda _settings, address: address)}
    assert compile_table(config, other).reader("felix", "shop", "acme/shop/orders-eu") == "orders.eu"
