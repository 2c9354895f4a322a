"""Good configurations: every key of the file ends up where it belongs in the model, and defaults are filled in."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import pytest

from gateway import model
from gateway.config.load import examine, load, parse
from gateway.errors import ConfigError
from gateway.settings import Backoff, Dialect, Limits, Seconds
from gateway.store.interface import Durability
from gateway.wire.session import Credentials
from tests.unit.config.toys import TOYS, BlipSettings, Events, FelixSettings, FreshGroup, FujinSettings, RustlogSettings

HERE = Path(__file__).parent
FIVE = HERE / "five.yaml"
REFERENCE = HERE / "reference.yaml"


def read(text: str, environ: dict[str, str] | None = None) -> model.Config:
    return parse(text, "routes.yaml", environ or {}, TOYS)


def test_five_listeners_and_two_routes() -> None:
    config = load(FIVE, {"BLIPMQ_KEY": "k", "FLYMQ_PORT": "1", "DATA_DIR": "/tmp/x"}, TOYS)
    assert {name: each.protocols for name, each in config.listeners.items()} == {name: (name,) for name in TOYS}
    assert config.listeners["flymq"].port == 1
    assert config.listeners["rustlog"].port == 9192
    assert config.listeners["blipmq"].auth == model.AuthKeys(("k",))
    assert config.listeners["felix"].tls == model.TlsSelfSigned()
    assert config.storage.path == "/tmp/x"
    assert [route.name for route in config.routes] == ["orders", "everything-else"]
    assert config.routes[0].targets == (
        model.StoreTarget("orders.{1}", model.TopicSettings(partitions=2)),
        model.Bridge("felix", "acme/shop/orders-{1}", frozenset(model.ACCEPTABLE)),
    )
    assert config.file == str(FIVE)


@pytest.mark.parametrize("there", [set(), {"blipmq"}, {"blipmq", "rustlog"}, {"blipmq", "rustlog", "flymq"}, set(TOYS)])
def test_exactly_the_listeners_whose_protocol_is_not_there_are_named(there: set[str]) -> None:
    lines = {"blipmq": 5, "flymq": 6, "rustlog": 7, "felix": 8, "fujin": 9}
    specs = {name: spec for name, spec in TOYS.items() if name in there}
    problems = examine(FIVE.read_text(), "five.yaml", {}, specs).problems
    known = f" (known: {', '.join(sorted(there))})" if there else ""
    assert [str(problem) for problem in problems] == [
        f"five.yaml:{line}: listeners.{name}.protocol: unknown or not available protocol {name!r}{known}"
        for name, line in lines.items()
        if name not in there
    ]


def test_every_key_of_the_reference_is_modelled() -> None:
    config = load(REFERENCE, {"LEGACY_KEY": "secret"}, TOYS)
    flymq = config.listeners["flymq"]
    assert flymq == model.Listener(
        name="flymq",
        protocols=("flymq", "rustlog"),
        host="127.0.0.1",
        port=9092,
        settings=flymq.settings,
        limits=Limits(10_000, 1_000, 1_024, attrs.fields(Limits).output.default, Seconds(30.0), Seconds(math.inf)),
    )
    assert flymq.settings["rustlog"] == RustlogSettings(FreshGroup.REQUESTED)
    assert config.listeners["blipmq"].settings["blipmq"] == BlipSettings(
        backoff=Backoff(Seconds(0.1), Seconds(30.0)), grace=Seconds(600.0)
    )
    assert config.listeners["felix"].settings["felix"] == FelixSettings(events=Events(delay=Seconds(0.00025)))
    fujin = config.listeners["fujin"].settings["fujin"]
    assert isinstance(fujin, FujinSettings)
    assert (fujin.readers["invoices"].topic, fujin.readers["invoices"].start) == ("billing.invoices", "earliest")
    assert config.admin == model.Admin("127.0.0.1", 9600, "")
    assert config.storage == model.Storage()
    assert config.memory == model.Memory()
    assert config.topics == {
        "audit.**": model.TopicSettings(
            partitions=4,
            retention=model.Retention(Seconds(2_592_000.0), 10 << 30),
            schema="audit-v1",  # type: ignore[arg-type]
        )
    }
    assert config.upstreams["legacy"] == model.Upstream(
        name="legacy",
        protocol="blipmq",
        addresses=(("10.0.0.5", 5555), ("10.0.0.6", 5555)),
        auth=Credentials(api_key="secret"),
        pool=2,
        timeout=Seconds(10.0),
        ingest=(model.Ingest("alerts.**", "legacy.{1}", "gateway"),),
    )
    orders, proxied, rest = config.routes
    assert orders.match == model.Match(("flymq",), ("flymq",), "orders.*", "eu-*", {"kind": "order"}, "shop")
    assert orders.transform == (
        model.SetHeader({"region": "eu"}),
        model.RemoveHeader(("debug",)),
        model.Filter("value.amount > 10"),
    )
    assert orders.targets == (
        model.StoreTarget(
            "orders.{1}",
            model.TopicSettings(
                4, model.Retention(Seconds(604_800.0)), model.DurabilitySetting(Durability.INTERVAL, Seconds(0.005))
            ),
        ),
        model.Bridge("felix", "acme/shop/orders-{1}", frozenset({"key", "headers"})),
        model.Forward(
            upstream="legacy",
            address="orders.{1}",
            name="orders-legacy",
            retry=model.Retry(10, Backoff(Seconds(0.1), Seconds(30.0))),
            window=256,
            scope=model.Scope.ROUTE,
            start=model.ForwardStart.EARLIEST,
            dead_letter="orders.dlq",
            accept_loss=frozenset(model.ACCEPTABLE),
        ),
        model.Mirror("legacy", "shadow.{1}", 5.0, (model.Compare.ACK, model.Compare.PAYLOAD, model.Compare.LATENCY)),
    )
    assert proxied.targets == (model.Proxy("legacy", "{topic}", Seconds(5.0)),)
    assert rest == model.Route("everything-else", model.Match(), (model.StoreTarget("{topic}"),))


def test_without_routes_an_address_is_the_topic_of_the_same_name() -> None:
    config = read("version: 1\nlisteners: {a: {protocol: rustlog, bind: '127.0.0.1:0'}}\n")
    assert config.routes == (model.IDENTITY,)
    assert config.admin is None
    assert config.listeners["a"].settings == {"rustlog": RustlogSettings()}


def test_a_forward_without_a_name_is_called_by_its_route_and_upstream() -> None:
    config = read(
        """
