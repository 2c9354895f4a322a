"""Signed tokens (JWT) as logins, with the claims of Felix' tokens: sub, tid, exp, perms (Felix wire 1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.broker.administration.permissions import Permission, Resource
from gateway.errors import ConfigProblem, Denied, Unauthenticated
from gateway.model import AuthJwt
from gateway.requests import Identity

if TYPE_CHECKING:  # half of what a start would import, and only listeners with `jwt` need it
    import jwt
    from jwt.algorithms import AllowedPublicKeys

LONGEST_TOKEN = 16 << 10
MOST_KEYS = 32
MOST_PERMISSIONS = 1_000
"""A token is read before anybody knows whose it is, its signature held against each key, its permissions one by one."""

_ALGORITHMS_OF = {
    "OKP": {"EdDSA"},
    "RSA": {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"},
    "EC": {"ES256", "ES384", "ES512"},
}
_SHARED = {"HS256", "HS384", "HS512"}

ACTIONS: Mapping[tuple[Resource, Permission], tuple[str, ...]] = {
    (Resource.TOPIC, Permission.READ): ("stream.subscribe:stream:",),
    (Resource.TOPIC, Permission.WRITE): ("stream.publish:stream:",),
    (Resource.TOPIC, Permission.SEE): ("stream.subscribe:stream:", "stream.publish:stream:"),
    (Resource.CACHE, Permission.READ): ("cache.read:cache:",),
    (Resource.CACHE, Permission.WRITE): ("cache.write:cache:",),
}
"""The permission strings that stand for a right on an address (Felix wire 1.2)."""


class Tokens:
    """Checks tokens against the keys of one listener."""

    def __init__(self, auth: AuthJwt) -> None:
        self._auth = auth
        self._keys: list[tuple[str, Any, list[str]]] = []
        """(key id, key, the algorithms it may be used with): a public key never serves as a shared secret."""
        if auth.jwks:
            for key in _key_set(auth.jwks)[:MOST_KEYS]:
                usable = _ALGORITHMS_OF.get(key.key_type or "", _SHARED)
                self._keys.append((key.key_id or "", key.key, [a for a in auth.algorithms if a in usable]))
        if auth.key:
            public = "-----BEGIN" in auth.key
            self._keys.append(("", auth.key, [a for a in auth.algorithms if (a not in _SHARED) is public]))

    def identify(self, token: str, tenant: str) -> Identity:
        """Who the token says its holder is; Unauthenticated, or Denied for another tenant's."""
        if not token or len(token) > LONGEST_TOKEN:
            raise Unauthenticated("auth failed")
        claims = self._claims(token)
        holder = claims.get(self._auth.principal_claim)
        own_tenant = claims.get(self._auth.tenant_claim, "")
        permissions = claims.get(self._auth.permissions_claim, [])
        if not isinstance(holder, str) or not holder or not isinstance(own_tenant, str) or not _texts(permissions):
            raise Unauthenticated("auth failed")
        if tenant and tenant != own_tenant:
            raise Denied("tenant mismatch")
        expires_ms = int((int(claims["exp"]) + self._auth.leeway) * 1000)
        return Identity(
            authenticated=True,
            name=holder,
            permissions=tuple(permissions),
            tenant=own_tenant,
            expires_ms=expires_ms,
        )

    def _claims(self, token: str) -> Mapping[str, Any]:
        import jwt

        try:
            named = jwt.get_unverified_header(token).get("kid", "")
        except jwt.InvalidTokenError as problem:
            raise Unauthenticated("auth failed") from problem
        for key_id, key, algorithms in self._keys:
            if algorithms and (not named or not key_id or named == key_id):
                claims = self._verified(token, key, algorithms)
                if claims is not None:
                    return claims
        raise Unauthenticated("auth failed")

    def _verified(
        self, token: str, key: AllowedPublicKeys | str, algorithms: Sequence[str]
    ) -> Mapping[str, Any] | None:
        import jwt

        try:
            return jwt.decode(
                token,
                key,
                algorithms=list(algorithms),
                issuer=self._auth.issuer or None,
                audience=self._auth.audience or None,
                leeway=self._auth.leeway,
                options={"require": ["exp"], "verify_aud": bool(self._auth.audience)},
            )
        except (jwt.PyJWTError, OverflowError):
            return None


def _key_set(text: str) -> Sequence[jwt.PyJWK]:
    import jwt

    try:
        return jwt.PyJWKSet.from_json(text).keys
    except (jwt.PyJWTError, ValueError, KeyError, TypeError) as problem:
        raise ConfigProblem(f"no key of the key set can be used: {problem}") from None


def _texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_PERMISSIONS and all(isinstance(entry, str) for entry in value)


def permitted(identity: Identity, permission: Permission, resource: Resource, address: str) -> bool:
    wanted = [prefix + address for prefix in ACTIONS.get((resource, permission), ())]
    return any(covers(pattern, text) for text in wanted for pattern in identity.permissions)


def covers(pattern: str, text: str) -> bool:
    """Whether a permission string covers this one: `*` stands for anything, also for nothing."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    if not text.startswith(first):
        return False
    position = len(first)
    for part in rest[:-1]:
        found = text.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return text.endswith(rest[-1]) and len(text) - len(rest[-1]) >= position
