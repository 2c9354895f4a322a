"""The serving side: SEND, SUBSCRIBE, UNSUBSCRIBE, ACK, NACK, DISCONNECT, receipts and heart-beats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs
from gateway.protocols.stomp.wire import Frame, Malformed, take

from gateway.envelope import Batch, Columns
from gateway.errors import GatewayError
from gateway.requests import (
    Authenticate,
    Outcome,
    Publish,
    Published,
    Redelivery,
    Request,
    Settle,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.wire.ordering import ReplyQueue
from gateway.wire.session import (
    BEFORE_LOGIN,
    NO_REQUESTS,
    Close,
    Output,
    Requests,
    Send,
    ServerBasics,
    SessionContext,
)

MOST_SUBSCRIPTIONS = 256
PUSH_BYTES = 256 << 10
OURS = frozenset(("destination", "receipt", "content-length", "transaction"))
"""Headers of a SEND that say what is to be done with it; the others are the message's."""
GRACE = 2.0
"""A peer may be so many times as late with a beat as was agreed."""

Done = Callable[[Outcome], None]


@attrs.define(eq=False)
class Subscription:
    """One SUBSCRIBE."""

    id: str
    destination: str
    ack: str
    number: int = 0
    unsettled: list[int] = attrs.Factory(list)
    ended: bool = False


