"""Who is let in at the admin address: roles by token, sessions, and no web page of somebody else's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.admin.access import LOCAL, SESSION_SECONDS, Access, Hand, Role
from gateway.errors import Denied, Unauthenticated
from gateway.model import Admin, AdminRole, AdminToken

TOKENS = {"grafana": AdminToken("look", AdminRole.READ), "oncall": AdminToken("do", AdminRole.OPERATE)}


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def access(token: str = "", tokens: Mapping[str, AdminToken] = {}, host: str = "127.0.0.1") -> Access:
    return Access(Admin(host=host, token=token, tokens=tokens), now=Clock())


def hand(method: str = "GET", path: str = "/v1/topics", host: str = "127.0.0.1:9600", **headers: str) -> Hand:
    return Hand(method, path, {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}})


def bearer(token: str, **more: str) -> Hand:
    return hand(authorization=f"Bearer {token}", **more)


def test_a_token_gives_its_role_and_the_one_of_old_all_of_them() -> None:
    it = access("root", TOKENS)
    assert [it.admit(bearer(one)).role for one in ("look", "do", "root")] == [
        Role.READ,
        Role.OPERATE,
        Role.ADMINISTER,
    ]
    assert it.admit(bearer("look")).name == "grafana"
    for wrong in (hand(), bearer("nobody's"), bearer(""), hand(authorization="Basic root")):
        with pytest.raises(Unauthenticated):
            it.admit(wrong)


def test_without_a_token_this_machine_alone_is_served_by_an_address_of_its_own() -> None:
    it = access()
    for host in ("127.0.0.1:9600", "localhost:9600", "[::1]:9600"):
        it.check_origin(hand(host=host))
        assert it.admit(hand(host=host)).role is Role.ADMINISTER
    for host in ("evil.example.org:9600", "127.0.0.1.nip.io", ""):
        with pytest.raises(Denied, match="address of its own"):
            it.check_origin(hand(host=host))
        with pytest.raises(Denied, match="address of its own"):
            it.admit(hand(host=host))
    with pytest.raises(Denied, match=r"set admin\.token"):
        access(host="0.0.0.0").admit(hand())


@pytest.mark.parametrize("token", ["", "root"])
def test_what_a_foreign_page_sends_is_refused_whatever_it_carries(token: str) -> None:
    it = access(token)
    foreign = [
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"origin": "http://evil.example.org"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8000"},
        # a link may lead to a page, not to the API, and nothing but a link
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe", "path": "/"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image", "path": "/"},
    ]
    for headers in foreign:
        path = headers.pop("path", "/v1/topics")
        with pytest.raises(Denied, match=r"somebody else's|alone"):
            it.check_origin(hand("GET", path, authorization=f"Bearer {token}", **headers))
    it.check_origin(hand(origin="http://127.0.0.1:9600", sec_fetch_site="same-origin"))
    followed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    it.check_origin(hand("GET", "/topics", **followed))
    with pytest.raises(Denied):
        it.check_origin(hand("POST", "/login", **followed))


def test_a_session_is_its_cookie_and_its_changes_carry_its_token() -> None:
    it = access("root", TOKENS)
    session = it.log_in("do")
    cookie = f"gateway-session-9600={session.session}"
    assert it.admit(hand(cookie=cookie)) == session
    assert session.role is Role.OPERATE
    for shown in ("", "wrong", it.log_in("do").csrf):
        with pytest.raises(Denied, match="load the page again"):
            it.admit(hand("POST", cookie=cookie, x_csrf_token=shown))
    assert it.admit(hand("POST", cookie=cookie, x_csrf_token=session.csrf)) == session
    with pytest.raises(Unauthenticated):
        it.log_in("nobody's")
    with pytest.raises(Unauthenticated):  # a cookie of another port is another gateway's
        it.admit(hand(cookie=f"gateway-session-9700={session.session}"))


def test_a_session_ends_with_its_time_and_with_its_token() -> None:
    clock = Clock()
    it = Access(Admin(token="root"), now=clock)
    session = it.log_in("root")
    same, other = Access(Admin(token="root"), now=clock), Access(Admin(token="another"), now=clock)
    cookie = f"gateway-session-9600={session.session}"
    assert same.admit(hand(cookie=cookie)) == session  # after a restart
    with pytest.raises(Unauthenticated):
        other.admit(hand(cookie=cookie))
    clock.now += SESSION_SECONDS
    with pytest.raises(Unauthenticated):
        it.admit(hand(cookie=cookie))


def test_a_cookie_that_was_changed_is_none() -> None:
    it = access("root", TOKENS)
    name, ends, salt, signature = it.log_in("look").session.rsplit(".", 3)
    longer = str(int(ends) + 1)
    for made in (
        f"admin.{ends}.{salt}.{signature}",
        f"{name}.{longer}.{salt}.{signature}",
        f"{LOCAL}.{ends}.{salt}.{signature}",
        f"{name}.{ends}.{salt}.{'0' * 64}",
        "nonsense",
        "",
    ):
        with pytest.raises(Unauthenticated):
            it.admit(hand(cookie=f"gateway-session-9600={made}"))


def test_a_browser_on_this_machine_shows_the_token_of_its_page_too() -> None:
    it = access()
    assert it.admit(hand("POST")).name == LOCAL  # a program: no browser says to have sent it
    page = {"sec_fetch_site": "same-origin", "origin": "http://127.0.0.1:9600"}
    with pytest.raises(Denied, match="load the page again"):
        it.admit(hand("POST", **page))
    session = it.local_session()
    cookie = f"gateway-session-9600={session.session}"
    assert it.admit(hand("POST", cookie=cookie, x_csrf_token=session.csrf, **page)) == session


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "bearer  "])
def test_a_token_that_is_empty_opens_nothing(header: str) -> None:
    it = access("root", {"nobody": AdminToken("", AdminRole.ADMINISTER)})
    with pytest.raises(Unauthenticated):
        it.admit(hand(authorization=header))
    with pytest.raises(Unauthenticated):
        it.log_in("")
    # where all are empty, nobody elsewhere is served for having none
    with pytest.raises(Denied, match=r"set admin\.token"):
        access("", {"nobody": AdminToken("", AdminRole.READ)}, host="0.0.0.0").admit(hand())


def test_nobody_takes_the_name_of_who_may_everything() -> None:
    it = access("root", {"admin": AdminToken("look", AdminRole.READ)})
    assert it.admit(bearer("root")).role is Role.ADMINISTER
    with pytest.raises(Unauthenticated):
        it.admit(bearer("look"))
