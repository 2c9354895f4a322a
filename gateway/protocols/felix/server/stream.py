"""A stream that the client opened: frames in, replies in their order out."""

from __future__ import annotations

from functools import partial

import msgspec

from gateway import requests
from gateway.envelope import MOST_MESSAGES, Batch, Columns, Copies, Delivery
from gateway.errors import WireError
from gateway.protocols.felix.server import replies
from gateway.protocols.felix.server.caching import scope_of, serve_cache
from gateway.protocols.felix.server.peer import Peer
from gateway.protocols.felix.server.replies import SILENT, UNANSWERED, Answering, PublishSender, sender_of, success
from gateway.protocols.felix.server.subscriptions import MAX_FEEDS, Feed, Feeds
from gateway.protocols.felix.states import KEEPING, LEAVING, PARSING, READING, STREAMS, StreamEvent, StreamState
from gateway.protocols.felix.wire import codec
from gateway.protocols.felix.wire.binary import (
    ACK_MODES,
    REQUEST_SIZE,
    TOO_MANY,
    MalformedBatch,
    Names,
    decode_copies,
    decode_names,
    decode_request,
    decode_values,
    names_end,
)
from gateway.protocols.felix.wire.frames import (
    ACKED,
    AFTER,
    BATCH,
    BETWEEN_GATEWAYS,
    COPIES,
    HEADER,
    HEADER_SIZE,
    KNOWN,
    MAGIC,
    MAX_PAYLOAD,
    VERSION,
    MalformedHeader,
    check_header,
)
from gateway.protocols.felix.wire.mapping import address_of, stream_not_found, text_of
from gateway.requests import Outcome
from gateway.settings import Dialect
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.machine import Machine
from gateway.wire.ordering import ReplyQueue
from gateway.wire.session import BEFORE_LOGIN, Close, Finish, Kind, Send, StopSending

CUT_OFF = "malformed frame: cut off"

PROTOCOL_VIOLATION = 1
"""Application error code of a connection that `document` closes for a malformed header."""

LARGE_REPLY = 64 << 10
"""Bytes of a cache's value from which on the next request waits until it has left."""
PUBLISHES = (codec.Publish, codec.PublishBatch)
# asked for with each message: to look a member up in its class costs as much as a call
OPEN, STOCK_DIALECT = StreamState.OPEN, Dialect.STOCK
UNCERTAIN, CERTAIN = Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE
_NOTHING_IS_ENOUGH = 1 << 62
"""Wanted by a held stream: bytes are only collected until it is released."""


class Gathering(msgspec.Struct):
    """Publishes that follow each other to one stream: the makings of one batch."""

    names: Names
    delivery: Delivery
    source: bytes
    """Of what they are copies; empty for what no other gateway forwards."""
    path: tuple[bytes, ...]
    """By which gateways they came."""
    after: tuple[int, bytes, int] | None = None
    """The message that they are to be stored behind."""
    copies: list[tuple[int, bytes, int, int]] = []
    columns: list[Columns] = []
    values: list[bytes] = []
    senders: list[tuple[PublishSender, int]] = []
    """Who is to be answered, and for how many messages, in order."""

    def joined(self) -> Columns:
        if not self.columns:
            return Columns.of(self.values)
        if self.values:
            self.gather_values()
        return self.columns[0] if len(self.columns) == 1 else Columns.concat(self.columns)

    def copied(self) -> Copies:
        return Copies(self.source, self.copies, self.path, self.after)

    def gather_values(self) -> None:
        self.columns.append(Columns.of(self.values))
        self.values = []