class StompServer(ServerBasics):
    """One connection."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._buffer = bytearray()
        self._replies = ReplyQueue()
        self._pushed: list[Send] = []
        self._requests: list[Request] = []
        self._pending: dict[int, Done] = {}
        self._number = 0
        self._subscriptions: dict[str, Subscription] = {}
        self._waiting = 0
        """Takes that wait: they owe the client nothing."""
        self._connected = False
        self._logging_in = False
        self._ending = False
        self._closed = False
        self._now = 0.0
        self._sends = self._expects = 0.0
        self._sent_at = self._heard_at = 0.0

    # --- the contract ---

    @property
    def in_flight(self) -> int:
        return len(self._pending) - self._waiting

    @property
    def kept(self) -> int:
        return len(self._buffer)

    @property
    def held(self) -> bool:
        return self._logging_in

    @property
    def handshaken(self) -> bool:
        return self._connected

    def receive(self, channel: int, data: bytes, now: float) -> Requests:
        self._now = self._heard_at = now
        if not self._ending:
            self._buffer += data
            self._read()
        return self._asked()

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        self._now = now
        done = self._pending.pop(request_id, None)
        if done is not None:
            done(outcome)
        self._read()
        return self._asked()

    def eof(self, channel: int, now: float) -> Requests:
        self._ending = True
        return NO_REQUESTS

    def lost(self) -> Requests:
        self._ending = self._closed = True
        self._pending.clear()
        self._pushed.clear()
        return NO_REQUESTS

    def room(self, channel: int, now: float) -> Requests:
        self._now = now
        for subscription in self._subscriptions.values():
            if subscription.number < 0:
                subscription.number = -subscription.number
                self._take(subscription)
        return self._asked()

    def drain(self, now: float) -> Requests:
        self._ending = True
        return NO_REQUESTS

    def timeout_at(self) -> float | None:
        times = [self._sent_at + self._sends] if self._sends else []
        if self._expects:
            times.append(self._heard_at + self._expects * GRACE)
        return min(times) if times and not self._closed else None

    def on_timeout(self, now: float) -> Requests:
        self._now = now
        if self._expects and now >= self._heard_at + self._expects * GRACE:
            self._fail("no heart-beat came")
        elif self._sends and now >= self._sent_at + self._sends:
            self._pushed.append(Send(0, b"\n"))
        return NO_REQUESTS

    def outputs(self) -> Sequence[Output]:
        outputs: list[Output] = []
        if self._closed:
            return outputs
        data = b"".join(self._replies.ready())
        if data:
            outputs.append(Send(0, data))
        outputs += self._pushed
        self._pushed = []
        if outputs:
            self._sent_at = self._now
        if self._ending and not self.in_flight and not len(self._replies):
            self._closed = True
            outputs.append(Close())
        return outputs

    # --- frames ---

    def _read(self) -> None:
        try:
            while not self._ending and not self._logging_in:
                frame = take(self._buffer) if self._connected else take(self._buffer, BEFORE_LOGIN)
                if frame is None:
                    return
                self._frame(frame)
        except Malformed as error:
            self._fail(str(error))

    def _frame(self, frame: Frame) -> None:
        if frame.command in ("CONNECT", "STOMP"):
            self._connect(frame)
            return
        if not self._connected:
            raise Malformed("CONNECT comes first")
        if frame.get("transaction"):
            raise Malformed("there are no transactions here")
        handlers = {
            "SEND": self._send,
            "SUBSCRIBE": self._subscribe,
            "UNSUBSCRIBE": self._unsubscribe,
            "ACK": self._settle,
            "NACK": self._settle,
            "DISCONNECT": self._disconnect,
        }
        handler = handlers.get(frame.command)
        if handler is None:
            raise Malformed(f"there is no {frame.command[:40]!r} here")
        handler(frame)

    def _connect(self, frame: Frame) -> None:
        if self._connected:
            raise Malformed("connected already")
        if "1.2" not in frame.get("accept-version").split(","):
            self._fail("only version 1.2 is spoken", ("version", "1.2"))
            return
        beats = frame.get("heart-beat", "0,0").split(",")
        if len(beats) != 2 or not all(one.isascii() and one.isdecimal() and len(one) <= 9 for one in beats):
            raise Malformed("heart-beat is two numbers")
        slot = self._replies.take()
        self._logging_in = True

        def admitted(outcome: Outcome) -> None:
            self._logging_in = False
            if isinstance(outcome, GatewayError):
                self._refuse(slot, outcome)
                return
            ours = self._context.settings.heart_beat * 1000
            sends, wants = (int(one) for one in beats)
            self._expects = max(sends, ours) / 1000 if sends and ours else 0.0
            self._sends = max(wants, ours) / 1000 if wants and ours else 0.0
            self._heard_at = self._now
            self._connected = True
            headers = [("version", "1.2"), ("server", "gateway"), ("heart-beat", f"{ours:.0f},{ours:.0f}")]
            self._replies.fill(slot, Frame("CONNECTED", headers).encode())

        if self._context.auth_required:
            number = self._next()
            self._ask(Authenticate(number, frame.get("login"), frame.get("passcode")), admitted)
        else:
            self._logging_in = False
            admitted(None)  # type: ignore[arg-type]  # nobody was asked

    def _send(self, frame: Frame) -> None:
        headers = tuple((name, value.encode()) for name, value in frame.headers if name not in OURS)
        batch = Batch(frame.needed("destination"), Columns.of([frame.body], None, [headers]))

        def refusal(outcome: Outcome) -> GatewayError | None:
            return outcome.refused.get(0) if isinstance(outcome, Published) else None

        self._ask(Publish(self._next(), batch), self._answered(frame, refusal))

    def _subscribe(self, frame: Frame) -> None:
        name, destination = frame.needed("id"), frame.needed("destination")
        ack = frame.get("ack", "auto")
        if ack not in ("auto", "client", "client-individual"):
            raise Malformed(f"ack is auto, client or client-individual, not {ack[:40]!r}")
        if name in self._subscriptions or len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            raise Malformed("this subscription is there already, or there are too many")
        subscription = self._subscriptions[name] = Subscription(name, destination, ack)
        answered = self._answered(frame)

        def subscribed(outcome: Outcome) -> None:
            answered(outcome)
            if isinstance(outcome, Subscribed):
                subscription.number = outcome.subscription
                self._take(subscription)

        acknowledge = ack != "auto"
        redelivery = Redelivery(unanswered=False) if acknowledge else None
        request = Subscribe(self._next(), destination, acknowledge=acknowledge, redelivery=redelivery)
        self._ask(request, subscribed)

    def _unsubscribe(self, frame: Frame) -> None:
        subscription = self._subscriptions.pop(frame.needed("id"), None)
        if subscription is None or not subscription.number:
            raise Malformed("there is no such subscription")
        subscription.ended = True
        self._ask(Unsubscribe(self._next(), abs(subscription.number)), self._answered(frame))

    def _settle(self, frame: Frame) -> None:
        number, _, tag = frame.needed("id").partition("-")
        if not all(part.isascii() and part.isdecimal() and len(part) <= 18 for part in (number, tag)):
            raise Malformed("this id was never given out")
        found = [one for one in self._subscriptions.values() if abs(one.number) == int(number)]
        if not found or int(tag) not in found[0].unsettled:
            raise Malformed("this id was never given out, or is settled")
        unsettled = found[0].unsettled
        tags = unsettled[: unsettled.index(int(tag)) + 1] if found[0].ack == "client" else [int(tag)]
        found[0].unsettled = [one for one in unsettled if one not in tags]
        self._ask(Settle(self._next(), int(number), tags, frame.command == "ACK"), self._answered(frame))

    def _disconnect(self, frame: Frame) -> None:
        self._replies.put(_receipt(frame))
        self._ending = True

    # --- messages ---

    def _take(self, subscription: Subscription) -> None:
        if subscription.ended or self._ending:
            return
        self._waiting += 1

        def taken(outcome: Outcome) -> None:
            self._waiting -= 1
            if not isinstance(outcome, Taken) or subscription.ended or self._ending:
                return
            data = b"".join(self._messages(subscription, outcome))
            if data:
                subscription.number = -subscription.number  # until there is room
                self._pushed.append(Send(0, data, notify=True))
            elif not outcome.ended:
                self._take(subscription)

        number = abs(subscription.number)
        self._ask(Take(self._next(), number, 64, PUSH_BYTES, math.inf), taken)

    def _messages(self, subscription: Subscription, outcome: Taken) -> Sequence[bytes]:
        frames = []
        for delivered in outcome.deliveries:
            columns = delivered.run.columns
            for index in range(columns.count):
                tag = delivered.first_tag + index
                offset = delivered.run.base_offset + index
                headers = [
                    ("subscription", subscription.id),
                    ("message-id", f"{delivered.run.partition}:{offset}"),
                    ("destination", subscription.destination),
                ]
                if subscription.ack != "auto":
                    subscription.unsettled.append(tag)
                    headers.append(("ack", f"{abs(subscription.number)}-{tag}"))
                own = [(name, value.decode(errors="replace")) for name, value in columns.headers_of(index)]
                frames.append(Frame("MESSAGE", [*headers, *own], columns.value(index)).encode())
        return frames

    # --- answers ---

    def _answered(self, frame: Frame, refusal: Callable[[Outcome], GatewayError | None] | None = None) -> Done:
        slot = self._replies.take()

        def done(outcome: Outcome) -> None:
            error = outcome if isinstance(outcome, GatewayError) else refusal(outcome) if refusal else None
            if error is not None:
                self._refuse(slot, error, frame.get("receipt"))
            else:
                self._replies.fill(slot, _receipt(frame))

        return done

    def _refuse(self, slot: int, error: GatewayError, receipt: str = "") -> None:
        """After an ERROR there is nothing more."""
        more = [("receipt-id", receipt)] if receipt else []
        self._replies.fill(slot, Frame("ERROR", [("message", error.message), *more]).encode())
        self._ending = True

    def _fail(self, text: str, *more: tuple[str, str]) -> None:
        self._replies.put(Frame("ERROR", [("message", text), *more]).encode())
        self._ending = True
        self._buffer.clear()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _ask(self, request: Request, done: Done) -> None:
        self._pending[request.id] = done
        self._requests.append(request)

    def _asked(self) -> Requests:
        requests, self._requests = self._requests, []
        return requests


def _receipt(frame: Frame) -> bytes:
    receipt = frame.get("receipt")
    return Frame("RECEIPT", [("receipt-id", receipt)]).encode() if receipt else b""
