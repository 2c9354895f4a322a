"""The POLLs of one connection that are not answered yet (BlipMQ document, POLL; wire 1.3, 1.4, 7.1).

POLLs of one subscription that stand next to each other are served together: one slot among the replies, one Take at a
time. Only the first group is worked on, as a server that handles frame after frame would.

A POLL that finds nothing is held for a while. It never holds up anybody: as soon as a reply waits behind it, it is given
up, and the peer sees what it would have seen from a server that answers at once: nothing.

Apart from the operations, which are answered at once: a poll waits, and several of them share a reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from gateway.envelope import PREFIX, Delivery, Run
from gateway.errors import GatewayError, Status
from gateway.protocols.blipmq.wire import codec, mapping
from gateway.protocols.blipmq.wire.codec import CID_BYTES
from gateway.requests import Cancel, Outcome, Request, Settle, Take, Taken
from gateway.wire.ordering import Pieces, ReplyQueue
from gateway.wire.session import Buffer

TAKE_MESSAGES = 1024
TAKE_BYTES = 1 << 20
"""One Take serves this many POLLs at most, so that what it returns is bounded however many were pipelined."""


@attrs.define(eq=False)
class _Group:
    """Neighbouring POLLs of one subscription."""

    slot: int
    subscription: int
    cids: bytes
    hold_until: float
    parts: list[Buffer] = attrs.Factory(list)
    """Deliveries that wait for the slot's turn."""
    take: int = 0
    """The Take under way, 0 for none."""
    asked: int = 0
    """How many of the POLLs it is for."""
    held: bool = False


class Polls:
    """All groups of a connection, in the order of their slots."""

    def __init__(self, replies: ReplyQueue, ids: Iterator[int]) -> None:
        self._replies = replies
        self._ids = ids
        self.groups: list[_Group] = []
        self.impatient: float = -1
        """The last slot that has, or is sure to have, a reply: POLLs before it are not held."""

    @property
    def count(self) -> int:
        return sum([len(group.cids) for group in self.groups]) // CID_BYTES

    def add(self, subscription: int, cids: bytes, hold_until: float) -> None:
        last = self.groups[-1] if self.groups else None
        if last is not None and last.subscription == subscription and last.slot == self._replies.last:
            last.cids += cids
            last.hold_until = hold_until
            return
        slot = self._replies.take()
        self.groups.append(_Group(slot, subscription, cids, hold_until))
        if last is not None:  # another subscription's turn must not wait for the first one's hold
            self.impatient = max(self.impatient, slot)

    def release(self, out: list[Buffer]) -> None:
        """Move the first group's deliveries to `out` once it is their turn."""
        group = self.groups[0] if self.groups else None
        if group is not None and group.parts and group.slot == self._replies.head:
            out += group.parts
            group.parts.clear()

    def advance(self, now: float, *, stalled: bool) -> Request | None:
        """Work on the first group: start its next Take, or give up the one that is held, as far as the replies before it
        and the peer's reading allow.
        """
        if not self.groups:
            return None
        group = self.groups[0]
        if group.take:
            if group.held and self.impatient > group.slot and group.slot == self._replies.head:
                group.held = False
                return Cancel(next(self._ids), group.take)
            return None
        if stalled or group.parts:
            return None
        group.held = self.impatient <= group.slot and now < group.hold_until
        group.take = next(self._ids)
        group.asked = min(len(group.cids) // CID_BYTES, TAKE_MESSAGES)
        hold_until = group.hold_until if group.held else None
        return Take(group.take, group.subscription, group.asked, TAKE_BYTES, hold_until, at_most_once_settled=True)

    def taken(self, outcome: Outcome) -> Sequence[Request]:
        group = self.groups[0]
        group.take = 0
        requests: Sequence[Request] = ()
        if isinstance(outcome, Taken) and outcome.deliveries:
            requests = self._deliver(group, outcome)
        else:
            # nothing is there, or nobody knows the id: no frame (wire 1.3); what cannot be read says so
            cids, group.cids = group.cids[:CID_BYTES], group.cids[group.asked * CID_BYTES :]
            if isinstance(outcome, GatewayError) and outcome.status not in (Status.NOT_FOUND, Status.SHUTTING_DOWN):
                group.parts.append(codec.nack(int.from_bytes(cids), mapping.refusal(outcome)))
        if not group.cids:
            del self.groups[0]
            parts = group.parts
            if len(parts) == 1 and isinstance(only := parts[0], bytes):  # of who takes message after message
                self._replies.fill(group.slot, only)
            else:
                self._replies.fill(group.slot, Pieces(parts, sum(map(len, parts))))
        return requests

    def give_up(self) -> Sequence[Request]:
        # the connection is gone: what a held Take would get must not go to nobody
        take = self.groups[0].take if self.groups else 0
        return (Cancel(next(self._ids), take),) if take else ()

    def _deliver(self, group: _Group, taken: Taken) -> Sequence[Request]:
        # turn what was taken into PUBLISH frames: effective qos = min(subscription's, message's); at 1 the cid is the tag,
        # at 0 the POLL's cid (wire 1.4). Nobody will acknowledge what is delivered at 0: it is done once it is handed out
        # (wire 2), which whoever has the subscription is told unless he knows.
        settled: list[int] = []
        done = 0
        for delivered in taken.deliveries:
            run, tag = delivered.run, delivered.first_tag
            topic, columns = taken.address or run.topic, run.columns
            cids = group.cids[done : (done := done + columns.count * CID_BYTES)]
            if columns.count == 1:  # what is made for many would be half of the work for who takes one after the other
                at_once = run.batches[0][2].delivery is not Delivery.AT_LEAST_ONCE
                value = columns.packed[PREFIX:]
                if taken.acknowledge and not at_once:
                    group.parts.append(codec.publish(tag, 1, topic, value))
                else:
                    group.parts.append(codec.publish(int.from_bytes(cids), 0, topic, value))
                    if taken.acknowledge and not delivered.settled:
                        settled.append(tag)
                continue
            for first, stop, qos in _stretches(run, acknowledge=taken.acknowledge):
                if qos:
                    named = codec.cids_of(range(tag + first, tag + stop))
                else:
                    named = cids[first * CID_BYTES : stop * CID_BYTES]
                    if taken.acknowledge and not delivered.settled:
                        settled += range(tag + first, tag + stop)
                group.parts.append(codec.publishes(named, qos, topic, columns.slice(first, stop)))
        group.cids = group.cids[done:]
        return (Settle(next(self._ids), group.subscription, settled),) if settled else ()


def _stretches(run: Run, *, acknowledge: bool) -> Iterator[tuple[int, int, int]]:
    # (first, stop, qos) of what is delivered alike: the lower qos of the subscription's and the message's
    first, count = 0, run.columns.count
    if not acknowledge:
        yield first, count, 0
        return
    while first < count:
        stop = run.delivered_alike(first, count)
        yield first, stop, int(run.meta_of(first)[0].delivery is Delivery.AT_LEAST_ONCE)
        first = stop
