"""How a Kafka is reached, in the library's words.

Apart from those who dial: it is pure, and has no thread. What a login is in these words, the log on Kafka knows by the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import TargetError
from gateway.librdkafka.login import login_settings
from gateway.notation import show_endpoint
from gateway.protocols.registry import Reach


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
    if tls is not None and tls.server_name:
        raise TargetError("a Kafka is verified by the host that is dialled: `server_name` cannot be given")
    files = {"ca": tls.ca, "cert": tls.cert, "key": tls.key} if tls is not None else {}
    mechanism = credentials.mechanism.value if credentials.username else ""
    return found | login_settings(
        tls=tls is not None,
        **{name: path or "" for name, path in files.items()},
        mechanism=mechanism,
        username=credentials.username,
        password=credentials.password,
        token=credentials.token,
    )
