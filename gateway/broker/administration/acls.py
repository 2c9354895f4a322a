"""Who may use a topic beside those whose roles allow it: the ACLs, by topic.

An ACL is kept under the topic, not under the address somebody wrote, so that no other name of the topic leads around it.
Dead-letter topics follow the ACL of the topic whose letters they hold, unless they have one of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import msgspec

from gateway.broker.administration.permissions import ROLE_NAMES
from gateway.broker.service import Caller, Handler
from gateway.errors import GatewayError, InvalidRequest, NotRouted, Throttled
from gateway.requests import DONE, Acl, Acls, DeleteAcl, GetAcls, Outcome, Request, SetAcl
from gateway.store.interface import Put, Store, Unit

TABLE = "acls"
MOST_ACLS = 10_000
MOST_ENTRIES = 1_000
"""Users, and roles, in one ACL."""
DEAD_LETTERS = ".dlq"

TopicOf = Callable[[Caller, str], str]
"""The topic that an address means to a caller. Raises a GatewayError when it means none."""


@attrs.frozen
class AclRow:
    address: str
    """As it was written when the ACL was set."""
    public: bool
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    def acl(self) -> Acl:
        return Acl(self.address, True, self.public, self.users, self.roles)


class AccessLists:
    def __init__(self, store: Store, topic_of: TopicOf, *, default_public: bool = False) -> None:
        self._store = store
        self._topic_of = topic_of
        self.default_public = default_public
        self._decoded: dict[bytes, tuple[bytes, AclRow]] = {}

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {SetAcl: self._set, DeleteAcl: self._delete, GetAcls: self._get}

    def find(self, caller: Caller, address: str) -> AclRow | None:
        """The ACL that holds for an address, as of the last commit."""
        table = self._store.table(TABLE)
        if not table and not self._store.lost:
            return None
        try:
            topic = self._topic_of(caller, address)
        except (NotRouted, InvalidRequest):
            return None  # no topic, no ACL; what the request wants with such an address is for its handler to say
        row = self._row(table, topic.encode())
        while row is None and topic.endswith(DEAD_LETTERS):
            topic = topic.removesuffix(DEAD_LETTERS)
            row = self._row(table, topic.encode())
        return row

    def _row(self, table: Mapping[bytes, bytes], key: bytes) -> AclRow | None:
        raw = table.get(key)
        if raw is None:
            # without it everybody may, or nobody: it is for neither to be guessed
            self._store.lost.check(TABLE, key, f"the ACL of {key.decode()}")
            self._decoded.pop(key, None)
            return None
        known = self._decoded.get(key)
        if known is None or known[0] is not raw:
            known = (raw, msgspec.json.decode(raw, type=AclRow))
            self._decoded[key] = known
        return known[1]

    def _set(self, caller: Caller, request: SetAcl) -> None:
        acl = request.acl
        try:
            topic = self._topic_of(caller, acl.address)
            _check(acl.users, acl.roles)
            table = self._store.table(TABLE)
            if len(table) >= MOST_ACLS and topic.encode() not in table:
                raise Throttled(f"at most {MOST_ACLS} ACLs")
        except GatewayError as refusal:
            caller.answer(request.id, refusal)
            return
        row = AclRow(acl.address, acl.public, tuple(dict.fromkeys(acl.users)), tuple(dict.fromkeys(acl.roles)))
        self._put(caller, request, topic, msgspec.json.encode(row))

    def _delete(self, caller: Caller, request: DeleteAcl) -> None:
        try:
            topic = self._topic_of(caller, request.address)
        except GatewayError as refusal:
            caller.answer(request.id, refusal)
            return
        self._put(caller, request, topic, None)

    def _put(self, caller: Caller, request: Request, topic: str, row: bytes | None) -> None:
        ticket = self._store.submit(Unit(puts=[Put(TABLE, topic.encode(), row)]))
        ticket.on_done(lambda done: caller.answer(request.id, done.error or DONE))

    def _get(self, caller: Caller, request: GetAcls) -> None:
        table = self._store.table(TABLE)
        acls: list[Acl] = []
        outcome: Outcome
        try:
            if request.address:
                row = self._row(table, self._topic_of(caller, request.address).encode())
                acls.append(row.acl() if row is not None else Acl(request.address, False, self.default_public))
            else:
                rows = [self._row(table, key) for key in sorted(table)]
                acls.extend(row.acl() for row in rows if row is not None)
            outcome = Acls(acls, self.default_public)
        except GatewayError as refusal:
            outcome = refusal
        caller.answer(request.id, outcome)


def _check(users: Sequence[str], roles: Sequence[str]) -> None:
    if len(users) > MOST_ENTRIES or len(roles) > MOST_ENTRIES:
        raise InvalidRequest(f"an ACL has at most {MOST_ENTRIES} users and roles")
    for role in roles:
        if role not in ROLE_NAMES:
            raise InvalidRequest(f"unknown role: {role[:64]}")


def forget_user(store: Store, name: str) -> list[Put]:
    """What has to be written so that no ACL names an account any more."""
    puts = []
    for key, raw in store.table(TABLE).items():
        row = msgspec.json.decode(raw, type=AclRow)
        if name in row.users:
            users = tuple(user for user in row.users if user != name)
            puts.append(Put(TABLE, key, msgspec.json.encode(attrs.evolve(row, users=users))))
    return puts
