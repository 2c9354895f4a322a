"""Who is who: logins of every kind, and the accounts that listeners with `users: store` keep in the store.

A login is worth what its account is worth now, not what it was worth when it was made: rights are looked up by name at
every request, and an account that was deleted and made again is another account.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping

import attrs
import msgspec
import trio
from msgspec.structs import replace

from gateway.broker.administration import passwords
from gateway.broker.administration.acls import forget_user
from gateway.broker.administration.logins import OVERLOAD, Logins
from gateway.broker.administration.permissions import ROLE_NAMES, ROLES, Permission, granted, words
from gateway.broker.administration.tokens import Tokens
from gateway.broker.offload import Offload
from gateway.broker.service import Caller, Clock, Handler
from gateway.errors import (
    AlreadyExists,
    ConditionFailed,
    Conflict,
    Denied,
    GatewayError,
    InvalidRequest,
    NotFound,
    Throttled,
    Unauthenticated,
    Unsupported,
)
from gateway.model import AuthJwt, AuthKeys, AuthNone, AuthOpen, AuthUsers
from gateway.requests import (
    DONE,
    Authenticate,
    ChangePassword,
    CreateUser,
    DeleteUser,
    GetRoles,
    GetUsers,
    Identity,
    Outcome,
    Request,
    Roles,
    UpdateUser,
    UserInfo,
    Users,
    WhoAmI,
)
from gateway.store.interface import Put, Require, Store, Ticket, Unit

TABLE = "accounts"
MOST_ACCOUNTS = 10_000
LONGEST_NAME = 255
"""Bytes of an account's name."""


@attrs.frozen
class Account:
    name: str
    password: str = attrs.field(repr=False)
    roles: tuple[str, ...]
    enabled: bool
    created_ms: int
    updated_ms: int
    serial: str
    """Tells it from another account that had the name before or has it after."""

    def info(self, *, with_permissions: bool) -> UserInfo:
        permissions = words(granted(self.roles)) if with_permissions else ()
        return UserInfo(
            self.name, self.roles, permissions, self.enabled, self.created_ms // 1000, self.updated_ms // 1000
        )


