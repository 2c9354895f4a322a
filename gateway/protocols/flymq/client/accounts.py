"""Account requests of a client session (FlyMQ wire 2.2, 0x73 to 0x7D).

Apart from the operations: nothing that moves messages asks for these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.protocols.flymq.client.steps import ClientShared, ClientSteps
from gateway.protocols.flymq.wire.frames import Op
from gateway.requests import (
    DONE,
    Acl,
    Acls,
    BuiltInRole,
    ChangePassword,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    GetAcls,
    GetRoles,
    GetUsers,
    Request,
    Roles,
    SetAcl,
    UpdateUser,
    UserInfo,
    Users,
)


def _create_user(upstream: ClientShared, request: CreateUser) -> ClientSteps:
    answer = yield from upstream.ask(Op.USER_CREATE, request.name, request.password, "", request.roles, True)
    return Users([UserInfo(*answer)])


def _update_user(upstream: ClientShared, request: UpdateUser) -> ClientSteps:
    yield from upstream.ask(Op.USER_UPDATE, request.name, "", "", request.roles, request.enabled)
    return DONE


def _delete_user(upstream: ClientShared, request: DeleteUser) -> ClientSteps:
    yield from upstream.ask(Op.USER_DELETE, request.name)
    return DONE


def _change_password(upstream: ClientShared, request: ChangePassword) -> ClientSteps:
    yield from upstream.ask(Op.PASSWORD_CHANGE, request.name, request.new_password, request.old_password, (), True)
    return DONE


def _get_users(upstream: ClientShared, request: GetUsers) -> ClientSteps:
    if request.name:
        answer = yield from upstream.ask(Op.USER_GET, request.name)
        return Users([UserInfo(*answer)])
    (entries,) = yield from upstream.ask(Op.USER_LIST)
    return Users([UserInfo(*entry) for entry in entries])


def _set_acl(upstream: ClientShared, request: SetAcl) -> ClientSteps:
    acl = request.acl
    yield from upstream.ask(Op.ACL_SET, acl.address, acl.public, acl.users, acl.roles)
    return DONE


def _delete_acl(upstream: ClientShared, request: DeleteAcl) -> ClientSteps:
    yield from upstream.ask(Op.ACL_DELETE, request.address)
    return DONE


def _get_acls(upstream: ClientShared, request: GetAcls) -> ClientSteps:
    # one ACL's answer says what holds for all only where the topic has none of its own
    if request.address:
        topic, exists, public, default, users, roles = yield from upstream.ask(Op.ACL_GET, request.address)
        return Acls([Acl(topic, exists, public, users, roles)], default)
    entries, default = yield from upstream.ask(Op.ACL_LIST)
    return Acls([Acl(*entry) for entry in entries], default)


def _get_roles(upstream: ClientShared, _request: GetRoles) -> ClientSteps:
    (entries,) = yield from upstream.ask(Op.ROLE_LIST)
    return Roles([BuiltInRole(*entry) for entry in entries])


ACCOUNTS: Mapping[type[Request], Callable[[ClientShared, Any], ClientSteps]] = {
    CreateUser: _create_user,
    UpdateUser: _update_user,
    DeleteUser: _delete_user,
    ChangePassword: _change_password,
    GetUsers: _get_users,
    SetAcl: _set_acl,
    DeleteAcl: _delete_acl,
    GetAcls: _get_acls,
    GetRoles: _get_roles,
}
