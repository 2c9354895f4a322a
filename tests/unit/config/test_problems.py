"""Bad configurations: each problem with its line, its path and words that help; all of them at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.load import examine, parse
from gateway.errors import ConfigError
from tests.unit.config.toys import TOYS

HEAD = "version: 1\nlisteners:\n  fly: {protocol: flymq, bind: '127.0.0.1:1'}\n  log: {protocol: rustlog, bind: '127.0.0.1:2'}\n"
"""Two good listeners; what follows starts in line 5."""
QUIC = HEAD + "  lix: {protocol: felix, bind: '127.0.0.1:3', tls: self-signed}\n"
"""And one that speaks Felix (default scope t1/default); what follows starts in line 6."""
FAR = HEAD + "upstreams: {far: {protocol: flymq, address: 'h:1'}}\n"
"""And an upstream; what follows starts in line 6."""


EXPECTED_KEY = "expected a public key in PEM form, or a shared secret and one of HS256, HS384, HS512 in algorithms"
PEM = (
    Ed25519PrivateKey.from_private_bytes(bytes(32))
    .public_key()
    .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    .decode()
    .replace("\n", "\n\n    ")  # as YAML reads a line break within quotes
)


def test_a_public_key_of_one_of_the_algorithms_is_good() -> None:
    assert problems(HEAD.replace("protocol: flymq,", "protocol: flymq, auth: {jwt: {key: '" + PEM + "'}},")) == []


def problems(text: str) -> Sequence[str]:
    """What is wrong with a text; the lists of known words, which have a test of their own, are cut short."""
    found = examine(text, "r.yaml", {"SET": "1"}, TOYS).problems
    return [re.sub(r"known: [\w, -]+", "known: ...", str(problem)) for problem in found]


def listener(rest: str) -> str:
    return f"version: 1\nlisteners:\n  a: {{bind: '127.0.0.1:9', {rest}}}\n"


def route(rest: str, head: str = HEAD) -> str:
    """One route on one line, of which the caller gives everything but the name."""
    return f"{head}routes:\n  - {{name: r, {rest}}}\n"


FILES = [
    ("", "r.yaml:1: the file is empty"),
    ("# nothing\n", "r.yaml:1: the file is empty"),
    ("[]", "r.yaml:1: expected a mapping, not a list"),
    ("version: 1\nlisteners: {a: [}\n", "r.yaml:2: not YAML: expected the node content, but found '}'"),
    ("version: 1\n\tlisteners: {}\n", "r.yaml:2: not YAML: found character '\\t' that cannot start any token"),
    ("a: \x00", "r.yaml:1: not YAML: special characters are not allowed"),
    ("version: 1\n---\nversion: 1\n", "r.yaml:2: not YAML: but found another document"),
    ("[" * 5000, "r.yaml:1: nested too deeply"),
    ("listeners: {}", "r.yaml:1: missing key 'version'"),
    ("version: 1", "r.yaml:1: missing key 'listeners'"),
    ("version: 2\nlisteners: {}", "r.yaml:1: version: expected 1, not 2"),
    ("version: '1'\nlisteners: {}", "r.yaml:1: version: expected a whole number, not text in quotes"),
    (
        "version: 1\nlisteners: {}\nroute: []",
        "r.yaml:3: route: unknown key 'route' (known: ...; did you mean 'routes'?)",
    ),
    ("version: 1\nlisteners: {}\nlisteners: {}", "r.yaml:3: listeners: duplicate key 'listeners' (first in line 2)"),
    ("version: 1\nlisteners: {}\n? [a]\n: b", "r.yaml:3: a key is text"),
    ("version: 1\nlisteners: {<<: {}}", "r.yaml:2: listeners: keys are not merged here ('<<'): write them out"),
    ("version: 1\nlisteners: &a {x: *a}", "r.yaml:2: listeners.x: missing key 'protocol'"),
    ("version: 1\nlisteners:", "r.yaml:2: listeners: expected a mapping, not nothing"),
]

LISTENERS = [
    ("protocol: flymk", "protocol: unknown or not available protocol 'flymk' (known: ...; did you mean 'flymq'?)"),
    ("protocol: [flymq, zzz]", "protocol[1]: unknown or not available protocol 'zzz' (known: ...)"),
    ("protocol: []", "protocol: expected a list of at least one, not an empty list"),
    ("protocol: 5", "protocol: expected the name of a protocol, not a number (text that looks like it goes in quotes)"),
    ("protocol: [flymq, flymq]", "protocol: a protocol is named twice"),
    (
        "protocol: [rustlog, blipmq], auth: open",
        "protocol: rustlog and blipmq cannot share a port: their first bytes do not tell them apart",
    ),
    (
        "protocol: [rustlog, fujin], tls: self-signed",
        "protocol: rustlog runs over tcp and fujin over quic: use two listeners",
    ),
    (
        "protocol: [rustlog, fujin], transport: tcp",
        "protocol: rustlog and fujin cannot share a port: their first bytes do not tell them apart",
    ),
    ("protocol: flymq, transport: unix", "transport: flymq does not run over that: tcp"),
    ("protocol: felix, transport: tcp", "transport: felix does not run over that: quic"),
    ("protocol: fujin, transport: unix", "bind: a Unix socket is at a path: write /run/gateway/fujin.sock, or ./fujin.sock"),
    ("protocol: fujin, transport: tcp, mode: 0600", "mode: only a Unix socket has a mode (transport: unix)"),
    ("protocol: fujin, transport: tcp, origins: ['*']", "origins: only web pages have origins (transport: websocket)"),
    ("protocol: flymq, mode: 999", "mode: not the mode of a file: '999' (write it as 0660)"),
    ("protocol: rustlog, dialect: stock", "dialect: rustlog has no dialects"),
    ("protocol: flymq, dialect: new", "dialect: expected auto, document, stock, 0.5 or v1, not 'new'"),
    ("protocol: flymq, dialect: v1", "dialect: flymq has no dialect 'v1': auto, document, stock"),
    ("protocol: felix", "tls: felix runs over QUIC, which needs tls (self-signed, or cert and key)"),
    ("protocol: felix, tls: none", "tls: felix runs over QUIC, which needs tls (self-signed, or cert and key)"),
    ("protocol: flymq, tls: selfsigned", "tls: expected none or self-signed, not 'selfsigned'; did you mean 'self-signed'?"),
    ("protocol: flymq, tls: [x]", "tls: expected none, self-signed or a mapping with self-signed, or with cert and key, not a list"),
    ("protocol: flymq, tls: {self-signed: {names: []}}", "tls.self-signed.names: expected a list of at least one, not an empty list"),
    ("protocol: flymq, tls: {self-signed: {names: [a/b]}}", "tls.self-signed.names[0]: neither the name of a host nor an IP address: 'a/b'"),
    ("protocol: flymq, tls: {self-signed: {name: a}}", "tls.self-signed.name: unknown key 'name' (known: ...; did you mean 'names'?)"),
    ("protocol: flymq, tls: {cert: /nonexistent/c}", "tls: missing key 'key'"),
    (
        "protocol: blipmq",
        "auth: blipmq needs api_keys: without a key nobody could log in (or let everybody in with auth: open)",
    ),
    (
        "protocol: [flymq, blipmq], auth: none",
        "auth: blipmq needs api_keys: without a key nobody could log in (or let everybody in with auth: open)",
    ),
    ("protocol: blipmq, auth: {api_keys: []}", "auth.api_keys: expected a list of at least one, not an empty list"),
    ("protocol: blipmq, auth: {api_keys: ['']}", "auth.api_keys[0]: expected a key, not empty text"),
    ("protocol: blipmq, auth: {api_keys: ['${UNSET}']}",
     "auth.api_keys[0]: environment variable UNSET is not set (${UNSET:-default} may be unset)"),
    (
        "protocol: blipmq, auth: {api_keys_file: /nonexistent/keys}",
        "auth.api_keys_file: cannot read '/nonexistent/keys': No such file or directory",
    ),
    ("protocol: blipmq, auth: {api_keys_file: /dev/null}", "auth.api_keys_file: '/dev/null' is empty"),
    ("protocol: flymq, auth: {keys: [a]}", "auth: expected open, none, or a mapping with api_keys, users or jwt, not a mapping"),
    ("protocol: flymq, auth: {users: store}", "auth: missing key 'admin'"),
    ("protocol: flymq, auth: {users: file, admin: {password: p}}", "auth.users: expected store, not 'file'"),
    ("protocol: flymq, auth: {users: store, admin: {name: a}}", "auth.admin: missing key 'password'"),
    ("protocol: flymq, auth: {jwt: {}}", "auth.jwt: expected either jwks or key (or jwks_file or key_file)"),
    ("protocol: flymq, auth: {jwt: {jwks: '[]'}}", 'auth.jwt.jwks: not a key set: expected JSON like {"keys": [...]}'),
    ("protocol: flymq, auth: {jwt: {jwks: '{\"keys\": []}'}}", "auth.jwt.jwks: no key of the key set can be used"),
    ("protocol: flymq, auth: {jwt: {jwks: '{\"keys\": [{}]}'}}", "auth.jwt.jwks: no key of the key set can be used"),
    ("protocol: flymq, auth: {jwt: {key: nonsense}}", f"auth.jwt.key: no key for EdDSA, RS256, ES256: {EXPECTED_KEY}"),
    (
        "protocol: flymq, auth: {jwt: {key: '-----BEGIN PUBLIC KEY-----'}}",
        f"auth.jwt.key: no key for EdDSA, RS256, ES256: {EXPECTED_KEY}",
    ),
    (
        "protocol: flymq, auth: {jwt: {key: '-----BEGIN PUBLIC KEY-----', algorithms: [HS256]}}",
        f"auth.jwt.key: no key for HS256: {EXPECTED_KEY}",
    ),
    (
        "protocol: flymq, auth: {jwt: {key: '" + PEM + "', algorithms: [ES256]}}",
        f"auth.jwt.key: no key for ES256: {EXPECTED_KEY}",
    ),
    (
        "protocol: flymq, auth: {jwt: {key: k, algorithms: [ES255]}}",
        "auth.jwt.algorithms: unknown algorithm 'ES255' (known: ...; did you mean 'ES256'?)",
    ),
    ("protocol: flymq, limits: {connections: 0}", "limits.connections: expected a whole number of at least 1, not 0"),
    ("protocol: flymq, limits: {connections: many}", "limits.connections: expected a whole number, not 'many'"),
    ("protocol: flymq, limits: {connections: 1_000}", "limits.connections: expected a whole number, not '1_000'"),
    ("protocol: flymq, limits: {connections: '5'}", "limits.connections: expected a whole number, not text in quotes"),
    ("protocol: flymq, limits: {output: 4MB}", "limits.output: not a size: '4MB' (write it like 4096, 64KiB, 16MiB or 10GiB)"),
    (
        "protocol: flymq, limits: {idle: 30}",
        "limits.idle: not a duration: '30' (write it like 250us, 5ms, 2s, 10m, 1h, 7d or none)",
    ),
    ("protocol: flymq, limits: {idl: 30s}", "limits.idl: unknown key 'idl' (known: ...; did you mean 'idle'?)"),
    ("protocol: flymq, fresh_group: empty", "fresh_group: unknown key 'fresh_group' (known: ...)"),
    ("protocol: rustlog, fresh_group: full", "fresh_group: expected requested or empty, not 'full'"),
    ("protocol: felix, tls: self-signed, create: yes", "create: expected true or false, not 'yes'"),
    ("protocol: felix, tls: self-signed, events: {delay: fast}",
     "events.delay: not a duration: 'fast' (write it like 250us, 5ms, 2s, 10m, 1h, 7d or none)"),
    ("protocol: fujin, tls: self-signed, readers: {x: {}}", "readers.x: missing key 'topic'"),
    ("protocol: blipmq, auth: open, backoff: 1s", "backoff: not a back-off range: '1s' (write it like 100ms..30s)"),
]  # fmt: skip

ROUTES = [
    ("to: [{store: {topic: t}}]", "routes[0]: missing key 'match'"),
    ("match: {}, to: []", "routes[0].to: expected a list of at least one, not an empty list"),
    ("match: {}, to: [{}]",
     "routes[0].to[0]: expected a target with exactly one of store, bridge, forward, mirror or proxy"),
    ("match: {}, to: [{stor: {topic: t}}]",
     "routes[0].to[0].stor: unknown key 'stor': expected a target (store, bridge, forward, mirror or proxy); did you mean 'store'?"),
    ("match: {}, to: [{store: {}}]", "routes[0].to[0].store: missing key 'topic'"),
    ("match: {}, to: [{store: {topic: '{topic'}}]",
     "routes[0].to[0].store.topic: not a template: '{topic' (a literal brace is doubled: '{{' and '}}')"),
    ("match: {}, to: [{store: {topic: '{name}'}}]",
     "routes[0].to[0].store.topic: unknown '{name}' in '{name}' (captures are {1}, {2}, ..., the address is {topic})"),
    ("match: {topic: 'a.*'}, to: [{store: {topic: '{2}'}}]",
     "routes[0].to[0].store.topic: {2} in '{2}': there is only one wildcard in the glob 'a.*'"),
    ("match: {topic: a}, to: [{store: {topic: '{1}'}}]",
     "routes[0].to[0].store.topic: {1} in '{1}': there is no wildcard in the glob 'a'"),
    ("match: {topic: 'a***'}, to: [{store: {topic: t}}]",
     "routes[0].match.topic: not a glob: 'a***' ('*' is part of a segment, '**' is anything; '***' is neither)"),
    ("match: {}, to: [{store: {topic: 'a//b'}}]",
     "routes[0].to[0].store.topic: a topic's name has no segment that is empty, '.' or '..'"),
    ("match: {}, to: [{store: {topic: __mine}}]", "routes[0].to[0].store.topic: names that start with '__' are reserved"),
    ("match: {}, to: [{store: {topic: t, partitions: 0}}]",
     "routes[0].to[0].store.partitions: expected a whole number from 1 to 10000, not 0"),
    ("match: {}, to: [{store: {topic: t, durability: disk}}]",
     "routes[0].to[0].store.durability: expected fsync, none or memory, not 'disk'"),
    ("match: {}, to: [{store: {topic: t, durability: {interval: none}}}]",
     "routes[0].to[0].store.durability.interval: expected a duration longer than nothing, and not 'none'"),
    ("match: {protocol: smtp}, to: [{store: {topic: t}}]",
     "routes[0].match.protocol: unknown or not available protocol 'smtp' (known: ...)"),
    ("match: {listener: flyy}, to: [{store: {topic: t}}]",
     "routes[0].match.listener: no listener or upstream is called 'flyy' (known: ...; did you mean 'fly'?)"),
    ("match: {listener: log, protocol: flymq}, to: [{store: {topic: t}}]",
     "routes[0].match.listener: never reached: 'log' does not speak flymq"),
    ("match: {}, to: [{bridge: {protocol: rustlog, address: a, accept_loss: all}}]",
     "routes[0].to[0].bridge: a bridge reads what was stored: the route needs a store target as well"),
    ("match: {}, to: [{store: {topic: t}}, {bridge: {protocol: felix, address: a, accept_loss: all}}]",
     "routes[0].to[1].bridge.protocol: no listener speaks felix: nobody could use the bridge"),
    ("match: {}, to: [{store: {topic: '{topic}'}}, {bridge: {protocol: rustlog, address: a, accept_loss: all}}]",
     "routes[0].to[1].bridge.address: the address does not say which topic it shows: '{topic}' is made of {1}, which it lacks"),
    ("match: {topic: '*.*'}, to: [{store: {topic: '{1}.{2}'}}, {bridge: {protocol: rustlog, address: '{1}-{2}', accept_loss: all}}]",
     "routes[0].to[1].bridge.address: 'x--x' can be read in two ways, so it would be two topics (put '.' or '/' between captures)"),
    ("match: {}, to: [{store: {topic: t}}, {bridge: {protocol: rustlog, address: a, accept_loss: some}}]",
     "routes[0].to[1].bridge.accept_loss: expected all, not 'some'"),
    ("match: {}, to: [{store: {topic: t}}, {bridge: {protocol: rustlog, address: a, accept_loss: [keys, headers]}}]",
     ("routes[0].to[1].bridge.accept_loss[0]: "
     "expected key, headers, ordering, acknowledgement, size, atomicity, expiry or all, not 'keys'; did you mean 'key'?")),
    ("match: {protocol: flymq}, to: [{store: {topic: t}}, {bridge: {protocol: rustlog, address: a}}]",
     "routes[0].to[1].bridge.accept_loss: flymq to rustlog loses headers: accept_loss must name what may be lost"),
    ("match: {}, transform: [{filter: 'value.('}], to: [{store: {topic: t}}]",
     "routes[0].transform[0].filter: not an expression: 'value.(' (at character 7)"),
    ("match: {}, transform: [{filter: 'vaule.x > 1'}], to: [{store: {topic: t}}]",
     "routes[0].transform[0].filter: unknown name 'vaule' (there are value, key and headers)"),
    ("match: {}, transform: [{rewrite: {}}], to: [{store: {topic: t}}]",
     "routes[0].transform[0].rewrite: expected key or address"),
    ("match: {}, transform: [{rewrite: {address: '{7}'}}], to: [{store: {topic: t}}]",
     "routes[0].transform[0].rewrite.address: {7} in '{7}': there is only one wildcard in the glob '**'"),
    ("match: {}, transform: [{project: {a: 'f(key)'}}], to: [{store: {topic: t}}]",
     "routes[0].transform[0].project: unknown function 'f'"),
]  # fmt: skip

FORWARDS = [
    ("{store: {topic: t}}, {forward: {upstream: fa, address: a}}",
     "routes[0].to[1].forward.upstream: no upstream is called 'fa' (known: ...; did you mean 'far'?)"),
    ("{store: {topic: t}}, {mirror: {upstream: gone, address: a}}",
     "routes[0].to[1].mirror.upstream: no upstream is called 'gone' (known: ...)"),
    ("{proxy: {upstream: gone, address: a}}", "routes[0].to[0].proxy.upstream: no upstream is called 'gone' (known: ...)"),
    ("{store: {topic: t}}, {proxy: {upstream: far, address: a}}",
     "routes[0].to[1].proxy: a proxy stands alone: the answer is the remote's, and nothing is stored"),
    ("{forward: {upstream: far, address: a}}",
     "routes[0].to[0].forward: a forward reads what was stored: the route needs a store target as well"),
    ("{store: {topic: t}}, {forward: {upstream: far, address: 'x.{topic}'}}",
     "routes[0].to[1].forward.address: it is made from the name of the stored topic, and 't' does not carry {1}"),
    ("{store: {topic: '{topic}'}}, {forward: {upstream: far, address: a, dead_letter: '__dlq'}}",
     "routes[0].to[1].forward.dead_letter: names that start with '__' are reserved"),
    ("{store: {topic: t}}, {mirror: {upstream: far, address: a, percent: 0}}",
     "routes[0].to[1].mirror.percent: expected more than 0"),
    ("{store: {topic: t}}, {mirror: {upstream: far, address: a, percent: 101}}",
     "routes[0].to[1].mirror.percent: expected a number from 0 to 100, not 101"),
    ("{store: {topic: t}}, {forward: {upstream: far, address: a, retry: {max: 0}}}",
     "routes[0].to[1].forward.retry.max: expected a whole number of at least 1, not 0"),
    ("{store: {topic: t}}, {forward: {upstream: far, address: a, retry: {outage: 1h}}}",
     "routes[0].to[1].forward.retry.outage: needs a dead_letter: what has waited for so long has to go somewhere"),
    ("{store: {topic: t}}, {forward: {upstream: far, address: a, start: middle}}",
     "routes[0].to[1].forward.start: expected earliest or now, not 'middle'"),
    ("{store: {topic: t}}, {forward: {upstream: far, address: a, name: f}}, {forward: {upstream: far, address: b, name: f}}",
     "routes[0].to[2].forward.name: duplicate name 'f' (also routes[0].to[1].forward); it keys the cursor"),
]  # fmt: skip

UPSTREAMS = [
    ("{protocol: flymk, address: 'h:1'}", "protocol: unknown or not available protocol 'flymk' (known: ...; did you mean 'flymq'?)"),
    ("{protocol: flymq, address: 'h:0'}", "address: h:0: nobody can be reached at port 0"),
    ("{protocol: flymq, address: h}", "address: not an address: 'h' (write it as host:port)"),
    ("{protocol: flymq, address: ['h:1', 7]}", "address[1]: expected host:port, or a path, not a number (text that looks like it goes in quotes)"),
    ("{protocol: felix, address: 'h:1'}", "tls: felix runs over QUIC, which needs tls (system, or a mapping with ca)"),
    ("{protocol: rustlog, address: 'h:1', dialect: stock}", "dialect: rustlog has no dialects"),
    ("{protocol: flymq, address: 'h:1', tls: {ca: /nonexistent/ca}}",
     "tls.ca: cannot read '/nonexistent/ca': No such file or directory"),
    ("{protocol: flymq, address: 'h:1', tls: {cert: /dev/null}}", "tls: cert and key go together"),
    ("{protocol: flymq, address: 'h:1', auth: {api_key_file: /dev/null}}", "auth.api_key_file: '/dev/null' is empty"),
    ("{protocol: flymq, address: 'h:1', auth: {user: a}}", "auth.user: unknown key 'user' (known: ...; did you mean 'username'?)"),
    ("{protocol: flymq, address: 'h:1', ingest: [{from: 'a.*', into: '{2}'}]}",
     "ingest[0].into: {2} in '{2}': there is only one wildcard in the glob 'a.*'"),
    ("{protocol: flymq, address: 'h:1', ingest: [{from: 'a.*'}]}", "ingest[0]: missing key 'into'"),
    ("{protocol: flymq, address: 'h:1', ingest: [{from: 'a.*', into: x}, {from: 'a.b', into: y}, {from: 'a.b', into: y, group: z}]}",
     "ingest[1].from: 'a.b' is pulled for the group 'gateway' in line 6 already"),
    ("{protocol: flymq, address: 'h:1', pool: 0}", "pool: expected a whole number from 1 to 1000, not 0"),
    ("{protocol: flymq, address: 'h:1', timeout: none}", "timeout: expected a duration longer than nothing, and not 'none'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), FILES)
def test_the_file_as_a_whole(text: str, problem: str) -> None:
    assert problem in problems(text)


@pytest.mark.parametrize(("rest", "problem"), LISTENERS)
def test_one_problem_of_a_listener(rest: str, problem: str) -> None:
    found = problems(listener(rest))
    assert f"r.yaml:3: listeners.a.{problem}" in found or f"r.yaml:3: listeners.a{problem}" in found, found
    assert len(found) <= 2


@pytest.mark.parametrize(("rest", "problem"), ROUTES)
def test_one_problem_of_a_route(rest: str, problem: str) -> None:
    assert problems(route(rest)) == [f"r.yaml:6: {problem}"]


@pytest.mark.parametrize(("targets", "problem"), FORWARDS)
def test_one_problem_of_a_remote_target(targets: str, problem: str) -> None:
    text = f"{FAR}routes:\n  - {{name: r, match: {{protocol: flymq}}, to: [{targets}]}}\n"
    assert problems(text) == [f"r.yaml:7: {problem}"]


@pytest.mark.parametrize(("upstream", "problem"), UPSTREAMS)
def test_one_problem_of_an_upstream(upstream: str, problem: str) -> None:
    assert problems(f"{HEAD}upstreams:\n  far: {upstream}\n") == [f"r.yaml:6: upstreams.far.{problem}"]


def test_names_that_are_no_names() -> None:
    assert problems("version: 1\nlisteners:\n  a b: {protocol: flymq, bind: '127.0.0.1:9'}\n") == [
        "r.yaml:3: listeners[\"a b\"]: not a name: 'a b' (letters, digits, '_', '.', '-'; at most 64)"
    ]


def test_a_bad_glob_among_topics_is_quoted_in_the_path() -> None:
    assert problems(f"{HEAD}topics:\n  'a.***': {{partitions: x}}\n  'b.**': {{partitions: x}}\n") == [
        "r.yaml:6: topics[\"a.***\"]: not a glob: 'a.***' ('*' is part of a segment, '**' is anything; '***' is neither)",
        "r.yaml:7: topics[\"b.**\"].partitions: expected a whole number, not 'x'",
    ]


@pytest.mark.parametrize(
    ("one", "two", "taken"),
    [
        ("127.0.0.1:9", "127.0.0.1:9", True),
        ("127.0.0.1:9", "0.0.0.0:9", True),
        ("0.0.0.0:9", "127.0.0.1:9", True),
        ("localhost:9", "127.0.0.1:9", True),
        ("[::]:9", "[::1]:9", True),
        ("[::]:9", "127.0.0.1:9", False),
        ("127.0.0.1:9", "127.0.0.2:9", False),
        ("127.0.0.1:9", "127.0.0.1:8", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_a_port_is_taken_once(one: str, two: str, taken: bool) -> None:
    text = (
        f"version: 1\nlisteners:\n  a: {{protocol: flymq, bind: '{one}'}}\n  b: {{protocol: rustlog, bind: '{two}'}}\n"
    )
    found = problems(text)
    assert [problem.split(" (")[0] for problem in found] == (
        [f"r.yaml:4: listeners.b.bind: {shown(two)}"] if taken else []
    )
    if taken:
        assert "is taken by listeners.a already; several protocols on one port are one listener" in found[0]


def shown(bind: str) -> str:
    return bind.replace("localhost", "127.0.0.1")


def test_tcp_and_udp_have_ports_of_their_own() -> None:
    text = (
        "version: 1\nlisteners:\n  a: {protocol: flymq, bind: '127.0.0.1:9'}\n"
        "  b: {protocol: [felix, fujin], bind: '127.0.0.1:9', tls: self-signed}\n"
    )
    assert problems(text) == []


def test_the_admin_address_is_a_port_as_well() -> None:
    assert problems(f"{HEAD}admin: {{bind: '127.0.0.1:2'}}\n") == [
        "r.yaml:5: admin.bind: 127.0.0.1:2 (tcp) is taken by listeners.log already"
    ]


def test_both_ways_to_give_a_secret_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    text = listener(f"protocol: blipmq, auth: {{api_keys: [a], api_keys_file: {tmp_path}/key}}")
    assert problems(text) == [
        "r.yaml:3: listeners.a.auth.api_keys_file: give either 'api_keys' or 'api_keys_file', not both"
    ]


def test_a_secret_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xff")
    text = listener(f"protocol: blipmq, auth: {{api_keys_file: {tmp_path}/key}}")
    assert problems(text) == [f"r.yaml:3: listeners.a.auth.api_keys_file: cannot read '{tmp_path}/key': not UTF-8 text"]


def test_two_bridges_that_could_claim_one_address() -> None:
    text = f"""{QUIC}routes:
  - name: one
    match: {{topic: "a.*"}}
    to:
      - store: {{topic: "a.{{1}}"}}
      - bridge: {{protocol: felix, address: "x/y/a-{{1}}", accept_loss: all}}
  - name: two
    match: {{topic: "b"}}
    to:
      - store: {{topic: "b"}}
      - bridge: {{protocol: felix, address: "x/y/a-b", accept_loss: all}}
