"""What a start loads: nothing that the configuration does not ask for. Every module here takes its time, on each start."""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import trio

from tests.integration.running import started

CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
admin:     {{bind: "127.0.0.1:0"}}
storage:   {{path: "{path}"}}
routes:
  - {{name: all, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""

SERVE = """
import os, signal, sys
from gateway.cli import serve
announce = serve._announce
def at_ready(line):
    if line == "ready":
        announce(" ".join(sorted(sys.modules)))
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        announce(line)
serve._announce = at_ready
sys.argv = ["gateway", "serve", "--config", sys.argv[1], "--log-level", "error"]
from gateway.cli.main import main
sys.exit(main())
"""

NOT_ASKED_FOR = {
    "aioquic": "no listener speaks QUIC",
    "cryptography": "nor TLS",
    "jwt": "nobody logs in with tokens",
    "argon2": "nobody has a password",
    "hypercorn": "nobody has asked the admin address yet",
    "prometheus_client": "the same",
    "starlette": "the same",
    "rich": "nothing is printed for people",
    "jsonschema_rs": "no topic has a schema",
    "fastavro": "the same",
    "grpc_tools": "the same",
    "celpy": "no route computes anything",
    "pyarrow": "nobody reads in bulk",
    "pyspark": "that is another program",
}


async def test_a_plain_configuration_starts_without_what_others_need(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(path=tmp_path / "data"))
    ended = await trio.run_process([sys.executable, "-c", SERVE, str(config)], capture_stdout=True)
    assert b"\nroute all: store\n" in ended.stdout, "in the words of the file"
    loaded = set(ended.stdout.decode().split())
    assert {"gateway.app", "gateway.protocols.blipmq.server.session", "trio"} <= loaded
    assert {name: reason for name, reason in NOT_ASKED_FOR.items() if name in loaded} == {}


def test_who_asks_first_on_a_full_disk_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = tmp_path / "compiled"
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(compiled))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    with started(tmp_path, CONFIG.format(path=tmp_path / "data")) as served:
        there = sorted(compiled.rglob("*.pyc"))
        assert there, "a start writes what it has compiled"
        for _start in range(2):
            resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            with urlopen(f"http://127.0.0.1:{served.ports['admin']}/metrics", timeout=60) as answer:
                assert b"gateway_" in answer.read()
            assert sorted(compiled.rglob("*.pyc")) == there
            served.end(signal.SIGKILL)
            served.start()
