"""Whether a caller may make a request. Asked once for every request, before anything is done about it.

With accounts the order is that of the FlyMQ document's implementation (FlyMQ wire 4): a public topic is open to all;
then the caller must be logged in, its account enabled, and its roles or the topic's ACL must allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from gateway.broker.administration.accounts import Accounts
from gateway.broker.administration.acls import AccessLists
from gateway.broker.administration.permissions import (
    PERMISSIONS,
    Permission,
    Resource,
    allows,
    granted,
    needed,
    resource_of,
)
from gateway.broker.administration.tokens import permitted
from gateway.broker.service import Caller, Clock, ListenerInfo
from gateway.errors import Denied, GatewayError, Unauthenticated, Unsupported
from gateway.model import AuthJwt, AuthKeys, AuthNone, AuthOpen, AuthUsers
from gateway.requests import Identity, Request, Settle, Take

OPEN_TO_ALL = frozenset(request for request, right in PERMISSIONS.items() if right is not Permission.ACCOUNTS)
"""What a listener without authentication grants."""
_ON_TOPICS = frozenset((Permission.READ, Permission.WRITE, Permission.SEE))
ADMIN_CLAIM = "gateway.admin"
"""The permission in a token that stands for the admin's right."""


class Authorisation:
    """Decides by the kind of authentication the caller's listener has."""

    def __init__(self, accounts: Accounts, acls: AccessLists, clock: Clock) -> None:
        self._accounts = accounts
        self._acls = acls
        self._clock = clock
        self.subscribed: Callable[[int], str | None] = lambda _number: None
        """The address that a subscription is about; None for one that does not exist."""

    def authorise(self, caller: Caller, request: Request) -> None:
        """Raise Unauthenticated or Denied unless the caller may do this (Unsupported: nobody can, on this listener)."""
        auth = caller.listener.auth
        if type(request) in self.open_to(caller.listener, caller.identity):
            return
        permission = needed(request)
        if permission is Permission.ANYONE:
            return
        if permission is None:
            raise Denied(f"no right is defined for {type(request).__name__}")
        if isinstance(auth, (AuthNone, AuthOpen)):  # what is not open to all needs an account
            raise Unsupported("authentication is not enabled")
        if isinstance(auth, AuthKeys):  # a key opens every address: no need to find out which
            self._judge_key(caller, permission)
            return
        if isinstance(request, (Take, Settle)):
            about = self.subscribed(request.subscription)
            if about is not None:  # or else the handler says so
                self._judge(caller, Permission.READ, Resource.TOPIC, about)
            return
        resource, address = resource_of(request)
        self._judge(caller, permission, resource, address)

    def open_to(self, listener: ListenerInfo, identity: Identity) -> Container[type[Request]]:
        """The requests for which `authorise` lets this one pass, whatever they are about: on a listener without authentication,
        and with a key, which opens every address.
        """
        if isinstance(listener.auth, (AuthNone, AuthOpen)):
            return OPEN_TO_ALL
        return OPEN_TO_ALL if isinstance(listener.auth, AuthKeys) and identity.authenticated else ()

    def permit(self, caller: Caller, permission: Permission, address: str) -> None:
        """The same for a right on a topic that only the handler knows the need of."""
        if not isinstance(caller.listener.auth, (AuthNone, AuthOpen)):
            self._judge(caller, permission, Resource.TOPIC, address)

    def refusal(self, caller: Caller, address: str) -> GatewayError | None:
        """Why a caller who waits for messages of an address may not read them now; rights change while somebody waits."""
        if Take in self.open_to(caller.listener, caller.identity):
            return None
        try:
            self.permit(caller, Permission.READ, address)
        except (Denied, Unauthenticated) as refusal:
            return refusal
        return None

    def may(self, caller: Caller, permission: Permission, address: str) -> bool:
        """Whether `permit` would let it pass (to leave out what the caller may not see)."""
        try:
            self.permit(caller, permission, address)
        except (Denied, Unauthenticated):
            return False
        return True

    def _judge(self, caller: Caller, permission: Permission, resource: Resource, address: str) -> None:
        match caller.listener.auth:
            case AuthUsers():
                self._judge_account(caller, permission, resource, address)
            case AuthKeys():
                self._judge_key(caller, permission)
            case AuthJwt():
                self._judge_token(caller, permission, resource, address)
            case _:  # a listener without settings was never meant to be open
                raise Denied

    def _judge_key(self, caller: Caller, permission: Permission) -> None:
        if not caller.identity.authenticated:
            raise Unauthenticated
        if permission is Permission.ACCOUNTS:
            raise Unsupported("this listener has keys, not accounts")

    def _judge_account(self, caller: Caller, permission: Permission, resource: Resource, address: str) -> None:
        about_topic = bool(address) and resource is Resource.TOPIC and permission in _ON_TOPICS
        acl = self._acls.find(caller, address) if about_topic else None
        if about_topic and (acl.public if acl is not None else self._acls.default_public):
            return
        if permission is Permission.OWN and not caller.identity.authenticated:
            return  # given by an earlier request, on a public topic
        account = self._accounts.of(caller)
        if permission is Permission.SEE and not address:
            return
        if allows(granted(account.roles), permission):
            return
        # an ACL gives reading and writing both
        if acl is not None and (account.name in acl.users or not set(acl.roles).isdisjoint(account.roles)):
            return
        raise Denied

    def _judge_token(self, caller: Caller, permission: Permission, resource: Resource, address: str) -> None:
        identity = caller.identity
        if not identity.authenticated:
            raise Unauthenticated("auth required")
        if identity.expires_ms and self._clock.now_ms() >= identity.expires_ms:
            raise Unauthenticated("auth expired")
        if permission is Permission.ACCOUNTS:
            raise Unsupported("this listener has tokens, not accounts")
        if permission in (Permission.OWN, Permission.LOGIN) or (permission is Permission.SEE and not address):
            return
        if permission is Permission.ADMIN:
            if ADMIN_CLAIM not in identity.permissions:
                raise Denied("forbidden")
            return
        full = _full(caller, address)
        if identity.tenant and full.count("/") >= 2 and full.split("/", 1)[0] != identity.tenant:
            raise Denied("tenant mismatch")
        if not permitted(identity, permission, resource, full):
            raise Denied("forbidden")


def _full(caller: Caller, address: str) -> str:
    # an address inside the listener's default scope, written out; others as they are
    scope = getattr(caller.listener.settings, "scope", "")
    return f"{scope}/{address}" if scope and address.count("/") < 2 else address
