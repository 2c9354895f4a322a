"""How a Kafka is reached, in the library's words.

The one place where keys of librdkafka stand for those of our configuration, and where a secret becomes part of a setting.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from gateway.errors import TargetError
from gateway.notation import show_endpoint
from gateway.protocols.registry import Reach

FOREVER = 1 << 42
"""Seconds since the epoch: when a token is over that does not say it."""


def settings_of(where: Reach) -> Mapping[str, Any]:
    """What every client of a cluster is made with. Raises TargetError for what the library cannot do."""
    credentials, tls = where.context.credentials, where.tls
    found: dict[str, Any] = {
        "bootstrap.servers": ",".join(show_endpoint(host, port) for host, port in where.addresses),
        "client.id": where.context.caller or "gateway",
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 1_000,
        "log_level": 0,  # what goes wrong is told by errors
    }
    sasl = bool(credentials.username or credentials.token)
    found["security.protocol"] = ("sasl_" if sasl else "") + ("ssl" if tls is not None else "plaintext")
    if tls is not None:
        if tls.server_name:
            raise TargetError("a Kafka is verified by the host that is dialled: `server_name` cannot be given")
        files = {"ssl.ca.location": tls.ca, "ssl.certificate.location": tls.cert, "ssl.key.location": tls.key}
        found |= {key: path for key, path in files.items() if path}
    if credentials.token:
        found |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": _shows(credentials.token)}
    elif sasl:
        found |= {
            "sasl.mechanism": credentials.mechanism.value,
            "sasl.username": credentials.username,
            "sasl.password": credentials.password,
        }
    return found


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
