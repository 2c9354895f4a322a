"""Subscriptions: events pushed on a stream of ours each, as fast as that stream takes them and no faster."""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable, Hashable, Sequence

import msgspec

from gateway import requests
from gateway.envelope import Run
from gateway.errors import GatewayError, InvalidRequest, NotFound, OffsetOutOfRange, TooLarge
from gateway.protocols.felix.server.peer import Peer
from gateway.protocols.felix.states import FEEDS, FeedEvent, FeedState
from gateway.protocols.felix.wire.binary import Names, encode_events
from gateway.protocols.felix.wire.codec import At, Hello, Id, Subscribe, encode
from gateway.protocols.felix.wire.frames import (
    EVENTS,
    HEADER,
    MAGIC,
    MAX_PAYLOAD,
    OFFSETS,
    SHARED_EVENTS,
    UNADVERTISED,
    VERSION,
)
from gateway.requests import Outcome, Request
from gateway.wire.encodings import ENCODINGS
from gateway.wire.machine import Machine
from gateway.wire.session import Finish, Kind, Open, Reset, Send

MAX_FEEDS = 4096
"""Subscriptions of one connection (Felix wire 1.2)."""

FRAMES_PER_TAKE = 4
"""Frames of small events that one Take may fill: a stream is kept busy, and a slow one holds one frame's bytes at most."""

UNREAD_BYTES = 4 << 20
LEAST_PER_TAKE = 16 << 10
"""What one Take may bring is a share of this, so that a client with many subscriptions and no time to read them costs little:
nothing holds its other streams back meanwhile."""

BINARY_OVERHEAD = 24
"""Subscription, offset, count and length in front of a lone event."""


class Feeds:
    """All subscriptions of one connection, by the token of their stream."""

    def __init__(self) -> None:
        self._by_token: dict[int, Feed] = {}
        self._paused: list[tuple[float, Feed]] = []

    def __len__(self) -> int:
        return len(self._by_token)

    def get(self, token: int) -> Feed | None:
        return self._by_token.get(token)

    def tokens(self) -> Sequence[int]:
        return [token for token, feed in self._by_token.items() if feed.open]

    def add(self, feed: Feed) -> None:
        self._by_token[feed.token] = feed

    def remove(self, feed: Feed) -> None:
        self._by_token.pop(feed.token, None)

    def forget(self) -> None:
        for feed in self._by_token.values():
            feed.let_go()
        self._by_token.clear()
        self._paused.clear()

    def pause(self, feed: Feed, until: float) -> None:
        # Wake it then. All pauses are equally long, so the first one ends first.
        self._paused.append((until, feed))

    def due_at(self) -> float | None:
        return self._paused[0][0] if self._paused else None

    def wake(self, now: float) -> None:
        while self._paused and self._paused[0][0] <= now:
            self._paused.pop(0)[1].due()


def _nothing(_run: Run) -> Sequence[bytes]:
    return ()


