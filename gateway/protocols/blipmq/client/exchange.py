"""What the client side has asked for and how it is answered (wire 7.2).

Nothing in this protocol says that a POLL was empty or a PUBLISH taken, so every request is a *bracket*: its frames, then a
PING with a cid of its own. Servers answer in order, so what comes before that PONG belongs to the first bracket that
waits, and the PONG ends it. SUBSCRIBE has an ACK of its own and needs no PING.

A Take that finds nothing and may wait is *idle* until the next round. If it is alone on the connection, it leaves a single
POLL open meanwhile: a server that holds empty POLLs answers it at once, and the others are not asked in a tight loop.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence

import attrs

from gateway.envelope import BatchMeta, Columns, Delivery, Origin, Run
from gateway.errors import (
    GatewayError,
    TargetLost,
    TargetRefused,
    TooLarge,
    UnknownSubscription,
    Unsupported,
    WireError,
)
from gateway.protocols.blipmq.wire import codec, mapping
from gateway.protocols.blipmq.wire.frames import LARGEST_PUBLISH, FrameType
from gateway.requests import (
    DONE,
    Cancel,
    Completion,
    Delivered,
    Outcome,
    Publish,
    Published,
    Request,
    Resume,
    Settle,
    Settled,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.wire.session import Buffer, Completions

MOST_POLLS = 256
"""POLLs in one bracket."""

FIRST_POLLS = 16
"""POLLs in a bracket while nothing is known of how large the messages are: each may be answered with 16 MiB."""

MOST_HELD = 256 << 20
"""Bytes of deliveries that wait for the end of their bracket. A broker that sends more is left; on the next connection it
is asked with `FIRST_POLLS` again, which stay below this whatever their size.
"""

ROUND = 0.02
"""Seconds between two looks of an idle Take: less than servers hold a POLL, more than a tight loop."""

LOCAL_TAG = 1 << 63
"""Tags from here on are ours, for deliveries of QoS 0: nobody on the wire waits for their ACK. Servers count from 1."""


@attrs.frozen
class _Message:
    """A delivery as it came."""

    cid: int
    qos: int
    topic: str
    value: bytes


@attrs.define(eq=False)
class _Bracket:
    """A request under way, from its first frame to the PONG that ends it."""

    request: Publish | Subscribe | Take | Settle
    cid: int = 0
    """Of its first frame; a Publish counts on from here."""
    ping: int | None = None
    """The cid of the PONG that ends it; None for SUBSCRIBE, and while its only POLL is left open."""
    polls: int = 0
    refused: dict[int, GatewayError] = attrs.Factory(dict)
    """Members of a Publish that never left."""
    nacks: list[tuple[int, TargetRefused]] = attrs.Factory(list)
    messages: list[_Message] = attrs.Factory(list)
    cancelled: bool = False

    @property
    def most_nacks(self) -> int:
        """How many there may be: one for each of its frames."""
        if isinstance(self.request, Publish):
            return self.request.batch.columns.count
        return len(self.request.tags) if isinstance(self.request, Settle) else self.polls


class Exchange:
    def __init__(self, cids: Iterator[int]) -> None:
        self._cids = cids
        self.out: list[Buffer] = []
        """Bytes that are to be sent."""
        self._local_tag = LOCAL_TAG
        self._brackets: deque[_Bracket] = deque()
        self._idle: list[_Bracket] = []
        """Takes that found nothing and wait for the next round."""
        self.round_at: float | None = None
        """When the idle Takes look again."""
        self._subscriptions: dict[int, tuple[str, bool]] = {}
        self._unanswered = 0
        """POLLs that a PONG overtook: a server that holds them may still answer (wire 7.1)."""
        self._late: list[_Message] = []
        self._held = 0
        """Bytes of deliveries nobody was given yet."""
        self._largest = 0
        """Bytes of the largest message that was taken last."""

    def __len__(self) -> int:
        return len(self._brackets) + len(self._idle)

    def start(self, request: Request) -> Completions:
        match request:
            case Publish():
                return self._publish(request)
            case Subscribe():
                return self._subscribe(request)
            case Take():
                return self._take(request)
            case Settle():
                return self._settle(request)
            case Cancel():
                return self._cancel(request)
            case Resume():  # any connection may poll it, and the broker keeps silent about one that is gone (wire 1.3, 2)
                self._subscriptions[request.subscription] = (request.address, True)
                return ((request.id, Subscribed(request.subscription, request.address)),)
            case Unsubscribe():
                # there is no frame for it; the broker forgets the subscription in its time
                self._subscriptions.pop(request.subscription, None)
                return ((request.id, DONE),)
            case _:
                return ((request.id, Unsupported(f"BlipMQ has no {type(request).__name__}")),)

    def round(self, now: float) -> None:
        if self.round_at is None or now < self.round_at:
            return
        self._end_open_poll()
        idle, self._idle = self._idle, []
        for bracket in idle:
            self._poll(bracket)

    def finish(self) -> Completions:
        """Waiting Takes end; what is under way will still be answered."""
        completions = [(bracket.request.id, Taken(())) for bracket in self._idle]
        self._idle.clear()
        self._end_open_poll()
        for bracket in self._brackets:
            bracket.cancelled = True
        return completions

    def fail(self, error: GatewayError) -> Completions:
        completions = [(bracket.request.id, error) for bracket in (*self._brackets, *self._idle)]
        self._brackets.clear()
        self._idle.clear()
        self.round_at = None
        return completions

    def answer(self, kind: FrameType, cid: int, data: bytes, start: int, end: int, now: float) -> Completions:
        """A frame of the broker's; its payload is data[start:end]."""
        head = self._brackets[0] if self._brackets else None
        if kind is FrameType.PUBLISH:
            qos, topic, begin = codec.decode_publish(data, start, end)
            return self._message(head, _Message(cid, qos, topic, data[begin:end]))
        if kind is FrameType.PONG and head is not None and head.ping == cid:
            self._brackets.popleft()
            return self._ended(head, now)
        if kind is FrameType.ACK and head is not None and isinstance(head.request, Subscribe):
            self._brackets.popleft()
            subscription = codec.decode_ack(data, start, end)
            self._subscriptions[subscription] = (head.request.address, head.request.acknowledge)
            return ((head.request.id, Subscribed(subscription, head.request.address)),)
        if kind is FrameType.NACK and head is not None:
            refusal = codec.decode_nack(data, start, end)
            error = mapping.upstream_error(refusal.code, refusal.text)
            if not isinstance(head.request, Subscribe):
                if len(head.nacks) >= head.most_nacks:
                    raise WireError("more NACKs than there was anything to refuse")
                head.nacks.append((cid, error))
                return ()
            self._brackets.popleft()
            return ((head.request.id, error),)
        raise WireError(f"{kind.name} with cid {cid} answers nothing")

    def _publish(self, request: Publish) -> Completions:
        if request.transaction or request.deliver_at_ms or request.schema:
            return ((request.id, Unsupported("BlipMQ has no transactions, delays or schemas")),)
        self._end_open_poll()
        batch, columns = request.batch, request.batch.columns
        room = LARGEST_PUBLISH - len(batch.address.encode())
        cids = list(itertools.islice(self._cids, columns.count))
        bracket = _Bracket(request, cids[0] if cids else 0)
        if len(columns.packed) > room:
            for index in range(columns.count):
                if (size := columns.size_of(index)) > room:
                    bracket.refused[index] = TooLarge(f"a message of {size} bytes does not fit a BlipMQ frame")
        if bracket.refused:
            kept = [index for index in range(columns.count) if index not in bracket.refused]
            cids, columns = [cids[index] for index in kept], columns.pick(kept)
        if cids:
            self.out.append(codec.publishes(codec.cids_of(cids), int(batch.delivery), batch.address, columns))
        self._brackets.append(bracket)
        self._ping(bracket)
        return ()

    def _subscribe(self, request: Subscribe) -> Completions:
        if request.start is not Start.LATEST:
            return ((request.id, Unsupported("a BlipMQ subscription begins with what is published next")),)
        self._end_open_poll()
        bracket = _Bracket(request, next(self._cids))
        self.out.append(codec.subscribe(bracket.cid, request.address, int(request.acknowledge)))
        self._brackets.append(bracket)
        return ()

    def _take(self, request: Take) -> Completions:
        if request.subscription not in self._subscriptions:
            return ((request.id, UnknownSubscription()),)
        address, _ = self._subscriptions[request.subscription]
        late = [message for message in self._late if message.topic == address]
        if late:
            self._late = [message for message in self._late if message.topic != address]
            self._given(late)
            return ((request.id, self._taken(request, late)),)
        self._end_open_poll()
        self._poll(_Bracket(request))
        return ()

    def _settle(self, request: Settle) -> Completions:
        tags = [tag for tag in request.tags if tag < LOCAL_TAG] if request.accepted else []
        if not tags:  # there is no way to give a message back: the broker delivers it again by itself (wire 1.4)
            return ((request.id, Settled([None] * len(request.tags))),)
        self._end_open_poll()
        self.out += [codec.ack(tag, request.subscription) for tag in tags]
        bracket = _Bracket(request)
        self._brackets.append(bracket)
        self._ping(bracket)
        return ()

    def _cancel(self, request: Cancel) -> Completions:
        completions: list[Completion] = [(request.id, DONE)]
        for bracket in self._idle:
            if bracket.request.id == request.request:
                self._idle.remove(bracket)
                return ((bracket.request.id, Taken(())), *completions)
        for bracket in self._brackets:
            if bracket.request.id == request.request:
                bracket.cancelled = True
                if bracket.polls and bracket.ping is None:
                    self._end_open_poll()
        return completions

    def _poll(self, bracket: _Bracket, *, left_open: bool = False) -> None:
        assert isinstance(bracket.request, Take)
        known = bracket.request.max_bytes // self._largest if self._largest else FIRST_POLLS
        bracket.polls = 1 if left_open else min(bracket.request.max_messages, MOST_POLLS, max(1, known))
        bracket.ping = None
        self.out += [codec.poll(next(self._cids), bracket.request.subscription) for _ in range(bracket.polls)]
        self._brackets.append(bracket)
        if not left_open:
            self._ping(bracket)

    def _ping(self, bracket: _Bracket) -> None:
        bracket.ping = next(self._cids)
        self.out.append(codec.ping(bracket.ping))

    def _end_open_poll(self) -> None:
        # an open POLL is always the last thing sent: whatever follows has to stand behind its PING
        self.round_at = None
        if self._brackets and self._brackets[-1].polls and self._brackets[-1].ping is None:
            self._ping(self._brackets[-1])

    def _rest(self, bracket: _Bracket, now: float) -> None:
        # a Take that found nothing waits for the next round
        if self.round_at is None:
            self.round_at = now + ROUND
        if self._brackets or self._idle:
            self._idle.append(bracket)
        else:
            self._poll(bracket, left_open=True)

    def _message(self, head: _Bracket | None, message: _Message) -> Completions:
        if head is None or not isinstance(head.request, Take) or len(head.messages) >= head.polls:
            if not self._unanswered:
                raise WireError("a delivery without a POLL")
            self._unanswered -= 1
            if any(message.topic == address for address, _ in self._subscriptions.values()):
                self._hold(message)
                self._late.append(message)
            return ()
        self._hold(message)
        head.messages.append(message)
        if head.ping is not None:
            return ()
        self._brackets.popleft()  # the open POLL is answered; there is nothing to wait for
        self.round_at = None
        self._given(head.messages)
        return ((head.request.id, self._taken(head.request, head.messages)),)

    def _hold(self, message: _Message) -> None:
        self._held += len(message.value)
        if self._held > MOST_HELD:
            raise WireError(f"more than {MOST_HELD >> 20} MiB of deliveries at once")

    def _given(self, messages: Sequence[_Message]) -> None:
        sizes = [len(message.value) for message in messages]
        self._held -= sum(sizes)
        if sizes:
            self._largest = max(*sizes, 1)

    def _ended(self, bracket: _Bracket, now: float) -> Completions:
        request = bracket.request
        outcome: Outcome
        match request:
            case Publish():
                outcome = self._published(request, bracket)
            case Settle():
                refused = dict(bracket.nacks)
                outcome = Settled([refused.get(tag) for tag in request.tags])
            case Take():
                self._unanswered += bracket.polls - len(bracket.messages)
                self._given(bracket.messages)
                if not bracket.messages and not bracket.nacks and not bracket.cancelled and _waits(request, now):
                    self._rest(bracket, now)
                    return ()
                refuses = bracket.nacks and not bracket.messages
                outcome = bracket.nacks[0][1] if refuses else self._taken(request, bracket.messages)
            case Subscribe():
                outcome = TargetLost("a SUBSCRIBE was answered with a PONG")
        return ((request.id, outcome),)

    def _published(self, request: Publish, bracket: _Bracket) -> Outcome:
        # PONG without a NACK that carries the PUBLISH's cid = accepted (wire 7.2)
        count = request.batch.columns.count
        for cid, error in bracket.nacks:
            if 0 <= cid - bracket.cid < count:
                bracket.refused[cid - bracket.cid] = error
        if count and len(bracket.refused) == count:
            return bracket.refused[0]
        return Published(request.batch.address, 0, refused=bracket.refused)

    def _taken(self, request: Take, messages: Sequence[_Message]) -> Taken:
        # runs of consecutive tags and one qos; QoS 0 gets tags of our own
        address, acknowledge = self._subscriptions.get(request.subscription, ("", False))
        deliveries: list[Delivered] = []
        start = 0
        for index in range(1, len(messages) + 1):
            if index < len(messages) and _follows(messages[index - 1], messages[index]):
                continue
            first = messages[start]
            values = [message.value for message in messages[start:index]]
            tag = first.cid
            if not first.qos:
                tag = self._local_tag
                self._local_tag += len(values)
            meta = BatchMeta(b"", Origin("blipmq", ""), delivery=Delivery(first.qos))
            run = Run(first.topic, 0, 0, Columns.of(values), [0] * len(values), [(0, 0, meta)])
            deliveries.append(Delivered(run, tag))
            start = index
        return Taken(deliveries, address=address, acknowledge=acknowledge)


def _waits(request: Take, now: float) -> bool:
    return request.hold_until is not None and now < request.hold_until


def _follows(before: _Message, message: _Message) -> bool:
    return message.qos == before.qos and (not message.qos or message.cid == before.cid + 1)
