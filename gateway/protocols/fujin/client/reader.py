"""A client's reading stream (Fujin document, CONNECT READER to FETCH).

Reading is pulling, so that what is not asked for does not come; only `dialect: stock` lets the server push, because most
stock servers cannot be pulled from (wire 4). What comes before a Take asks for it waits here.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import GatewayError
from gateway.protocols.fujin.client.inbox import MOST_HELD, Inbox, Incoming
from gateway.protocols.fujin.client.lane import ClientCore, StreamLane, refused
from gateway.protocols.fujin.wire import codec
from gateway.protocols.fujin.wire.codec_replies import (
    Message,
    decode_error,
    decode_fetched,
    decode_message,
    decode_settled,
)
from gateway.protocols.fujin.wire.frames import Op, ReaderKind, Reply
from gateway.requests import (
    DONE,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    Take,
    Unsubscribe,
)
from gateway.settings import Dialect
from gateway.wire.session import Withhold

FETCH_MESSAGES = 1000
FIRST_FETCH = 4
"""Messages in a FETCH while nothing is known of how large they are: each may have 16 MiB."""
REFUSED_AT_ONCE = 1.0
"""A FETCH error that comes sooner is not a time-out but a refusal."""


class ReaderLane(StreamLane):
    def __init__(self, core: ClientCore, channel: int, subscription: int, request: Subscribe) -> None:
        self._pushed = core.dialect is Dialect.STOCK
        self._auto_commit = not request.acknowledge
        kind = ReaderKind.PUSH if self._pushed else ReaderKind.PULL
        hello = codec.connect_reader(kind, request.address.encode(), auto_commit=self._auto_commit)
        super().__init__(core, channel, hello)
        self._subscription = subscription
        self._request = request
        self._connected = False
        self._inbox = Inbox(core, request, self._withhold if self._pushed else None)
        self._fetch: tuple[int, int, float] | None = None
        """(cid, how many, since when) of the FETCH under way."""
        self._settles: dict[tuple[Reply, int], Settle] = {}
        self._goodbye: Unsubscribe | None = None
        self._stopping = False

    def __len__(self) -> int:
        return len(self._inbox.takes) + len(self._settles) + (not self._connected) + (self._goodbye is not None)

    # --- requests ---

    def take(self, request: Take, now: float) -> None:
        self._inbox.wait(request, now)
        self._ask(now)

    def settle(self, request: Settle) -> None:
        # ACK or NACK. With auto commit there is nothing to say.
        ids = [self._inbox.ids[tag] for tag in request.tags if tag in self._inbox.ids]
        if not ids:
            self.core.done(request.id, Settled([None] * len(request.tags)))
            return
        op = Op.ACK if request.accepted else Op.NACK
        cid = self.cid()
        self._settles[Reply(op), cid] = request
        self.send(codec.settle(op, cid, ids))

    def cancel(self, request_id: int) -> None:
        # end a Take that waits; the FETCH goes on and fills the next one
        self._inbox.cancel(request_id)

    def unsubscribe(self, request: Unsubscribe) -> None:
        self._goodbye = request
        self.finish()
        self.leave()

    def finish(self) -> None:
        self._inbox.finish()

    def stopping(self) -> None:
        # what is not acknowledged yet may still be; without that, leave at once
        self._stopping = True
        self.finish()
        if not self._inbox.ids:
            self.leave()

    def timeout_at(self) -> float | None:
        return self._inbox.timeout_at()

    def on_timeout(self, now: float) -> None:
        self._inbox.on_timeout(now)

    # --- replies ---

    def reply(self, op: int, data: bytes, at: int, now: float) -> int:
        if not self._connected:
            return self._connect(op, data, at)
        if op == Reply.MESSAGE:
            message, end = decode_message(data, at + 1, auto_commit=self._auto_commit)
            self._hold((message,), now)
            return end
        if op == Reply.FETCH:
            return self._fetched(data, at, now)
        if op in (Reply.ACK, Reply.NACK):
            return self._settled(Reply(op), data, at)
        return at + 1

    def fail(self, error: GatewayError) -> None:
        super().fail(error)
        if not self._connected:
            self.core.done(self._request.id, error)
            self._connected = True
        self._inbox.refuse(error)
        for request in self._settles.values():
            self.core.done(request.id, error)
        if self._goodbye is not None:
            self.core.done(self._goodbye.id, DONE)
        self._settles.clear()
        self._goodbye = None

    # --- inside ---

    def _connect(self, op: int, data: bytes, at: int) -> int:
        if op != Reply.READER:
            return at + 1
        error, end = decode_error(data, at + 1)
        if error is not None:
            self.fail(refused(error))
            return end
        self._connected = True
        self.core.done(self._request.id, Subscribed(self._subscription, self._request.address))
        return end

    def _fetched(self, data: bytes, at: int, now: float) -> int:
        asked = self._fetch[1] if self._fetch is not None else FETCH_MESSAGES
        answer, messages = decode_fetched(data, at, asked, MOST_HELD, auto_commit=self._auto_commit)
        if self._fetch is None or self._fetch[0] != answer.cid:
            return answer.end
        since = self._fetch[2]
        self._fetch = None
        takes = self._inbox.takes
        if answer.error is not None and takes and now - since < REFUSED_AT_ONCE:
            self.core.done(takes.popleft().request.id, refused(answer.error))
        self._hold(messages, now)
        return answer.end

    def _settled(self, kind: Reply, data: bytes, at: int) -> int:
        answer, results = decode_settled(data, at)
        request = self._settles.pop((kind, answer.cid), None)
        if request is None:
            return answer.end
        outcomes: list[GatewayError | None] = []
        for tag in request.tags:
            raw_id = self._inbox.ids.get(tag)
            error = answer.error if answer.error is not None else results.get(raw_id) if raw_id is not None else None
            outcomes.append(refused(error) if error is not None else None)
            if error is None:
                self._inbox.ids.pop(tag, None)
        self.core.done(request.id, Settled(outcomes))
        if self._stopping and not self._inbox.ids:
            self.leave()
        return answer.end

    def _hold(self, messages: Sequence[Message], now: float) -> None:
        self._inbox.hold([Incoming(message.id, message.value) for message in messages])
        self._ask(now)

    def _withhold(self, on: bool) -> None:
        self.core.outbox.put(self.channel, Withhold(self.channel, on=on))

    def _ask(self, now: float) -> None:
        takes = self._inbox.takes
        if takes and self._fetch is None and not (self._pushed or self._stopping or self.leaving):
            request = takes[0].request
            known = request.max_bytes // self._inbox.largest if self._inbox.largest else FIRST_FETCH
            count = min(request.max_messages, FETCH_MESSAGES, max(1, known))
            self._fetch = (self.cid(), count, now)
            self.send(codec.fetch(self._fetch[0], count))