class Feed:
    def __init__(self, peer: Peer, feeds: Feeds, names: Names, address: str, message: Subscribe) -> None:
        self.token = peer.next_token()
        self._peer = peer
        self._feeds = feeds
        self._names = names
        self._address = address
        self._message = message
        self._machine = Machine(FEEDS, FeedState.ASKED)
        self._number = 0
        self._encode: Callable[[Run], Sequence[bytes]] = self._encode_json
        self._form: Hashable = None
        """What names the form of its events, if others' may look the same."""
        self._with_offsets = False
        self._next_frame_at = 0.0

    @property
    def open(self) -> bool:
        return self._machine.state not in {FeedState.ASKED, FeedState.ENDED}

    @property
    def _replays(self) -> bool:
        # whether it begins in the past, which takes a topic of one partition: only there offsets mean something
        return self._message.start not in {None, "latest"}

    def begin(self, answer: Callable[[GatewayError | Id], None]) -> None:
        """Have it made. `answer` is told the id the client knows it by, or why there is none."""
        self._feeds.add(self)
        if not self._replays:
            self._subscribe(answer)
            return

        def found(outcome: Outcome, _: float) -> None:
            problem = _replay_problem(outcome, self._message.start)
            if problem is None:
                self._subscribe(answer)
            else:
                self._end()
                answer(problem)

        self._peer.ask(requests.DescribeTopics(self._peer.next_id(), self._address), found)

    def _subscribe(self, answer: Callable[[GatewayError | Id], None]) -> None:
        start: requests.Start | int = requests.Start.LATEST
        if isinstance(self._message.start, At):
            start = self._message.start.offset
        elif self._message.start == "earliest":
            start = requests.Start.EARLIEST
        self._choose_encoding()
        create, number = self._peer.settings.create, self._peer.next_id()
        request = requests.Subscribe(number, self._address, start=start, largest_value=self._largest(), create=create)

        def subscribed(outcome: Outcome, _: float) -> None:
            if isinstance(outcome, requests.Subscribed):
                self._begun(outcome, answer)
            else:
                self._end()
                answer(outcome if isinstance(outcome, GatewayError) else InvalidRequest("no subscription"))

        self._peer.ask(request, subscribed)

    def _begun(self, begun: requests.Subscribed, answer: Callable[[GatewayError | Id], None]) -> None:
        number = self._number = begun.subscription
        announced = bool((self._peer.flags or 0) & OFFSETS)
        if self._encode == self._encode_json:
            self._with_offsets = self._replays or (announced and begun.lasting_offsets)
        else:
            self._with_offsets = announced and (self._replays or begun.lasting_offsets)
        events = self._peer.settings.events
        looks = (self._with_offsets, events.count, events.bytes)
        if self._encode == self._encode_json:
            self._form = ("felix", self._names, self._peer.document, *looks)
        elif self._encode == self._encode_shared:
            self._form = ("felix", *looks)
        if self._machine.state is FeedState.ENDED:  # the client went while it was made
            self._unsubscribe()
            return
        chosen = self._message.subscription_id
        known_as: Id = chosen if chosen is not None else str(number) if self._peer.document else number
        self._peer.outputs.append(Open(self.token, Kind.WRITE_ONLY))
        self._peer.outputs.append(Send(self.token, encode(Hello(known_as))))
        answer(known_as)
        self._machine.step(FeedEvent.SUBSCRIBED)
        self._take()

    # --- the loop: one Take, its events, room for more ---

    def _take(self) -> None:
        events = self._peer.settings.events
        request: Request = requests.Take(
            self._peer.next_id(),
            self._number,
            max_messages=events.count * FRAMES_PER_TAKE,
            max_bytes=min(events.bytes, max(LEAST_PER_TAKE, UNREAD_BYTES // len(self._feeds))),
            hold_until=math.inf,
        )
        self._peer.ask(request, self._taken)

    def _taken(self, outcome: Outcome, now: float) -> None:
        if self._machine.state is FeedState.ENDED:
            return
        if not isinstance(outcome, requests.Taken):
            self._peer.outputs.append(Reset(self.token))
            self.stop()
            return
        frames = [frame for delivered in outcome.deliveries for frame in self._frames(delivered.run)]
        if frames:
            self._peer.outputs.append(Send(self.token, b"".join(frames), notify=True))
        if outcome.ended:
            self._peer.outputs.append(Finish(self.token))
            self._end()
        elif frames:
            events = self._peer.settings.events
            columns = [delivered.run.columns for delivered in outcome.deliveries]
            full = sum(c.count for c in columns) >= events.count or sum(len(c.packed) for c in columns) >= events.bytes
            self._next_frame_at = now if full else now + events.delay
            self._machine.step(FeedEvent.EVENTS)
        else:
            self._machine.step(FeedEvent.NOTHING)
            self._take()

    def _frames(self, run: Run) -> Sequence[bytes]:
        return self._encode(run) if self._form is None else ENCODINGS.of(run, self._form, self._encode)

    def room(self, now: float) -> None:
        if self._machine.state is not FeedState.SENDING:
            return
        if now < self._next_frame_at:
            self._machine.step(FeedEvent.EARLY)
            self._feeds.pause(self, self._next_frame_at)
        else:
            self._machine.step(FeedEvent.ROOM)
            self._take()

    def due(self) -> None:
        if self._machine.state is FeedState.PAUSED:
            self._machine.step(FeedEvent.DUE)
            self._take()

    def stop(self) -> None:
        # the client reads no more: STOP_SENDING is how it unsubscribes (Felix wire 2.2)
        if self._number and self._machine.state is not FeedState.ENDED:
            self._unsubscribe()
        self._end()

    def _unsubscribe(self) -> None:
        self._peer.ask(requests.Unsubscribe(self._peer.next_id(), self._number), lambda _outcome, _now: None)

    def _end(self) -> None:
        self._machine.step(FeedEvent.END)
        self._feeds.remove(self)
        self.let_go()

    def let_go(self) -> None:
        """There is nothing to be encoded any more. It refers to itself by this, which the collector alone would find."""
        self._encode = _nothing

    # --- what events look like ---

    def _choose_encoding(self) -> None:
        # Binary for a peer that showed it knows it, JSON for others (Felix wire section 0, row 9). An integer for an id is a
        # released client's from before there were logins: the document's are texts.
        peer, chosen = self._peer, self._message.subscription_id
        known = UNADVERTISED if peer.flags is None else peer.flags
        showed = peer.authenticated or isinstance(chosen, int) or peer.settings.events.binary_single
        if peer.document or isinstance(chosen, str) or not showed:
            return
        if known & EVENTS:
            self._encode = self._encode_binary
        elif known & SHARED_EVENTS:
            self._encode = self._encode_shared

    def _largest(self) -> int:
        if self._encode != self._encode_json:
            return MAX_PAYLOAD - BINARY_OVERHEAD
        return (MAX_PAYLOAD - len(self._json_head()) - 64) // 4 * 3

    def _offset(self, run: Run) -> int | None:
        # told to who can read it, where it means the same tomorrow or a replay was asked for (Felix wire 1.2)
        return run.base_offset if self._with_offsets else None

    def _encode_binary(self, run: Run) -> Sequence[bytes]:
        chosen = self._message.subscription_id
        known_as = chosen if isinstance(chosen, int) else self._number
        return self._batches(run, known_as)

    def _encode_shared(self, run: Run) -> Sequence[bytes]:
        return self._batches(run, None)

    def _batches(self, run: Run, known_as: int | None) -> Sequence[bytes]:
        events = self._peer.settings.events
        frames = encode_events(run.columns, known_as, self._offset(run), most=events.count, most_bytes=events.bytes)
        return list(frames)

    def _json_head(self, kind: bytes = b"event") -> bytes:
        names = b",".join(
            b'"%b":%b' % (field, msgspec.json.encode(value))
            for field, value in (
                (b"tenant_id", self._names.tenant),
                (b"namespace", self._names.namespace),
                (b"stream", self._names.stream),
            )
        )
        return b'{"type":"%b",%b,' % (kind, names)

    def _encode_json(self, run: Run) -> Sequence[bytes]:
        # an `event` each (Felix wire 2.6); the document's peers know `event_batch` for several
        base = self._offset(run)
        payloads = [binascii.b2a_base64(value, newline=False) for value in run.columns.values()]
        if self._peer.document and len(payloads) > 1:
            return self._json_batches(payloads, base)
        head = self._json_head() + b'"payload":"'
        if base is None:
            return [_json_frame(head + payload + b'"}') for payload in payloads]
        return [_json_frame(b'%b%b","offset":%d}' % (head, payload, base + i)) for i, payload in enumerate(payloads)]

    def _json_batches(self, payloads: list[bytes], base: int | None) -> list[bytes]:
        events = self._peer.settings.events
        head = self._json_head(b"event_batch")
        frames: list[bytes] = []
        first = 0
        while first < len(payloads):
            stop, size = first + 1, len(payloads[first])
            while stop < len(payloads) and stop - first < events.count and size + len(payloads[stop]) <= events.bytes:
                size += len(payloads[stop])
                stop += 1
            offset = b"" if base is None else b',"base_offset":%d' % (base + first)
            values = b'","'.join(payloads[first:stop])
            frames.append(_json_frame(b'%b"payloads":["%b"]%b}' % (head, values, offset)))
            first = stop
        return frames


def _json_frame(payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise TooLarge("an event is larger than a frame")
    return HEADER.pack(MAGIC, VERSION, 0, len(payload)) + payload


def _replay_problem(outcome: Outcome, start: object) -> GatewayError | None:
    # replay is for topics of one partition, from what they still hold up to their end
    if isinstance(outcome, NotFound):
        return OffsetOutOfRange() if isinstance(start, At) and start.offset else None
    if not isinstance(outcome, requests.Topics):
        return outcome if isinstance(outcome, GatewayError) else InvalidRequest("replay is not possible")
    partitions = outcome.topics[0].partitions if outcome.topics else ()
    if len(partitions) > 1:
        reason = f"an offset does not say in which of {len(partitions)} it is, and nothing else here can"
        return InvalidRequest(f"replay needs a stream of one partition: {reason}")
    if isinstance(start, At) and partitions:
        info = partitions[0]
        if not info.start <= start.offset <= info.end:
            return OffsetOutOfRange(first=info.start, next_offset=info.end)
    return None
