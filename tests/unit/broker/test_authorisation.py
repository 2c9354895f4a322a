"""Who may make which request: one table of role and request, with a row for every request there is."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway import model
from gateway import requests as r
from gateway.broker.administration.permissions import ADDRESSES, PERMISSIONS, ROLES, Permission, needed
from gateway.envelope import Batch, Columns
from gateway.errors import Denied, GatewayError, Unauthenticated, Unsupported
from gateway.settings import Seconds
from tests.unit.broker.house import opened
from tests.unit.broker.support import Bench, FakeClock, RecordingCaller, open_bench

USERS = model.AuthUsers(model.Administrator("admin", password="secret"))
BATCH = Batch("t", Columns.of([b"x"]))

# one of each, about the topic or cache "t" where it is about one
REQUESTS: dict[type[r.Request], r.Request] = {
    type(request): request
    for request in (
        r.Publish(1, BATCH),
        r.CancelDelayed(1, "t", "id"),
        r.Begin(1),
        r.Commit(1, "txn"),
        r.Rollback(1, "txn"),
        r.Subscribe(1, "t"),
        r.Unsubscribe(1, 2),
        r.Resume(1, 2, "t"),
        r.Take(1, 2, 1),
        r.Settle(1, 2, (1,)),
        r.Fetch(1, "t", 0, 0, 1, 1),
        r.Cancel(1, 1),
        r.Pause(1),
        r.CommitOffset(1, "t", "g", 0, 0),
        r.ReadOffset(1, "t", "g", 0),
        r.JoinGroup(1, "t", "g"),
        r.ListGroups(1),
        r.DeleteGroup(1, "t", "g"),
        r.CreateTopic(1, "t"),
        r.DeleteTopic(1, "t"),
        r.DescribeTopics(1, "t"),
        r.Profile(1, ["t"]),
        r.OffsetForTime(1, "t", 0, 0),
        r.CachePut(1, "t", "k", b"v"),
        r.CacheGet(1, "t", "k"),
        r.RegisterSchema(1, "t", "json", b"{}"),
        r.GetSchemas(1),
        r.ValidateSchema(1, "t", b"{}"),
        r.DeleteSchema(1, "t"),
        r.ReadDeadLetters(1, "t", 1),
        r.ReplayDeadLetter(1, "t", "0:0"),
        r.PurgeDeadLetters(1, "t"),
        r.Authenticate(1, "u", "p"),
        r.WhoAmI(1),
        r.CreateUser(1, "u", "p"),
        r.UpdateUser(1, "u", (), True),
        r.DeleteUser(1, "u"),
        r.ChangePassword(1, "u", "p"),
        r.GetUsers(1),
        r.SetAcl(1, r.Acl("t", True, True)),
        r.DeleteAcl(1, "t"),
        r.GetAcls(1),
        r.GetRoles(1),
        r.ClusterJoin(1, "h:1"),
        r.ClusterLeave(1),
        r.ClusterStatus(1),
        r.ReadTotals(1),
    )
}

# admin, producer, consumer, guest; who was let in by the topic's ACL, who was not logged in, on a public topic
WHO = ("admin", "producer", "consumer", "guest", "listed", "nobody", "public")
_ = None
D, U = Denied, Unauthenticated
MATRIX: dict[type[r.Request], tuple[type[GatewayError] | None, ...]] = {
    # ------------------- admin producer consumer guest listed nobody public
    r.Publish: (_, _, D, D, _, U, _),
    r.CancelDelayed: (_, _, D, D, _, U, _),
    r.Begin: (_, _, _, _, _, U, U),
    r.Commit: (_, _, _, _, _, U, U),
    r.Rollback: (_, _, _, _, _, U, U),
    r.Subscribe: (_, D, _, D, _, U, _),
    r.Unsubscribe: (_, _, _, _, _, _, _),
    r.Resume: (_, _, _, _, _, _, _),
    r.Take: (_, D, _, D, _, U, _),
    r.Settle: (_, D, _, D, _, U, _),
    r.Fetch: (_, D, _, D, _, U, _),
    r.Cancel: (_, _, _, _, _, _, _),
    r.Pause: (_, _, _, _, _, _, _),
    r.CommitOffset: (_, D, _, D, _, U, _),
    r.ReadOffset: (_, D, _, D, _, U, _),
    r.JoinGroup: (_, D, _, D, _, U, _),
    r.ListGroups: (_, D, D, D, D, U, U),
    r.DeleteGroup: (_, D, D, D, D, U, U),
    r.CreateTopic: (_, D, D, D, D, U, U),
    r.DeleteTopic: (_, D, D, D, D, U, U),
    r.DescribeTopics: (_, _, _, D, _, U, _),
    r.Profile: (_, _, _, _, _, U, U),
    r.OffsetForTime: (_, D, _, D, _, U, _),
    r.CachePut: (_, _, D, D, D, U, U),
    r.CacheGet: (_, D, _, D, D, U, U),
    r.RegisterSchema: (_, _, D, D, D, U, U),
    r.GetSchemas: (_, _, _, _, _, U, U),
    r.ValidateSchema: (_, _, _, _, _, U, U),
    r.DeleteSchema: (_, D, D, D, D, U, U),
    r.ReadDeadLetters: (_, D, _, D, _, U, _),
    r.ReplayDeadLetter: (_, _, D, D, _, U, _),
    r.PurgeDeadLetters: (_, D, D, D, D, U, U),
    r.Authenticate: (_, _, _, _, _, _, _),
    r.WhoAmI: (_, _, _, _, _, _, _),
    r.CreateUser: (_, D, D, D, D, U, U),
    r.UpdateUser: (_, D, D, D, D, U, U),
    r.DeleteUser: (_, D, D, D, D, U, U),
    r.ChangePassword: (_, _, _, _, _, U, U),
    r.GetUsers: (_, D, D, D, D, U, U),
    r.SetAcl: (_, D, D, D, D, U, U),
    r.DeleteAcl: (_, D, D, D, D, U, U),
    r.GetAcls: (_, D, D, D, D, U, U),
    r.GetRoles: (_, _, _, _, _, U, U),
    r.ClusterJoin: (_, D, D, D, D, U, U),
    r.ClusterLeave: (_, D, D, D, D, U, U),
    r.ClusterStatus: (_, _, _, _, _, U, U),
    r.ReadTotals: (_, _, _, _, _, U, U),
}


def every_request() -> set[type[r.Request]]:
    kinds = {kind for kind in vars(r).values() if isinstance(kind, type) and issubclass(kind, r.Request)}
    return kinds - {r.Request, r.Write}


def test_every_request_has_a_row() -> None:
    assert set(PERMISSIONS) == every_request()
    assert set(MATRIX) == every_request()
    assert set(REQUESTS) == every_request()


def test_every_right_on_one_place_says_which_place() -> None:
    about_places = {
        kind
        for kind, permission in PERMISSIONS.items()
        if permission in (Permission.READ, Permission.WRITE, Permission.SEE)
    }
    assert about_places - set(ADDRESSES) == {r.RegisterSchema}  # schemas are nowhere: the right has to hold everywhere


def refusal_of(bench: Bench, caller: RecordingCaller, request: r.Request) -> type[GatewayError] | None:
    try:
        bench.authorisation.authorise(caller, request)
    except GatewayError as refusal:
        return type(refusal)
    return None


@asynccontextmanager
async def populated(path: Path) -> AsyncIterator[tuple[Bench, dict[str, RecordingCaller]]]:
    """An account for each role, and one without a role that the ACL of "t" lists."""
    async with open_bench(path) as bench:
        await bench.accounts.start([USERS])
        callers = {name: RecordingCaller(USERS) for name in WHO}
        assert (await bench.ask(callers["admin"], r.Authenticate(1, "admin", "secret"))).authenticated
        for number, name in enumerate(("producer", "consumer", "guest", "listed")):
            roles = () if name == "listed" else (name,)
            users = await bench.ask(callers["admin"], r.CreateUser(10 + number, name, f"pw-{name}", roles))
            assert isinstance(users, r.Users)
            identity = await bench.ask(callers[name], r.Authenticate(2, name, f"pw-{name}"))
            assert identity.roles == roles
        acl = r.Acl("t", True, False, ("listed",))
        assert await bench.ask(callers["admin"], r.SetAcl(20, acl)) == r.DONE
        yield bench, callers


async def test_role_by_request(tmp_path: Path) -> None:
    async with populated(tmp_path) as (bench, callers):
        found = {
            kind: tuple(refusal_of(bench, callers[who], request) for who in WHO[:-1])
            for kind, request in REQUESTS.items()
        }
        await bench.ask(callers["admin"], r.SetAcl(30, r.Acl("t", True, True)))
        for kind, request in REQUESTS.items():
            found[kind] += (refusal_of(bench, callers["public"], request),)
    assert found == MATRIX


async def test_resetting_a_group_is_not_committing_to_it(tmp_path: Path) -> None:
    reset = r.CommitOffset(1, "t", "g", 0, 0, reset=True)
    assert needed(reset) is Permission.ADMIN
    async with populated(tmp_path) as (bench, callers):
        assert [refusal_of(bench, callers[who], reset) for who in WHO[:6]] == [None, D, D, D, D, U]


async def test_looking_for_the_letter_to_replay_is_replaying(tmp_path: Path) -> None:
    look = r.ReadDeadLetters(1, "t", 1, to_replay=True)
    async with populated(tmp_path) as (bench, callers):
        assert tuple(refusal_of(bench, callers[who], look) for who in WHO[:6]) == MATRIX[r.ReplayDeadLetter][:6]


async def test_a_request_without_a_row_is_refused(tmp_path: Path) -> None:
    class Invented(r.Request):
        pass

    async with open_bench(tmp_path) as bench:
        for auth in (model.AuthNone(), model.AuthOpen(), model.AuthKeys(("k",)), USERS):
            assert refusal_of(bench, RecordingCaller(auth), Invented(1)) is Denied


async def test_a_listener_without_settings_is_not_open(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller(auth="nonsense")
        assert {refusal_of(bench, caller, request) for request in REQUESTS.values()} == {None, Denied}
        assert refusal_of(bench, caller, REQUESTS[r.Publish]) is Denied


@pytest.mark.parametrize("auth", [model.AuthNone(), model.AuthOpen()])
async def test_without_authentication_all_is_allowed_but_accounts(tmp_path: Path, auth: model.Auth) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller(auth)
        for kind, request in REQUESTS.items():
            expected = Unsupported if PERMISSIONS[kind] is Permission.ACCOUNTS else None
            assert refusal_of(bench, caller, request) is expected, kind
        assert isinstance(await bench.ask(caller, r.ChangePassword(2, "u", "p")), Unsupported)


async def test_with_keys_nothing_goes_before_the_key(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller(model.AuthKeys(("one", "two")))
        for kind, request in REQUESTS.items():
            expected = None if PERMISSIONS[kind] is Permission.ANYONE else Unauthenticated
            assert refusal_of(bench, caller, request) is expected, kind
        assert isinstance(await bench.ask(caller, r.Authenticate(2, api_key="three")), Unauthenticated)
        assert isinstance(await bench.ask(caller, r.Authenticate(3, api_key="")), Unauthenticated)
        identity = await bench.ask(caller, r.Authenticate(4, api_key="two"))
        assert identity.authenticated
        assert "two" not in identity.name
        assert caller.origin.principal == identity.name
        for kind, request in REQUESTS.items():
            expected = Unsupported if PERMISSIONS[kind] is Permission.ACCOUNTS else None
            assert refusal_of(bench, caller, request) is expected, kind


# --- accounts that change while they are logged in ---


async def test_rights_are_those_of_now(tmp_path: Path) -> None:
    async with populated(tmp_path) as (bench, callers):
        admin, consumer = callers["admin"], callers["consumer"]
        fetch = REQUESTS[r.Fetch]
        await bench.ask(admin, r.UpdateUser(40, "consumer", ("consumer",), False))
        assert refusal_of(bench, consumer, fetch) is Denied
        await bench.ask(admin, r.UpdateUser(41, "consumer", ("producer",), True))
        assert refusal_of(bench, consumer, fetch) is Denied
        assert refusal_of(bench, consumer, REQUESTS[r.Publish]) is None
        await bench.ask(admin, r.DeleteUser(42, "consumer"))
        assert refusal_of(bench, consumer, REQUESTS[r.Publish]) is Unauthenticated
        await bench.ask(admin, r.CreateUser(43, "consumer", "other", ("admin",)))
        assert refusal_of(bench, consumer, REQUESTS[r.Publish]) is Unauthenticated  # another account of that name


# --- ACLs ---


async def test_an_acl_can_name_roles_and_gives_both_ways(tmp_path: Path) -> None:
    async with populated(tmp_path) as (bench, callers):
        await bench.ask(callers["admin"], r.SetAcl(40, r.Acl("t", True, False, (), ("guest",))))
        for kind in (r.Fetch, r.Publish):
            assert refusal_of(bench, callers["guest"], REQUESTS[kind]) is None
            assert refusal_of(bench, callers["listed"], REQUESTS[kind]) is Denied


async def test_dead_letters_follow_their_topic(tmp_path: Path) -> None:
    fetch = r.Fetch(1, "t.dlq", 0, 0, 1, 1)
    async with populated(tmp_path) as (bench, callers):
        assert refusal_of(bench, callers["listed"], fetch) is None
        assert refusal_of(bench, callers["guest"], fetch) is Denied
        await bench.ask(callers["admin"], r.SetAcl(40, r.Acl("t.dlq", True, False, ("guest",))))
        assert refusal_of(bench, callers["guest"], fetch) is None
        assert refusal_of(bench, callers["listed"], fetch) is Denied


async def test_another_address_of_the_topic_is_no_way_around(tmp_path: Path) -> None:
    config = model.Config(
        listeners={},
        routes=(
            model.Route("alias", model.Match(topic="alias.*"), (model.StoreTarget("{1}"),)),
            model.IDENTITY,
        ),
    )
    async with open_bench(tmp_path, config=config) as bench:
        await bench.accounts.start([USERS])
        admin, guest = RecordingCaller(USERS), RecordingCaller(USERS)
        await bench.ask(admin, r.Authenticate(1, "admin", "secret"))
        await bench.ask(admin, r.SetAcl(2, r.Acl("alias.t", True, True)))
        assert refusal_of(bench, guest, r.Fetch(1, "t", 0, 0, 1, 1)) is None
        assert await bench.ask(admin, r.GetAcls(3, "t")) == r.Acls([r.Acl("alias.t", True, True)], False)
        assert await bench.ask(admin, r.DeleteAcl(4, "t")) == r.DONE
        assert refusal_of(bench, guest, r.Fetch(1, "alias.t", 0, 0, 1, 1)) is Unauthenticated
        assert (await bench.ask(admin, r.GetAcls(5, "t"))).acls == [r.Acl("t", False, False)]
        assert await bench.ask(admin, r.DeleteAcl(6, "t")) == r.DONE


async def test_the_roles_there_are(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        roles = await bench.ask(RecordingCaller(), r.GetRoles(1))
        assert roles == r.Roles(ROLES)
        assert {role.name: role.permissions for role in roles.roles} == {  # FlyMQ wire 4
            "admin": ("read", "write", "admin"),
            "producer": ("write",),
            "consumer": ("read",),
            "guest": (),
        }


# --- tokens ---

KEY = Ed25519PrivateKey.generate()
PUBLIC = (
    KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
)
JWT = model.AuthJwt(key=PUBLIC, issuer="felix-auth", audience="felix-broker", leeway=Seconds(0.0))
FAR = int(time.time()) + 1_000_000


def token(**claims: Any) -> str:
    usual = {
        "sub": "shop", "tid": "t1", "exp": FAR, "iss": "felix-auth", "aud": "felix-broker",
        "perms": ["stream.publish:stream:t1/default/*", "stream.subscribe:stream:t1/*", "cache.read:cache:t1/default/*"],
    }  # fmt: skip
    return jwt.encode({**usual, **claims}, KEY, algorithm="EdDSA")


async def test_a_token_gives_what_it_says(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller(JWT)
        assert refusal_of(bench, caller, REQUESTS[r.Publish]) is Unauthenticated
        identity = await bench.ask(caller, r.Authenticate(1, token=token(), tenant="t1"))
        assert (identity.name, identity.tenant, identity.authenticated) == ("shop", "t1", True)
        allowed: Callable[[r.Request], type[GatewayError] | None] = lambda request: refusal_of(bench, caller, request)  # noqa: E731
        assert allowed(r.Publish(1, Batch("t1/default/orders", BATCH.columns))) is None
        assert allowed(r.Publish(1, Batch("t1/other/orders", BATCH.columns))) is Denied
        assert allowed(r.Publish(1, Batch("t2/default/orders", BATCH.columns))) is Denied
        assert allowed(r.Subscribe(1, "t1/other/orders")) is None
        assert allowed(r.Subscribe(1, "t2/other/orders")) is Denied
        assert allowed(r.CacheGet(1, "t1/default/c", "k")) is None
        assert allowed(r.CachePut(1, "t1/default/c", "k", b"")) is Denied
        assert allowed(REQUESTS[r.CreateTopic]) is Denied
        assert allowed(REQUESTS[r.CreateUser]) is Unsupported
        assert allowed(REQUESTS[r.Take]) is Denied  # its subscription is about another place
        bench.authorisation.subscribed = {3: "t1/other/orders"}.get
        assert allowed(r.Take(1, 3, 1)) is None


async def test_an_address_in_the_default_scope_is_held_against_the_whole(tmp_path: Path) -> None:
    class Settings:
        scope = "t1/default"

    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller(JWT, settings=Settings())
        await bench.ask(caller, r.Authenticate(1, token=token(), tenant="t1"))
        assert refusal_of(bench, caller, r.Publish(1, Batch("orders", BATCH.columns))) is None


async def test_a_login_ends_with_its_token(tmp_path: Path) -> None:
    clock = FakeClock()
    async with open_bench(tmp_path, clock) as bench:
        clock.seconds += FAR - 10 - clock.now_ms() / 1000
        caller = RecordingCaller(JWT)
        await bench.ask(caller, r.Authenticate(1, token=token(), tenant="t1"))
        request = r.Subscribe(1, "t1/a/b")
        assert refusal_of(bench, caller, request) is None
        bench.advance(9.9)
        assert refusal_of(bench, caller, request) is None
        bench.advance(0.1)
        assert refusal_of(bench, caller, request) is Unauthenticated


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "x",
        "a.b.c",
        "x" * 20_000,
        token(exp=1),
        token(iss="other"),
        token(aud="other"),
        token(sub=""),
        token(perms="all"),
        token(tid=5),
        jwt.encode({"sub": "a", "exp": FAR, "iss": "felix-auth", "aud": "felix-broker"}, "k" * 64, algorithm="HS256"),
        jwt.encode({"sub": "a", "exp": FAR, "iss": "felix-auth", "aud": "felix-broker"}, None, algorithm="none"),
        jwt.encode({"sub": "a", "iss": "felix-auth", "aud": "felix-broker"}, KEY, algorithm="EdDSA"),
    ],
)
async def test_a_bad_token_is_no_login(tmp_path: Path, bad: str) -> None:
    async with open_bench(tmp_path) as bench:
        caller = RecordingCaller(JWT)
        refusal = await bench.ask(caller, r.Authenticate(1, token=bad, tenant="t1"))
        assert isinstance(refusal, Unauthenticated)
        assert not caller.identity.authenticated


async def test_another_tenant_is_denied(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        refusal = await bench.ask(RecordingCaller(JWT), r.Authenticate(1, token=token(), tenant="t2"))
        assert isinstance(refusal, Denied)
        assert refusal.message == "tenant mismatch"


async def test_a_key_set_is_searched_by_key_id(tmp_path: Path) -> None:
    other = Ed25519PrivateKey.generate()
    algorithm = jwt.get_algorithm_by_name("EdDSA")
    keys = [
        {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": name, "alg": "EdDSA", "use": "sig"}
        for name, key in (("old", other), ("new", KEY))
    ]
    auth = model.AuthJwt(jwks=json.dumps({"keys": keys}))
    async with open_bench(tmp_path) as bench:
        for number, (headers, expected) in enumerate([({"kid": "new"}, True), ({}, True), ({"kid": "old"}, False)]):
            offered = jwt.encode({"sub": "a", "exp": FAR}, KEY, algorithm="EdDSA", headers=headers)
            outcome = await bench.ask(RecordingCaller(auth), r.Authenticate(number, token=offered))
            assert isinstance(outcome, r.Identity) is expected, headers


async def test_a_profile_is_what_its_caller_may_do(tmp_path: Path) -> None:
    users = model.AuthUsers(model.Administrator("root", password="password-of-root"))
    async with opened(tmp_path, accounts=[users]) as house:
        root, ann = house.client(auth=users), house.client(auth=users)
        await root.ask(r.Authenticate(0, "root", "password-of-root"))
        await root.ask(r.CreateUser(0, "ann", "password-of-ann", ("consumer",)))
        await root.publish("t", b"x")
        await ann.ask(r.Authenticate(0, "ann", "password-of-ann"))
        asked = r.Profile(0, ["t", "not/../there", "later"])
        of_ann = [r.AddressProfile(name, True, False, True) for name in ("t", "later")]
        assert await ann.ask(asked) == r.Profiles(of_ann)
        assert await root.ask(asked) == r.Profiles(
            [r.AddressProfile(name, True, True, True) for name in ("t", "later")]
        )
