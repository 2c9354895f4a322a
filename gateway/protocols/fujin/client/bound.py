"""A client's session in the dialects that bind: 0.5 with HELLO, v1 without (wire 6.2).

A session publishes, reads and has at most one transaction. A transaction is about one route, which is known with its first
message: what else is published meanwhile waits for its end. Reading is a subscription with headers, where the route's profile
says that there are some; what comes before a Take asks for it waits here, and the stream is not read beyond a bound.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from gateway.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    TargetError,
    TargetLost,
    TooLarge,
    Unsupported,
    WireError,
)
from gateway.protocols.fujin.client.inbox import Inbox, Incoming
from gateway.protocols.fujin.client.lane import ClientCore
from gateway.protocols.fujin.client.writer import PendingPublish
from gateway.protocols.fujin.wire import bound_client as wire
from gateway.protocols.fujin.wire.bound_codec import PRODUCE_REPLIES
from gateway.protocols.fujin.wire.bound_frames import Applied, BoundOp, BoundReply, Can, Failure
from gateway.protocols.fujin.wire.bound_headers import put_in
from gateway.protocols.fujin.wire.bound_mapping import refused
from gateway.protocols.fujin.wire.codec import Incomplete, need
from gateway.protocols.fujin.wire.frames import LARGEST_MESSAGE
from gateway.requests import (
    DONE,
    Begin,
    Begun,
    Commit,
    Outcome,
    Publish,
    Request,
    Rollback,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    Take,
    Unsubscribe,
)
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.session import Credentials, Finish, Kind, Open, Withhold

CLIENT_NAME = "gateway"
CONNECTOR = "gateway"
"""What is bound where nothing else is said."""
EVERYTHING = Can.PRODUCE | Can.HEADERS | Can.TRANSACTIONS | Can.SUBSCRIBE | Can.FETCH | Can.SETTLE
"""What is tried with a route that the answer to BIND does not have: a gateway makes it."""
GOODBYE = bytes((BoundOp.DISCONNECT,))
PONG = bytes((BoundOp.PONG,))
_PRODUCES = frozenset(PRODUCE_REPLIES.values())
_TX = frozenset((BoundReply.BEGIN, BoundReply.COMMIT, BoundReply.ROLLBACK))


@attrs.define(eq=False)
class BoundSubscription:
    request: Subscribe
    number: int
    """The subscription's number, as the broker of this house knows it."""
    inbox: Inbox
    headered: bool
    auto: bool
    wire_id: int | None = None
    goodbye: Unsubscribe | None = None


@attrs.define(eq=False)
class OpenTransaction:
    id: str
    route: str


