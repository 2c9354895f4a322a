"""What each request needs, and what each role grants: two tables, and the small functions that read them.

Every request has a row; one that is added without a row is refused at run time and fails a test. Which account has a
right is decided in `gateway.broker.administration.accounts`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

from gateway import requests as r
from gateway.requests import Request


class Permission(enum.Enum):
    ANYONE = "anyone"  # also before a login
    OWN = "own"  # names something this connection was given before; the handler checks whose it is
    HELD = "held"  # reading what a subscription is about, which the request names by its number
    LOGIN = "login"  # any account that is enabled
    READ = "read"
    WRITE = "write"
    SEE = "see"  # reading or writing, either will do
    ADMIN = "admin"
    ACCOUNTS = "accounts"  # an admin, on a listener that has accounts


class Resource(enum.Enum):
    TOPIC = "topic"
    CACHE = "cache"


PERMISSIONS: Mapping[type[Request], Permission] = {
    # writing
    r.Publish: Permission.WRITE,
    r.CancelDelayed: Permission.WRITE,
    r.Begin: Permission.LOGIN,
    r.Commit: Permission.LOGIN,
    r.Rollback: Permission.LOGIN,
    # reading
    r.Subscribe: Permission.READ,
    r.Unsubscribe: Permission.OWN,
    r.Resume: Permission.OWN,
    r.Take: Permission.HELD,
    r.Settle: Permission.HELD,
    r.Fetch: Permission.READ,
    r.Cancel: Permission.OWN,
    r.Pause: Permission.ANYONE,
    # groups
    r.CommitOffset: Permission.READ,
    r.ReadOffset: Permission.READ,
    r.JoinGroup: Permission.READ,
    r.ListGroups: Permission.ADMIN,
    r.DeleteGroup: Permission.ADMIN,
    # topics
    r.CreateTopic: Permission.ADMIN,
    r.DeleteTopic: Permission.ADMIN,
    r.DescribeTopics: Permission.SEE,
    r.Profile: Permission.LOGIN,
    r.OffsetForTime: Permission.READ,
    # cache
    r.CachePut: Permission.WRITE,
    r.CacheGet: Permission.READ,
    # schemas
    r.RegisterSchema: Permission.WRITE,
    r.GetSchemas: Permission.LOGIN,
    r.ValidateSchema: Permission.LOGIN,
    r.DeleteSchema: Permission.ADMIN,
    # dead letters
    r.ReadDeadLetters: Permission.READ,
    r.ReplayDeadLetter: Permission.WRITE,
    r.PurgeDeadLetters: Permission.ADMIN,
    # accounts
    r.Authenticate: Permission.ANYONE,
    r.WhoAmI: Permission.ANYONE,
    r.CreateUser: Permission.ACCOUNTS,
    r.UpdateUser: Permission.ACCOUNTS,
    r.DeleteUser: Permission.ACCOUNTS,
    r.ChangePassword: Permission.LOGIN,
    r.GetUsers: Permission.ACCOUNTS,
    r.SetAcl: Permission.ACCOUNTS,
    r.DeleteAcl: Permission.ACCOUNTS,
    r.GetAcls: Permission.ACCOUNTS,
    r.GetRoles: Permission.LOGIN,
    # cluster and observation
    r.ClusterJoin: Permission.ADMIN,
    r.ClusterLeave: Permission.ADMIN,
    r.ClusterStatus: Permission.LOGIN,
    r.ReadTotals: Permission.LOGIN,
}


def _address(request: Any) -> str:
    return str(request.address)


ADDRESSES: Mapping[type[Request], tuple[Resource, Callable[[Any], str]]] = {
    r.Publish: (Resource.TOPIC, lambda request: request.batch.address),
    r.CancelDelayed: (Resource.TOPIC, _address),
    r.Subscribe: (Resource.TOPIC, _address),
    r.Fetch: (Resource.TOPIC, _address),
    r.CommitOffset: (Resource.TOPIC, _address),
    r.ReadOffset: (Resource.TOPIC, _address),
    r.JoinGroup: (Resource.TOPIC, _address),
    r.DescribeTopics: (Resource.TOPIC, _address),
    r.OffsetForTime: (Resource.TOPIC, _address),
    r.CachePut: (Resource.CACHE, lambda request: request.cache),
    r.CacheGet: (Resource.CACHE, lambda request: request.cache),
    r.ReadDeadLetters: (Resource.TOPIC, _address),
    r.ReplayDeadLetter: (Resource.TOPIC, _address),
}
"""The address that a request for READ, WRITE or SEE is about. Without a row, the right has to hold everywhere."""


def resource_of(request: Request) -> tuple[Resource, str]:
    """What a request is about, and its address; the address is empty when it is about no one place."""
    row = ADDRESSES.get(type(request))
    return (row[0], row[1](request)) if row is not None else (Resource.TOPIC, "")


def needed(request: Request) -> Permission | None:
    """What a request needs; None for one without a row, which nobody may make."""
    if type(request) is r.CommitOffset and request.reset:
        return Permission.ADMIN  # moving a group by hand, unlike its own commits (FlyMQ wire 4)
    if type(request) is r.ReadDeadLetters and request.to_replay:
        return PERMISSIONS[r.ReplayDeadLetter]
    return PERMISSIONS.get(type(request))


# --- roles (FlyMQ wire 4) ---

ROLES: tuple[r.BuiltInRole, ...] = (
    r.BuiltInRole("admin", ("read", "write", "admin"), "Full access to all operations"),
    r.BuiltInRole("producer", ("write",), "Can write to topics"),
    r.BuiltInRole("consumer", ("read",), "Can read from topics"),
    r.BuiltInRole("guest", (), "Public topics only"),
)

_GRANTS: Mapping[str, frozenset[Permission]] = {
    role.name: frozenset(Permission(word) for word in role.permissions) for role in ROLES
}
ROLE_NAMES = frozenset(_GRANTS)


def granted(roles: tuple[str, ...]) -> frozenset[Permission]:
    return frozenset().union(*(_GRANTS.get(role, frozenset()) for role in roles))


def allows(grants: frozenset[Permission], permission: Permission) -> bool:
    if permission is Permission.SEE:
        return bool(grants)
    if permission is Permission.ACCOUNTS:
        return Permission.ADMIN in grants
    return permission in grants or permission in (Permission.ANYONE, Permission.OWN, Permission.LOGIN)


def words(grants: frozenset[Permission]) -> tuple[str, ...]:
    """Rights as clients see them, in a fixed order."""
    return tuple(p.value for p in (Permission.READ, Permission.WRITE, Permission.ADMIN) if p in grants)
