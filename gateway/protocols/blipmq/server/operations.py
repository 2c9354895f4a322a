"""What each BlipMQ frame asks for and how it is answered (BlipMQ document; wire 1.2, 1.3).

Each frame that may have a reply takes a slot; the reply leaves when its turn comes. A successful PUBLISH or ACK has no
reply; its empty slot still holds its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import attrs
import msgspec

from gateway.envelope import Batch, Columns, Delivery
from gateway.errors import GatewayError, Status
from gateway.protocols.blipmq.server.polls import Polls
from gateway.protocols.blipmq.settings import BlipmqSettings
from gateway.protocols.blipmq.states import TABLE, Event, State
from gateway.protocols.blipmq.wire import codec, mapping
from gateway.protocols.blipmq.wire.codec import CID, PollRun, PublishRun
from gateway.protocols.blipmq.wire.frames import HEAD, LARGEST_PUBLISH, VERSION, FrameType
from gateway.requests import (
    Authenticate,
    Outcome,
    Publish,
    Published,
    Redelivery,
    Request,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    Take,
)
from gateway.wire.machine import Machine
from gateway.wire.ordering import ReplyQueue
from gateway.wire.session import Buffer, Requests, SessionContext


class Frame(msgspec.Struct, frozen=True):
    """A frame where it lies: its payload is data[start:end]."""

    data: bytes
    cid: int
    start: int
    end: int
    now: float


@attrs.define(eq=False)
class _Acks:
    """ACKs of one subscription that stand next to each other in one read: one Settle, one slot."""

    slot: int
    subscription: int
    tags: list[int]

    def joins(self, subscription: int, last_slot: int) -> bool:
        """Whether another ACK may still be added: nothing stands between."""
        return self.subscription == subscription and self.slot == last_slot


class Operations:
    """The requests of one connection and the replies they lead to."""

    def __init__(self, context: SessionContext) -> None:
        self._settings: BlipmqSettings = context.settings
        self._auth_required = context.auth_required
        self.machine = Machine(TABLE, State.NEW)
        self._ids = itertools.count(1)
        self._replies = ReplyQueue()
        self._waiting: dict[int, Callable[[Outcome], Requests]] = {}
        self.polls = Polls(self._replies, self._ids)
        self._acks: _Acks | None = None
        """The ACKs at the end of what is being parsed; None once they have been handed to the broker."""

    @property
    def in_flight(self) -> int:
        polls = self.polls.count if self.polls.groups else 0
        return max(len(self._waiting), len(self._replies.slots)) + polls

    def handle(self, kind: FrameType, frame: Frame) -> Requests:
        return self._handlers[kind](self, frame)

    def lone(self, data: bytes, now: float) -> Requests | None:
        """What is asked for by one POLL or ACK that came alone, and nothing is under way before it: as `handle` and `advance`
        would say, in one step, which is the whole way of a client that takes message after message. None: it is not so.
        """
        if self._replies.slots or self.polls.groups:
            return None
        kind, cid, subscription = codec.decode_lone(data)
        if kind == FrameType.ACK:
            tags = [cid]
            settle = Settle(next(self._ids), subscription, tags)
            self._waiting[settle.id] = partial(self._settled, self._replies.take(), tags)
            return (settle,)
        if kind == FrameType.POLL:
            self.polls.add(subscription, data[CID:HEAD], now + self._settings.poll_hold)
            take = self.advance(now, stalled=False)
            return (take,) if take is not None else ()
        return None

    def complete(self, request_id: int, outcome: Outcome) -> Requests:
        # A request ended. Nobody waits for a Cancel, nor for the Settle of a QoS 0 delivery.
        ended = self._waiting.pop(request_id, None)
        return ended(outcome) if ended is not None else ()

    def reply(self, data: bytes) -> None:
        replies, polls = self._replies, self.polls
        replies.put(data)
        if polls.impatient < (slot := replies.last):
            polls.impatient = slot

    def release(self, out: list[Buffer]) -> None:
        out += self._replies.ready()
        if self.polls.groups:
            self.polls.release(out)

    def handed_over(self) -> None:
        """What was parsed goes to the broker: no ACK can join it any more."""
        self._acks = None

    def advance(self, now: float, *, stalled: bool) -> Request | None:
        """Move the POLLs on as far as the replies before them allow; what to ask the broker for that."""
        request = self.polls.advance(now, stalled=stalled) if self.polls.groups else None
        if isinstance(request, Take):
            self._waiting[request.id] = self.polls.taken
        return request

    def _hello(self, frame: Frame) -> Requests:
        version = codec.decode_hello(frame.data, frame.start, frame.end)
        if version != VERSION:
            self.reply(codec.nack(frame.cid, mapping.HELLO_VERSION))
        else:
            self.machine.step(Event.HELLO)
            self.reply(codec.ack(frame.cid, 0))
        return ()

    def _auth(self, frame: Frame) -> Requests:
        key = codec.decode_auth(frame.data, frame.start, frame.end)
        self.machine.step(Event.AUTH)
        if not self._auth_required:
            self.machine.step(Event.ACCEPTED)
            self.reply(codec.ack(frame.cid, 0))
            return ()
        request = Authenticate(next(self._ids), api_key=key)
        self._waiting[request.id] = partial(self._authenticated, self._replies.take(), frame.cid)
        return (request,)

    def _authenticated(self, slot: int, cid: int, outcome: Outcome) -> Requests:
        if not isinstance(outcome, GatewayError):
            self.machine.step(Event.ACCEPTED)
            self._fill(slot, codec.ack(cid, 0))
        else:
            self.machine.step(Event.REJECTED)
            wrong = outcome.status in (Status.UNAUTHENTICATED, Status.DENIED)
            self._fill(slot, codec.nack(cid, mapping.AUTH_WRONG if wrong else mapping.refusal(outcome)))
        return ()

    def publish(self, run: PublishRun) -> Publish:
        """A run of PUBLISH frames: one batch, one slot."""
        request = Publish(
            next(self._ids),
            Batch(run.topic, Columns.of(run.messages), Delivery.AT_LEAST_ONCE if run.qos else Delivery.AT_MOST_ONCE),
        )
        self._waiting[request.id] = partial(self._published, self._replies.take(), run.cids)
        return request

    def poll(self, run: PollRun, now: float) -> None:
        self.polls.add(run.subscription, run.cids, now + self._settings.poll_hold)

    def _published(self, slot: int, cids: bytes, outcome: Outcome) -> Requests:
        # no frame at all for what was taken (wire 1.3)
        replies: list[bytes] = []
        if isinstance(outcome, GatewayError):
            refusal = mapping.publish_refusal(outcome)
            replies = [codec.nack(int.from_bytes(cids[at : at + 8]), refusal) for at in range(0, len(cids), 8)]
        elif isinstance(outcome, Published):
            if not outcome.refused:  # as nearly always
                self._replies.fill(slot, b"")
                return ()
            replies = [
                codec.nack(int.from_bytes(cids[8 * index : 8 * index + 8]), mapping.publish_refusal(error))
                for index, error in sorted(outcome.refused.items())
            ]
        self._fill(slot, b"".join(replies))
        return ()

    def _subscribe(self, frame: Frame) -> Requests:
        topic, qos = codec.decode_subscribe(frame.data, frame.start, frame.end)
        backoff = self._settings.backoff
        request = Subscribe(
            next(self._ids),
            topic,
            acknowledge=qos == 1,
            redelivery=Redelivery(self._settings.max_deliveries, backoff.first, backoff.longest),
            durable_grace=self._settings.grace,
            largest_value=LARGEST_PUBLISH - len(topic.encode()),
        )
        slot = self._replies.take()
        self.polls.impatient = max(self.polls.impatient, slot)
        self._waiting[request.id] = partial(self._subscribed, slot, frame.cid)
        return (request,)

    def _subscribed(self, slot: int, cid: int, outcome: Outcome) -> Requests:
        if isinstance(outcome, Subscribed):
            self._fill(slot, codec.ack(cid, outcome.subscription))
        elif isinstance(outcome, GatewayError):
            self._fill(slot, codec.nack(cid, mapping.refusal(outcome)))
        return ()

    def _ack(self, frame: Frame) -> Requests:
        subscription = codec.decode_subscription(frame.data, frame.start, frame.end, mapping.ACK_INVALID)
        if self._acks is not None and self._acks.joins(subscription, self._replies.last):
            self._acks.tags.append(frame.cid)
            return ()
        self._acks = acks = _Acks(self._replies.take(), subscription, [frame.cid])
        request = Settle(next(self._ids), subscription, acks.tags)
        self._waiting[request.id] = partial(self._settled, acks.slot, acks.tags)
        return (request,)

    def _settled(self, slot: int, tags: Sequence[int], outcome: Outcome) -> Requests:
        results = outcome.results if isinstance(outcome, Settled) else [outcome] * len(tags)
        if not any(results):  # as nearly always
            self._replies.fill(slot, b"")
            return ()
        refused = [
            codec.nack(tag, mapping.UNKNOWN_TAG if error.status is Status.NOT_FOUND else mapping.refusal(error))
            for tag, error in zip(tags, results, strict=True)
            if isinstance(error, GatewayError)
        ]
        self._fill(slot, b"".join(refused))
        return ()

    def _ignored(self, frame: Frame) -> Requests:
        # PONG and NACK are a server's; from a client they are never looked at (wire 1.1)
        return ()

    def _fill(self, slot: int, data: bytes) -> None:
        self._replies.fill(slot, data)
        if data:
            self.polls.impatient = max(self.polls.impatient, slot)

    _handlers: ClassVar[Mapping[FrameType, Callable[[Operations, Frame], Requests]]] = {
        FrameType.HELLO: _hello,
        FrameType.AUTH: _auth,
        FrameType.SUBSCRIBE: _subscribe,
        FrameType.ACK: _ack,
        FrameType.NACK: _ignored,
        FrameType.PONG: _ignored,
    }