class BoundSession:
    """One session, on a stream of its own or on the whole connection."""

    def __init__(self, core: ClientCore, channel: int, credentials: Credentials, *, greets: bool) -> None:
        self.core = core
        self.channel = channel
        self.over = False
        self.leaving = False
        self.greeted = not greets
        """Whether it is certain that the peer speaks this."""
        self.bound = False
        self.refusal: GatewayError | None = None
        """Why BIND was refused."""
        self._credentials = credentials
        self._cids = itertools.count(1)
        self._buffer = ReceiveBuffer()
        self._early: deque[tuple[Request, Callable[[], None]]] = deque()
        """What waits for BIND, and how it goes on then."""
        self._held: deque[Request] = deque()
        """What waits for the end of a transaction."""
        self._cans: dict[str, Can] = {}
        self._publishes: dict[int, tuple[PendingPublish, int]] = {}
        self._pending = 0
        self._commands: dict[tuple[int, int], Request | None] = {}
        self._transaction: OpenTransaction | None = None
        self._begun_ids: set[str] = set()
        self._subscribing: dict[int, BoundSubscription] = {}
        self._leaving_readers: dict[int, BoundSubscription] = {}
        self._subscriptions: dict[int, BoundSubscription] = {}
        self._settles: dict[tuple[BoundReply, int], tuple[Settle, BoundSubscription]] = {}
        if channel < 0:
            core.outbox.put(channel, Open(channel, Kind.DUPLEX))
        if greets:
            self.send(wire.hello(CLIENT_NAME, "1"))
        else:
            self._bind()

    def __len__(self) -> int:
        waiting = sum(len(one.inbox.takes) + (one.goodbye is not None) for one in self._all())
        counted = sum(request is not None for request in self._commands.values())
        return self._pending + counted + len(self._held) + len(self._subscribing) + len(self._settles) + waiting

    @property
    def busy(self) -> bool:
        return bool(self._subscriptions or self._subscribing or self._transaction or self._begun_ids)

    def send(self, data: bytes) -> None:
        self.core.outbox.send(self.channel, data)

    def cid(self) -> int:
        return next(self._cids) & 0xFFFF_FFFF

    # --- requests ---

    def submit(self, request: Publish | Begin | Commit | Rollback) -> None:
        # in the order they came, but for what has to wait for a transaction's end
        self._when_bound(request, lambda: self._start(request))

    def begin(self, request: Begin, name: str) -> None:
        # what it is about is known with its first message: nothing is said before
        self._begun_ids.add(name)
        self.core.done(request.id, Begun(name))

    def subscribe(self, request: Subscribe, number: int) -> None:
        self._when_bound(request, lambda: self._subscribe(request, number))

    def _when_bound(self, request: Request, start: Callable[[], None]) -> None:
        if self.over or self.leaving:
            self.core.done(request.id, self.refusal or TargetLost("the session is over"))
        elif self.bound:
            start()
        else:
            self._pending += 1

            def later() -> None:
                self._pending -= 1
                if self.refusal is not None:
                    self.core.done(request.id, self.refusal)
                elif self.over:
                    self.core.done(request.id, TargetLost("the broker ended the session"))
                else:
                    start()

            self._early.append((request, later))

    def _start(self, request: Request) -> None:
        if self._held or self._has_to_wait(request):
            own = self._transaction is not None and getattr(request, "transaction", "") == self._transaction.id
            if not own:
                self._held.append(request)
                return
        match request:
            case Publish():
                self._publish(request)
            case Commit() | Rollback():
                self._end_transaction(request)

    def _has_to_wait(self, request: Request) -> bool:
        return self._transaction is not None and getattr(request, "transaction", "") != self._transaction.id

    def _publish(self, request: Publish) -> None:
        if request.transaction and request.transaction not in self._begun_ids:
            self.core.done(request.id, Conflict("no such transaction"))
            return
        route, columns = request.batch.address, request.batch.columns
        if request.transaction and self._transaction is None:
            self._transaction = OpenTransaction(request.transaction, route)
            cid = self.cid()
            self._commands[BoundReply.BEGIN, cid] = None
            self.send(wire.begin(cid, route.encode()))
        if self._transaction is not None and self._transaction.route != route:
            self.core.done(request.id, Unsupported("a transaction of this Fujin is about one route"))
            return
        headers = put_in(columns) if Can.HEADERS in self._can(route) else None
        pending = PendingPublish(request, columns.count)
        self._pending += 1
        name = route.encode()
        for index, value in enumerate(columns.values()):
            if 0 < len(value) <= LARGEST_MESSAGE:
                cid = self.cid()
                self._publishes[cid] = pending, index
                own = headers[index] or None if headers is not None else None
                in_tx = self._transaction is not None
                self.send(wire.tx_produce(cid, value, own) if in_tx else wire.produce(cid, name, value, own))
                continue
            pending.left -= 1
            pending.refused[index] = (
                TooLarge(f"a message of {len(value)} bytes is too large for Fujin")
                if value
                else InvalidRequest("Fujin has no empty messages")
            )
        self._end_if_answered(pending)

    def _can(self, route: str) -> Can:
        return self._cans.get(route, EVERYTHING)

    def _end_if_answered(self, pending: PendingPublish) -> None:
        if not pending.left:
            self._pending -= 1
            self.core.done(pending.request.id, pending.outcome())

    def _end_transaction(self, request: Commit | Rollback) -> None:
        if request.transaction not in self._begun_ids:
            self.core.done(request.id, Conflict("no such transaction"))
            return
        if self._transaction is None:  # nothing was ever said of it
            self._begun_ids.discard(request.transaction)
            self.core.done(request.id, DONE)
            return
        commits = isinstance(request, Commit)
        cid = self.cid()
        self._commands[BoundReply.COMMIT if commits else BoundReply.ROLLBACK, cid] = request
        self.send(wire.bound_command(BoundOp.COMMIT if commits else BoundOp.ROLLBACK, cid))

    def _subscribe(self, request: Subscribe, number: int) -> None:
        can = self._can(request.address)
        auto = not request.acknowledge
        lacks = Can.SUBSCRIBE not in can or (not auto and Can.SETTLE not in can)
        if lacks:
            self.core.done(
                request.id, Unsupported(f"the broker does not let {request.address} be subscribed to like this")
            )
            return
        headered = Can.HEADERS in can
        inbox = Inbox(self.core, request, self._withhold)
        cid = self.cid()
        self._subscribing[cid] = BoundSubscription(request, number, inbox, headered, auto)
        self.send(wire.subscribe(cid, request.address.encode(), auto=auto, headered=headered))

    def _withhold(self, on: bool) -> None:
        self.core.outbox.put(self.channel, Withhold(self.channel, on=on))

    def _find(self, number: int) -> BoundSubscription | None:
        return next((one for one in self._all() if one.number == number), None)

    def _all(self) -> Sequence[BoundSubscription]:
        return [*self._subscriptions.values(), *self._subscribing.values(), *self._leaving_readers.values()]

    def take(self, request: Take, now: float) -> None:
        found = self._find(request.subscription)
        if found is not None:
            found.inbox.wait(request, now)

    def settle(self, request: Settle) -> None:
        # ACK or NACK. With auto commit there is nothing to say.
        found = self._find(request.subscription)
        ids = [found.inbox.ids[tag] for tag in request.tags if tag in found.inbox.ids] if found is not None else []
        if not ids or found is None or found.wire_id is None:
            self.core.done(request.id, Settled([None] * len(request.tags)))
            return
        op = BoundOp.ACK if request.accepted else BoundOp.NACK
        cid = self.cid()
        self._settles[BoundReply.ACK if request.accepted else BoundReply.NACK, cid] = request, found
        self.send(wire.bound_settle(op, cid, found.wire_id, ids))

    def unsubscribe(self, request: Unsubscribe) -> bool:
        """Whether the session has nothing more to do then."""
        found = self._find(request.subscription)
        if found is None or found.wire_id is None:
            self.core.done(request.id, DONE)
            return not self.busy
        found.goodbye = request
        found.inbox.finish()
        cid = self.cid()
        self._subscriptions.pop(found.wire_id, None)
        self._leaving_readers[cid] = found
        self.send(wire.unsubscribe(cid, found.wire_id))
        return False

    def cancel(self, request_id: int) -> None:
        for one in self._all():
            one.inbox.cancel(request_id)

    def finish(self) -> None:
        for one in self._all():
            one.inbox.finish()

    def timeout_at(self) -> float | None:
        times = [one.inbox.timeout_at() for one in self._all()]
        return min((time for time in times if time is not None), default=None)

    def on_timeout(self, now: float) -> None:
        for one in self._all():
            one.inbox.on_timeout(now)

    def leave(self) -> None:
        """Say goodbye; the server answers everything before it answers that."""
        if not self.leaving and not self.over:
            self.leaving = True
            if self.bound:
                self.send(GOODBYE)
            else:
                self.core.outbox.put(self.channel, Finish(self.channel))
                self.fail(TargetLost("the session was given up before it began"))

    # --- what comes in ---

    def receive(self, data: bytes) -> None:
        data = self._buffer.feed(data)
        at = 0
        wanted = 0
        try:
            while at < len(data) and not self.over:
                at = self._reply(data, at)
        except Incomplete as error:
            wanted = error.wanted - at
        except WireError as error:
            self.core.outbox.put(self.channel, Finish(self.channel))
            self.fail(TargetLost(f"the broker broke the protocol: {error.message}"))
        if not self.over:
            self._buffer.keep(data[at:], wanted)

    def _reply(self, data: bytes, at: int) -> int:
        op = data[at]
        if op == BoundReply.PING:
            self.send(PONG)
            return at + 1
        if op == BoundReply.STOP:
            self.finish()
            if not any(one.inbox.ids for one in self._all()):
                self.leave()
            return at + 1
        if op == BoundReply.DISCONNECT:
            self.core.outbox.put(self.channel, Finish(self.channel))
            self.fail(TargetLost("the broker ended the session"))
            return at + 1
        if not self.bound:
            return self._handshake(op, data, at)
        if op in (BoundReply.MSG, BoundReply.HMSG):
            return self._message(data, at)
        if op in _PRODUCES:
            return self._produced(data, at)
        if op in _TX:
            return self._transacted(BoundReply(op), data, at)
        if op in (BoundReply.SUBSCRIBE, BoundReply.HSUBSCRIBE):
            return self._subscribed(data, at)
        if op in (BoundReply.ACK, BoundReply.NACK):
            return self._settled(BoundReply(op), data, at)
        if op == BoundReply.UNSUBSCRIBE:
            return self._unsubscribed(data, at)
        raise WireError(f"a reply of kind {op}")

    def _handshake(self, op: int, data: bytes, at: int) -> int:
        if op == BoundReply.HELLO and not self.greeted:
            failure, end = wire.decode_greeted(data, at)
            self.greeted = True
            if failure is not None:
                self._refuse(failure)
            else:
                self._bind()
            return end
        if op != BoundReply.BIND:
            raise WireError(f"a reply of kind {op} before BIND is answered")
        failure, routes, end = wire.decode_bound(data, at)
        if failure is not None:
            self._refuse(failure)
            return end
        self.bound = True
        self._cans = {route.name: route.can for route in routes}
        self._go_on()
        return end

    def _refuse(self, failure: Failure) -> None:
        self.refusal = refused(failure)
        self._go_on()
        self.core.outbox.put(self.channel, Finish(self.channel))
        self.over = True

    def _go_on(self) -> None:
        early, self._early = self._early, deque()
        for _, start in early:
            start()

    def _bind(self) -> None:
        known = self._credentials
        meta = (
            ("api_key", known.api_key),
            ("token", known.token),
            ("username", known.username),
            ("password", known.password),
        )
        self.send(wire.bind(known.connector or CONNECTOR, [pair for pair in meta if pair[1]]))

    def _produced(self, data: bytes, at: int) -> int:
        answer = wire.decode_bound_answer(data, at)
        pending, index = self._publishes.pop(answer.cid, (None, 0))
        if pending is not None:
            pending.left -= 1
            error = _error(answer.failure)
            if error is not None:
                pending.refused[index] = error
            self._end_if_answered(pending)
        return answer.end

    def _transacted(self, kind: BoundReply, data: bytes, at: int) -> int:
        answer = wire.decode_bound_answer(data, at)
        known = (kind, answer.cid) in self._commands
        request = self._commands.pop((kind, answer.cid), None)
        if known and kind is not BoundReply.BEGIN and request is not None:
            error = _error(answer.failure)
            if self._transaction is not None:
                self._begun_ids.discard(self._transaction.id)
            self._transaction = None
            self.core.done(request.id, error or DONE)
            held, self._held = self._held, deque()
            for one in held:
                self._start(one)
        return answer.end

    def _subscribed(self, data: bytes, at: int) -> int:
        answer = wire.decode_bound_answer(data, at)
        end = answer.end
        found = self._subscribing.get(answer.cid)
        if answer.failure is None:
            need(data, end + 1)
            if found is not None:
                found.wire_id = data[end]
                self._subscriptions[data[end]] = found
            end += 1
        if found is not None:
            del self._subscribing[answer.cid]
            outcome: Outcome = Subscribed(found.number, found.request.address)
            self.core.done(found.request.id, _error(answer.failure) or outcome)
        return end

    def _message(self, data: bytes, at: int) -> int:
        need(data, at + 2)
        found = self._subscriptions.get(data[at + 1])
        if found is None:  # on its way when we left
            found = next((one for one in self._leaving_readers.values() if one.wire_id == data[at + 1]), None)
        if found is None:
            raise WireError("a message of a subscription that is none")
        message, end = wire.decode_bound_message(data, at + 2, auto=found.auto, headered=data[at] == BoundReply.HMSG)
        if found.goodbye is None:
            found.inbox.hold((Incoming(message.id, message.value, message.headers),))
        return end

    def _settled(self, kind: BoundReply, data: bytes, at: int) -> int:
        answer, results = wire.decode_bound_settled(data, at)
        request, found = self._settles.pop((kind, answer.cid), (None, None))
        if request is None or found is None:
            return answer.end
        outcomes: list[GatewayError | None] = []
        for tag in request.tags:
            raw = found.inbox.ids.get(tag)
            failure = answer.failure if answer.failure is not None else results.get(raw) if raw is not None else None
            outcomes.append(_error(failure))
            if outcomes[-1] is None:
                found.inbox.ids.pop(tag, None)
        self.core.done(request.id, Settled(outcomes))
        return answer.end

    def _unsubscribed(self, data: bytes, at: int) -> int:
        answer = wire.decode_bound_answer(data, at)
        found = self._leaving_readers.pop(answer.cid, None)
        if found is not None and found.goodbye is not None:
            self.core.done(found.goodbye.id, DONE)
        return answer.end

    def fail(self, error: GatewayError) -> None:
        self.over = True
        self._go_on()
        for pending in {id(one): one for one, _ in self._publishes.values()}.values():
            self.core.done(pending.request.id, error)
        self._publishes.clear()
        self._pending = 0
        for request in (*self._commands.values(), *self._held, *(request for request, _ in self._settles.values())):
            if request is not None:
                self.core.done(request.id, error)
        for subscription in self._subscribing.values():
            self.core.done(subscription.request.id, error)
        for subscription in self._all():
            subscription.inbox.refuse(error)
            if subscription.goodbye is not None:
                self.core.done(subscription.goodbye.id, DONE)
        for queue in (
            self._commands,
            self._held,
            self._settles,
            self._subscribing,
            self._subscriptions,
            self._leaving_readers,
        ):
            queue.clear()
        self._begun_ids.clear()


def _error(failure: Failure | None) -> TargetError | None:
    # what failed although it has happened is done
    return None if failure is None or failure.applied == Applied.YES else refused(failure)
