"""Who asks the admin address, what they may do, and that no web page of somebody else's asks in their name.

    bearer token ──┐
    session cookie ┼─► Who (name, role) ─► the operation's role ─► done
    loopback ──────┘        │
                            └ a change that a browser sends needs the session's CSRF token as well

Without any token this machine alone is served, by a loopback address it was asked for by name: a page whose host name was made
to lead here is somebody else. With tokens everybody shows one, or has logged in with one. What a browser says about where a
request comes from (`Origin`, `Sec-Fetch-Site`) is believed where it speaks against it.

A session is its cookie: name, end and a signature whose key is made of the token that was shown. Nothing is kept here, so
sessions go on after a restart, and end when their token is replaced.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping

import attrs

from gateway import model
from gateway.errors import Denied, Unauthenticated

SESSION_SECONDS = 12 * 3600
LOCAL = "local"
"""Who comes from this machine where no token is configured."""
ADMIN = "admin"
"""Who shows `admin.token`."""
CSRF_HEADER = "x-csrf-token"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FOREIGN = frozenset({"cross-site", "same-site"})
_COOKIE = re.compile(r"([A-Za-z0-9_.-]{1,64})\.(\d{1,12})\.([0-9a-f]{16})\.([0-9a-f]{64})")


class Role(enum.IntEnum):
    """What somebody may do; each may do what those below it may."""

    READ = 1
    OPERATE = 2
    ADMINISTER = 3


@attrs.frozen
class Who:
    """Somebody who was let in."""

    name: str
    role: Role
    csrf: str = ""
    """What changes have to carry that their browser sends; empty where no browser is in it."""
    session: str = ""
    """The cookie, if there is one."""


@attrs.frozen
class Hand:
    """What of a request says where it comes from."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By names in small letters, as HTTP/2 writes them."""
    scheme: str = "http"
    peer: str = ""

    @property
    def host(self) -> str:
        text = self.headers.get("host", "")
        return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]

    @property
    def port(self) -> str:
        text = self.headers.get("host", "").rpartition("]")[2]
        return text.partition(":")[2]

    @property
    def changes(self) -> bool:
        return self.method not in SAFE

    @property
    def from_browser(self) -> bool:
        """Whether a browser says to have sent it for a page."""
        return "sec-fetch-site" in self.headers or "origin" in self.headers

    @property
    def cookie_name(self) -> str:
        """Cookies know no ports: two gateways on one machine must not overwrite each other's."""
        return f"gateway-session-{self.port or self.scheme}"

    @property
    def cookie(self) -> str:
        for part in self.headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.cookie_name:
                return value
        return ""


