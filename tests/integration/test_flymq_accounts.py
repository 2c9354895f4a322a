"""Roles and operations of FlyMQ, each with each, over the wire of a process whose accounts are in its store."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import trio

from gateway.protocols.flymq.server.session import OPERATIONS as SERVED
from gateway.protocols.flymq.wire.frames import Op
from tests.integration.flymq_raw import Flymq, fetch, flymq, frame, i32, names, produce, s8, u64, user
from tests.integration.raw import s16, s32
from tests.integration.running import Served

CONFIG = """
version: 1
listeners:
  users: {{protocol: flymq, bind: "127.0.0.1:0", auth: {{users: store, admin: {{name: root, password: s3cret-root}}}}}}
storage: {{path: "{data}"}}
"""
ROLES = ("anonymous", "guest", "consumer", "producer", "admin")
EVERYONE, LOGGED_IN = set(ROLES), set(ROLES) - {"anonymous"}
READERS, WRITERS, ADMINS = {"consumer", "admin"}, {"producer", "admin"}, {"admin"}
SEERS = READERS | WRITERS
AT = s16("secret") + s16("g") + i32(0)

OPERATIONS: dict[int, tuple[bytes, set[str]]] = {
    0x01: (produce("secret", b"x"), WRITERS),
    0x02: (s16("secret") + i32(0) + u64(0), READERS),
    0x03: (s16("made") + i32(1), ADMINS),
    0x04: (s16("secret"), SEERS),
    0x05: (AT + s16("earliest"), READERS),
    0x06: (AT + u64(0), READERS),
    0x07: (fetch("secret"), READERS),
    0x08: (b"", LOGGED_IN),
    0x09: (s16("made"), ADMINS),
    0x0A: (s16("secret") + i32(0) + u64(0), READERS),
    0x0B: (fetch("secret"), READERS),
    0x10: (s16("s") + s8("json") + s32(b"{}"), WRITERS),
    0x11: (s16("s") + i32(0), LOGGED_IN),
    0x12: (b"", LOGGED_IN),
    0x13: (s16("s") + s32(b"{}"), LOGGED_IN),
    0x14: (s16("secret") + s16("s") + s32(b"{}"), WRITERS),
    0x15: (s16("s") + i32(9), ADMINS),
    0x20: (s16("secret") + i32(1), READERS),
    0x21: (s16("secret") + s16("0:0"), WRITERS),
    0x22: (s16("secret"), ADMINS),
    0x30: (s16("secret") + s32(b"x") + u64(1), WRITERS),
    0x31: (s16("secret") + s16("nothing"), WRITERS),
    0x35: (s16("secret") + s32(b"x") + u64(60_000), WRITERS),
    0x40: (b"", LOGGED_IN),
    0x41: (s16("txn-none"), LOGGED_IN),
    0x42: (s16("txn-none"), LOGGED_IN),
    0x43: (s16("txn-none") + s16("secret") + s32(b"x"), WRITERS),
    0x50: (s16("127.0.0.1:1"), ADMINS),
    0x51: (b"", ADMINS),
    0x52: (b"", LOGGED_IN),
    0x53: (s16("secret"), SEERS),
    0x60: (AT, READERS),
    0x61: (AT + s16("earliest"), ADMINS),
    0x62: (b"", ADMINS),
    0x63: (s16("secret") + s16("g"), ADMINS),
    0x64: (AT, READERS),
    0x65: (s16("secret") + s16("none"), ADMINS),
    0x66: (AT + u64(0), READERS),
    0x70: (s16("nobody") + s16("wrong"), EVERYONE),
    0x72: (b"", EVERYONE),
    0x73: (user("guest", "another-one", roles=["guest"]), ADMINS),
    0x74: (s16("no-such-user"), ADMINS),
    0x75: (user("no-such-user"), ADMINS),
    0x76: (b"", ADMINS),
    0x77: (s16("root"), ADMINS),
    0x78: (s16("other") + b"\1" + names([]) + names([]), ADMINS),
    0x79: (s16("secret"), ADMINS),
    0x7A: (s16("other"), ADMINS),
    0x7B: (b"", ADMINS),
    0x7C: (user("root", "password-of-root"), set()),  # others' passwords: below
    0x7D: (b"", LOGGED_IN),
}
DOCUMENT = {*range(1, 12), *range(0x10, 0x16), 0x20, 0x21, 0x22, 0x30, 0x31, 0x35, *range(0x40, 0x44), 0x50, 0x51, 0x52}
DOCUMENT |= {*range(0x60, 0x67), 0x70, *range(0x72, 0x7E)}
ANSWERS = {Op.AUTH_RESPONSE, Op.ERROR}
"""Codes that no client sends."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for the module."""
    directory = tmp_path_factory.mktemp("accounts")
    served = Served(directory, CONFIG.format(data=directory / "data"))
    served.start()
    try:
        yield served
    finally:
        if served.running:
            assert served.end(signal.SIGTERM) == 0


