"""Cache requests: values under keys, in caches named by tenant, namespace and cache.

Apart from the stream: no other request knows of caches, and none of these of topics.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from gateway import requests
from gateway.errors import GatewayError
from gateway.protocols.felix.server import replies
from gateway.protocols.felix.server.peer import Peer
from gateway.protocols.felix.wire.codec import CacheGet, CachePut
from gateway.protocols.felix.wire.mapping import DEFAULT_CACHE, cache_name, cache_not_found, text_of
from gateway.requests import Outcome

LONGEST_TTL_MS = 1 << 50
"""A time to live beyond this (35 000 years) is none: stock clients may send up to 2^64 - 1 (Felix wire 2.7)."""


@attrs.frozen
class CacheScope:
    tenant: str
    namespace: str
    cache: str


def scope_of(message: CachePut | CacheGet, peer: Peer) -> CacheScope:
    """The names of a message: the default ones where they are absent (Felix wire 2.12, row 6)."""
    tenant, _, namespace = peer.settings.scope.partition("/")
    return CacheScope(
        message.tenant_id if message.tenant_id is not None else tenant,
        message.namespace if message.namespace is not None else namespace,
        message.cache if message.cache is not None else DEFAULT_CACHE,
    )


def serve_cache(peer: Peer, message: CachePut | CacheGet, scope: CacheScope, fill: Callable[[bytes], None]) -> None:
    name = cache_name(scope.tenant, scope.namespace, scope.cache)
    number, create, document = peer.next_id(), peer.settings.create, peer.document
    request: requests.Request
    if isinstance(message, CachePut):
        ttl = message.ttl_ms if message.ttl_ms is None or message.ttl_ms <= LONGEST_TTL_MS else None
        durable = peer.settings.durable_cache
        request = requests.CachePut(number, name, message.key, message.value, ttl, create, durable)
    else:
        request = requests.CacheGet(number, name, message.key, create)

    def done(outcome: Outcome, _: float) -> None:
        match outcome:
            case GatewayError():
                missing = cache_not_found(scope.tenant, scope.namespace, scope.cache)
                fill(
                    replies.cache_error(
                        text_of(outcome, missing, document=document), message.request_id, document=document
                    )
                )
            case requests.CacheValue(value=value):
                fill(
                    replies.cache_value(
                        scope.tenant,
                        scope.namespace,
                        scope.cache,
                        message.key,
                        value,
                        message.request_id,
                        document=document,
                    )
                )
            case _:
                fill(replies.cache_ok(message.request_id, document=document))

    peer.ask(request, done)
