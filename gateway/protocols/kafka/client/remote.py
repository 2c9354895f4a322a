"""A Kafka as a broker elsewhere: takes the broker's requests, gives the broker's replies, as any dialled connection does."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import trio

from gateway.errors import (
    GatewayError,
    InvalidRequest,
    Status,
    TargetError,
    TargetLost,
    TargetRefused,
    UnknownSubscription,
    Unsupported,
)
from gateway.librdkafka.codes import NOBODY_THERE, UNAUTHENTICATED
from gateway.librdkafka.hop import Hop
from gateway.protocols.kafka.client.copier import Copier
from gateway.protocols.kafka.client.group import GroupReader
from gateway.protocols.kafka.client.inspect import Inspector
from gateway.protocols.kafka.client.publisher import Publisher
from gateway.protocols.kafka.client.settings import settings_of
from gateway.protocols.kafka.wire.mapping import target_error
from gateway.protocols.registry import Reach
from gateway.requests import (
    DONE,
    Cancel,
    CommitOffset,
    Completion,
    CreateTopic,
    DeleteTopic,
    DescribeTopics,
    Fetch,
    Outcome,
    Publish,
    ReadOffset,
    Request,
    Settle,
    Start,
    Subscribe,
    Subscribed,
    Take,
    Unsubscribe,
)

GOODBYE_SECONDS = 5.0
"""How long an end waits for the library's threads. They end by themselves, too."""
MOST_COPIERS = 64
"""Producers for logs that are copied, beyond which those that rest are closed."""
MISSING = "reaching a Kafka needs the library confluent-kafka: install the gateway with its extra `kafka`"


def refuses(error: GatewayError) -> bool:
    return isinstance(error, TargetRefused) and error.refusal is Status.UNAUTHENTICATED


