"""What a reload may change: which differences between two files it names, and what it says of each."""

from __future__ import annotations

import pytest

from gateway.config.load import parse
from gateway.reload import changes

BASE = """
version: 1
listeners:
  fly: {protocol: flymq, bind: "127.0.0.1:1", auth: {users: store, admin: {name: ann, password: secret1}}}
  log: {protocol: rustlog, bind: "127.0.0.1:2"}
admin:   {bind: "127.0.0.1:9", token: one}
storage: {path: data, tail_cache: 8MiB}
topics:  {"a.*": {partitions: 2}}
upstreams:
  far: {protocol: flymq, address: "h:1"}
routes:
  - {name: all, match: {}, to: [{store: {topic: "{topic}"}}]}
"""

CASES = [
    ("", "", []),
    ('topic: "{topic}"', 'topic: "new.{topic}"', []),
    ("partitions: 2", "partitions: 3", []),
    ("127.0.0.1:1", "127.0.0.1:3", ["listeners.fly.bind"]),
    ("127.0.0.1:1", "127.0.0.2:3", ["listeners.fly.bind"]),
    ("secret1", "secret2", ["listeners.fly.auth"]),
    ('127.0.0.1:2"', '127.0.0.1:2", limits: {connections: 5}', ["listeners.log.limits"]),
    ("  log:", "  other:", ["listeners.log", "listeners.other"]),
    ("token: one", "token: two", ["admin.token"]),
    ("tail_cache: 8MiB", "tail_cache: 9MiB", ["storage.tail_cache"]),
    ("h:1", "h:2", []),
    ('address: "h:1"', 'address: "h:1", ingest: [{from: x, into: y}]', []),
    ("storage:", "memory: {budget: 64MiB}\nstorage:", ["memory.budget"]),
    ('admin:   {bind: "127.0.0.1:9", token: one}', "", ["admin"]),
]


@pytest.mark.parametrize(("old", "new", "named"), CASES)
def test_what_needs_a_restart_is_named_as_in_the_file(old: str, new: str, named: list[str]) -> None:
    assert not old or BASE.count(old) == 1
    assert list(changes(parse(BASE), parse(BASE.replace(old, new) if old else BASE))) == named
