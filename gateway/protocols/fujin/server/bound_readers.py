"""The readers of a session that has bound a connector: subscriptions, which push, and the implicit ones of FETCH (wire 6.2).

A route is read as a durable cursor by its name, as in the seed's dialect; who reads under one name competes. A message that may
be settled has an id of its reader's incarnation, good until it is settled or the reader is closed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from gateway.envelope import Run
from gateway.errors import GatewayError
from gateway.protocols.fujin.server.lease import Lease, ignored, redelivery
from gateway.protocols.fujin.server.reader import FETCH_BYTES, FETCH_MESSAGES, PUSH_BYTES, PUSH_MESSAGES
from gateway.protocols.fujin.server.stream import Stream
from gateway.protocols.fujin.settings import ReaderSettings
from gateway.protocols.fujin.wire import bound_codec as codec
from gateway.protocols.fujin.wire import bound_mapping as mapping
from gateway.protocols.fujin.wire.bound_codec import FETCHES, HEADERED, ReaderCommand, SettleCommand
from gateway.protocols.fujin.wire.bound_frames import Applied, BoundReply, Code, Failure
from gateway.protocols.fujin.wire.frames import LARGEST_MESSAGE, MOST_UNACKED
from gateway.requests import (
    Cancel,
    Delivered,
    Outcome,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    Take,
    Taken,
)
from gateway.wire.encodings import ENCODINGS

_SEQUENCES = 1 << 32


class ReadingSession(Protocol):
    """What readers need of their session."""

    @property
    def stream(self) -> Stream: ...

    def push(self, data: bytes) -> None:
        """Messages for the client: it says when there is room for more."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether the client reads what it was sent."""
        ...

    def closed(self, reader: BoundReader) -> None:
        """The reader's id is free."""
        ...


