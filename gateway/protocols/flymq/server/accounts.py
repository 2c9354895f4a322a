"""Who is there and what they may do (FlyMQ document, 0x70 to 0x7D; FlyMQ wire 2.2)."""

from __future__ import annotations

from gateway.errors import Denied, InvalidRequest, NotFound, Unauthenticated, Unsupported
from gateway.protocols.flymq.server.operations import Call, Handler, Operation, Operations, Steps, expect
from gateway.protocols.flymq.wire.codec import REQUESTS
from gateway.protocols.flymq.wire.frames import Op
from gateway.protocols.flymq.wire.mapping import Subject
from gateway.requests import (
    Acl,
    Acls,
    Authenticate,
    ChangePassword,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    GetAcls,
    GetRoles,
    GetUsers,
    Identity,
    Roles,
    SetAcl,
    UpdateUser,
    UserInfo,
    Users,
    WhoAmI,
)


def auth(call: Call, payload: bytes) -> Steps:
    """Logs the connection in. Succeeds whatever is sent while the listener asks for nothing (FlyMQ wire 4)."""
    username, password = REQUESTS[call.op].decode(payload)
    if not call.context.auth_required:
        return call.speech.logged_in(username, ())
    try:
        identity = expect(Identity, (yield Authenticate(call.id(), username=username, password=password)))
    except (Unauthenticated, Denied) as error:
        return call.speech.not_logged_in(error.message)
    return call.speech.logged_in(identity.name, identity.roles)


def whoami(call: Call, _payload: bytes) -> Steps:
    identity = expect(Identity, (yield WhoAmI(call.id())))
    return call.speech.identity(identity.authenticated, identity.name, identity.roles, identity.permissions)


def _guarded(handler: Handler) -> Handler:
    # while authentication is off there are no accounts to work on
    def run(call: Call, payload: bytes) -> Steps:
        if not call.context.auth_required:
            raise Unsupported("authentication is not enabled")
        return (yield from handler(call, payload))

    return run


def _info(user: UserInfo) -> tuple[object, ...]:
    return user.name, user.roles, user.permissions, user.enabled, user.created_s, user.updated_s


@_guarded
def user_create(call: Call, payload: bytes) -> Steps:
    # an account with its roles; it starts enabled
    name, password, _, roles, _ = REQUESTS[call.op].decode(payload)
    if not name or not password:
        raise InvalidRequest("username and password are required")
    users = expect(Users, (yield CreateUser(call.id(), name, password, roles))).users
    return call.answer(*_info(users[0]))


@_guarded
def user_delete(call: Call, payload: bytes) -> Steps:
    (name,) = REQUESTS[call.op].decode(payload)
    yield DeleteUser(call.id(), name)
    return call.answer(True, name)


@_guarded
def user_update(call: Call, payload: bytes) -> Steps:
    name, _, _, roles, enabled = REQUESTS[call.op].decode(payload)
    yield UpdateUser(call.id(), name, roles, enabled)
    return call.answer(True, name)


@_guarded
def user_list(call: Call, _payload: bytes) -> Steps:
    users = expect(Users, (yield GetUsers(call.id()))).users
    return call.answer([_info(user) for user in users])


@_guarded
def user_get(call: Call, payload: bytes) -> Steps:
    (name,) = REQUESTS[call.op].decode(payload)
    users = expect(Users, (yield GetUsers(call.id(), name))).users if name else ()
    if not users:
        raise NotFound(f"user not found: {name}")
    return call.answer(*_info(users[0]))


@_guarded
def password_change(call: Call, payload: bytes) -> Steps:
    """One's own with the old one; an administrator's right for others."""
    name, password, old, _, _ = REQUESTS[call.op].decode(payload)
    if not name or not password:
        raise InvalidRequest("username and password are required")
    yield ChangePassword(call.id(), name, password, old)
    return call.answer(True, name)


@_guarded
def acl_set(call: Call, payload: bytes) -> Steps:
    topic, public, users, roles = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    yield SetAcl(call.id(), Acl(topic, True, public, users, roles))
    return call.answer(True, topic)


@_guarded
def acl_get(call: Call, payload: bytes) -> Steps:
    """A topic's ACL; what holds for all where it has none is said only then (FlyMQ wire 2.2)."""
    (topic,) = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    if not topic:  # to the broker an empty address means all
        raise InvalidRequest("topic name is required")
    acls = expect(Acls, (yield GetAcls(call.id(), topic)))
    if not acls.acls or not acls.acls[0].exists:
        return call.answer(topic, False, False, acls.default_public, (), ())
    acl = acls.acls[0]
    return call.answer(topic, True, acl.public, False, acl.users, acl.roles)


@_guarded
def acl_delete(call: Call, payload: bytes) -> Steps:
    (topic,) = REQUESTS[call.op].decode(payload)
    call.subject = Subject(topic)
    yield DeleteAcl(call.id(), topic)
    return call.answer(True, topic)


@_guarded
def acl_list(call: Call, _payload: bytes) -> Steps:
    acls = expect(Acls, (yield GetAcls(call.id())))
    entries = [(acl.address, acl.exists, acl.public, acl.users, acl.roles) for acl in acls.acls]
    return call.answer(entries, acls.default_public)


@_guarded
def role_list(call: Call, _payload: bytes) -> Steps:
    roles = expect(Roles, (yield GetRoles(call.id()))).roles
    return call.answer([(role.name, role.permissions, role.description) for role in roles])


OPERATIONS: Operations = {
    Op.AUTH: Operation(auth, bars=True),
    Op.WHOAMI: Operation(whoami),
    Op.USER_CREATE: Operation(user_create),
    Op.USER_DELETE: Operation(user_delete),
    Op.USER_UPDATE: Operation(user_update),
    Op.USER_LIST: Operation(user_list),
    Op.USER_GET: Operation(user_get),
    Op.ACL_SET: Operation(acl_set),
    Op.ACL_GET: Operation(acl_get),
    Op.ACL_DELETE: Operation(acl_delete),
    Op.ACL_LIST: Operation(acl_list),
    Op.PASSWORD_CHANGE: Operation(password_change),
    Op.ROLE_LIST: Operation(role_list),
}
