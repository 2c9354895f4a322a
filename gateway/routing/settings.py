"""What the configuration says about a topic, by the topic's name alone: whoever creates it, its settings are the same.

Apart from the table, which knows addresses: here are topics, whatever way led to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway import model
from gateway.routing.compiled import CompiledRoute
from gateway.routing.glob import glob
from gateway.store.interface import TopicConfig

CACHED = 65_536
"""Topics remembered; the oldest makes room."""


class TopicRules:
    """The first `store` template in the file that can produce a name decides; then the globs under `topics`; then the
    storage's defaults.
    """

    def __init__(self, config: model.Config, routes: Sequence[CompiledRoute]) -> None:
        self._templates = [(topic, target.settings) for route in routes for topic, target in route.stores]
        self._globs = [(glob(text), settings) for text, settings in config.topics.items()]
        self._default = config.storage.durability
        self._known: dict[str, tuple[TopicConfig, bool]] = {}
        settings = [*(one for _template, one in self._templates), *config.topics.values()]
        self.has_schemas = any(one.schema for one in settings)
        """Whether the configuration gives any topic a schema."""

    def config(self, topic: str) -> TopicConfig:
        return self._lookup(topic)[0]

    def decides_partitions(self, topic: str) -> bool:
        return self._lookup(topic)[1]

    def _lookup(self, topic: str) -> tuple[TopicConfig, bool]:
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= CACHED:
                del self._known[next(iter(self._known))]
            found = self._known[topic] = self._work_out(topic)
        return found

    def _work_out(self, topic: str) -> tuple[TopicConfig, bool]:
        said = [settings for template, settings in self._templates if template.invert(topic) is not None][:1]
        said.extend(settings for pattern, settings in self._globs if pattern.match(topic) is not None)
        partitions = next((s.partitions for s in said if s.partitions is not None), None)
        retention = next((s.retention for s in said if s.retention is not None), None) or model.Retention()
        durability = next((s.durability for s in said if s.durability is not None), None) or self._default
        config = TopicConfig(
            partitions=partitions or 1,
            durability=durability.kind,
            interval=durability.interval,
            retention_seconds=None if retention.time is None or math.isinf(retention.time) else retention.time,
            retention_bytes=retention.bytes,
            schema=next((s.schema for s in said if s.schema is not None), None) or "",
        )
        return config, partitions is not None