class ClientStream:
    def __init__(self, peer: Peer, feeds: Feeds, channel: int, kind: Kind) -> None:
        self._peer = peer
        self._feeds = feeds
        self._channel = channel
        self._answers = kind is Kind.DUPLEX
        self._machine = Machine(STREAMS, StreamState.OPEN)
        self.buffer = ReceiveBuffer()
        self._replies = ReplyQueue()
        self._gathering: Gathering | None = None
        self._head = b""  # the names of the last binary batch as they lay on the wire
        self._head_names = Names("", "", "")
        self._named: Names | None = None
        self._address = ""
        """What the stream is called that was last published to, and known by these names."""
        self._tenant: str | None = None  # logged in as
        self._finished = False  # the client sent FIN
        self._stopped = False  # the client reads no more
        self._awaits_room = False  # a large value is on its way: the stream is held until it has left

    # --- events of the channel ---

    def receive(self, data: bytes) -> None:
        if self._machine.state in READING:
            buffer = self.buffer
            whole = buffer.feed(data) if buffer.size or buffer.wanted else data
            if whole:
                self._parse(whole)
        slots = self._replies.slots
        if not slots or slots[0] is not None:
            self._settle()

    def overflow(self) -> None:
        """Too many bytes wait, on all streams together."""
        self._fail("too many bytes of incomplete frames")
        self._settle()

    def eof(self, *, abandoned: bool = False) -> None:
        # the client will send no more: answer what it asked, then finish too (Felix wire section 0, row 8)
        if abandoned:
            self.buffer.clear()
        self._finished = True
        if self.buffer.size and self._machine.state is StreamState.OPEN:
            self._fail(CUT_OFF)
        self._machine.step(StreamEvent.EOF)
        self._settle()

    def stopped(self) -> None:
        # the client reads no more here; stock clients do so as soon as they are subscribed (Felix wire section 0, row 10)
        self._stopped = True
        self.room()

    def room(self) -> None:
        if self._awaits_room:
            self._awaits_room = False
            self._go_on()
            self._settle()

    # --- frames ---

    def _parse(self, data: bytes) -> None:
        position, size = 0, len(data)
        wanted = 0
        machine = self._machine
        most = BEFORE_LOGIN if self._peer.auth_required and self._tenant is None else MAX_PAYLOAD
        while size - position >= HEADER_SIZE:
            magic, version, flags, length = HEADER.unpack_from(data, position)
            if magic != MAGIC or version != VERSION or length > most:
                try:
                    check_header(magic, version, length, most)
                except MalformedHeader as error:
                    self._break(error)
                break
            start = position + HEADER_SIZE
            end = start + length
            if end > size:
                wanted = HEADER_SIZE + length
                break
            position = end
            try:
                if self._peer.auth_required and self._tenant is None and flags & BATCH:
                    raise WireError("auth required")
                if self._peer.flags is not None and flags & ~(KNOWN | self._peer.flags):
                    self._say(replies.error("unsupported frame flags"))
                elif flags & BATCH:
                    self._batch(data, start, end, flags)
                else:
                    self._message(data[start:end], flags)
            except codec.ErrorFromClient:
                self._fail(None)
            except WireError as error:
                self._fail(error.message)
            if machine.state not in PARSING:
                break
        # the end of a read ends the batch: nobody waits for messages that may never come
        if self._gathering is not None:
            self._publish()
        if position == size and machine.state is OPEN:
            return
        if machine.state in KEEPING:
            held = machine.state is not StreamState.OPEN
            self.buffer.keep(data[position:] if position else data, _NOTHING_IS_ENOUGH if held else wanted)
        elif machine.state is StreamState.LAST and position < size:
            self._fail(CUT_OFF)

    def _break(self, error: MalformedHeader) -> None:
        # a header that is none: the stream ends, in the document the connection (Felix document, Protocol Errors)
        if self._peer.document:
            self._peer.outputs.append(Close(PROTOCOL_VIOLATION, error.message))
            self._fail(None)
        else:
            self._fail(error.message)

    def _fail(self, text: str | None) -> None:
        # queued replies, then the error, then the end of this stream (Felix wire 2.12, row 14)
        if text is not None:
            self._say(replies.error(text, document=self._peer.document))
        else:
            self._publish()
        self.buffer.clear()
        self._machine.step(StreamEvent.FAIL)

    def _settle(self) -> None:
        # send the replies whose turn it is; end when the other side has and nothing is owed
        slots, peer = self._replies.slots, self._peer
        if slots and slots[0] is not None:
            before = len(slots)
            ready = self._replies.ready()
            peer.owed -= before - len(slots)
            if ready and self._answers and not self._stopped:
                data = ready[0] if len(ready) == 1 else b"".join(ready)
                peer.outputs.append(Send(self._channel, data, self._awaits_room))
        if not slots and self._machine.state in LEAVING:
            if self._answers and not self._stopped:
                peer.outputs.append(Finish(self._channel))
            # without this a client that goes on sending would spend its window on a stream that nobody reads
            if not self._finished:
                peer.outputs.append(StopSending(self._channel))
            self._machine.step(StreamEvent.ANSWERED)
            peer.closed.append(self._channel)

    # --- replies ---

    def _take_slot(self) -> int:
        self._peer.owed += 1
        return self._replies.take()

    def _fill(self, slot: int, reply: bytes) -> None:
        self._replies.fill(slot, reply)
        self._settle()

    def _say(self, reply: bytes) -> None:
        self._publish()
        self._peer.owed += 1
        self._replies.put(reply)

    # --- publishing ---

    def _batch(self, data: bytes, start: int, end: int, flags: int) -> None:
        # a binary publish batch: what follows the names is packed already (Felix document, Binary Format)
        sender = UNANSWERED
        copies: Copies | None = None
        if flags & ACKED and not self._peer.document:
            request_id, mode = decode_request(data, start, end)
            if mode not in ACK_MODES:
                raise MalformedBatch("malformed publish batch: unknown acknowledgement mode")
            sender = PublishSender(Answering.BINARY, request_id)
            start += REQUEST_SIZE
        try:
            if flags & COPIES and (self._peer.flags or 0) & COPIES:
                after = bool(flags & AFTER & (self._peer.flags or 0))
                copies, start = decode_copies(data, start, end, after=after)
            # most batches of a stream go to one place: its names are decoded once, and then compared as they lie
            if not self._head or not data.startswith(self._head, start):
                head = data[start : names_end(data, start, end)]
                self._head_names, self._head = decode_names(head), head
            columns = decode_values(data, start + len(self._head), end)
            if copies is not None and copies.count != columns.count:
                raise MalformedBatch("malformed publish batch: not as many copies as messages")
        except MalformedBatch as error:
            # who asked for an acknowledgement by number is answered by it; anybody else's stream ends with the error
            if sender.answering is not Answering.BINARY:
                raise
            self._say(replies.failure(sender, str(error.message), document=False))
            return
        if self._peer.auth_required:
            self._peer.check_tenant(self._head_names.tenant, self._tenant)
        self._gather(self._head_names, sender, columns.count, columns, copies)

    def _publish_json(self, message: codec.Publish | codec.PublishBatch) -> None:
        peer = self._peer
        acked = message.ack != "none" and self._answers
        if peer.dialect is STOCK_DIALECT and acked and message.request_id is None:
            kind = "publish" if isinstance(message, codec.Publish) else "publish batch"
            self._say(replies.error(f"missing request_id for acked {kind}"))
            return
        sender = sender_of(message.request_id, acked=acked, document=peer.document)
        values = [message.payload] if isinstance(message, codec.Publish) else message.payloads
        if peer.auth_required:
            peer.check_tenant(message.tenant_id, self._tenant)
        self._gather(Names(message.tenant_id, message.namespace, message.stream), sender, len(values), values)

    def _gather(
        self,
        names: Names,
        sender: PublishSender,
        count: int,
        messages: Columns | list[bytes],
        copies: Copies | None = None,
    ) -> None:
        if not count:
            self._say(success(sender))  # nothing to store; an acknowledged one is acknowledged
            return
        delivery = UNCERTAIN if sender.answering is SILENT else CERTAIN
        gathering = self._gathering
        source, path = (copies.source, copies.path) if copies is not None else (b"", ())
        if (
            # a batch has one way of being answered, one source and one path: the log keeps them once for all of it
            gathering is None
            or gathering.delivery is not delivery
            or gathering.source != source
            or gathering.path != path
            or gathering.names != names
            # it is said of a batch as a whole what comes before it
            or (copies is not None and copies.after is not None and copies.after != gathering.copied().last)
        ):
            if gathering is not None:
                self._publish()
            gathering = self._gathering = Gathering(names, delivery, source, path)
            gathering.after = copies.after if copies is not None else None
        if copies is not None:
            gathering.copies.extend(copies.ranges)
        gathering.senders.append((sender, count))
        if isinstance(messages, Columns):
            if gathering.values:
                gathering.gather_values()
            gathering.columns.append(messages)
        else:
            gathering.values.extend(messages)

    def _publish(self) -> None:
        gathering, self._gathering = self._gathering, None
        if gathering is None:
            return
        peer = self._peer
        names = gathering.names
        if names != self._named:
            self._named, self._address = names, address_of(names, peer.settings.scope)
        copies = gathering.copied() if gathering.source else None
        batch = Batch(self._address, gathering.joined(), gathering.delivery, copies=copies)
        request = requests.Publish(peer.next_id(), batch, create=peer.settings.create)
        peer.owed += 1
        peer.ask(request, partial(self._published, self._replies.take(), names, gathering.senders))

    def _published(
        self, slot: int, names: Names, senders: list[tuple[PublishSender, int]], outcome: Outcome, _now: float
    ) -> None:
        if isinstance(outcome, requests.Published) and not outcome.refused:
            reply = success(senders[0][0]) if len(senders) == 1 else b"".join([success(one) for one, _ in senders])
            self._fill(slot, reply)
            return
        answers: list[bytes] = []
        first = 0
        for sender, count in senders:
            error = replies.error_in(outcome, first, count)
            first += count
            if error is None:
                answers.append(success(sender))
            else:
                text = text_of(error, stream_not_found(names), document=self._peer.document)
                answers.append(replies.failure(sender, text, document=self._peer.document))
        self._fill(slot, b"".join(answers))

    # --- messages ---

    def _message(self, payload: bytes, flags: int) -> None:
        peer = self._peer
        if len(payload) > MOST_MESSAGES and max(map(payload.count, (b",", b"[", b":"))) > MOST_MESSAGES:
            raise codec.BadMessage(f"invalid message: {TOO_MANY}")  # before anything is made of it
        message = codec.decode_client(payload, repair=flags == 0 and not peer.document)
        if isinstance(message, codec.Auth):
            self._auth(message)
            return
        if peer.auth_required and self._tenant is None:
            # before the message is looked into: what it would be refused for is none of a stranger's business
            raise WireError("auth required")
        if peer.dialect is STOCK_DIALECT and codec.document_shape(message):
            raise codec.BadMessage("invalid message: not of the stock shape")
        if isinstance(message, PUBLISHES):
            self._publish_json(message)
            return
        if not self._answers:  # a unidirectional stream may only publish (Felix wire 2.2)
            raise WireError("only publishes here")
        self._publish()
        if isinstance(message, codec.Subscribe):
            self._subscribe(message)
        else:
            self._cache(message)

    def _auth(self, message: codec.Auth) -> None:
        # first frame of each stream of the newer clients; what follows waits for it (Felix wire 1.2)
        peer = self._peer
        if peer.document and not peer.auth_required:
            raise codec.BadMessage("unknown message type: auth")
        if self._tenant is not None:
            raise WireError("auth already established")
        slot = self._take_slot()
        self._machine.step(StreamEvent.HOLD)
        peer.held += 1
        request = requests.Authenticate(peer.next_id(), token=message.token, tenant=message.tenant_id)
        peer.ask(request, lambda outcome, _: self._authenticated(slot, message, outcome))

    def _authenticated(self, slot: int, message: codec.Auth, outcome: Outcome) -> None:
        peer = self._peer
        peer.held -= 1
        if not isinstance(outcome, requests.Identity):
            self._machine.step(StreamEvent.RELEASE)
            self._replies.fill(slot, replies.error("auth failed", document=peer.document))
            self._fail(None)
            self._settle()
            return
        self._tenant = message.tenant_id
        peer.authenticated = True
        if message.client_flags is None:
            self._replies.fill(slot, codec.encode(codec.Ok()))
        else:
            peer.flags = (KNOWN | BETWEEN_GATEWAYS) & message.client_flags
            self._replies.fill(slot, codec.encode(codec.AuthOk(peer.flags)))
        self._go_on()
        self._settle()

    def _go_on(self) -> None:
        self._machine.step(StreamEvent.RELEASE)
        self.buffer.wanted = 0
        whole = self.buffer.feed(b"") if self._machine.state in PARSING else b""
        if whole:
            self._parse(whole)

    def _subscribe(self, message: codec.Subscribe) -> None:
        peer = self._peer
        names = Names(message.tenant_id, message.namespace, message.stream)
        self._peer.check_tenant(names.tenant, self._tenant)
        if len(self._feeds) >= MAX_FEEDS:
            self._say(replies.error("max subscriptions per connection exceeded"))
            return
        slot = self._take_slot()
        Feed(peer, self._feeds, names, address_of(names, peer.settings.scope), message).begin(
            lambda result: self._fill(slot, replies.to_subscribe(message, names, result, document=peer.document))
        )

    def _cache(self, message: codec.CachePut | codec.CacheGet) -> None:
        scope = scope_of(message, self._peer)
        self._peer.check_tenant(scope.tenant, self._tenant)
        slot = self._take_slot()

        def got(reply: bytes) -> None:
            self._replies.fill(slot, reply)
            self._awaits_room = len(reply) > LARGE_REPLY and not self._stopped
            self._settle()
            if not self._awaits_room:
                self._go_on()
                self._settle()

        if isinstance(message, codec.CacheGet):
            # the next once a large one has left: who reads none would hold any number
            self._machine.step(StreamEvent.HOLD)
            serve_cache(self._peer, message, scope, got)
        else:
            serve_cache(self._peer, message, scope, lambda reply: self._fill(slot, reply))
