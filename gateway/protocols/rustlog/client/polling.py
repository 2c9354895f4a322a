"""Subscriptions over a protocol that cannot wait: a position per partition, read round robin, again after a pause.

Apart from the session: of all five protocols this one alone has to ask again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import attrs

from gateway import requests
from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import GatewayError, TargetRefused, UnknownSubscription
from gateway.protocols.rustlog.wire.frames import (
    Answer,
    DescribeTopic,
    ErrorAnswer,
    Fetch,
    GroupPosition,
    OffsetCommit,
    OffsetFetch,
    Operation,
    Pulled,
    TopicDescription,
)
from gateway.protocols.rustlog.wire.mapping import READ_FAILED, refused
from gateway.requests import Outcome, Request

PAUSE = 0.02
"""Seconds between two empty reads: what a subscriber waits at most, against 50 requests a second."""

MOST_BYTES = 10_000_000
"""Never ask for more: a real server cuts the connection when its answer would be beyond 10 MiB (RustLog wire 1.3)."""

_ORIGIN = Origin("rustlog", "")
_FAR = (1 << 63) - 1


@attrs.define(eq=False)
class _Cursor:
    """A partition and the offset to read next."""

    partition: int
    offset: int = 0


@attrs.define(eq=False)
class _Subscription:
    """What one Subscribe made."""

    number: int
    request: requests.Subscribe
    cursors: list[_Cursor] = attrs.Factory(list)
    turn: int = 0
    preparing: int = 0  # partitions whose start is not known yet
    handed_out: list[tuple[int, int, int, int]] = attrs.Factory(list)  # (first tag, count, partition, base offset)
    next_tag: int = 1
    failed: TargetRefused | None = None


@attrs.define(eq=False)
class _Taking:
    """A Take, or a Fetch that may wait, under way."""

    id: int
    hold_until: float | None
    read: Callable[[], None]
    empty: Callable[[], Outcome]
    due: float | None = None  # when to read again; None while a read is on the wire
    cancelled: bool = False


class Poller:
    def __init__(
        self,
        call: Callable[[Operation, Callable[[Answer], None]], None],
        finish: Callable[[int, Outcome], None],
        *,
        has_describe: bool,
    ) -> None:
        self.now = 0.0
        self._call = call
        self._finish = finish
        self._has_describe = has_describe
        self._numbers = itertools.count(2)
        self._subscriptions: dict[int, _Subscription] = {}
        self._taking: dict[int, _Taking] = {}

    def holds(self, request: requests.Fetch) -> bool:
        """Whether a Fetch may have to be tried again."""
        return request.hold_until is not None

    def start(self, request: Request) -> None:
        match request:
            case requests.Subscribe():
                self._subscribe(request)
            case requests.Cancel():
                self._cancel(request)
            case requests.Unsubscribe():
                self._subscriptions.pop(request.subscription, None)
                self._finish(request.id, requests.DONE)
            case requests.Take() | requests.Settle():
                subscription = self._subscriptions.get(request.subscription)
                if subscription is None:
                    self._finish(request.id, UnknownSubscription())
                elif isinstance(request, requests.Settle):
                    self._settle(request, subscription)
                else:
                    self._take(request, subscription)

    def fetch(self, request: requests.Fetch) -> None:
        operation = Fetch(
            "", request.address, request.partition, request.offset, max(1, min(request.max_bytes, MOST_BYTES))
        )
        nothing = requests.Fetched((), request.offset, 0, request.offset)

        def read() -> None:
            self._call(operation, answered)

        def answered(answer: Answer) -> None:
            if isinstance(answer, ErrorAnswer):
                self._end(taking, refused(answer.code, answer.text))
            elif isinstance(answer, Pulled) and answer.columns.count:
                self._end(taking, fetched(request, answer))
            else:
                self._again(taking)

        taking = self._taking[request.id] = _Taking(request.id, request.hold_until, read, lambda: nothing)
        read()

    def next_poll(self) -> float | None:
        return min((taking.due for taking in self._taking.values() if taking.due is not None), default=None)

    def poll(self, now: float) -> None:
        self.now = now
        for taking in list(self._taking.values()):
            if taking.due is not None and taking.due <= now:
                taking.due = None
                if taking.hold_until is not None and taking.hold_until <= now:
                    self._end(taking, taking.empty())
                else:
                    taking.read()

    def clear(self) -> None:
        self._taking.clear()
        self._subscriptions.clear()

    # --- taking ---

    def _again(self, taking: _Taking) -> None:
        # nothing came: wait a little, or answer so
        if taking.cancelled or taking.hold_until is None or taking.hold_until <= self.now:
            self._end(taking, taking.empty())
        else:
            taking.due = min(self.now + PAUSE, taking.hold_until)

    def _end(self, taking: _Taking, outcome: Outcome) -> None:
        if self._taking.pop(taking.id, None) is not None:
            self._finish(taking.id, outcome)

    def _cancel(self, request: requests.Cancel) -> None:
        taking = self._taking.get(request.request)
        if taking is not None:
            taking.cancelled = True
            if taking.due is not None:
                self._end(taking, taking.empty())
        self._finish(request.id, requests.DONE)

    def _take(self, request: requests.Take, subscription: _Subscription) -> None:
        tried = 0

        def read() -> None:
            nonlocal tried
            tried += 1
            cursor = subscription.cursors[subscription.turn % len(subscription.cursors)]
            size = max(1, min(request.max_bytes, MOST_BYTES))
            operation = Fetch("", subscription.request.address, cursor.partition, cursor.offset, size)
            self._call(operation, lambda answer: answered(cursor, answer))

        def answered(cursor: _Cursor, answer: Answer) -> None:
            nonlocal tried
            subscription.turn += 1
            if isinstance(answer, ErrorAnswer):
                self._end(taking, refused(answer.code, answer.text))
            elif isinstance(answer, Pulled) and answer.columns.count:
                self._end(taking, self._delivered(request, subscription, cursor, answer))
            elif tried < len(subscription.cursors):
                read()
            else:
                tried = 0
                self._again(taking)

        taking = self._taking[request.id] = _Taking(request.id, request.hold_until, read, lambda: requests.Taken(()))
        read()

    def _delivered(
        self, request: requests.Take, subscription: _Subscription, cursor: _Cursor, pulled: Pulled
    ) -> requests.Taken:
        address, name = subscription.request.address, subscription.request.name
        deliveries = []
        left = request.max_messages
        for run in runs_of(address, cursor.partition, pulled):
            part = run.slice(0, left)
            left -= part.count
            deliveries.append(requests.Delivered(part, subscription.next_tag))
            if subscription.request.acknowledge:
                subscription.handed_out.append((subscription.next_tag, part.count, part.partition, part.base_offset))
            subscription.next_tag += part.count
            cursor.offset = part.next_offset
            if left == 0:
                break
        if name and not subscription.request.acknowledge:
            self._call(OffsetCommit(name, address, cursor.partition, cursor.offset), lambda _: None)
        return requests.Taken(deliveries)

    def _settle(self, request: requests.Settle, subscription: _Subscription) -> None:
        # Accepted: the group's offset moves behind the last of them, and they are settled when the broker has said so. Given
        # back: reading goes on at the first of them.
        moved: dict[int, int] = {}
        of: dict[int, list[int]] = {}
        results: list[GatewayError | None] = []
        for tag in request.tags:
            place = next((h for h in subscription.handed_out if h[0] <= tag < h[0] + h[1]), None)
            if place is None:
                results.append(UnknownSubscription())
                continue
            first, _, partition, base = place
            offset = base + tag - first
            of.setdefault(partition, []).append(len(results))
            if request.accepted:
                moved[partition] = max(moved.get(partition, 0), offset + 1)
            else:
                moved[partition] = min(moved.get(partition, _FAR), offset)
            results.append(None)
        open_ones = 1

        def committed(partition: int, answer: Answer) -> None:
            if isinstance(answer, ErrorAnswer):
                for index in of[partition]:
                    results[index] = refused(answer.code, answer.text)
            ended()

        def ended() -> None:
            nonlocal open_ones
            open_ones -= 1
            if not open_ones:
                self._finish(request.id, requests.Settled(results))

        for partition, offset in moved.items():
            if not request.accepted:
                next(c for c in subscription.cursors if c.partition == partition).offset = offset
                continue
            subscription.handed_out = [h for h in subscription.handed_out if h[2] != partition or h[3] + h[1] > offset]
            if subscription.request.name:
                commit = OffsetCommit(subscription.request.name, subscription.request.address, partition, offset)
                open_ones += 1
                self._call(commit, partial(committed, partition))
        ended()

    # --- subscribing: find the partitions, then where to begin in each ---

    def _subscribe(self, request: requests.Subscribe) -> None:
        subscription = _Subscription(next(self._numbers), request)
        if self._has_describe:
            self._call(DescribeTopic(request.address), lambda answer: self._found(subscription, answer))
        else:  # the document's JSON knows no partitions
            self._prepare(subscription, {0: 0})

    def _found(self, subscription: _Subscription, answer: Answer) -> None:
        match answer:
            case ErrorAnswer(code=code, text=text):
                self._finish(subscription.request.id, refused(code, text))
            case TopicDescription(partitions=partitions) if partitions:
                self._prepare(subscription, {state.id: state.high_watermark for state in partitions})
            case _:
                self._finish(subscription.request.id, refused(0, "the topic has no partitions"))

    def _prepare(self, subscription: _Subscription, ends: dict[int, int]) -> None:
        subscription.cursors = [_Cursor(partition) for partition in ends]
        subscription.preparing = len(ends)
        for cursor in subscription.cursors:
            self._begin(subscription, cursor, ends[cursor.partition])

    def _begin(self, subscription: _Subscription, cursor: _Cursor, end: int) -> None:
        request = subscription.request

        def from_start() -> None:
            if isinstance(request.start, int):
                cursor.offset = request.start
                self._begun(subscription)
            elif request.start is requests.Start.EARLIEST:
                self._first(subscription, cursor, -1, end, 0)
            else:
                cursor.offset = end
                self._last(subscription, cursor)

        def group_found(answer: Answer) -> None:
            if isinstance(answer, GroupPosition) and answer.offset is not None:
                cursor.offset = answer.offset
                self._call(Fetch("", request.address, cursor.partition, answer.offset, 1), tried)
            else:
                from_start()

        def tried(answer: Answer) -> None:
            # what the group has not read may be gone by now: then it goes on with what is left
            if isinstance(answer, ErrorAnswer) and answer.code == READ_FAILED:
                from_start()
            else:
                self._begun(subscription)

        if request.name:
            self._call(OffsetFetch(request.name, request.address, cursor.partition), group_found)
        else:
            from_start()

    def _last(self, subscription: _Subscription, cursor: _Cursor) -> None:
        # Find the end. Real servers say it is 0 (RustLog wire 1.4), so read on until nothing comes.
        def answered(answer: Answer) -> None:
            match answer:
                case ErrorAnswer(code=code, text=text):
                    subscription.failed = refused(code, text)
                    self._begun(subscription)
                case Pulled(columns=columns, next_offset=next_offset) if columns.count:
                    cursor.offset = next_offset
                    self._last(subscription, cursor)
                case Pulled(next_offset=next_offset):
                    cursor.offset = next_offset
                    self._begun(subscription)

        # The document's JSON answers beyond the end with the end itself.
        offset = cursor.offset if self._has_describe else _FAR
        self._call(Fetch("", subscription.request.address, cursor.partition, offset, MOST_BYTES), answered)

    def _first(self, subscription: _Subscription, cursor: _Cursor, refused_at: int, end: int, probe: int) -> None:
        # find the first offset that is still there: 0, or by halving what is left, as the protocol does not tell
        def answered(answer: Answer) -> None:
            match answer:
                case ErrorAnswer(code=code) if code == READ_FAILED and probe + 1 < end:
                    self._first(subscription, cursor, probe, end, (probe + end) // 2)
                case ErrorAnswer(code=code) if code == READ_FAILED and probe < end:
                    cursor.offset = end
                    self._begun(subscription)
                case ErrorAnswer(code=code, text=text):
                    subscription.failed = refused(code, text)
                    self._begun(subscription)
                case _ if probe - refused_at <= 1:
                    cursor.offset = probe
                    self._begun(subscription)
                case _:
                    self._first(subscription, cursor, refused_at, probe, (refused_at + probe) // 2)

        self._call(Fetch("", subscription.request.address, cursor.partition, probe, 1), answered)

    def _begun(self, subscription: _Subscription) -> None:
        subscription.preparing -= 1
        if subscription.preparing:
            return
        if subscription.failed is not None:
            self._finish(subscription.request.id, subscription.failed)
            return
        self._subscriptions[subscription.number] = subscription
        first = subscription.cursors[0].offset if len(subscription.cursors) == 1 else 0
        reply = requests.Subscribed(subscription.number, subscription.request.address, first)
        self._finish(subscription.request.id, reply)


def runs_of(address: str, partition: int, pulled: Pulled) -> list[Run]:
    """What was read as runs; one for each stretch without a gap. Times are not told: 0."""
    columns, offsets = pulled.columns, pulled.offsets
    if not columns.count:
        return []
    if offsets is None:
        return [_run(address, partition, pulled.next_offset - columns.count, columns)]
    borders = [i for i in range(1, columns.count) if offsets[i] != offsets[i - 1] + 1]
    edges = itertools.pairwise([0, *borders, columns.count])
    return [_run(address, partition, offsets[start], columns.slice(start, stop)) for start, stop in edges]


def _run(address: str, partition: int, base: int, columns: Columns) -> Run:
    return Run(address, partition, base, columns, [0] * columns.count, [(0, 0, BatchMeta(b"", _ORIGIN))])


def fetched(request: requests.Fetch, answer: Answer) -> requests.Fetched:
    if not isinstance(answer, Pulled):
        return requests.Fetched((), request.offset, 0, request.offset)
    runs: list[Run] = []
    left = request.max_messages
    next_offset = answer.next_offset
    for run in runs_of(request.address, request.partition, answer):
        if left <= 0:
            break
        part = run.slice(0, left)
        left -= part.count
        runs.append(part)
        if left <= 0 and part.next_offset < answer.next_offset:
            next_offset = part.next_offset
    return requests.Fetched(runs, next_offset, 0, next_offset)