class KafkaRemote:
    """One cluster, over as many connections as the library makes."""

    nursery: trio.Nursery
    """For tasks that live as long as the connection is open."""

    keeps_turns = False

    def __init__(self, where: Reach) -> None:
        self._where = where
        self.ended = trio.Event()
        self.heard = trio.Event()
        self._errors: Hop[Any] = Hop(self._told)
        self._settings: Mapping[str, Any] = {
            **settings_of(where),
            "error_cb": lambda error: self._errors.put([error]),
        }
        self._publisher: Publisher | None = None
        self._copiers: dict[bytes, Copier] = {}
        self._groups: dict[tuple[str, Start], GroupReader] = {}
        self._inspector = Inspector(self._settings, where.timeout, self._complete)
        self._subscriptions = itertools.count(2)
        self._takes: dict[int, trio.CancelScope] = {}
        self._refused: GatewayError | None = None
        self._asked = False

    # --- what whoever dialled asks ---

    async def refusal(self, timeout: float) -> GatewayError | None:
        """Ask the cluster who it is: the first answer is that it lets us in."""
        try:
            await trio.to_thread.run_sync(self._inspector.reach, timeout, abandon_on_cancel=True)
        except GatewayError as error:
            return self._refused or error
        self._asked = True
        self.heard.set()
        return None

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if self.ended.is_set():
                self._answer(request.id, TargetLost("the connection is closed"))
                continue
            try:
                self._start(request)
            except GatewayError as error:
                self._answer(request.id, error)

    async def aclose(self) -> None:
        self.ended.set()
        closing: list[Callable[[], None]] = [self._inspector.close]
        if self._publisher is not None:
            closing.append(self._publisher.close)
        closing += [copier.close for copier in self._copiers.values()]
        closing += [reader.close for reader in self._groups.values()]
        with trio.move_on_after(GOODBYE_SECONDS, shield=True):
            async with trio.open_nursery() as nursery:
                for close in closing:
                    nursery.start_soon(functools.partial(trio.to_thread.run_sync, close, abandon_on_cancel=True))

    # --- inside ---

    def _start(self, request: Request) -> None:
        match request:
            case Publish():
                self._publish(request)
            case Subscribe():
                self._subscribe(request)
            case Take():
                self._take(request)
            case Settle():
                self._reader(request.subscription).settle(
                    request.id, request.subscription, request.tags, accepted=request.accepted
                )
            case Unsubscribe():
                self._unsubscribe(request)
            case Cancel():
                for reader in self._groups.values():
                    reader.end_take(request.request)
                self._answer(request.id, DONE)
            case DescribeTopics() | Fetch() | CreateTopic() | DeleteTopic() | ReadOffset() | CommitOffset():
                self._inspector.start(request)
            case _:
                raise Unsupported(f"a Kafka is not asked for this: {type(request).__name__}")

    def _publish(self, request: Publish) -> None:
        if request.transaction or request.deliver_at_ms or request.delay_ms:
            raise Unsupported("a Kafka keeps nothing for later")
        copies = request.batch.copies
        if copies is not None and self._where.context.caller:
            self._complete(self._copier(copies.source).publish(request))
            return
        if self._publisher is None:
            self._publisher = Publisher(self._settings, self._where.timeout, self._complete)
        self._complete(self._publisher.publish(request))

    def _copier(self, source: bytes) -> Copier:
        # Of one log. Many are copied now and then: who has rested the longest is closed, and begins again by what is there.
        copier = self._copiers.pop(source, None)
        if copier is None:
            resting = [one for one, each in self._copiers.items() if each.idle]
            for one in resting[: max(0, len(self._copiers) + 1 - MOST_COPIERS)]:
                self._close_soon(self._copiers.pop(one).close)
            name = f"{self._where.context.caller}-{source.hex()}"
            drop = functools.partial(self._drop, source)
            copier = Copier(self._settings, name, self._where.timeout, self._complete, drop)
        self._copiers[source] = copier  # the last one used is the last one here
        return copier

    def _drop(self, source: bytes, error: GatewayError) -> None:
        # another gateway copies the log now, or nobody answers: the next batch, if there is one, begins again
        copier = self._copiers.pop(source, None)
        if copier is not None:
            self._close_soon(copier.close)
        if refuses(error):
            self._fail(error)

    def _close_soon(self, close: Callable[[], None]) -> None:
        self.nursery.start_soon(functools.partial(trio.to_thread.run_sync, close, abandon_on_cancel=True))

    def _subscribe(self, request: Subscribe) -> None:
        if isinstance(request.start, int):
            raise Unsupported("a group begins where it is: an offset is given to a Fetch")
        number = next(self._subscriptions)
        group = request.name or f"gateway-{self._where.context.caller}-{number}"
        key = group, request.start
        reader = self._groups.get(key)
        if reader is None:
            reader = self._groups[key] = GroupReader(self._settings, group, request.start, self._taken, self._fail)
        if reader.subscribed_to(request.address):
            raise InvalidRequest(f"{request.address} is read by {group} already, on this connection")
        reader.subscribe(number, request.address, request.acknowledge)
        self._answer(request.id, Subscribed(number, request.address))

    def _unsubscribe(self, request: Unsubscribe) -> None:
        reader = self._reader(request.subscription)
        reader.unsubscribe(request.subscription)
        if reader.empty:
            self._groups = {key: one for key, one in self._groups.items() if one is not reader}
            self._close_soon(reader.close)
        self._answer(request.id, DONE)

    def _take(self, request: Take) -> None:
        reader = self._reader(request.subscription)
        until = request.hold_until
        reader.take(request.id, request.subscription, request.max_messages, request.max_bytes, wait=until is not None)
        if until is not None and until < math.inf:
            self.nursery.start_soon(self._end_take, reader, request.id, until)

    async def _end_take(self, reader: GroupReader, request: int, until: float) -> None:
        with trio.CancelScope() as scope:
            self._takes[request] = scope
            await trio.sleep_until(until)
        self._takes.pop(request, None)
        if not scope.cancelled_caught:
            reader.end_take(request)

    def _reader(self, subscription: int) -> GroupReader:
        for reader in self._groups.values():
            if reader.has(subscription):
                return reader
        raise UnknownSubscription

    def _taken(self, request: int, outcome: Outcome) -> None:
        scope = self._takes.pop(request, None)
        if scope is not None:
            scope.cancel()
        self._answer(request, outcome)

    def _answer(self, request: int, outcome: Outcome) -> None:
        self._complete(((request, outcome),))

    def _complete(self, completions: Sequence[Completion]) -> None:
        if completions:
            self._where.complete(completions)

    def _fail(self, error: GatewayError) -> None:
        # something of the library's is of no more use: whoever dialled dials again
        if not self.ended.is_set():
            self._refused = self._refused or error
            self.ended.set()

    def _told(self, errors: Sequence[Any]) -> None:
        for error in errors:
            if error.code() in UNAUTHENTICATED:
                self._refused = TargetRefused(error.str(), refusal=Status.UNAUTHENTICATED)
                if self._asked:
                    self.ended.set()
            elif error.code() == NOBODY_THERE and self._asked:
                self._fail(TargetError(error.str()))
            elif error.fatal():
                self._fail(target_error(error))


@contextlib.asynccontextmanager
async def reach_kafka(where: Reach) -> AsyncIterator[KafkaRemote]:
    """Leaving the block closes it; everything under way is given up."""
    try:
        import confluent_kafka
    except ImportError:
        raise TargetError(MISSING) from None
    try:
        remote = KafkaRemote(where)
    except confluent_kafka.KafkaException as error:  # a certificate that is none, above all
        raise TargetError(error.args[0].str()) from None
    async with trio.open_nursery() as remote.nursery:
        try:
            yield remote
        finally:
            await remote.aclose()
            remote.nursery.cancel_scope.cancel()
