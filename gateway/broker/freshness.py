"""Where others write to the same log, what is known of a topic may be old: before a request that would notice is served, the
store is asked. One that is followed, because somebody waits for it, is known as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.broker.administration.topics import TopicService
from gateway.broker.service import Caller, Handler, StartJob
from gateway.errors import GatewayError
from gateway.requests import (
    CreateTopic,
    DeleteTopic,
    DescribeTopics,
    Fetch,
    JoinGroup,
    OffsetForTime,
    ReadOffset,
    Request,
    Subscribe,
)
from gateway.store.interface import Store

NOTICES = frozenset({CreateTopic, DeleteTopic, DescribeTopics, Fetch, JoinGroup, OffsetForTime, ReadOffset, Subscribe})
"""Requests whose answer depends on whether there is a topic, or on where it ends."""


class Freshness:
    def __init__(self, store: Store, topics: TopicService, start_soon: StartJob) -> None:
        self._store = store
        self._topics = topics
        self._start_soon = start_soon

    def first(
        self, caller: Caller, request: Request, then: Callable[[Handler, Any, Request], None], handler: Handler
    ) -> bool:
        """Whether the store has to be asked; `then` is called when it has answered."""
        if type(request) not in NOTICES:
            return False
        try:
            topic = self._topics.name(caller, getattr(request, "address", ""))
        except GatewayError:
            return False  # whoever serves it says why
        store = self._store
        state = store.topics.get(topic)
        if state is not None and isinstance(request, Fetch) and 0 <= request.partition < len(state.partitions):
            partition = state.partitions[request.partition]
            if partition.start <= request.offset < partition.end:
                return False
        if store.current(topic):
            return False

        async def ask() -> None:
            await store.refresh(topic)
            then(handler, caller, request)

        self._start_soon(caller, request, ask)
        return True
