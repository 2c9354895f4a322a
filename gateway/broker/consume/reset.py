"""Where a reader is to be put on a topic, by offset, time or end: of groups, and of durable consumers.

For any store that is open, served or not.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import InvalidRequest, OffsetOutOfRange, UnknownPartition, UnknownTopic
from gateway.requests import PositionReset, ResetTo
from gateway.store.interface import Store, TopicState

PATIENCE = 10.0
"""Seconds for what is under way to end, and for what is known to be written."""


def topic_of(store: Store, asked: PositionReset) -> TopicState:
    """The topic, which has the partition that is asked for. Raises UnknownTopic or UnknownPartition."""
    state = store.topics.get(asked.topic)
    if state is None:
        raise UnknownTopic(f"there is no topic {asked.topic}")
    if asked.partition is not None and not 0 <= asked.partition < len(state.partitions):
        raise UnknownPartition(f"{asked.topic} has no partition {asked.partition}")
    return state


async def targets_of(store: Store, state: TopicState, asked: PositionReset) -> Mapping[int, int]:
    """By partition, the offset to be read next. Raises InvalidRequest or OffsetOutOfRange."""
    found: dict[int, int] = {}
    for number in range(len(state.partitions)) if asked.partition is None else (asked.partition,):
        one = state.partitions[number]
        match asked.to:
            case ResetTo.EARLIEST:
                found[number] = one.start
            case ResetTo.LATEST:
                found[number] = one.end
            case ResetTo.TIME:
                found[number] = await store.offset_for_time(asked.topic, number, asked.value)
            case ResetTo.OFFSET:
                if asked.partition is None and len(state.partitions) > 1:
                    raise InvalidRequest(f"{asked.topic} has {len(state.partitions)} partitions: say of which")
                if not one.start <= asked.value <= one.end:
                    raise OffsetOutOfRange(first=one.start, next_offset=one.end)
                found[number] = asked.value
    return found
