"""`gateway check --live` against upstreams that answer, that answer others only, and that are not there."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import trio

from tests.integration.running import serving

UPSTREAM = """
version: 1
listeners:
  blipmq: {protocol: blipmq, bind: "127.0.0.1:0", auth: {api_keys: [key]}}
  flymq:  {protocol: flymq, bind: "127.0.0.1:0", auth: {users: store, admin: {name: admin, password: right}}}
  felix:  {protocol: felix, bind: "127.0.0.1:0", tls: self-signed}
  fujin:  {protocol: fujin, bind: "127.0.0.1:0", tls: self-signed}
  log:    {protocol: rustlog, bind: "127.0.0.1:0"}
storage: {path: "%s"}
"""

ASKED = """
version: 1
listeners: {in: {protocol: flymq, bind: "127.0.0.1:0"}}
storage: {path: "%(data)s"}
upstreams:
  blip:       {protocol: blipmq, address: "127.0.0.1:%(blipmq)d", auth: {api_key: key}}
  blip-wrong: {protocol: blipmq, address: "127.0.0.1:%(blipmq)d", auth: {api_key: other}}
  fly:        {protocol: flymq, address: "127.0.0.1:%(flymq)d", auth: {username: admin, password: right}}
  fly-wrong:  {protocol: flymq, address: "127.0.0.1:%(flymq)d", auth: {username: admin, password: wrong}}
  lix:        {protocol: felix, address: "127.0.0.1:%(felix)d", tls: {ca: "%(ca)s"}}
  lix-wrong:  {protocol: felix, address: "127.0.0.1:%(felix)d", tls: system}
  fuj:        {protocol: fujin, address: "127.0.0.1:%(fujin)d", tls: {ca: "%(ca)s"}}
  log:        {protocol: rustlog, address: "127.0.0.1:%(log)d"}
  nobody:     {protocol: rustlog, address: ["127.0.0.1:%(log)d", "127.0.0.1:%(closed)d"]}
"""


async def test_upstreams_are_asked_to_let_us_in(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]
    asked = tmp_path / "asked.yaml"
    async with serving(tmp_path, UPSTREAM % (tmp_path / "data")) as ports:
        places = {**ports, "data": tmp_path / "other", "ca": tmp_path / "data/self-signed.crt", "closed": closed}
        asked.write_text(ASKED % places)
        command = [sys.executable, "-m", "gateway", "check", str(asked), "--live"]
        done = await trio.run_process(command, capture_stdout=True, check=False)
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 1
    assert [(path, what.split()[1:4]) for path, what in (line.split(": ")[1:3] for line in lines)] == [
        ("upstreams.blip-wrong.auth", ["refuses", "the", "login"]),
        ("upstreams.fly-wrong.auth", ["refuses", "the", "login"]),
        ("upstreams.lix-wrong.address", ["does", "not", "answer"]),
        ("upstreams.nobody.address", ["does", "not", "answer"]),
    ]
    assert f"127.0.0.1:{closed} does not answer" in lines[-1]
