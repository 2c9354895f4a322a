"""A look at messages as they come in, before and after their route's transform, that costs the gateway next to nothing.

    publish ─► offer: is a token left? ─► a bounded ring ─► filter, CEL, redaction ─► who looks
                  │ no                        │ full          (in the reader's own task)
                  └──────────► counted ◄──────┘

While nobody looks the pipeline has no tap. While somebody does, a batch costs a look at a counter, and at most a few messages of
it are kept: what is beyond `RATE` a second, or finds the ring full, is dropped and counted. Nobody who publishes ever waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

import attrs
import msgspec
import trio

from gateway.admin.access import Role
from gateway.admin.content import Content, HeaderShown, content_of
from gateway.admin.inside import Inside
from gateway.admin.operation import EVENTS, KEEP_ALIVE, Asked, Events, Query, operation
from gateway.envelope import Columns, Headers, Origin
from gateway.errors import ConfigProblem, InvalidRequest, Throttled
from gateway.routing.expression import Expression, MessageView, compile_expression, is_true
from gateway.routing.transform import Transformed

RATE = 200.0
"""Messages a second that one who looks is shown at most."""
PER_BATCH = 8
"""Messages that are kept of one batch."""
RING = 256
MOST_READERS = 8
KEPT_BYTES = 64 << 10
"""A larger message is shown with its beginning alone."""
REPORT_EVERY = 1.0


class TapAsked(Query, frozen=True, kw_only=True):
    route: str = ""
    """A glob; empty: any."""
    protocol: str = ""
    principal: str = ""
    """A glob."""
    expression: str = ""
    """CEL over `value`, `key` and `headers` of the message as it came."""
    sample: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    """One of so many messages is shown."""
    stage: Annotated[str, msgspec.Meta(pattern="^(both|before|after)$")] = "both"
    """What is shown: the message as it came, what its route made of it, or both."""
    redact: bool = False
    """Keys, headers and values are not shown, only their sizes."""


class Side(msgspec.Struct, frozen=True):
    """A message on one side of a transform."""

    key: Content | None
    headers: Sequence[HeaderShown]
    value: Content


class Tapped(msgspec.Struct, frozen=True):
    """One message on its way in. `fate`: `stored`, `filtered` or `failed` by its route's transform."""

    time_ms: int
    protocol: str
    listener: str
    principal: str
    client: str
    address: str
    route: str
    fate: str
    problem: str = ""
    before: Side | None = None
    after: Side | None = None
    changed: Sequence[str] = ()
    """What differs between the two: `key`, `headers`, `value`."""


class TapReport(msgspec.Struct, frozen=True):
    """How much was seen since the tap was opened, and how much of it there was no time for."""

    seen: int
    matched: int
    dropped: int
    unreadable: int
    """Messages that the expression could not work on."""


class TapEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message, or a report."""

    message: Tapped | None = None
    report: TapReport | None = None


@attrs.frozen
class _Seen:
    origin: Origin
    address: str
    route: str
    key: bytes | None
    headers: Headers
    value: bytes
    after: tuple[bytes | None, Headers, bytes] | None
    transformed: bool
    problem: str
    time_ms: int


class _Look:
    def __init__(self, asked: TapAsked, expression: Expression | None, now: float) -> None:
        self.asked = asked
        self.expression = expression
        self.ring: deque[_Seen] = deque()
        self.fresh = trio.Event()
        self.seen = self.matched = self.dropped = self.unreadable = 0
        self._tokens = RATE
        self._at = now
        self._every = 0

    def wants(self, origin: Origin, route: str) -> bool:
        asked = self.asked
        return (
            (not asked.protocol or asked.protocol == origin.protocol)
            and (not asked.route or fnmatchcase(route, asked.route))
            and (not asked.principal or fnmatchcase(origin.principal, asked.principal))
        )

    def room(self, now: float, count: int) -> int:
        """How many of so many messages may be kept."""
        self.seen += count
        sample = self.asked.sample
        if sample > 1:
            self._every += count
            count, self._every = divmod(self._every, sample)
        self._tokens = min(RATE, self._tokens + (now - self._at) * RATE)
        self._at = now
        # what is over any of these is dropped and counted: a publisher never waits for who looks
        taken = min(count, PER_BATCH, int(self._tokens), RING - len(self.ring))
        self._tokens -= taken
        self.dropped += count - taken
        return taken


class Taps:
    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._looks: list[_Look] = []

    @operation("GET", "/v1/tap", Role.READ, media=(EVENTS,), event=TapEvent)
    async def tap(self, asked: Asked[TapAsked, None]) -> Events:
        """Messages as they come in, sampled; what there is no time for is dropped, and counted."""
        if len(self._looks) >= MOST_READERS:
            raise Throttled(f"{MOST_READERS} look already")
        expression = None
        if asked.query.expression:
            try:
                expression = compile_expression(asked.query.expression)
            except ConfigProblem as problem:
                raise InvalidRequest(f"expression: {problem.message}") from None
        return Events(self._followed(_Look(asked.query, expression, trio.current_time())))

    async def _followed(self, look: _Look) -> AsyncGenerator[tuple[str, bytes] | None]:
        self._looks.append(look)
        # only while somebody looks: otherwise a publish pays one comparison with None
        self._inside.house.pipeline.tap = self._offer
        reported, quiet_since = -1, trio.current_time()
        try:
            while True:
                with trio.move_on_after(REPORT_EVERY):
                    await look.fresh.wait()
                look.fresh = trio.Event()
                while look.ring:
                    event = self._event(look, look.ring.popleft())
                    if event is not None:
                        yield "message", msgspec.json.encode(TapEvent(message=event))
                    await trio.lowlevel.checkpoint()  # an expression may take its time: others come first
                if look.seen != reported:
                    reported, quiet_since = look.seen, trio.current_time()
                    report = TapReport(look.seen, look.matched, look.dropped, look.unreadable)
                    yield "report", msgspec.json.encode(TapEvent(report=report))
                elif trio.current_time() > quiet_since + KEEP_ALIVE:
                    quiet_since = trio.current_time()
                    yield None
        finally:
            self._looks.remove(look)
            if not self._looks:
                self._inside.house.pipeline.tap = None

    def _offer(
        self, origin: Origin, address: str, route: str, columns: Columns, transformed: Transformed | None
    ) -> None:
        now = trio.current_time()
        for look in self._looks:
            if look.wants(origin, route):
                room = look.room(now, columns.count)
                if room:
                    self._keep(look, origin, address, route, columns, transformed, room)

    def _keep(
        self,
        look: _Look,
        origin: Origin,
        address: str,
        route: str,
        columns: Columns,
        transformed: Transformed | None,
        room: int,
    ) -> None:
        time_ms = int(self._inside.now() * 1000)
        # spread over the batch: its first messages alone may be of one kind
        places = {index: place for place, index in enumerate(transformed.kept)} if transformed is not None else {}
        for index in (place * columns.count // room for place in range(room)):
            # values are taken apart when they are shown, not here: this is inside somebody's publish
            after, problem = None, ""
            if transformed is not None:
                if index in transformed.errors:
                    problem = transformed.errors[index].message
                elif index in places:
                    made, place = transformed.columns, places[index]
                    after = (made.key(place), made.headers_of(place), made.value(place))
            seen = _Seen(
                origin,
                address,
                route,
                columns.key(index),
                columns.headers_of(index),
                columns.value(index),
                after,
                transformed is not None,
                problem,
                time_ms,
            )
            look.ring.append(seen)
        look.fresh.set()

    def _event(self, look: _Look, one: _Seen) -> Tapped | None:
        if look.expression is not None:
            try:
                if not is_true(
                    look.expression.evaluate(MessageView(one.value, one.key, one.headers)), look.expression.text
                ):
                    return None
            except InvalidRequest:
                look.unreadable += 1
                return None
        look.matched += 1
        asked, came = look.asked, (one.key, one.headers, one.value)
        fate = "stored"
        if one.transformed and one.after is None:
            fate = "failed" if one.problem else "filtered"
        changed = []
        if one.after is not None:
            changed = [name for name, a, b in zip(("key", "headers", "value"), came, one.after, strict=True) if a != b]
        made = one.after if one.transformed else came
        return Tapped(
            one.time_ms,
            one.origin.protocol,
            one.origin.listener,
            one.origin.principal,
            one.origin.client,
            one.address,
            one.route,
            fate,
            one.problem,
            _side(*came, redact=asked.redact) if asked.stage != "after" else None,
            _side(*made, redact=asked.redact) if made is not None and asked.stage != "before" else None,
            changed,
        )


def _side(key: bytes | None, headers: Headers, value: bytes, *, redact: bool) -> Side:
    if redact:
        hidden = [HeaderShown(name, Content(len(data), b"", "redacted")) for name, data in headers[:100]]
        hidden_key = Content(len(key), b"", "redacted") if key is not None else None
        return Side(hidden_key, hidden, Content(len(value), b"", "redacted"))
    shown = [HeaderShown(name, content_of(data, most=1024)) for name, data in headers[:100]]
    return Side(content_of(key, most=1024) if key is not None else None, shown, content_of(value, most=KEPT_BYTES))
