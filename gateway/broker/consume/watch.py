"""Who wants to know when a topic grows, or goes away."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from gateway.broker.timers import Pump
from gateway.store.interface import Store


class Watchers:
    """Callbacks per topic. They run in the pump's next pass: once, however many commits there were until then."""

    def __init__(self, pump: Pump, store: Store) -> None:
        self._pump = pump
        self._store = store
        self._topics: dict[str, dict[object, Callable[[], None]]] = {}

    def add(self, topic: str, key: object, callback: Callable[[], None]) -> None:
        watching = self._topics.get(topic)
        if watching is None:
            watching = self._topics[topic] = {}
            self._store.watch(topic)
        watching[key] = callback

    def remove(self, topic: str, key: object) -> None:
        watching = self._topics.get(topic)
        if watching is not None and watching.pop(key, None) is not None and not watching:
            del self._topics[topic]
            self._store.unwatch(topic)

    def changed(self, pairs: Iterable[tuple[str, int]]) -> None:
        for topic, _partition in pairs:
            watching = self._topics.get(topic)
            if watching:
                # one call for all of them: to note each would come before the answer to whoever published
                self._pump.later(topic, functools.partial(self._tell, topic))

    def _tell(self, topic: str) -> None:
        for callback in list(self._topics.get(topic, {}).values()):
            callback()