version: 1
listeners: {a: {protocol: rustlog, bind: "127.0.0.1:0"}}
upstreams: {far: {protocol: rustlog, address: "h:1"}}
routes:
  - {name: all, match: {}, to: [{store: {topic: "{topic}"}}, {forward: {upstream: far, address: "{topic}"}}]}
"""
    )
    forward = config.routes[0].targets[1]
    assert isinstance(forward, model.Forward)
    assert forward.name == "all-far"


JWKS = '{"keys": [{"kty": "oct", "kid": "one", "k": "c2VjcmV0"}]}'
AUTHS = [
    ("open", model.AuthOpen()),
    ("none", model.AuthNone()),
    ("{api_keys: [a, '1']}", model.AuthKeys(("a", "1"))),
    ("{api_keys_file: KEYS}", model.AuthKeys(("first", "second"))),
    ("{users: store, admin: {name: root, password: pw}}", model.AuthUsers(model.Administrator("root", password="pw"))),
    ("{users: store, admin: {password_file: SECRET}}", model.AuthUsers(model.Administrator(password="hush"))),
    ("{jwt: {key_file: SECRET, algorithms: [HS256], issuer: me}}", model.AuthJwt(key="hush", algorithms=("HS256",), issuer="me")),
    ("{jwt: {jwks: '" + JWKS + "', audience: us, leeway: 5s}}", model.AuthJwt(JWKS, audience="us", leeway=Seconds(5.0))),
]  # fmt: skip


@pytest.mark.parametrize(("written", "auth"), AUTHS)
def test_ways_to_log_in(written: str, auth: model.Auth, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first\n\nsecond\n")
    (tmp_path / "secret").write_text("hush\n")
    written = written.replace("KEYS", str(tmp_path / "keys")).replace("SECRET", str(tmp_path / "secret"))
    config = read(f"version: 1\nlisteners: {{a: {{protocol: flymq, bind: '127.0.0.1:0', auth: {written}}}}}\n")
    assert config.listeners["a"].auth == auth
    assert "hush" not in repr(config)


def test_certificates_for_listeners_and_upstreams(tmp_path: Path) -> None:
    for name in ("cert", "key", "ca"):
        (tmp_path / name).write_text("pem")
    config = read(
        f"""
version: 1
listeners:
  a: {{protocol: rustlog, bind: "127.0.0.1:0", tls: {{cert: {tmp_path}/cert, key: {tmp_path}/key, client_ca: {tmp_path}/ca,
      client_cert: optional}}}}
upstreams:
  b: {{protocol: felix, address: "h:1", tls: system, dialect: stock}}
  c: {{protocol: felix, address: ["h:1", "[::1]:2"], tls: {{ca: {tmp_path}/ca, server_name: localhost}}}}
