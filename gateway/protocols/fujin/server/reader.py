"""A stream that reads (Fujin document, CONNECT READER to FETCH; wire 0, 1.4, 2, 4).

A reader is a durable cursor by its name; streams on one name compete. Pushing is one Take that always waits, as long as
the client reads and acknowledges; FETCH is one Take that waits a while.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import partial

import attrs

from gateway.envelope import Run
from gateway.errors import GatewayError
from gateway.protocols.fujin.server.lease import Lease, ignored, redelivery
from gateway.protocols.fujin.server.seed_stream import SeedStream
from gateway.protocols.fujin.settings import ReaderSettings
from gateway.protocols.fujin.states import Event
from gateway.protocols.fujin.wire import codec, mapping
from gateway.protocols.fujin.wire.codec import ConnectReader
from gateway.protocols.fujin.wire.frames import LARGEST_PUSH, MOST_UNACKED, Op, ReaderKind, Reply
from gateway.requests import (
    Cancel,
    Outcome,
    Redelivery,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    Take,
    Taken,
)
from gateway.settings import Dialect
from gateway.wire.encodings import ENCODINGS

PUSH_DELAY = 0.01
"""Seconds between `01 00` and the first MSG: what a stock client reads together with `01 00` it throws away (wire 0, rule 2)."""

PUSH_MESSAGES = 4096
PUSH_BYTES = 128 << 10
"""Bounds of one Take of a push reader."""

FETCH_MESSAGES = 4096
FETCH_BYTES = 1 << 20
"""Bounds of one FETCH reply, whatever was asked for."""


def _without_ids(run: Run) -> Sequence[bytes]:
    return (codec.messages(run.columns),)


class SeedReader:
    """What both kinds of readers share: connecting, acknowledging, ending."""

    def __init__(self, stream: SeedStream, command: ConnectReader) -> None:
        self._stream = stream
        self._auto_commit = command.auto_commit
        self._subscription = 0
        self._lease: Lease | None = None
        self._unacked: set[int] = set()
        """Tags that the client has and has not settled."""
        stream.machine.step(Event.CONNECT_READER)

    def connect(self, name: bytes) -> None:
        settings = self._stream.context.settings
        try:
            text = name.decode()
        except UnicodeDecodeError:
            self._stream.refuse(codec.reader_reply(mapping.READER_NOT_FOUND))
            return
        reader = settings.readers.get(text)
        if reader is None:
            if settings.readers:  # the listener says which readers there are
                self._stream.refuse(codec.reader_reply(mapping.READER_NOT_FOUND))
                return
            reader = ReaderSettings(text)
        self._stream.busy = True
        self._stream.ask(
            partial(
                Subscribe,
                address=reader.topic,
                name=text,
                start=reader.start,
                acknowledge=self._acknowledges,
                redelivery=self._redelivery() if self._acknowledges else None,
                largest_value=self._largest_value,
                smallest_value=1,
            ),
            self._subscribed,
        )

    # --- what the kinds say ---

    @property
    def _acknowledges(self) -> bool:
        return not self._auto_commit

    @property
    def _largest_value(self) -> int | None:
        return None

    def _redelivery(self) -> Redelivery:
        # what is unacknowledged stays with the client; a NACK is an attempt that failed
        return redelivery(self._stream.context.settings)

    def _ready(self, now: float) -> None:
        """The reader is connected."""

    def _settled_some(self, now: float) -> None:
        """The client has settled messages."""

    def _held_back(self) -> Sequence[int]:
        # tags that the client does not have yet
        return ()

    def _stop_taking(self) -> None:
        """End a Take that waits."""

    def _fetch(self, data: bytes, at: int, now: float) -> int:
        cid, _ = codec.decode_fetch(data, at)
        self._stream.send(codec.reply(Reply.FETCH, cid, mapping.INVALID_READER_TYPE))
        return at + 9

    # --- the role ---

    def command(self, op: int, data: bytes, at: int, now: float) -> int:
        return self._fetch(data, at, now) if op == Op.FETCH else self._settle(op, data, at)

    def end(self) -> None:
        if not self._subscription or self._lease is None:
            return
        if self._lease.leave():
            self._stop_taking()
            self._give_back([*self._unacked, *self._held_back()])
        self._subscription = 0

    def room(self, now: float) -> None:
        """Output fell to low water."""

    def timeout_at(self) -> float | None:
        return None

    def on_timeout(self, now: float) -> None:
        """Never asked for."""

    # --- inside ---

    def _subscribed(self, outcome: Outcome, now: float) -> None:
        if isinstance(outcome, GatewayError):
            if self._stream.ending:
                return
            self._stream.busy = False
            self._stream.refuse(codec.reader_reply(mapping.reader_error(outcome)))
            return
        if isinstance(outcome, Subscribed):
            self._subscription = outcome.subscription
            self._lease = Lease(self._stream, self._subscription)
        if self._stream.ending:
            self.end()
            return
        self._stream.send_apart(codec.reader_reply(None), alone=True)
        self._ready(now)
        self._stream.go_on(now)

    def _settle(self, op: int, data: bytes, at: int) -> int:
        cid, raw_ids, end = codec.decode_settle(data, at, self._stream.part(at))
        places: list[int] = []
        tags: list[int] = []
        for place, raw in enumerate(raw_ids):
            found = codec.decode_id(raw)
            if found is not None and found[0] == self._subscription and not self._auto_commit:
                places.append(place)
                tags.append(found[1])
        if tags:
            self._stream.ask(
                partial(Settle, subscription=self._subscription, tags=tags, accepted=op == Op.ACK),
                partial(self._settled, Reply(op), cid, raw_ids, places, tags),
            )
        else:
            self._stream.send(codec.settled(Reply(op), cid, [(raw, mapping.NO_SUCH_ID) for raw in raw_ids]))
        return end

    def _settled(
        self,
        kind: Reply,
        cid: int,
        raw_ids: Sequence[bytes],
        places: Sequence[int],
        tags: Sequence[int],
        outcome: Outcome,
        now: float,
    ) -> None:
        # one result per id, never an error for all: stock clients lose that (wire 0, rule 4)
        answers: list[str | None] = [mapping.NO_SUCH_ID] * len(raw_ids)
        results = outcome.results if isinstance(outcome, Settled) else [outcome] * len(tags)
        for place, tag, result in zip(places, tags, results, strict=True):
            if isinstance(result, GatewayError):
                answers[place] = mapping.settle_error(result)
            else:
                answers[place] = None
                self._unacked.discard(tag)
        self._stream.send(codec.settled(kind, cid, list(zip(raw_ids, answers, strict=True))))
        self._settled_some(now)

    def _give_back(self, tags: Sequence[int]) -> None:
        if self._lease is not None:
            self._lease.give_back(tags)


class PushReader(SeedReader):
    """Messages come by themselves. With auto commit, handed to the transport is delivered."""

    def __init__(self, stream: SeedStream, command: ConnectReader) -> None:
        super().__init__(stream, command)
        self._take = 0
        self._start_at: float | None = None
        self._unsent = 0
        self._asked_for_room = False

    @property
    def _largest_value(self) -> int | None:
        return LARGEST_PUSH

    def _ready(self, now: float) -> None:
        self._stream.machine.step(Event.PUSHING)
        self._start_at = now + PUSH_DELAY
        self._stream.timed = True

    def timeout_at(self) -> float | None:
        return self._start_at

    def on_timeout(self, now: float) -> None:
        if self._start_at is not None and now >= self._start_at:
            self._start_at = None
            self._stream.timed = False
            self._pump()

    def room(self, now: float) -> None:
        self._unsent = 0
        self._asked_for_room = False
        self._pump()

    def _settled_some(self, now: float) -> None:
        self._pump()

    def _pump(self) -> None:
        room = MOST_UNACKED - len(self._unacked) if self._acknowledges else PUSH_MESSAGES
        window = self._stream.window
        if self._take or self._start_at is not None or room <= 0 or self._unsent >= window or self._stream.ending:
            return
        take = partial(
            Take,
            subscription=self._subscription,
            max_messages=min(room, PUSH_MESSAGES),
            max_bytes=min(PUSH_BYTES, window),
            hold_until=math.inf,
        )
        self._take = self._stream.ask(take, partial(self._taken, self._subscription), background=True)

    def _taken(self, subscription: int, outcome: Outcome, now: float) -> None:
        self._take = 0
        if not isinstance(outcome, Taken):
            self._stream.end()
            return
        parts: list[bytes] = []
        for delivered in outcome.deliveries:
            columns = delivered.run.columns
            if not self._acknowledges:
                parts += ENCODINGS.of(delivered.run, "fujin", _without_ids)
            elif self._stream.ending:
                self._give_back(range(delivered.first_tag, delivered.first_tag + columns.count))
            else:
                self._unacked.update(range(delivered.first_tag, delivered.first_tag + columns.count))
                parts.append(codec.messages_with_ids(columns, subscription, delivered.first_tag))
        if parts:
            data = b"".join(parts)
            self._unsent += len(data)
            self._stream.send_apart(data, notify=not self._asked_for_room)
            self._asked_for_room = True
        if outcome.ended:
            self._stream.end()
        else:
            self._pump()

    def _stop_taking(self) -> None:
        if self._take:
            self._stream.context.outbox.ask(partial(Cancel, request=self._take))


@attrs.define(eq=False)
class _Fetch:
    cid: int
    count: int
    take: int = 0


class PullReader(SeedReader):
    """Messages come when asked for. With auto commit they are settled here, as they go out."""

    def __init__(self, stream: SeedStream, command: ConnectReader) -> None:
        super().__init__(stream, command)
        self._ahead: deque[tuple[int, bytes]] = deque()
        """(tag, value with its length) taken and not handed out yet."""
        self._fetches: set[_Fetch] = set()

    @property
    def _acknowledges(self) -> bool:
        return True

    def _ready(self, now: float) -> None:
        self._stream.machine.step(Event.PULLING)

    def _held_back(self) -> Sequence[int]:
        return [tag for tag, _ in self._ahead]

    def _stop_taking(self) -> None:
        for fetch in self._fetches:
            self._stream.context.outbox.ask(partial(Cancel, request=fetch.take))

    def _fetch(self, data: bytes, at: int, now: float) -> int:
        cid, count = codec.decode_fetch(data, at)
        if not count:
            self._stream.send(codec.reply(Reply.FETCH, cid, mapping.NO_FETCH_COUNT))
        elif self._ahead:
            self._hand_out(cid, count)
        else:
            take = partial(
                Take,
                subscription=self._subscription,
                max_messages=min(count, FETCH_MESSAGES),
                max_bytes=FETCH_BYTES,
                hold_until=now + self._stream.context.settings.fetch_wait,
            )
            waiting = _Fetch(cid, count)
            self._fetches.add(waiting)
            waiting.take = self._stream.ask(take, partial(self._taken, waiting))
        return at + 9

    def _taken(self, fetch: _Fetch, outcome: Outcome, now: float) -> None:
        self._fetches.discard(fetch)
        if isinstance(outcome, Taken):
            for delivered in outcome.deliveries:
                packed, start = delivered.run.columns.packed, 0
                for tag, end in enumerate(delivered.run.columns.ends, delivered.first_tag):
                    self._ahead.append((tag, packed[start:end]))
                    start = end
        if self._stream.ending:
            self._give_back(self._held_back())
        elif self._ahead:
            self._hand_out(fetch.cid, fetch.count)
            return
        # never an empty reply: stock clients wait for messages or an error (wire 0, rule 3)
        error = mapping.text(outcome) if isinstance(outcome, GatewayError) else mapping.NOTHING_FETCHED
        self._stream.send(codec.reply(Reply.FETCH, fetch.cid, error))

    def _hand_out(self, cid: int, count: int) -> None:
        ahead = self._ahead
        given = [ahead.popleft()]
        while ahead and len(given) < count and self._fit(given[-1], ahead[0]):
            given.append(ahead.popleft())
        tags = [tag for tag, _ in given]
        if self._auto_commit:
            self._stream.send(codec.fetched(cid, len(given), (value for _, value in given)))
            settle = partial(Settle, subscription=self._subscription, tags=tags)
            self._stream.ask(settle, ignored)
        else:
            self._unacked.update(tags)
            subscription = self._subscription
            items = (codec.sized_id(subscription, tag) + value for tag, value in given)
            self._stream.send(codec.fetched(cid, len(given), items))

    def _fit(self, last: tuple[int, bytes], following: tuple[int, bytes]) -> bool:
        # stock clients lose their place at a value of one byte among others (wire 0, rule 6): it goes alone
        one_byte = codec.string(b"?")
        alone = len(last[1]) == len(one_byte) or len(following[1]) == len(one_byte)
        return self._stream.context.dialect is Dialect.DOCUMENT or not alone


KINDS = {ReaderKind.PUSH: PushReader, ReaderKind.PULL: PullReader}
"""The class of each reader type."""


def connect_reader(stream: SeedStream, data: bytes, at: int) -> int:
    """CONNECT READER: the stream becomes a reader, once the broker agrees."""
    command = codec.decode_connect_reader(data, at)
    reader = KINDS[command.kind](stream, command)
    stream.role = reader
    reader.connect(command.name)
    return command.end
