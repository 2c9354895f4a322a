"""STOMP 1.2 as one more folder: its stock client from PyPI over a real socket, and the suites that hold for every protocol."""

from __future__ import annotations

import os
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import stomp
import trio

from tests.integration.raw import s16, s32, tcp
from tests.integration.running import ports, process

FOLDER = Path(__file__).parent / "alone"
START = (
    f"import sys, gateway.protocols; gateway.protocols.__path__.append({str(FOLDER)!r}); "
    "from gateway.cli.main import main; sys.exit(main())"
)
GATEWAY = [sys.executable, "-c", START]
CONFIG = """
version: 1
listeners:
  stomp: {{protocol: stomp, bind: "127.0.0.1:0", heart_beat: 100ms}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
storage: {{path: "{0}/data"}}
"""
PATIENCE = 60


async def run(*args: str) -> tuple[int, str]:
    done = await trio.run_process([*GATEWAY, *args], capture_stdout=True, capture_stderr=True, check=False)
    return done.returncode, done.stdout.decode()


class Heard(stomp.ConnectionListener):
    """What the client was told, in order."""

    def __init__(self) -> None:
        self.frames: queue.Queue[tuple[str, stomp.utils.Frame | None]] = queue.Queue()

    def next(self, kind: str) -> stomp.utils.Frame | None:
        """The next frame of this kind; frames of the other kinds are passed over, but for errors."""
        while True:
            found, frame = self.frames.get(timeout=PATIENCE)
            if found == kind:
                return frame
            assert found != "error", frame

    def on_connected(self, frame: stomp.utils.Frame) -> None:
        self.frames.put(("connected", frame))

    def on_message(self, frame: stomp.utils.Frame) -> None:
        self.frames.put(("message", frame))

    def on_receipt(self, frame: stomp.utils.Frame) -> None:
        self.frames.put(("receipt", frame))

    def on_error(self, frame: stomp.utils.Frame) -> None:
        self.frames.put(("error", frame))

    def on_heartbeat(self) -> None:
        self.frames.put(("heartbeat", None))

    def on_disconnected(self) -> None:
        self.frames.put(("disconnected", None))


@contextmanager
def client(port: int, beats: tuple[int, int] = (0, 0)) -> Iterator[tuple[stomp.Connection12, Heard]]:
    """`beats`: every how many milliseconds it sends one, and wants one; it waits for longer than any machine is late."""
    connection = stomp.Connection12(
        [("127.0.0.1", port)], heartbeats=beats, heart_beat_receive_scale=1000, reconnect_attempts_max=1
    )
    heard = Heard()
    connection.set_listener("heard", heard)
    connection.connect(wait=True, with_connect_command=True)
    heard.next("connected")
    try:
        yield connection, heard
    finally:
        connection.disconnect()


def talk(port: int) -> None:
    """All of it, in a thread: the client is a blocking one."""
    with client(port) as (reader, heard), client(port) as (writer, told):
        reader.subscribe("orders", id="7", ack="client-individual", headers={"receipt": "subscribed"})
        assert heard.next("receipt").headers["receipt-id"] == "subscribed"
        writer.send("orders", "one", headers={"kind": "a:b\nc"}, receipt="stored")
        assert told.next("receipt").headers["receipt-id"] == "stored"
        writer.send("orders", b"\0two", receipt="also")
        told.next("receipt")
        first, second = heard.next("message"), heard.next("message")
        assert (first.body, first.headers["kind"], first.headers["subscription"]) == ("one", "a:b\nc", "7")
        assert (first.headers["destination"], first.headers["message-id"]) == ("orders", "0:0")
        assert second.body == "\0two"
        reader.nack(first.headers["ack"])
        reader.ack(second.headers["ack"], receipt="settled")
        heard.next("receipt")
        again = heard.next("message")
        assert (again.body, again.headers["ack"]) == ("one", first.headers["ack"])
        reader.ack(again.headers["ack"])
        reader.unsubscribe("7")
        writer.send("__forbidden", "x", receipt="never")
        assert "__forbidden" in told.frames.get(timeout=PATIENCE)[1].headers["message"]
        told.next("disconnected")


def beat(port: int) -> None:
    """Two beats that the client reads in one piece it takes for the beginning of a frame, and hears none until a frame has ended, which
    may be lost with them: so it is given one whenever it hears nothing.
    """
    with client(port, beats=(20_000, 100)) as (connection, heard):
        kinds: list[str] = []
        asked = 0
        while kinds.count("heartbeat") < 3 or "receipt" not in kinds:
            try:
                kinds.append(heard.frames.get(timeout=1)[0])
                assert kinds[-1] not in {"error", "disconnected"}
                if kinds.count("heartbeat") < 3:
                    continue
            except queue.Empty:
                pass
            assert asked < PATIENCE
            connection.send("beats", "alive", receipt="r")
            asked += 1


async def test_its_stock_client(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.format(tmp_path))
    with trio.fail_after(180):
        async with process([*GATEWAY, "serve", "--config", str(path)], lambda out: b"\nready\n" in out) as lines:
            port = ports(lines)
            await trio.to_thread.run_sync(talk, port["stomp"])
            await trio.to_thread.run_sync(beat, port["stomp"])
            async with tcp(port["rustlog"]) as wire:
                await wire.send(s32(b"\2\0\0" + s16("orders") + bytes(12) + b"\0\0\4\0"))
                values = s32(b"one") + s32(b"\0two")
                await wire.expect(s32(b"\2\0\0\0\2" + values + bytes(7) + b"\2"))


async def test_it_is_served_and_not_dialled(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG.format(tmp_path) + 'upstreams: {other: {protocol: stomp, address: "127.0.0.1:61613"}}\n')
    code, said = await run("check", str(path))
    assert code == 1
    assert "stomp is served here and not dialled" in said
    path.write_text(CONFIG.format(tmp_path))
    assert (await run("check", str(path)))[0] == 0
    assert (await run("fidelity", "--config", str(path)))[0] == 0
    assert (await run("pub", "stomp://127.0.0.1:1/x", "--data", "y"))[0] == 2


async def test_it_passes_the_suite_of_every_protocol() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conformance", "-k", "stomp"]
    more = {**os.environ, "GATEWAY_MORE_PROTOCOLS": str(FOLDER)}
    done = await trio.run_process(command, env=more, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stdout.decode()[-5000:]
    assert b"passed" in done.stdout