"""
    assert problems(text) == [
        "r.yaml:16: routes[1].to[1].bridge.address: 'x/y/a-b' is claimed by a bridge of 'one' (line 11) as well"
    ]


def test_a_bridge_claims_the_short_name_too() -> None:
    """In the listener's default scope a stream's name is enough, so both spellings are one address."""
    text = f"""{QUIC}routes:
  - {{name: one, match: {{topic: a}}, to: [{{store: {{topic: a}}}}, {{bridge: {{protocol: felix, address: t1/default/z, accept_loss: all}}}}]}}
  - {{name: two, match: {{topic: b}}, to: [{{store: {{topic: b}}}}, {{bridge: {{protocol: felix, address: z, accept_loss: all}}}}]}}
"""
    assert problems(text) == [
        "r.yaml:8: routes[1].to[1].bridge.address: 'z' is claimed by a bridge of 'one' (line 7) as well"
    ]


UNREACHED = [
    ("{}", "{topic: a}", True),
    ("{topic: '**'}", "{}", True),
    ("{topic: 'a.**'}", "{topic: 'a.*'}", True),
    ("{topic: 'a.*'}", "{topic: 'a.**'}", False),
    ("{topic: '*'}", "{topic: 'a.b'}", False),
    ("{protocol: flymq}", "{protocol: flymq, topic: a}", True),
    ("{protocol: flymq}", "{topic: a}", False),
    ("{protocol: [flymq, rustlog]}", "{protocol: rustlog}", True),
    ("{listener: fly}", "{listener: fly}", True),
    ("{listener: fly}", "{listener: log}", False),
    ("{key: 'x*'}", "{key: 'x*'}", False),
    ("{header: {a: b}}", "{}", False),
    ("{principal: 'a*'}", "{principal: ab}", True),
    ("{principal: 'a*'}", "{}", False),
]


@pytest.mark.parametrize(("first", "second", "unreached"), UNREACHED)
def test_a_route_behind_one_that_takes_everything(first: str, second: str, unreached: bool) -> None:
    text = (
        f"{HEAD}routes:\n  - {{name: one, match: {first}, to: [{{store: {{topic: t}}}}]}}\n"
        f"  - {{name: two, match: {second}, to: [{{store: {{topic: t}}}}]}}\n"
    )
    expected = "r.yaml:7: routes[1].match: never reached: 'one' (line 6) takes everything it could"
    assert problems(text) == ([expected] if unreached else [])


def test_two_routes_of_one_name() -> None:
    text = f"{HEAD}routes:\n  - {{name: r, match: {{topic: a}}, to: [{{store: {{topic: t}}}}]}}\n  - name: r\n    match: {{}}\n    to: [{{store: {{topic: t}}}}]\n"
    assert problems(text) == ["r.yaml:7: routes[1].name: duplicate name 'r' (first in line 6)"]


def test_the_words_that_are_missing_are_named() -> None:
    text = f"{QUIC}routes:\n  - {{name: r, match: {{}}, to: [{{store: {{topic: t}}}}, {{bridge: {{protocol: felix, address: a, accept_loss: [key]}}}}]}}\n"
    assert problems(text) == [
        (
            "r.yaml:7: routes[0].to[1].bridge.accept_loss: "
            "flymq to felix loses headers: accept_loss must name what may be lost"
        )
    ]


def test_everything_at_once_in_the_order_of_the_file() -> None:
    text = """version: 1