class Access:
    def __init__(
        self,
        admin: model.Admin,
        *,
        now: Callable[[], float],
        failed: Callable[[str], None] = lambda _peer: None,
    ) -> None:
        self._now = now
        self._failed = failed
        self._host = admin.host
        self._tokens: dict[str, tuple[bytes, Role]] = {}
        for name, one in admin.tokens.items():
            if one.token:  # who shows nothing would show an empty one
                self._tokens[name] = one.token.encode(), Role[one.role.name]
        if admin.token:
            self._tokens[ADMIN] = admin.token.encode(), Role.ADMINISTER
        # sessions without a token end with the process: nobody could take them back otherwise
        self._local = os.urandom(32)

    @property
    def asks_for_a_token(self) -> bool:
        return bool(self._tokens)

    def check_origin(self, hand: Hand) -> None:
        """Raise Denied for what a foreign web page sent."""
        self.check_page(hand)
        if not self._tokens and is_loopback(self._host) and not is_loopback(hand.host):
            # a page in a browser whose name was made to lead here
            raise Denied("without a token only this machine is served, by an address of its own")

    @staticmethod
    def check_page(hand: Hand) -> None:
        """The same, of what the browser says about the page."""
        headers = hand.headers
        # older browsers send no such header: what they send is judged by its origin below, and by the cookie's token
        if headers.get("sec-fetch-site") in _FOREIGN and not _navigates(hand):
            raise Denied("a web page of somebody else's sent this: the gateway answers its own pages alone")
        origin = headers.get("origin")
        if origin is not None and origin.partition("//")[2].lower() != headers.get("host", "").lower():
            raise Denied(f"a web page at {origin[:100]!r} sent this: the gateway answers its own pages alone")

    def admit(self, hand: Hand) -> Who:
        """Who this is. Raises Unauthenticated or Denied."""
        if not self._tokens:
            if not is_loopback(self._host):
                raise Denied(
                    f"the admin address {self._host} is open to other machines: set admin.token to use {hand.path}"
                )
            if not is_loopback(hand.host):
                raise Denied("without a token only this machine is served, by an address of its own")
            who = self._of_cookie(hand.cookie) or Who(LOCAL, Role.ADMINISTER)
        else:
            found = self._of_header(hand.headers.get("authorization")) or self._of_cookie(hand.cookie)
            if found is None:
                self._failed(hand.peer)
                raise Unauthenticated(
                    f"the admin address asks for {'another' if 'authorization' in hand.headers else 'a bearer'} token"
                )
            who = found
        if hand.changes and (who.session or hand.from_browser):
            shown = hand.headers.get(CSRF_HEADER, "")
            if not who.csrf or not hmac.compare_digest(shown.encode(), who.csrf.encode()):
                raise Denied("a change that a browser sends carries the token of its session: load the page again")
        return who

    def log_in(self, token: str, peer: str = "") -> Who:
        """A new session for who shows this. Raises Unauthenticated."""
        shown = token.strip().encode()
        # all are compared, and each takes as long whatever is shown: the time says nothing about how much of one was right
        matching = [name for name, (one, _role) in self._tokens.items() if hmac.compare_digest(one, shown)]
        if not matching:
            self._failed(peer)
            raise Unauthenticated("this token is not known here")
        return self._session(matching[0])

    def local_session(self) -> Who:
        """A session where no token is asked for: its changes are to be told from those of other pages."""
        return self._session(LOCAL)

    # --- inside ---

    def _of_header(self, header: str | None) -> Who | None:
        if header is None:
            return None
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            return None
        shown = token.strip().encode()
        for name, (one, role) in self._tokens.items():
            if hmac.compare_digest(one, shown):
                return Who(name, role)
        return None

    def _session(self, name: str) -> Who:
        text = f"{name}.{int(self._now()) + SESSION_SECONDS}.{os.urandom(8).hex()}"
        return self._who(name, f"{text}.{self._sign(name, text)}")

    def _of_cookie(self, cookie: str) -> Who | None:
        match = _COOKIE.fullmatch(cookie)
        if match is None:
            return None
        name, ends, _salt, signature = match.groups()
        text = cookie.rpartition(".")[0]
        known = name in self._tokens or (name == LOCAL and not self._tokens)
        if not known or not hmac.compare_digest(self._sign(name, text), signature) or self._now() >= int(ends):
            return None
        return self._who(name, cookie)

    def _who(self, name: str, cookie: str) -> Who:
        role = self._tokens[name][1] if name in self._tokens else Role.ADMINISTER
        # made of the cookie, so that it need not be remembered, and of no use with any other
        return Who(name, role, self._sign(name, "csrf " + cookie)[:32], cookie)

    def _sign(self, name: str, text: str) -> str:
        # signed with what was shown at the login: a token that is changed ends all sessions that began with it
        key = self._tokens[name][0] if name in self._tokens else self._local
        return hmac.new(hashlib.sha256(b"gateway session " + key).digest(), text.encode(), "sha256").hexdigest()


def _navigates(hand: Hand) -> bool:
    # whether somebody followed a link to a page of ours: it is shown to them, and to nobody else
    headers = hand.headers
    return (
        hand.method in SAFE
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
        and not hand.path.startswith("/v1/")
    )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Header names in small letters; of one that is there twice the first."""
    found: dict[str, str] = {}
    for name, value in raw:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return found
