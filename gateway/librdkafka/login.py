"""How brokers are logged in to, in the library's words: the one place where a secret becomes part of a setting."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

FOREVER = 1 << 42
"""Seconds since the epoch: when a token is over that does not say it."""


def login_settings(
    *,
    tls: bool,
    ca: str = "",
    cert: str = "",
    key: str = "",
    mechanism: str = "",
    username: str = "",
    password: str = "",
    token: str = "",
    token_url: str = "",
    scope: str = "",
) -> dict[str, Any]:
    """TLS, and a login by a mechanism of Kafka's; `token` is shown as it is, `token_url` is where others are to be had."""
    sasl = bool(mechanism or token)
    settings: dict[str, Any] = {"security.protocol": ("sasl_" if sasl else "") + ("ssl" if tls else "plaintext")}
    if tls:
        files = {"ssl.ca.location": ca, "ssl.certificate.location": cert, "ssl.key.location": key}
        settings |= {name: path for name, path in files.items() if path}
    if token:
        settings |= {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": _shows(token)}
    elif mechanism.lower() == "oauthbearer":
        settings |= {
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": username,
            "sasl.oauthbearer.client.secret": password,
            "sasl.oauthbearer.token.endpoint.url": token_url,
        }
        if scope:
            settings["sasl.oauthbearer.scope"] = scope
    elif mechanism:
        settings |= {"sasl.mechanisms": mechanism.upper(), "sasl.username": username, "sasl.password": password}
    return settings


def _shows(token: str) -> Callable[[str], tuple[str, float]]:
    return lambda _config: (token, float(expiry_of(token)))


def expiry_of(token: str) -> int:
    """When a token is over, in seconds since the epoch, as it says itself (`exp` of a JWT)."""
    try:
        body = token.split(".")[1]
        expires = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"]
        return int(expires)
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        return FOREVER
