"""`check`, `schema`, `explain` and `fidelity` as they are run: what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.cli import check, explain, fidelity, schema
from gateway.config import load as load_module
from gateway.config import schema as schema_module
from gateway.protocols import registry
from tests.unit.config.toys import TOYS

GOOD = """\
version: 1
listeners:
  fly: {protocol: flymq, bind: "127.0.0.1:1"}
  fly2: {protocol: flymq, bind: "127.0.0.1:2"}
  lix: {protocol: felix, bind: "127.0.0.1:3", tls: self-signed}
routes:
  - name: orders
    match: {protocol: flymq, topic: "orders.*"}
    to:
      - store: {topic: "orders.{1}"}
      - bridge: {protocol: felix, address: "acme/shop/orders-{1}", accept_loss: [key, headers]}
  - {name: keyed, match: {key: "a*"}, to: [{store: {topic: "keyed"}}]}
"""


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands see five protocols that do not run, so that what is tested here is the commands."""
    for module in (load_module, schema_module):
        monkeypatch.setattr(module, "registered", lambda: TOYS)
    monkeypatch.setattr(registry, "protocols", lambda: TOYS)


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return str(path)


def run(command: click.Command, *args: str) -> Result:
    return CliRunner().invoke(command, args)


# --- check ---


def test_a_good_file(good: str) -> None:
    done = run(check.command, good)
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{good}: good (3 listeners, 2 routes)\n", "")


def test_a_bad_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("version: 1\nlisteners:\n  a: {protocol: nope, bind: '127.0.0.1:1'}\n  b: {protocol: flymq}\n")
    done = run(check.command, str(path))
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        f"{path}:3: listeners.a.protocol: unknown or not available protocol 'nope' (known: blipmq, felix, flymq, fujin, rustlog)",
        f"{path}:4: listeners.b: missing key 'bind'",
    ]
    assert done.stderr == ""


def test_problems_as_json(tmp_path: Path, good: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("version: 1\nlisteners: {}\nmemori: {}\n")
    done = run(check.command, str(path), "--output", "json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    (problem,) = found["problems"]
    assert problem.pop("message").startswith("unknown key 'memori' (known: ")
    assert (found["good"], problem) == (False, {"file": str(path), "line": 3, "path": "memori"})
    assert json.loads(run(check.command, good, "--output", "json").stdout) == {
        "good": True,
        "file": good,
        "problems": [],
        "warnings": [],
        "listeners": 3,
        "routes": 2,
        "plan": [],
    }


def test_a_file_that_cannot_be_looked_at(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        done = run(check.command, str(path))
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"cannot read {path}" in done.stderr


# --- schema ---


def test_the_schema_is_one_and_takes_good_files() -> None:
    done = run(schema.command)
    assert done.exit_code == 0
    jsonschema.validate(yaml.safe_load(GOOD), json.loads(done.stdout))


# --- explain ---


def test_the_way_of_a_message(good: str) -> None:
    done = run(explain.command, "--config", good, "--protocol", "flymq", "--address", "orders.eu")
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[:4] == ["flymq: orders.eu (listener 'fly')", "route 'orders'", "store orders.eu", "1 partition"]
    assert "read felix: acme/shop/orders-eu" in lines
    assert "key lost" in lines


def test_the_way_as_json(good: str) -> None:
    done = run(
        explain.command, "-c", good, "--protocol", "flymq", "--listener", "fly2", "--address", "x", "--key", "abc",
        "--header", "k=v=w", "--output", "json",
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert (answer["listener"], answer["route"], answer["topic"], answer["read_topic"]) == (
        "fly2",
        "keyed",
        "keyed",
        "keyed",
    )


def test_the_way_of_what_is_pulled_from_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "pulls.yaml"
    pulls = "upstreams: {far: {protocol: rustlog, address: 'h:1', ingest: [{from: a, into: far.a}]}}\n"
    route = "  - {name: pulled, match: {listener: far}, to: [{store: {topic: '{topic}'}}]}\n"
    path.write_text(GOOD.replace("routes:\n", f"{pulls}routes:\n{route}"))
    done = run(explain.command, "-c", str(path), "--protocol", "rustlog", "--listener", "far", "--address", "far.a")
    assert "route 'pulled'" in done.stdout


def test_a_message_that_nothing_takes(good: str) -> None:
    done = run(explain.command, "-c", good, "--protocol", "flymq", "--address", "x", "--key", "b")
    assert (done.exit_code, done.stdout) == (
        1,
        "refused: 'keyed' would take 'x', but not with this key and these headers\n",
    )
    done = run(explain.command, "-c", good, "--protocol", "flymq", "--address", "orders.\x01", "--output", "json")
    assert (done.exit_code, json.loads(done.stdout)["refused"]) == (1, "invalid")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--protocol", "smtp", "--address", "x"], "there is no protocol 'smtp'"),
        (["--protocol", "rustlog", "--address", "x"], "no listener speaks rustlog"),
        (
            ["--protocol", "flymq", "--listener", "lix", "--address", "x"],
            "'lix' does not speak flymq (these do: fly, fly2)",
        ),
        (["--protocol", "flymq", "--address", "x", "--header", "novalue"], "write it as NAME=VALUE"),
    ],
)
def test_a_question_that_makes_no_sense(args: list[str], said: str, good: str) -> None:
    done = run(explain.command, "-c", good, *args)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


# --- fidelity ---


def test_every_pair_both_ways_and_every_target(good: str) -> None:
    shown: dict[str, Any] = json.loads(run(fidelity.command, "-c", good, "--output", "json").stdout)
    assert len(shown["pairs"]) == 2 * len(TOYS) ** 2
    assert {(pair["source"], pair["target"]) for pair in shown["pairs"]} == {(a, b) for a in TOYS for b in TOYS}
    (target,) = shown["routes"]
    assert (target["route"], target["target"], target["accept_loss"]) == ("orders", "bridge", ["headers", "key"])
    assert target["pairs"][0]["losses"] == ["headers", "key"]
    assert target["pairs"][0]["fields"]["key"] == {"fate": "lost", "note": ""}


def test_tables_for_people(good: str) -> None:
    done = run(fidelity.command, "-c", good)
    assert done.exit_code == 0
    assert "Delivered elsewhere (forward)" in done.stdout
    assert "Route orders: bridge to acme/shop/orders-{1} (accepts the loss of: headers, key)" in done.stdout
    assert "LOST" in done.stdout
    rows = [line for line in done.stdout.splitlines() if "│" in line and "flymq" in line]
    assert all(len(line) <= fidelity.WIDE for line in rows)