class Accounts:
    def __init__(self, store: Store, clock: Clock, offload: Offload, logins: Logins) -> None:
        self._store = store
        self._clock = clock
        self._offload = offload
        self._logins = logins
        self._decoded: dict[str, tuple[bytes, Account]] = {}
        self._serials: dict[int, str] = {}
        """The serial of the account each connection logged in to."""
        self._tokens: dict[AuthJwt, Tokens] = {}

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {
            Authenticate: self._authenticate,
            WhoAmI: self._who_am_i,
            CreateUser: self._create,
            UpdateUser: self._update,
            DeleteUser: self._delete,
            ChangePassword: self._change_password,
            GetUsers: self._get,
            GetRoles: self._roles,
        }

    async def start(self, listeners: Iterable[AuthUsers]) -> None:
        """Create the configured admins, or give them their configured password."""
        for auth in listeners:
            if auth.admin.password:
                await self._bootstrap(auth.admin.name, auth.admin.password)

    async def _bootstrap(self, name: str, password: str) -> None:
        account = self.find(name, lost=True)  # who it is and what it may is in the configuration
        if account is not None and await trio.to_thread.run_sync(passwords.matches, account.password, password):
            hashed = account.password
        else:
            hashed = await trio.to_thread.run_sync(passwords.hash_password, passwords.check_password(password))
        now_ms = self._clock.now_ms()
        if account is None:
            account = Account(name, hashed, ("admin",), True, now_ms, now_ms, secrets.token_hex(8))
        wanted = attrs.evolve(account, password=hashed, roles=_with_admin(account.roles), enabled=True)
        if wanted != self.find(name, lost=True):
            put = Put(TABLE, name.encode(), msgspec.json.encode(attrs.evolve(wanted, updated_ms=now_ms)))
            await self._store.submit(Unit(puts=[put])).wait()

    # --- for authorisation ---

    def find(self, name: str, *, lost: bool = False) -> Account | None:
        """Raises RowLost if damage may have taken it along; None then too with `lost`."""
        row = self._store.table(TABLE).get(name.encode())
        if row is None:
            if not lost:
                self._store.lost.check(TABLE, name.encode(), f"the account {name}")
            self._decoded.pop(name, None)
            return None
        known = self._decoded.get(name)
        if known is None or known[0] is not row:
            known = (row, msgspec.json.decode(row, type=Account))
            self._decoded[name] = known
        return known[1]

    def of(self, caller: Caller) -> Account:
        """The account a connection is logged in to; Unauthenticated without one, Denied while it is disabled."""
        account = self.find(caller.identity.name) if caller.identity.authenticated else None
        if account is None or self._serials.get(caller.id) != account.serial:
            raise Unauthenticated
        if not account.enabled:
            raise Denied("user account is disabled")
        return account

    # --- logins ---

    def _authenticate(self, caller: Caller, request: Authenticate) -> None:
        self._logins.attempt(caller, _claimed(request), lambda: self._check(caller, request))

    def _check(self, caller: Caller, request: Authenticate) -> None:
        auth = caller.listener.auth
        secret = request.api_key or request.token or request.password
        match auth:
            case AuthNone():
                caller.answer(request.id, Identity(authenticated=True, auth_enabled=False))
            case AuthOpen():
                name = passwords.key_name(secret) if secret else ""
                self._enter(caller, request, Identity(authenticated=True, name=name))
            case AuthKeys(api_keys=keys):
                if secret and passwords.has_key(keys, secret):
                    self._enter(caller, request, Identity(authenticated=True, name=passwords.key_name(secret)))
                else:
                    self._refuse(caller, request, "credentials", Unauthenticated("invalid API key"))
            case AuthJwt():
                try:
                    if auth not in self._tokens:
                        self._tokens[auth] = Tokens(auth)
                    identity = self._tokens[auth].identify(secret, request.tenant)
                except GatewayError as refusal:
                    self._refuse(caller, request, "tenant" if isinstance(refusal, Denied) else "token", refusal)
                else:
                    self._enter(caller, request, identity)
            case AuthUsers():
                self._check_password(caller, request)
            case _:
                self._refuse(caller, request, "credentials", Unauthenticated())

    def _refuse(self, caller: Caller, request: Authenticate, reason: str, refusal: GatewayError) -> None:
        self._logins.failed(caller, _claimed(request), reason)
        caller.answer(request.id, refusal)

    def _enter(self, caller: Caller, request: Authenticate, identity: Identity) -> None:
        self._logins.succeeded(_claimed(request))
        caller.identify(identity)
        caller.answer(request.id, identity)

    def _check_password(self, caller: Caller, request: Authenticate) -> None:
        account = self.find(request.username, lost=True)  # who guesses names learns nothing of it, and is slowed down
        stored = account.password if account is not None else passwords.NOBODY

        def done(right: bool | GatewayError) -> None:
            if isinstance(right, GatewayError):
                self._refuse(caller, request, OVERLOAD, right)
            elif not right or account is None:
                refusal = Unauthenticated("invalid username or password")
                self._refuse(caller, request, "credentials", refusal)
            elif not account.enabled:
                self._refuse(caller, request, "disabled", Unauthenticated("user account is disabled"))
            else:
                if caller.id not in self._serials:
                    caller.on_detach(lambda: self._left(caller.id))
                self._serials[caller.id] = account.serial
                permissions = words(granted(account.roles))
                self._enter(caller, request, Identity(True, account.name, account.roles, permissions))

        self._offload.thread(lambda: passwords.matches(stored, request.password), done)

    def _left(self, connection: int) -> None:
        del self._serials[connection]

    def _who_am_i(self, caller: Caller, request: WhoAmI) -> None:
        enabled = not isinstance(caller.listener.auth, AuthNone)
        caller.answer(request.id, replace(caller.identity, auth_enabled=enabled))

    # --- accounts ---

    def _create(self, caller: Caller, request: CreateUser) -> None:
        try:
            name = check_name(request.name)
            roles = check_roles(request.roles)
            password = passwords.check_password(request.password)
            if self.find(name) is not None:
                raise AlreadyExists(f"user already exists: {name}")
            if len(self._store.table(TABLE)) >= MOST_ACCOUNTS:
                raise Throttled(f"at most {MOST_ACCOUNTS} accounts")
        except GatewayError as refusal:
            caller.answer(request.id, refusal)
            return

        def hashed(result: str | GatewayError) -> None:
            if isinstance(result, GatewayError):
                caller.answer(request.id, result)
                return
            now_ms = self._clock.now_ms()
            account = Account(name, result, roles, True, now_ms, now_ms, secrets.token_hex(8))
            reply = Users([account.info(with_permissions=False)])
            self._write(caller, request, name, None, account, reply)

        self._offload.thread(lambda: passwords.hash_password(password), hashed)

    def _update(self, caller: Caller, request: UpdateUser) -> None:
        try:
            account = self._existing(request.name)
            roles = check_roles(request.roles)
            if not (request.enabled and "admin" in roles):
                self._keep_an_admin(account)
        except GatewayError as refusal:
            caller.answer(request.id, refusal)
            return
        changed = attrs.evolve(account, roles=roles, enabled=request.enabled, updated_ms=self._clock.now_ms())
        self._write(caller, request, account.name, account, changed, DONE)

    def _delete(self, caller: Caller, request: DeleteUser) -> None:
        try:
            account = self._existing(request.name)
            if request.name == caller.identity.name:
                raise Conflict("cannot delete yourself")
            self._keep_an_admin(account)
        except GatewayError as refusal:
            caller.answer(request.id, refusal)
            return
        self._write(caller, request, account.name, account, None, DONE)

    def _change_password(self, caller: Caller, request: ChangePassword) -> None:
        try:
            if not isinstance(caller.listener.auth, AuthUsers):
                raise Unsupported("authentication is not enabled")
            asker = self.of(caller)
            own = request.name in ("", asker.name)
            if not own and Permission.ADMIN not in granted(asker.roles):
                raise Denied
            account = asker if own else self._existing(request.name)
            new = passwords.check_password(request.new_password)
        except GatewayError as refusal:
            caller.answer(request.id, refusal)
            return

        def work() -> str:
            if own and not passwords.matches(account.password, request.old_password):
                raise Denied("invalid current password")
            return passwords.hash_password(new)

        def done(result: str | GatewayError) -> None:
            if isinstance(result, GatewayError):
                if isinstance(result, Denied):
                    self._logins.failed(caller, account.name, "credentials")
                caller.answer(request.id, result)
                return
            changed = attrs.evolve(account, password=result, updated_ms=self._clock.now_ms())
            self._write(caller, request, account.name, account, changed, DONE)

        # who has got hold of somebody's connection guesses no faster than who knocks
        self._logins.attempt(caller, account.name, lambda: self._offload.thread(work, done))

    def _get(self, caller: Caller, request: GetUsers) -> None:
        if request.name:
            account = self.find(request.name)
            outcome: Outcome = NotFound(f"user not found: {request.name}")
            if account is not None:
                outcome = Users([account.info(with_permissions=True)])
            caller.answer(request.id, outcome)
            return
        names = sorted(self._store.table(TABLE))
        accounts = [account for name in names if (account := self.find(name.decode())) is not None]
        caller.answer(request.id, Users([account.info(with_permissions=False) for account in accounts]))

    def _roles(self, caller: Caller, request: GetRoles) -> None:
        caller.answer(request.id, Roles(ROLES))

    # --- inside ---

    def _existing(self, name: str) -> Account:
        account = self.find(name)
        if account is None:
            raise NotFound(f"user not found: {name}")
        return account

    def _keep_an_admin(self, leaving: Account) -> None:
        # refuses what would leave no administrator: nobody could undo it
        if "admin" not in leaving.roles or not leaving.enabled:
            return
        others = (self.find(name.decode()) for name in self._store.table(TABLE))
        if not any(a is not None and a.name != leaving.name and a.enabled and "admin" in a.roles for a in others):
            raise Conflict("the last admin has to stay")

    def _write(
        self, caller: Caller, request: Request, name: str, before: Account | None, after: Account | None, reply: Outcome
    ) -> None:
        # Replace a row, unless somebody else did in the meantime. What a deleted account was allowed goes with it.
        known = self._decoded.get(name)
        if before is not None and (known is None or known[1] is not before):
            caller.answer(request.id, Conflict("the account changed in the meantime"))
            return
        key = name.encode()
        seen = known[0] if before is not None and known is not None else None
        puts = [Put(TABLE, key, msgspec.json.encode(after) if after is not None else None)]
        if after is None:
            puts += forget_user(self._store, name)
        ticket = self._store.submit(Unit(puts=puts, requires=[Require(TABLE, key, seen)]))
        ticket.on_done(_answerer(caller, request.id, reply))


def _claimed(request: Authenticate) -> str:
    # who somebody says to be, as far as it is said in the clear
    return request.username or request.tenant


def _answerer(caller: Caller, request_id: int, reply: Outcome) -> Callable[[Ticket], None]:
    def done(ticket: Ticket) -> None:
        if isinstance(ticket.error, ConditionFailed):
            caller.answer(request_id, Conflict("the account changed in the meantime"))
        else:
            caller.answer(request_id, ticket.error or reply)

    return done


def check_name(name: str) -> str:
    if not name:
        raise InvalidRequest("a user name is required")
    if len(name.encode()) > LONGEST_NAME or not name.isprintable():
        raise InvalidRequest(f"a user name has at most {LONGEST_NAME} bytes, all of them printable")
    return name


def check_roles(roles: Iterable[str]) -> tuple[str, ...]:
    """The roles, each once; InvalidRequest for one that does not exist."""
    unique = tuple(dict.fromkeys(roles))
    for role in unique:
        if role not in ROLE_NAMES:
            raise InvalidRequest(f"unknown role: {role[:64]}")
    return unique


def _with_admin(roles: tuple[str, ...]) -> tuple[str, ...]:
    return roles if "admin" in roles else (*roles, "admin")