"""
    )
    assert config.listeners["a"].tls == model.TlsFiles(
        f"{tmp_path}/cert", f"{tmp_path}/key", f"{tmp_path}/ca", model.ClientCert.OPTIONAL
    )
    assert config.upstreams["b"].tls == model.TlsSystem()
    assert config.upstreams["b"].dialect is Dialect.STOCK
    assert config.upstreams["c"].tls == model.TlsTrust(ca=f"{tmp_path}/ca", server_name="localhost")
    assert config.upstreams["c"].addresses == (("h", 1), ("::1", 2))


def test_every_way_to_write_settings_of_topics() -> None:
    config = read(
        """
version: 1
listeners: {a: {protocol: rustlog, bind: "127.0.0.1:0"}}
storage: {durability: {interval: 5ms}, tail_cache: 1MiB}
topics:
  "a.*": {retention: 7d, durability: memory}
  "b.**": {retention: {bytes: 1GiB}, durability: none}
  "c": {retention: none, partitions: "${PARTS:-3}"}
"""
    )
    assert config.storage.durability == model.DurabilitySetting(Durability.INTERVAL, Seconds(0.005))
    a, b, c = config.topics.values()
    assert a.retention == model.Retention(Seconds(604_800.0))
    assert a.durability == model.DurabilitySetting(Durability.MEMORY)
    assert (b.retention, b.durability) == (model.Retention(None, 1 << 30), model.DurabilitySetting(Durability.NONE))  # type: ignore[arg-type]
    assert (c.retention, c.partitions) == (model.Retention(), 3)


def test_the_gateways_that_are_known_from_the_start() -> None:
    text = 'version: 1\nlisteners: {a: {protocol: rustlog, bind: "127.0.0.1:0"}}\n'
    assert read(text).cluster == model.ClusterSettings("gateway", "", ())
    config = read(text + 'cluster: {id: eu-1, address: "a.example:9092", peers: ["b.example:9092", "[::1]:1"]}\n')
    assert config.cluster == model.ClusterSettings("eu-1", "a.example:9092", ("b.example:9092", "[::1]:1"))
    assert read(text + 'cluster: {peers: "b.example:9092"}\n').cluster.peers == ("b.example:9092",)
    for bad in ('{peers: ["b.example:0"]}', "{peers: [b.example]}", '{address: ":1"}', '{id: "a b"}', "{people: []}"):
        found = examine(text + f"cluster: {bad}\n", "routes.yaml", {}, TOYS)
        assert len(found.problems) == 1, (bad, found)
        assert found.problems[0].line == 3


def test_every_transform_step() -> None:
    config = read(
        """
version: 1
listeners: {a: {protocol: rustlog, bind: "127.0.0.1:0"}}
routes:
  - name: all
    match: {topic: "*.**"}
    transform:
      - {set_header: {a: "", b: "2"}}
      - {remove_header: [x, y]}
      - {rename_header: {old: new}}
      - {rewrite: {key: value.id, address: "{2}.{1}"}}
      - {project: {id: value.id}}
    to: [{store: {topic: "{topic}"}}]
"""
    )
    assert config.routes[0].transform == (
        model.SetHeader({"a": "", "b": "2"}),
        model.RemoveHeader(("x", "y")),
        model.RenameHeader({"old": "new"}),
        model.Rewrite("value.id", "{2}.{1}"),
        model.Project({"id": "value.id"}),
    )


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_bytes(b"\xef\xbb\xbfversion: 1\nlisteners: {a: {protocol: rustlog, bind: '127.0.0.1:0'}}\n")
    assert list(load(path, {}, TOYS).listeners) == ["a"]


def test_a_file_that_is_not_text_is_a_problem_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_bytes(b"version: 1\nlisteners: \xff\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {}, TOYS)
    assert [str(problem) for problem in caught.value.exceptions] == [f"{path}:2: not UTF-8 text"]


def test_a_file_that_is_not_there_is_not_a_problem_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.yaml", {}, TOYS)


def test_the_self_signed_certificate_is_for_the_names_of_all_listeners() -> None:
    config = read(
        """
version: 1
listeners:
  a: {protocol: felix, bind: "127.0.0.1:0", tls: {self-signed: {names: [gateway, "*.gateway.example", "2001:DB8::1"]}}}
  b: {protocol: fujin, bind: "127.0.0.1:0", tls: self-signed}
  c: {protocol: flymq, bind: "127.0.0.1:0", tls: {self-signed: {names: fly}}}
admin: {bind: "127.0.0.1:0", tls: {self-signed: {names: [admin]}}}
"""
    )
    assert config.listeners["b"].tls == model.TlsSelfSigned()
    assert config.certified_names == ("gateway", "*.gateway.example", "2001:db8::1", "fly", "admin")