async def login(client: Flymq, name: str, password: str) -> bytes:
    return await client.ask(0x70, s16(name) + s16(password))


async def refusal(client: Flymq, op: int, payload: bytes) -> str:
    """Why an operation is not allowed; empty when it is, whatever else comes of it."""
    await client.wire.send(frame(op, payload))
    got, _, answer = await client.read()
    if got != 0xFF:
        return ""
    text = answer[3:].decode() if answer[0] == 0 and answer[1] == 0 and answer[2] else answer[6:].decode()
    return text if text in {"authentication required", "unauthorized"} else ""


async def test_every_role_with_every_operation(gateway: Served):
    assert set(OPERATIONS) == DOCUMENT | {0x53}
    assert set(OPERATIONS) == set(Op) - ANSWERS == {Op.PRODUCE, *SERVED}, "an operation without a row"
    wrong = []
    with trio.fail_after(60):
        async with flymq(gateway.ports["users"]) as root:
            assert await login(root, "root", "wrong") == b"\0" + s16("invalid username or password") + bytes(6)
            assert await login(root, "root", "s3cret-root") == b"\1" + bytes(10)
            for role in ("guest", "consumer", "producer", "admin"):
                answer = await root.ask(0x73, user(role, f"{role}-password", roles=[role]))
                assert answer.startswith(s16(role) + names([role]))
            await root.ask(3, s16("secret") + i32(1))
            assert await root.ask(0x78, s16("secret") + b"\0" + names([]) + names([])) == b"\1" + s16("secret")
            for role in ROLES:
                async with flymq(gateway.ports["users"]) as client:
                    if role != "anonymous":
                        assert (await login(client, role, f"{role}-password"))[:1] == b"\1"
                    for op, (payload, allowed) in OPERATIONS.items():
                        if op in (0x70, 0x7C):
                            continue
                        why = await refusal(client, op, payload)
                        expected = "authentication required" if role == "anonymous" else "unauthorized"
                        if why != ("" if role in allowed else expected):
                            wrong.append((role, hex(op), why))
    assert not wrong, wrong


async def test_accounts_change_under_a_connection_and_last_over_a_kill(gateway: Served):
    with trio.fail_after(60):
        async with flymq(gateway.ports["users"]) as root, flymq(gateway.ports["users"]) as ann:
            await login(root, "root", "s3cret-root")
            await root.ask(0x73, user("ann", "first-password", roles=["consumer"]))
            assert await root.refused(0x73, user("ann", "first-password")) == "user already exists: ann"
            assert "unknown role" in await root.refused(0x73, user("bob", "b-password", roles=["king"]))
            await root.ask(3, s16("private") + i32(1))
            await root.ask(0x78, s16("private") + b"\0" + names([]) + names([]))
            assert (await ann.ask(0x72))[:3] == b"\0\0\0"
            await login(ann, "ann", "first-password")
            assert (await ann.ask(0x72)).startswith(b"\1" + s16("ann") + bytes(8))
            assert await refusal(ann, 1, produce("private", b"x")) == "unauthorized"
            await root.ask(0x75, user("ann", roles=["producer"]))
            assert await refusal(ann, 1, produce("private", b"x")) == ""
            assert await refusal(ann, 7, fetch("private")) == "unauthorized"
            await root.ask(0x78, s16("private") + b"\0" + names(["ann"]) + names([]))
            assert await refusal(ann, 7, fetch("private")) == ""
            assert await ann.refused(0x7C, user("ann", "second-password", "wrong")) == "invalid current password"
            assert await ann.refused(0x7C, user("root", "own-now-12", "")) == "unauthorized"
            assert await ann.ask(0x7C, user("ann", "second-password", "first-password")) == b"\1" + s16("ann")
            assert await root.refused(0x74, s16("root")) == "cannot delete yourself"
            assert await root.ask(0x79, s16("private")) == s16("private") + b"\1\0\0" + names(["ann"]) + names([])
            await root.ask(0x75, user("ann", roles=["producer"], enabled=False))
            await ann.wire.send(frame(7, fetch("private")))
            assert b"disabled" in (await ann.read())[2]
            await root.ask(0x75, user("ann", roles=["producer"]))
        stored = b"".join(path.read_bytes() for path in gateway.data.rglob("*") if path.is_file())
        assert b"second-password" not in stored
        assert b"$argon2id$" in stored
        await trio.to_thread.run_sync(gateway.end, signal.SIGKILL)
        await trio.to_thread.run_sync(gateway.start)
        async with flymq(gateway.ports["users"]) as ann:
            assert (await login(ann, "ann", "first-password"))[:1] == b"\0"
            assert (await login(ann, "ann", "second-password"))[:1] == b"\1"
            assert await refusal(ann, 7, fetch("private")) == ""
