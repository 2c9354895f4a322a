"""Accounts: logging in, and what happens to the accounts in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway import model
from gateway import requests as r
from gateway.broker.administration import accounts as module
from gateway.errors import AlreadyExists, Conflict, Denied, InvalidRequest, NotFound, Throttled, Unauthenticated
from tests.unit.broker.support import Bench, RecordingCaller, open_bench

USERS = model.AuthUsers(model.Administrator("root", password="secret"))


@asynccontextmanager
async def with_admin(path: Path) -> AsyncIterator[tuple[Bench, RecordingCaller]]:
    async with open_bench(path) as bench:
        await bench.accounts.start([USERS])
        admin = RecordingCaller(USERS)
        await bench.ask(admin, r.Authenticate(1, "root", "secret"))
        yield bench, admin


async def login(bench: Bench, name: str, password: str) -> object:
    return await bench.ask(RecordingCaller(USERS), r.Authenticate(1, name, password))


async def test_the_configured_admin_can_log_in_and_nobody_else(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await bench.accounts.start([USERS])
        caller = RecordingCaller(USERS)
        before = await bench.ask(caller, r.WhoAmI(1))
        assert before == r.Identity(authenticated=False)
        expected = r.Identity(True, "root", ("admin",), ("read", "write", "admin"))
        assert await bench.ask(caller, r.Authenticate(2, "root", "secret")) == expected
        assert await bench.ask(caller, r.WhoAmI(3)) == expected
        assert caller.origin.principal == "root"
        for name, password in (("root", "wrong"), ("other", "secret"), ("", ""), ("root", ""), ("root", "x" * 5000)):
            refusal = await login(bench, name, password)
            assert isinstance(refusal, Unauthenticated)
            assert refusal.message == "invalid username or password"


async def test_a_failed_login_leaves_the_one_before(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (bench, admin):
        await bench.ask(admin, r.Authenticate(2, "root", "wrong"))
        assert (await bench.ask(admin, r.WhoAmI(3))).name == "root"
        assert isinstance(await bench.ask(admin, r.GetUsers(4)), r.Users)


async def test_accounts_survive_a_restart_and_passwords_are_not_in_the_store(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (bench, admin):
        await bench.ask(admin, r.CreateUser(2, "alice", "open sesame", ("producer",)))
    async with open_bench(tmp_path) as bench:
        assert isinstance(await login(bench, "alice", "open sesame"), r.Identity)
        rows = b"".join(bench.store.table(module.TABLE).values())
        assert b"sesame" not in rows
        assert rows.count(b"$argon2id$") == 2


async def test_the_admins_password_follows_the_configuration(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (bench, admin):
        await bench.ask(admin, r.CreateUser(2, "second", "pw", ("admin",)))
        second = RecordingCaller(USERS)
        await bench.ask(second, r.Authenticate(1, "second", "pw"))
        assert await bench.ask(second, r.UpdateUser(2, "root", (), False)) == r.DONE
    async with open_bench(tmp_path) as bench:
        await bench.accounts.start([model.AuthUsers(model.Administrator("root", password="new"))])
        assert isinstance(await login(bench, "root", "secret"), Unauthenticated)
        identity = await login(bench, "root", "new")
        assert isinstance(identity, r.Identity)
        assert identity.roles == ("admin",)
        before = dict(bench.store.table(module.TABLE))
        await bench.accounts.start([model.AuthUsers(model.Administrator("root", password="new"))])  # nothing to do
        assert bench.store.table(module.TABLE) == before


async def test_what_others_see_of_an_account(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (bench, admin):
        created = await bench.ask(admin, r.CreateUser(2, "alice", "pw", ("producer", "consumer", "producer")))
        seconds = bench.clock.now_ms() // 1000
        info = r.UserInfo("alice", ("producer", "consumer"), (), True, seconds, seconds)
        assert created == r.Users([info])
        bench.advance(5.0)
        await bench.ask(admin, r.UpdateUser(3, "alice", ("consumer",), False))
        (alice,) = (await bench.ask(admin, r.GetUsers(4, "alice"))).users
        assert alice == r.UserInfo("alice", ("consumer",), ("read",), False, seconds, seconds + 5)
        everybody = await bench.ask(admin, r.GetUsers(5))
        assert [(user.name, user.permissions) for user in everybody.users] == [("alice", ()), ("root", ())]


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (r.CreateUser(2, "root", "pw"), AlreadyExists),
        (r.CreateUser(2, "", "pw"), InvalidRequest),
        (r.CreateUser(2, "bob", ""), InvalidRequest),
        (r.CreateUser(2, "bob", "p" * 1025), InvalidRequest),
        (r.CreateUser(2, "b\nob", "pw"), InvalidRequest),
        (r.CreateUser(2, "b" * 256, "pw"), InvalidRequest),
        (r.CreateUser(2, "bob", "pw", ("emperor",)), InvalidRequest),
        (r.UpdateUser(2, "nobody", (), True), NotFound),
        (r.UpdateUser(2, "root", ("emperor",), True), InvalidRequest),
        (r.UpdateUser(2, "root", ("admin",), False), Conflict),  # the last admin
        (r.UpdateUser(2, "root", ("consumer",), True), Conflict),
        (r.DeleteUser(2, "nobody"), NotFound),
        (r.DeleteUser(2, "root"), Conflict),  # oneself
        (r.GetUsers(2, "nobody"), NotFound),
        (r.ChangePassword(2, "nobody", "new"), NotFound),
        (r.ChangePassword(2, "root", "new", "wrong"), Denied),
        (r.ChangePassword(2, "root", "", "secret"), InvalidRequest),
        (r.SetAcl(2, r.Acl("t", True, False, (), ("emperor",))), InvalidRequest),
        (r.SetAcl(2, r.Acl("t", True, False, ("u",) * 1001)), InvalidRequest),
        (r.SetAcl(2, r.Acl("a/../b", True, True)), InvalidRequest),
    ],
)
async def test_refusals_change_nothing(tmp_path: Path, request_: r.Request, refusal: type[Exception]) -> None:
    async with with_admin(tmp_path) as (bench, admin):
        before = dict(bench.store.table(module.TABLE))
        assert isinstance(await bench.ask(admin, request_), refusal)
        assert bench.store.table(module.TABLE) == before
        assert not bench.store.table("acls")


async def test_passwords_are_changed_by_oneself_with_the_old_one_or_by_an_admin(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (bench, admin):
        for number, name in enumerate(("alice", "bob")):
            await bench.ask(admin, r.CreateUser(10 + number, name, f"pw-{name}", ("guest",)))
        alice = RecordingCaller(USERS)
        await bench.ask(alice, r.Authenticate(1, "alice", "pw-alice"))
        wrong = await bench.ask(alice, r.ChangePassword(2, "alice", "new", "pw"))
        assert isinstance(wrong, Denied)
        assert wrong.message == "invalid current password"
        assert isinstance(await bench.ask(alice, r.ChangePassword(3, "bob", "new", "pw-bob")), Denied)
        assert await bench.ask(alice, r.ChangePassword(4, "alice", "new", "pw-alice")) == r.DONE
        assert await bench.ask(admin, r.ChangePassword(5, "bob", "new")) == r.DONE
        for name in ("alice", "bob"):
            assert isinstance(await login(bench, name, "new"), r.Identity)
            assert isinstance(await login(bench, name, f"pw-{name}"), Unauthenticated)


async def test_a_disabled_account_cannot_log_in_and_says_so_only_with_the_password(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (bench, admin):
        await bench.ask(admin, r.CreateUser(2, "alice", "pw", ("guest",)))
        await bench.ask(admin, r.UpdateUser(3, "alice", ("guest",), False))
        refusal = await login(bench, "alice", "pw")
        assert isinstance(refusal, Unauthenticated)
        assert refusal.message == "user account is disabled"
        refusal = await login(bench, "alice", "wrong")
        assert isinstance(refusal, Unauthenticated)
        assert refusal.message == "invalid username or password"


async def test_of_two_changes_at_once_one_wins_and_the_other_hears_of_it(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (bench, admin):
        await bench.ask(admin, r.CreateUser(2, "alice", "pw", ("guest",)))
        handlers = bench.handlers
        handlers[r.ChangePassword](admin, r.ChangePassword(3, "alice", "one"))  # hashing now
        await bench.ask(admin, r.UpdateUser(4, "alice", ("producer",), True))
        assert isinstance(await bench.ask(admin, r.GetUsers(5, "alice")), r.Users)
        await bench.idle()
        assert isinstance(admin.answers[3], Conflict)
        handlers[r.CreateUser](admin, r.CreateUser(6, "carol", "1"))
        handlers[r.CreateUser](admin, r.CreateUser(7, "carol", "2"))
        await bench.idle()
        assert sorted(type(admin.answers[number]).__name__ for number in (6, 7)) == ["Conflict", "Users"]


async def test_a_deleted_account_leaves_the_acls(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (bench, admin):
        await bench.ask(admin, r.CreateUser(2, "alice", "pw"))
        await bench.ask(admin, r.SetAcl(3, r.Acl("t", True, False, ("alice", "bob"), ("guest",))))
        await bench.ask(admin, r.SetAcl(4, r.Acl("u", True, False, ("bob",))))
        assert await bench.ask(admin, r.DeleteUser(5, "alice")) == r.DONE
        acls = await bench.ask(admin, r.GetAcls(6))
        assert acls.acls == [r.Acl("t", True, False, ("bob",), ("guest",)), r.Acl("u", True, False, ("bob",))]


async def test_too_many_logins_at_once_are_refused_not_queued_for_ever(tmp_path: Path) -> None:
    async with with_admin(tmp_path) as (bench, _admin):
        callers = [RecordingCaller(USERS) for _ in range(300)]
        for caller in callers:
            bench.handlers[r.Authenticate](caller, r.Authenticate(1, "root", "x" * 2000))
        refused = [caller for caller in callers if isinstance(caller.answers.get(1), Throttled)]
        assert len(refused) == 300 - 256
        await bench.idle()
        assert all(isinstance(caller.answers[1], Unauthenticated | Throttled) for caller in callers)