listeners:
  a: {protocol: nope, bind: "127.0.0.1:1", tls: maybe}
  b: {protocol: blipmq, bind: "127.0.0.1", colour: red}
storage:
  durability: never
upstreams:
  far: {protocol: felix, address: "h:0"}
routes:
  - name: one
    match: {topic: "***"}
    to: [{store: {topic: "{9}"}}, {forward: {upstream: fa, address: x}}]
  - name: one
    match: {}
    to: [{bridge: {protocol: rustlog, adress: x}}]
nonsense: ${UNSET}
"""
    assert [problem.split(": ")[0:2] for problem in problems(text)] == [
        ["r.yaml:3", "listeners.a.protocol"],
        ["r.yaml:3", "listeners.a.tls"],
        ["r.yaml:4", "listeners.b.bind"],
        ["r.yaml:4", "listeners.b.colour"],
        ["r.yaml:4", "listeners.b.auth"],
        ["r.yaml:6", "storage.durability"],
        ["r.yaml:8", "upstreams.far.tls"],
        ["r.yaml:8", "upstreams.far.address"],
        ["r.yaml:11", "routes[0].match.topic"],
        ["r.yaml:12", "routes[0].to[1].forward.upstream"],
        ["r.yaml:13", "routes[1].name"],
        ["r.yaml:15", "routes[1].to[0].bridge.adress"],
        ["r.yaml:15", "routes[1].to[0].bridge"],
        ["r.yaml:15", "routes[1].to[0].bridge.protocol"],
        ["r.yaml:16", "nonsense"],
    ]


def test_problems_are_raised_together() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("version: 2\nlisteners: []\n", "r.yaml", {}, TOYS)
    assert [str(problem) for problem in caught.value.exceptions] == [
        "r.yaml:1: version: expected 1, not 2",
        "r.yaml:2: listeners: expected a mapping, not a list",
    ]


GOOD = (Path(__file__).parent / "reference.yaml").read_text()


@given(st.data())
def test_a_file_with_a_line_missing_or_a_piece_replaced_is_read_or_refused_with_lines(data: st.DataObject) -> None:
    lines = GOOD.splitlines()
    index = data.draw(st.integers(0, len(lines) - 1))
    piece = data.draw(
        st.sampled_from(["", "]", "{", "x", "- x", ": 1", "'", "&a", "*a", "!!int x", "null", "\u0000", "[[", "? "])
    )
    start = data.draw(st.integers(0, len(lines[index])))
    stop = data.draw(st.integers(start, len(lines[index])))
    lines[index] = lines[index][:start] + piece + lines[index][stop:]
    found = examine("\n".join(lines), "r.yaml", {"LEGACY_KEY": "k"}, TOYS).problems
    for problem in found:
        assert problem.file == "r.yaml"
        assert 1 <= problem.line <= len(lines) + 1


def test_what_is_pulled_must_not_be_taken_for_a_listeners() -> None:
    text = f"{HEAD}upstreams:\n  fly: {{protocol: flymq, address: 'h:1', ingest: [{{from: x, into: y}}]}}\n"
    assert problems(text) == [
        "r.yaml:6: upstreams.fly.ingest: what is pulled comes in as 'fly', which is a listener as well"
    ]


# --- what is wrong in one place hides nothing elsewhere ---

BOTH_ROUNDS = [
    (  # an upstream that cannot be read is still what a forward loses something to
        QUIC + "upstreams: {far: {protocol: felix, address: nowhere, tls: system}}\n"
        "routes:\n  - {name: r, match: {protocol: flymq}, to: [store: {topic: a}, forward: {upstream: far, address: b/c/d}]}\n",
        ["r.yaml:6: upstreams.far.address", "r.yaml:8: routes[0].to[1].forward.accept_loss"],
    ),
    (
        HEAD + "  blip: {protocol: blipmq}\n",
        ["r.yaml:5: listeners.blip: missing key 'bind'", "r.yaml:5: listeners.blip.auth: blipmq needs api_keys"],
    ),
    (
        HEAD + "  blip: {protocol: blipmq, bind: '127.0.0.1'}\n",
        ["r.yaml:5: listeners.blip.bind: not an address", "r.yaml:5: listeners.blip.auth: blipmq needs api_keys"],
    ),
    (
        HEAD + "routes:\n  - {name: '/', match: {}, to: [bridge: {protocol: rustlog, address: a}]}\n",
        ["r.yaml:6: routes[0].name: not a name", "r.yaml:6: routes[0].to[0].bridge: a bridge reads",
         "r.yaml:6: routes[0].to[0].bridge.accept_loss: "],
    ),
    (  # without a name the forwards of two routes are not called the same
        FAR + "routes:\n  - {match: {topic: a}, to: [store: {topic: a}, forward: {upstream: far, address: a}]}\n"
        "  - {match: {topic: b}, to: [store: {topic: b}, forward: {upstream: far, address: b}]}\n",
        ["r.yaml:7: routes[0]: missing key 'name'", "r.yaml:8: routes[1]: missing key 'name'"],
    ),
    (
        HEAD + "routes:\n  - {name: r, to: [bridge: {protocol: flymk, address: a}]}\n",
        ["r.yaml:6: routes[0]: missing key 'match'", "r.yaml:6: routes[0].to[0].bridge: a bridge reads what was stored",
         "r.yaml:6: routes[0].to[0].bridge.protocol: unknown"],
    ),
    (  # an unknown key takes nothing away from what is beside it
        QUIC + "routes:\n  - {name: r, match: {tenant: x}, to: [store: {topic: a}, bridge: {protocol: felix, address: b/c/d}]}\n"
        "  - {name: s, match: {}, to: [store: {topic: a}]}\n",
        ["r.yaml:7: routes[0].match.tenant: unknown key", "r.yaml:7: routes[0].to[1].bridge.accept_loss: "],
    ),
    (  # a misspelt one is looked into as what was probably meant
        QUIC + "routes:\n  - {name: r, match: {protocl: flymk, topik: '***'}, to: [stor: {topic: '__a'}, forward: {upstraem: far, address: b}]}\n",
        ["r.yaml:7: routes[0].match.protocl: unknown key", "r.yaml:7: routes[0].match.topik: unknown key",
         "r.yaml:7: routes[0].match.topik: ", "r.yaml:7: routes[0].match.protocol: unknown or not",
         "r.yaml:7: routes[0].to[0].stor: unknown key",
         "r.yaml:7: routes[0].to[1].forward.upstraem: unknown key", "r.yaml:7: routes[0].to[1].forward.upstream: no upstream"],
    ),
    (
        HEAD + "  a: {protocol: flymq, bnd: '127.0.0.1:1', tsl: {cert: /nonexistent/c, key: /nonexistent/k}}\n",
        ["r.yaml:5: listeners.a.bnd: unknown key", "r.yaml:5: listeners.a.tsl: unknown key",
         "r.yaml:5: listeners.a.bind: 127.0.0.1:1 (tcp) is taken",
         "r.yaml:5: listeners.a.tsl.cert: cannot read", "r.yaml:5: listeners.a.tsl.key: cannot read"],
    ),
    (  # of a listener whose protocol nobody can tell, what belongs to none of them is named
        HEAD + "  a: {protokoll: flymq, bind: '127.0.0.1:9', tsl: none, poll_hold: 1s}\n"
        "  b: {protocol: flymk, bind: '127.0.0.1:8', bnid: x, poll_hold: 1s}\n",
        ["r.yaml:5: listeners.a.protokoll: unknown key", "r.yaml:5: listeners.a.tsl: unknown key",
         "r.yaml:6: listeners.b.bnid: unknown key", "r.yaml:6: listeners.b.protocol: unknown or not available"],
    ),
    (  # of a list of losses the words that can be read count, and the others are still missing
        QUIC + "routes:\n  - {name: r, match: {}, to: [store: {topic: a}, bridge: {protocol: felix, address: b/c/d, accept_loss: [kye]}]}\n",
        ["r.yaml:7: routes[0].to[1].bridge.accept_loss: flymq and rustlog to felix loses key, headers",
         "r.yaml:7: routes[0].to[1].bridge.accept_loss[0]: expected"],
    ),
    (  # what a route takes is not known, so neither is what it loses
        QUIC + "routes:\n  - {name: r, match: {protocol: 5}, to: [store: {topic: a}, bridge: {protocol: felix, address: b/c/d}]}\n",
        ["r.yaml:7: routes[0].match.protocol: expected text"],
    ),
    (
        HEAD + "routes:\n  - {name: r, match: {topic: '*'}, to: [store: {}, bridge: {protocol: rustlog, accept_loss: all, address: '{2}'}]}\n",
        ["r.yaml:6: routes[0].to[0].store: missing key 'topic'", "r.yaml:6: routes[0].to[1].bridge.address: "],
    ),
    (
        HEAD.replace("version: 1", "version: 2") + "routes:\n  - {name: r, match: {}, to: []}\n",
        ["r.yaml:1: version: expected 1", "r.yaml:6: routes[0].to: expected a list of at least one"],
    ),
    (
        HEAD + "  a: {protocol: flymq, bind: '127.0.0.1:3', tls: {key: /nonexistent/k}}\n",
        ["r.yaml:5: listeners.a.tls: missing key 'cert'", "r.yaml:5: listeners.a.tls.key: cannot read"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), BOTH_ROUNDS)
def test_what_cannot_be_read_hides_nothing_else(text: str, expected: Sequence[str]) -> None:
    found = problems(text)
    assert len(found) == len(expected), found
    assert all(one.startswith(start) for one, start in zip(sorted(found), sorted(expected), strict=True)), found


def test_an_unknown_word_is_answered_with_the_known_ones() -> None:
    (found,) = examine(listener("protocol: rustlog, fresh_grup: empty"), "r.yaml", {}, TOYS).problems
    known = "auth, bind, dialect, fresh_group, limits, mode, origins, protocol, tls, transport"
    assert found.message == f"unknown key 'fresh_grup' (known: {known}; did you mean 'fresh_group'?)"


def test_whoever_may_use_the_admin_address_has_a_token_of_their_own() -> None:
    tokens = "    one: {role: read}\n    two: {token: same, role: read}\n    three: {token: x, role: king}\n"
    tokens += "    admin: {token: y, role: read}\n"
    found = problems(HEAD + "admin:\n  token: same\n  tokens:\n" + tokens)
    assert [one.split(":")[1] for one in found] == ["8", "9", "10", "11"]
    assert "admin.tokens.one: a token is needed" in found[0]
    assert "admin.tokens.two.token: that is admin.token too" in found[1]
    assert "admin.tokens.three.role" in found[2]
    assert "admin.tokens.admin: that is what whoever shows admin.token is called" in found[3]


def test_metrics_have_a_port_of_their_own() -> None:
    (found,) = problems(HEAD + "metrics: {bind: '127.0.0.1:2'}\n")
    assert found.startswith("r.yaml:5: metrics.bind: 127.0.0.1:2 (tcp) is taken by listeners.log")