class BoundReader:
    """One reader, pushed or fetched from."""

    def __init__(self, session: ReadingSession, number: int, command: ReaderCommand, incarnation: int) -> None:
        self.number = number
        self.open = False
        self.fetching: int | None = None
        """The cid of the FETCH that waits."""
        self._session = session
        self._stream = session.stream
        self._command = command
        self._auto = command.auto
        self._headered = command.kind in HEADERED
        self._pushes = command.kind not in FETCHES
        self._incarnation = incarnation
        self._sequence = itertools.count(1)
        self._tags: dict[int, int] = {}
        """By sequence, what the client has and has not settled."""
        self._lease: Lease | None = None
        self._take = 0
        self._gone = False

    # --- opening ---

    def subscribe(self, route: str) -> None:
        """Ask for the reader of that name; nothing else is parsed until it is there or refused."""
        settings = self._stream.context.settings
        reader = settings.readers.get(route, ReaderSettings(route))
        acknowledges = not (self._auto and self._pushes)
        self._stream.busy = True
        self._stream.ask(
            partial(
                Subscribe,
                address=reader.topic,
                name=route,
                start=reader.start,
                acknowledge=acknowledges,
                redelivery=redelivery(settings) if acknowledges else None,
                largest_value=LARGEST_MESSAGE,
                smallest_value=1,
            ),
            self._subscribed,
        )

    def _subscribed(self, outcome: Outcome, now: float) -> None:
        command = self._command
        if isinstance(outcome, Subscribed):
            self._lease = Lease(self._stream, outcome.subscription)
            self.open = True
        if self._gone or self._stream.ending:
            self._give_up()
        elif not isinstance(outcome, Subscribed):
            self._session.closed(self)
            failure = mapping.failure(outcome) if isinstance(outcome, GatewayError) else mapping.CANCELED
            self._stream.send(codec.failed(command.kind, command.cid, failure))
        elif self._pushes:
            self._stream.send(codec.done(command.kind, command.cid, bytes((self.number,))))
            self.pump()
        else:
            self.fetch(command.cid, command.most, now)
        self._stream.go_on(now)

    # --- pushing ---

    def pump(self) -> None:
        """Take the next messages, as long as the client reads and settles."""
        room = PUSH_MESSAGES if self._auto else MOST_UNACKED - len(self._tags)
        idle = self._pushes and self.open and not self._take and not self._gone
        if idle and room > 0 and self._session.has_room and not self._stream.ending:
            assert self._lease is not None
            take = partial(
                Take,
                subscription=self._lease.subscription,
                max_messages=min(room, PUSH_MESSAGES),
                max_bytes=PUSH_BYTES,
                hold_until=math.inf,
            )
            self._take = self._stream.ask(take, self._pushed, background=True)

    def _pushed(self, outcome: Outcome, now: float) -> None:
        self._take = 0
        if not isinstance(outcome, Taken):
            self._stream.end()
            return
        if self._gone or self._stream.ending:
            self._return(outcome)
            return
        kind = BoundReply.HMSG if self._headered else BoundReply.MSG
        for delivered in outcome.deliveries:
            if self._auto and not self._headered:
                for frames in ENCODINGS.of(delivered.run, ("fujin 0.5", self.number), self._push_values):
                    self._session.push(frames)
            else:
                self._session.push(codec.pushed(kind, self.number, self._items(delivered)))
        if outcome.ended:  # this dialect has no other word for it (wire 6.2)
            self._stream.end()
        else:
            self.pump()

    def _push_values(self, run: Run) -> Sequence[bytes]:
        return (codec.pushed(BoundReply.MSG, self.number, codec.bodies(run.columns, None, headered=False)),)

    # --- fetching ---

    def fetch(self, cid: int, most: int, now: float) -> None:
        assert self._lease is not None
        self.fetching = cid
        take = partial(
            Take,
            subscription=self._lease.subscription,
            max_messages=min(most, FETCH_MESSAGES),
            max_bytes=FETCH_BYTES,
            hold_until=now + self._stream.context.settings.fetch_wait,
        )
        self._take = self._stream.ask(take, partial(self._fetched, cid))

    def _fetched(self, cid: int, outcome: Outcome, now: float) -> None:
        kind, self.fetching, self._take = self._command.kind, None, 0
        if self._gone:
            self._stream.send(codec.failed(kind, cid, mapping.CANCELED))
            self._return(outcome)
        elif isinstance(outcome, GatewayError):
            self._stream.send(codec.failed(kind, cid, mapping.failure(outcome)))
        elif isinstance(outcome, Taken) and outcome.ended and not self._stream.ending:
            ended = Failure(Code.UNAVAILABLE, Applied.NO, "SUBSCRIPTION_ENDED", "what was read is gone")
            self._stream.send(codec.failed(kind, cid, ended))
            self.close()
        elif isinstance(outcome, Taken):
            items = [item for delivered in outcome.deliveries for item in self._items(delivered)]
            self._stream.send(codec.handed_out(kind, cid, self.number, items))
            if self._auto:
                self._settle_all(outcome)

    def _settle_all(self, taken: Taken) -> None:
        # with auto commit, handed to the transport is delivered
        tags = [tag for one in taken.deliveries for tag in range(one.first_tag, one.first_tag + one.run.count)]
        if tags and self._lease is not None:
            self._stream.ask(partial(Settle, subscription=self._lease.subscription, tags=tags), ignored)

    def _items(self, delivered: Delivered) -> Sequence[bytes]:
        columns = delivered.run.columns
        ids: list[bytes] | None = None
        if not self._auto:
            ids = []
            for tag in range(delivered.first_tag, delivered.first_tag + columns.count):
                sequence = next(self._sequence) % _SEQUENCES
                self._tags[sequence] = tag
                ids.append(codec.message_id(self._incarnation, sequence))
        return codec.bodies(columns, ids, headered=self._headered)

    # --- settling ---

    def settle(self, command: SettleCommand) -> None:
        """Ids that are not this reader's to settle make the whole command fail."""
        sequences = [self._sequence_of(raw) for raw in command.ids]
        known = [sequence for sequence in sequences if sequence in self._tags]
        if len(known) < len(sequences) or len(set(known)) < len(known) or self._lease is None:
            self._stream.send(codec.failed(command.kind, command.cid, mapping.BAD_IDS))
        elif not known:
            self._stream.send(codec.bound_settled(command.kind, command.cid, []))
        else:
            tags = [self._tags.pop(sequence) for sequence in known]
            settle = partial(
                Settle,
                subscription=self._lease.subscription,
                tags=tags,
                accepted=command.kind is BoundReply.ACK,
            )
            self._stream.busy = True  # these are done in the order of the stream
            self._stream.ask(settle, partial(self._settled, command))

    def _sequence_of(self, raw: bytes) -> int:
        found = codec.decode_message_id(raw)
        return found[1] if found is not None and found[0] == self._incarnation else -1

    def _settled(self, command: SettleCommand, outcome: Outcome, now: float) -> None:
        results = outcome.results if isinstance(outcome, Settled) else [outcome] * len(command.ids)
        failures = [
            mapping.failure(result, mapping.SETTLING) if isinstance(result, GatewayError) else None
            for result in results
        ]
        pairs = list(zip(command.ids, failures, strict=True))
        self._stream.send(codec.bound_settled(command.kind, command.cid, pairs))
        self._stream.go_on(now)
        self.pump()

    # --- closing ---

    def close(self) -> None:
        """Give back what is not settled; the ids that were given out are worth nothing any more."""
        if self._gone:
            return
        self._gone = True
        self._session.closed(self)
        if self.open:
            self._give_up()

    def _give_up(self) -> None:
        self.open = False
        if self._lease is not None and self._lease.leave():
            if self._take:
                self._stream.context.outbox.ask(partial(Cancel, request=self._take))
            self._lease.give_back(list(self._tags.values()))
        self._tags.clear()

    def _return(self, outcome: Outcome) -> None:
        if isinstance(outcome, Taken) and self._lease is not None:
            for one in outcome.deliveries:
                self._lease.give_back(range(one.first_tag, one.first_tag + one.run.count))
