"""A sixth protocol is one new folder and nothing else: `sixth/toy`, put where the registry looks, is a whole citizen."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest
import trio

from tests.integration.raw import s16, s32, tcp
from tests.integration.running import ports, process

FOLDER = Path(__file__).parent / "sixth"
START = (
    f"import sys, gateway.protocols; gateway.protocols.__path__.append({str(FOLDER)!r}); "
    "from gateway.cli.main import main; sys.exit(main())"
)
GATEWAY = [sys.executable, "-c", START]
"""The gateway with one more folder among its protocols; nothing of it is edited or replaced."""

CONFIG = """
version: 1
listeners:
  lines: {{protocol: toy, bind: "127.0.0.1:0", greeting: hello}}
  quiet: {{protocol: toy, bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{0}/data"}}
routes:
  - name: shown
    match: {{protocol: toy, topic: "in.*"}}
    to:
      - store: {{topic: "out.{{1}}"}}
      - bridge: {{protocol: rustlog, address: "bridged.{{1}}"}}
  - {{name: rest, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""


async def run(*args: str) -> tuple[int, str]:
    with trio.fail_after(60):
        done = await trio.run_process([*GATEWAY, *args], capture_stdout=True, capture_stderr=True, check=False)
    return done.returncode, done.stdout.decode()


async def test_a_sixth_protocol_is_served_stored_routed_and_dialled(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.format(tmp_path))
    command = [*GATEWAY, "serve", "--config", str(path)]
    with trio.fail_after(60):
        async with process(command, lambda out: b"\nready\n" in out) as lines:
            port = ports(lines)
            async with tcp(port["lines"]) as wire:
                await wire.send(b"P in.x one\nP in.x two\nG in.x 1\nG in.x 9\nP __x y\n")
                await wire.expect(b"hello\n0\n1\ntwo\n-\n! ")
            for address in ("out.x", "bridged.x"):
                async with tcp(port["rustlog"]) as wire:
                    await wire.send(s32(b"\2\0\0" + s16(address) + struct.pack(">IQI", 0, 0, 1024)))
                    values = s32(b"one") + s32(b"two")
                    await wire.expect(s32(b"\2" + struct.pack(">I", 2) + values + struct.pack(">Q", 2)))
            url = f"toy://127.0.0.1:{port['quiet']}/in.x"
            code, said = await run("pub", url, "--data", "three")
            assert (code, said[:27]) == (0, "published 1 message to in.x")


async def test_a_sixth_protocol_is_known_to_check_and_to_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.format(tmp_path))
    assert await run("check", str(path)) == (0, f"{path}: good (3 listeners, 2 routes)\n")
    path.write_text(CONFIG.format(tmp_path).replace("greeting", "greting"))
    code, said = await run("check", str(path))
    assert code == 1
    assert "greting" in said
    assert '"toy"' in (await run("schema"))[1]


async def test_its_client_passes_the_suite_of_every_client() -> None:
    """But for what a broker may say wrongly: that is not looked at in a page's example."""
    chosen = "toy and not escapes"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/conformance/test_clients.py",
        "-k",
        chosen,
    ]
    more = {**os.environ, "GATEWAY_MORE_PROTOCOLS": str(FOLDER)}
    done = await trio.run_process(command, env=more, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stdout.decode()[-5000:]
    assert b"6 passed" in done.stdout


@pytest.mark.parametrize("word", ["toy", "sixth"])
def test_the_house_does_not_know_it(word: str) -> None:
    named = [path for path in Path("gateway").rglob("*.py") if f'"{word}"' in path.read_text()]
    assert named == []
