"""Failed logins: counted with their reason, told with peer and name and without the secret, and each slows the next one down."""

from __future__ import annotations

import json
from pathlib import Path

import jwt
import msgspec
import pytest

from gateway import model
from gateway import requests as r
from gateway.broker.administration import logins
from gateway.errors import Throttled, Unauthenticated
from gateway.recorder import Recorder
from tests.unit.broker.support import Bench, RecordingCaller, open_bench

USERS = model.AuthUsers(model.Administrator("root", password="right"))
KEYS = model.AuthKeys(("k1",))
SECRET = "a shared secret that is long enough for HS256"
JWT = model.AuthJwt(key=SECRET, algorithms=("HS256",))
OTHER = jwt.encode({"sub": "me", "tid": "t2", "exp": 4_102_444_800}, SECRET, "HS256")


class Told(Recorder):
    def __init__(self) -> None:
        self.failed: list[tuple[str, str, str, str]] = []

    def login_failed(self, listener: str, reason: str, peer: str, principal: str) -> None:
        self.failed.append((listener, reason, peer, principal))

    @property
    def reasons(self) -> list[str]:
        return [reason for _, reason, _, _ in self.failed]


def caller(auth=USERS, host: str = "10.0.0.1", port: int = 4_000) -> RecordingCaller:
    made = RecordingCaller(auth)
    made.origin = msgspec.structs.replace(made.origin, client=f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return made


def key(guess: str) -> r.Authenticate:
    return r.Authenticate(1, api_key=guess)


def guess(bench: Bench, guesses: int = 1, **of) -> list[RecordingCaller]:
    """Attempts with a wrong key, one after the other, each over a connection of its own."""
    callers = [caller(KEYS, **of) for _ in range(guesses)]
    for one in callers:
        try:
            bench.handlers[r.Authenticate](one, key("wrong"))
        except Throttled as refusal:
            one.answer(1, refusal)
    return callers


@pytest.mark.parametrize(
    ("auth", "request_", "reason", "principal"),
    [
        (KEYS, key("wrong-secret"), "credentials", ""),
        (USERS, r.Authenticate(1, "root", "wrong-secret"), "credentials", "root"),
        (USERS, r.Authenticate(1, "nobody", "wrong-secret"), "credentials", "nobody"),
        (USERS, r.Authenticate(1, "n" * 70_000, "wrong-secret"), "credentials", "n" * 64),
        (JWT, r.Authenticate(1, token="wrong-secret", tenant="t1"), "token", "t1"),
        (JWT, r.Authenticate(1, token=OTHER, tenant="t1"), "tenant", "t1"),
    ],
)
async def test_a_failure_is_told_with_its_reason_and_never_with_the_secret(
    tmp_path: Path, auth, request_, reason: str, principal: str
):
    told = Told()
    async with open_bench(tmp_path, recorder=told) as bench:
        await bench.accounts.start([USERS])
        await bench.ask(caller(auth), request_)
    assert told.failed == [("door", reason, "10.0.0.1:4000", principal)]
    assert "wrong-secret" not in json.dumps(told.failed)


async def test_a_disabled_account_and_a_wrong_old_password_are_failures_too(tmp_path: Path):
    told = Told()
    async with open_bench(tmp_path, recorder=told) as bench:
        await bench.accounts.start([USERS])
        admin = caller()
        await bench.ask(admin, r.Authenticate(1, "root", "right"))
        await bench.ask(admin, r.CreateUser(2, "alice", "pw"))
        await bench.ask(admin, r.UpdateUser(3, "alice", (), False))
        await bench.ask(caller(), r.Authenticate(1, "alice", "pw"))
        await bench.ask(admin, r.ChangePassword(4, "", "wrong", "new"))
    assert [(reason, name) for _, reason, _, name in told.failed] == [("disabled", "alice"), ("credentials", "root")]


async def test_after_a_few_failures_an_address_waits_twice_as_long_for_each_further_one(tmp_path: Path):
    async with open_bench(tmp_path) as bench:
        assert all(one.answers for one in guess(bench, logins.FREE)), "people mistype"
        waits = []
        for _ in range(7):
            (one,) = guess(bench)
            waited = 0.0
            while not one.answers:
                bench.advance(0.125)
                waited += 0.125
            waits.append(waited)
        assert waits[:4] == [0.25, 0.5, 1.0, 2.0]
        assert max(waits) <= logins.LONGEST_WAIT
        right = caller(KEYS, host="10.0.0.2")
        assert isinstance(await bench.ask(right, key("k1")), r.Identity), "others do not wait"


async def test_what_comes_at_once_from_one_address_waits_for_each_other_and_no_longer_than_anybody_would(
    tmp_path: Path,
):
    told = Told()
    async with open_bench(tmp_path, recorder=told) as bench:
        guess(bench, logins.FULL)
        bench.advance(20)  # all of those had their turn, and some is forgiven
        told.failed.clear()
        callers = guess(bench, 1_000)
        assert set(told.reasons) == {"throttled"}
        waiting = [one for one in callers if not one.answers]
        assert 1 <= len(waiting) <= logins.PATIENCE / logins.FIRST_WAIT
        assert isinstance(callers[-1].answers[1], Throttled)
        bench.advance(logins.PATIENCE)
        assert all(isinstance(one.answers[1], Unauthenticated) for one in waiting)


async def test_failures_are_forgiven_with_time(tmp_path: Path):
    async with open_bench(tmp_path) as bench:
        guess(bench, logins.FREE)
        bench.advance(logins.FORGIVEN_AFTER)
        (one,) = guess(bench)
        assert one.answers, "one of five is forgiven"
        (one,) = guess(bench)
        assert not one.answers


async def test_a_name_waits_wherever_the_attempts_come_from_until_its_owner_is_there(tmp_path: Path):
    async with open_bench(tmp_path) as bench:
        await bench.accounts.start([USERS])
        for number in range(logins.FREE):
            await bench.ask(caller(host=f"10.0.1.{number}"), r.Authenticate(1, "root", "wrong"))
        owner, stranger = caller(host="10.0.2.1"), caller(host="10.0.2.2")
        for one, name in ((owner, "root"), (stranger, "other")):
            bench.handlers[r.Authenticate](one, r.Authenticate(1, name, "right"))
        await bench.idle()
        assert stranger.answers
        assert not owner.answers
        bench.advance(logins.FIRST_WAIT)
        await bench.idle()
        assert isinstance(owner.answers[1], r.Identity)
        again = caller(host="10.0.2.3")
        bench.handlers[r.Authenticate](again, r.Authenticate(1, "root", "right"))
        await bench.idle()
        assert again.answers


async def test_an_ipv6_host_is_one_address_and_what_left_is_not_checked(tmp_path: Path):
    told = Told()
    async with open_bench(tmp_path, recorder=told) as bench:
        for number in range(logins.FREE):
            guess(bench, host=f"2001:db8::{number + 1}")
        (one,) = guess(bench, host="2001:db8::ffff")
        assert not one.answers
        one.detach()
        told.failed.clear()
        bench.advance(10)
        assert told.failed == []


async def test_only_so_many_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logins, "MOST", 3)
    async with open_bench(tmp_path) as bench:
        guess(bench, logins.FREE)
        for number in range(3):
            guess(bench, host=f"10.0.1.{number}")
        (one,) = guess(bench)
        assert one.answers, "forgotten for the sake of those who came later"


async def test_passwords_are_checked_beside_the_loop(tmp_path: Path):
    """The handler returns before there is an answer; the work is with the offload."""
    async with open_bench(tmp_path) as bench:
        await bench.accounts.start([USERS])
        one = caller()
        bench.handlers[r.Authenticate](one, r.Authenticate(1, "root", "right"))
        assert (bench.offload.under_way, one.answers) == (1, {})
        await bench.idle()
        assert isinstance(one.answers[1], r.Identity)
