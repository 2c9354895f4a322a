"""Durable subscriptions among the gateways of one log: each is a job, which one gateway has, and the clients of the others are
passed on to that one.

    a client asks ─► whose is it? ─┬─ ours ───────────────────────────► SubscriptionService, as ever ─► answered
                                   ├─ another's ─► over the way to him ─► his SubscriptionService ────► answered
                                   └─ nobody's, or he cannot be reached ─► waits, for PATIENCE at most
    its owner changes, the way is cut ─► what was asked there and is not answered is asked once more, of whoever has it then

Whoever has it decides everything: what goes to whom, attempts, back-off, dead letters. The gateway of the client says whether it
may read there at all. Where one process writes alone none of this is in use.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import attrs
import trio
from msgspec.structs import replace

from gateway.broker.administration.topics import TopicService
from gateway.broker.consume.cursors import SUBSCRIPTIONS, read_subscription
from gateway.broker.consume.names import job_of
from gateway.broker.consume.subscriptions import SubscriptionService
from gateway.broker.ownership import TABLE, OwnedJobs, Owners
from gateway.broker.service import Along, Caller, Clock, Handler, ListenerInfo, StartJob, Timers
from gateway.envelope import Origin
from gateway.errors import AskedElsewhere, GatewayError, OwnerAway, Throttled, UnknownSubscription
from gateway.recorder import Recorder
from gateway.requests import (
    DONE,
    ConsumerMove,
    ConsumerMoved,
    ConsumerReset,
    Delivered,
    Done,
    Identity,
    Outcome,
    Request,
    Settle,
    Settled,
    Subscribe,
    Subscribed,
    Take,
    Taken,
    Unsubscribe,
)
from gateway.store.interface import Store

PATIENCE = 60.0
"""Seconds that a client waits for a gateway that cannot be reached: longer than it takes Kafka to give its jobs to another, which
is up to half a minute where a gateway is killed while another has just started, on a busy machine.
"""
UNKNOWN_FOR = 1.0
"""Seconds for which a number that nobody has may be one that another gateway has just given out."""
LOOK_AGAIN = 0.25
ADMIN = "admin"
"""What the listener is called of who asks in nobody's name."""
LONGEST_NUMBER = 20
"""Digits."""
TRIES = 64
"""Numbers that are looked at for one whose job is this gateway's, since one that is made is best where it is used: every tenth is
where there are ten gateways.
"""


class UseSubscription(Request, frozen=True):
    """This connection is a client of a subscription -> Done. Asked again of each gateway that has it."""

    subscription: int


class ResetSubscription(Request, frozen=True):
    """Put it elsewhere -> ConsumerMoved."""

    subscription: int
    reset: ConsumerReset


class ResetForward(Request, frozen=True):
    """Put one partition of a forward elsewhere -> ConsumerMoved."""

    job: str
    reset: ConsumerReset


_CALLED = {
    Subscribe: "subscribe",
    Take: "take",
    Settle: "settle",
    Unsubscribe: "unsubscribe",
    UseSubscription: "use",
    ResetSubscription: "reset",
    ResetForward: "reset",
}
"""What they are in the metrics."""

AboutOne = Subscribe | Take | Settle | Unsubscribe | UseSubscription | ResetSubscription | ResetForward


@attrs.define(eq=False)
class PassedRequest:
    """What a client of this gateway wants, and who was asked for it."""

    number: int
    """Ascending, in the order they came."""
    caller: Caller
    request: AboutOne
    subscription: int
    topic: str = ""
    """Of a Subscribe."""
    allowed: bool = True
    """Whether it is known that the caller may."""
    at: bytes | None = None
    """The gateway that was asked."""
    waits_since: float | None = None
    """None: it was passed on, or is served here."""

    @property
    def job(self) -> str:
        """Who has this answers it."""
        return _job(self.request, self.subscription)


class WayToOwners(Protocol):
    """To other gateways. What becomes of what is asked is told by `SharedSubscriptions.answered` and `cut`."""

    def ask(self, gateway: bytes, asked: PassedRequest) -> bool:
        """Pass it on as soon as the way is open (`passed`); False if there is none to this gateway now."""
        ...

    def cancel(self, gateway: bytes, asked: PassedRequest) -> None:
        """A Take that was passed on is to be answered with what it has."""
        ...

    def settle(self, gateway: bytes, caller: Caller, request: Settle) -> None:
        """Nobody asks what became of it."""
        ...

    def gone(self, gateway: bytes, caller: Caller) -> None:
        """This client has ended."""
        ...


_FAR_NUMBERS = itertools.count(-1, -1)
"""No connection of this process has a negative one."""


class FarClient:
    """A connection of another gateway, as this one's services see it. Whether it may is decided there."""

    far = True
    along: Callable[[], Along] | None = None

    def __init__(self, listener: ListenerInfo, name: str, answer: Callable[[int, Outcome], None]) -> None:
        """`name`: who it has logged in as."""
        self.id = next(_FAR_NUMBERS)
        self.listener = listener
        self.identity = Identity(authenticated=bool(name), name=name)
        self.origin = Origin(listener.protocol, listener.name, name)
        self.ways: dict[str, Any] = {}
        self.reads: dict[str, Any] = {}
        self.detached = False
        self._answer = answer
        self._on_detach: list[Callable[[], None]] = []

    def identify(self, identity: Identity) -> None:
        self.identity = identity

    def answer(self, request_id: int, outcome: Outcome) -> None:
        if not self.detached:
            self._answer(request_id, outcome)

    def on_detach(self, callback: Callable[[], None]) -> None:
        self._on_detach.append(callback)

    def detach(self) -> None:
        self.detached = True
        callbacks, self._on_detach = self._on_detach, []
        for callback in callbacks:
            callback()


@attrs.define(eq=False)
class SharingClient:
    """A connection of this gateway, with the subscriptions that it uses and where those are."""

    caller: Caller
    uses: dict[int, bytes | None] = attrs.Factory(dict)
    passed_to: set[bytes] = attrs.Factory(set)


class SharedSubscriptions(OwnedJobs[int]):
    def __init__(
        self,
        here: SubscriptionService,
        store: Store,
        owners: Owners,
        topics: TopicService,
        clock: Clock,
        timers: Timers,
        recorder: Recorder,
        start_soon: StartJob,
        refusal: Callable[[Caller, str], GatewayError | None],
    ) -> None:
        super().__init__(owners)
        self.way: WayToOwners | None = None
        """None until there is one: whoever needs it waits."""
        self.reset_forward: Callable[[ConsumerReset], Awaitable[Sequence[ConsumerMove]]] | None = None
        """Of those that this gateway has."""
        self._here = here
        self._store = store
        self._topics = topics
        self._clock = clock
        self._timers = timers
        self._recorder = recorder
        self._start_soon = start_soon
        self._refusal = refusal
        self._numbers = itertools.count(1)
        self._asked: dict[int, PassedRequest] = {}
        self._of_request: dict[tuple[int, int], PassedRequest] = {}
        self._users: dict[int, SharingClient] = {}
        self._looked_up: dict[int, list[tuple[Caller, AboutOne]]] = {}
        """What is asked of subscriptions that this gateway has, while it is looked up where their topics end: in order."""
        self._looking = False
        self._served: Mapping[type[Request], Handler] = {
            Take: here.take,
            Settle: here.settle,
            Unsubscribe: here.unsubscribe,
            UseSubscription: self._use_here,
            ResetSubscription: self._reset_here,
            ResetForward: self._reset_forward_here,
        }
        here.again = self._again
        here.opened = self._opened_here
        owners.on_change(self._moved)
        store.on_rows(TABLE, lambda _rows: self._moved())
        store.on_rows(SUBSCRIPTIONS, lambda _rows: self._look_at_waiting())

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {Subscribe: self.subscribe, Take: self._about, Settle: self._about, Unsubscribe: self._about}

    def address_of(self, number: int) -> str | None:
        address = self._here.address_of(number)
        if address is None and (row := read_subscription(self._store.table(SUBSCRIPTIONS), number)) is not None:
            return row.address
        return address

    @property
    def waiting(self) -> int:
        """How many wait for a gateway that has what they ask for."""
        return sum(asked.waits_since is not None for asked in self._asked.values())

    # --- what clients of this gateway ask ---

    def subscribe(self, caller: Caller, request: Subscribe) -> None:
        if not request.name and request.durable_grace is None:
            self._here.subscribe(caller, request)
            return
        topic = self._topics.name(caller, request.address)
        number = self._number_for(topic, request.name)
        uses, most = self._user(caller).uses, caller.listener.limits.subscriptions_per_connection
        if number not in uses and len(uses) >= most:
            self._recorder.limit_hit(caller.listener.name, "subscriptions_per_connection")
            raise Throttled("too many subscriptions: limits.subscriptions_per_connection is reached")
        self._ask(PassedRequest(next(self._numbers), caller, request, number, topic))

    def _number_for(self, topic: str, name: str) -> int:
        # the one that the name has, or one that is ours to serve, if there is one soon
        kept = self._here.names.number_of(topic, name)
        if kept is not None:
            return kept
        number = self._here.numbers.take()
        for _ in range(TRIES if self._owners.held else 0):
            if self._here.names.owned(number) or not self._here.numbers.plenty:
                break
            number = self._here.numbers.take()
        return number

    def _about(self, caller: Caller, request: Take | Settle | Unsubscribe) -> None:
        number = request.subscription
        if isinstance(request, Unsubscribe):
            self._uses_no_more(caller, number)
        if self._here.has(number):
            if isinstance(request, Take):
                self._note(caller, number, self._owners.name)
            self._served[type(request)](caller, request)
        else:
            known = self.address_of(number) is not None
            self._ask(PassedRequest(next(self._numbers), caller, request, number, allowed=known))

    def cancel(self, caller: Caller, request_id: int) -> bool:
        """Answer a waiting Take with nothing; False if none waits under that id."""
        asked = self._of_request.get((caller.id, request_id))
        if asked is None or not isinstance(asked.request, Take):
            return self._here.cancel(caller, request_id)
        if asked.at is not None and asked.waits_since is None and self.way is not None:
            self.way.cancel(asked.at, asked)
        else:
            self._finish(asked, Taken(()))
        return True

    async def reset(self, asked: ConsumerReset) -> Sequence[ConsumerMove]:
        """Put one elsewhere, whichever gateway has it: see `SubscriptionService.reset`."""
        number = self._here.names.number_of(asked.topic, asked.name) if asked.kind == "reader" else _number(asked.name)
        if number is None:
            return await self._here.reset(asked)  # which says that there is none
        return await self._moved_by_owner(ResetSubscription(0, number, asked), number)

    async def reset_partition(self, job: str, asked: ConsumerReset) -> Sequence[ConsumerMove]:
        """Put a forward elsewhere on the one partition that the job is about, whichever gateway has it."""
        return await self._moved_by_owner(ResetForward(0, job, asked))

    async def _moved_by_owner(
        self, request: ResetSubscription | ResetForward, number: int = 0
    ) -> Sequence[ConsumerMove]:
        while isinstance(outcome := await self._outcome(request, number), AskedElsewhere):
            pass  # it has changed its gateway meanwhile
        if isinstance(outcome, ConsumerMoved):
            return outcome.moves
        raise outcome if isinstance(outcome, GatewayError) else OwnerAway()

    async def _outcome(self, request: ResetSubscription | ResetForward, number: int) -> Outcome:
        arrived, found = trio.Event(), list[Outcome]()

        def answer(_request: int, outcome: Outcome) -> None:
            found.append(outcome)
            arrived.set()

        # whoever asks here has no connection of his own
        caller = FarClient(ListenerInfo(ADMIN, ADMIN), "", answer)
        try:
            self._ask(PassedRequest(next(self._numbers), caller, request, number))
            await arrived.wait()
        finally:
            caller.detach()
        return found[0]

    def _again(self, caller: Caller, request: Subscribe | Unsubscribe) -> None:
        # somebody else was quicker, here or elsewhere
        if caller.detached:
            return
        if caller.far:
            caller.answer(request.id, AskedElsewhere())
            return
        try:
            self.handlers()[type(request)](caller, request)
        except GatewayError as refusal:
            caller.answer(request.id, refusal)

    def _opened_here(self, caller: Caller, number: int) -> None:
        # the one that it is: who opens a name may have been given another number meanwhile
        if not (caller.far or caller.detached):
            self._note(caller, number, self._owners.name)

    # --- whom it is asked of ---

    def _ask(self, asked: PassedRequest) -> None:
        self._asked[asked.number] = asked
        if not isinstance(asked.request, UseSubscription):
            self._of_request[asked.caller.id, asked.request.id] = asked
        self._user(asked.caller)
        self._pass_on(asked)

    def _pass_on(self, asked: PassedRequest) -> None:
        request = asked.request
        if isinstance(request, Subscribe):
            asked.subscription = self._here.names.number_of(asked.topic, request.name) or asked.subscription
        elif not asked.allowed and not self._may(asked):
            return
        gateway = self._owners.owner_of(asked.job)
        if self._owners.owns(asked.job):
            self._serve_here(asked)
        elif gateway is None or gateway == self._owners.name or self.way is None or not self.way.ask(gateway, asked):
            self._wait(asked)
        else:
            asked.at = gateway
            user = self._user(asked.caller)
            user.passed_to.add(gateway)
            if isinstance(request, Take):
                user.uses[asked.subscription] = gateway

    def _may(self, asked: PassedRequest) -> bool:
        # when its caller was authorised nobody here knew what it is about
        address = self.address_of(asked.subscription)
        if address is None:
            self._wait(asked)
            return False
        refusal = self._refusal(asked.caller, address)
        if refusal is not None:
            self._finish(asked, refusal)
        asked.allowed = refusal is None
        return asked.allowed

    def _serve_here(self, asked: PassedRequest) -> None:
        self._forget(asked)
        if isinstance(asked.request, Take | Settle | UseSubscription):
            self._note(asked.caller, asked.subscription, self._owners.name)
        self._serve(asked.caller, asked.request, asked.subscription, asked.topic)

    def _serve(self, caller: Caller, request: AboutOne, number: int, topic: str) -> None:
        # the job is this gateway's
        if isinstance(request, Subscribe):
            opening = request

            async def open_it() -> None:
                # what this gateway knows of the topic may be older than what the client's has told it
                await self._store.refresh(topic)
                if caller.detached:
                    return
                if self._here.names.owned(number):
                    self._here.open(caller, opening, topic, number)
                else:
                    self._again(caller, opening)

            self._start_soon(caller, request, open_it)
        elif isinstance(request, ResetForward):
            self._handle(caller, request)
        elif (looked_up := self._looked_up.get(number)) is not None:
            looked_up.append((caller, request))
        elif self._here.has(number) or (row := read_subscription(self._store.table(SUBSCRIPTIONS), number)) is None:
            self._handle(caller, request)
        else:
            self._looked_up[number] = [(caller, request)]
            self._start_soon(None, None, partial(self._look_up, number, row.topic))

    async def _look_up(self, number: int, topic: str) -> None:
        problem: GatewayError | None = None
        try:
            await self._store.refresh(topic)
        except GatewayError as error:
            problem = error
        else:
            self._here.restore(lambda one: one == number and self._here.names.owned(one))
        for caller, request in self._looked_up.pop(number):
            if caller.detached:
                continue
            if problem is not None:
                self._refuse(caller, request, problem)
            elif self._here.names.owned(number):
                self._handle(caller, request)
            elif caller.far:
                caller.answer(request.id, AskedElsewhere())
            else:
                self._ask(PassedRequest(next(self._numbers), caller, request, number))

    def _handle(self, caller: Caller, request: AboutOne) -> None:
        if caller.detached:
            return
        try:
            self._served[type(request)](caller, request)
        except GatewayError as refusal:
            self._refuse(caller, request, refusal)

    def _refuse(self, caller: Caller, request: AboutOne, refusal: GatewayError) -> None:
        if _is_awaited(caller, request):
            caller.answer(request.id, refusal)
        elif isinstance(request, UseSubscription):
            self._user(caller).uses.pop(request.subscription, None)

    def _use_here(self, caller: Caller, request: UseSubscription) -> None:
        self._here.use(caller, request.subscription)
        if _is_awaited(caller, request):
            caller.answer(request.id, DONE)

    def _reset_here(self, caller: Caller, request: ResetSubscription) -> None:
        async def reset() -> None:
            # nobody may have read there for long, and others write
            await self._store.refresh(request.reset.topic)
            caller.answer(request.id, ConsumerMoved(await self._here.reset(request.reset)))

        self._start_soon(caller, request, reset)

    def _reset_forward_here(self, caller: Caller, request: ResetForward) -> None:
        async def reset() -> None:
            await self._store.refresh(request.reset.topic)
            if not self._owners.owns(request.job):
                caller.answer(request.id, AskedElsewhere())
                return
            if self.reset_forward is None:
                raise OwnerAway("the gateway that has this forward begins, or ends: try again")
            caller.answer(request.id, ConsumerMoved(await self.reset_forward(request.reset)))

        self._start_soon(caller, request, reset)

    # --- what becomes of it elsewhere ---

    def asked_of(self, gateway: bytes) -> Sequence[PassedRequest]:
        """What is asked of it and not answered, in order."""
        return [asked for asked in self._asked.values() if asked.at == gateway]

    def passed(self, asked: PassedRequest) -> None:
        """It is on its way: whoever was asked answers it, or the way is cut."""
        asked.waits_since = None
        self._recorder.passed(_CALLED[type(asked.request)])

    def answered(self, gateway: bytes, number: int, outcome: Outcome) -> None:
        asked = self._asked.get(number)
        if asked is None or asked.at != gateway:
            return  # it was asked of another one since: what this one says does not count
        if isinstance(outcome, AskedElsewhere):
            self._wait(asked)
            return
        if isinstance(outcome, Subscribed):
            self._note(asked.caller, outcome.subscription, gateway)
        elif isinstance(asked.request, UseSubscription) and isinstance(outcome, Done):
            self._note(asked.caller, asked.subscription, gateway)
        if isinstance(outcome, Taken) and outcome.deliveries:
            outcome = self._received(gateway, asked, outcome)
        if isinstance(asked.request, UseSubscription) and isinstance(outcome, GatewayError):
            self._user(asked.caller).uses.pop(asked.subscription, None)
        self._finish(asked, outcome)

    def _received(self, gateway: bytes, asked: PassedRequest, taken: Taken) -> Outcome:
        assert self.way is not None
        refusal = self._refusal(asked.caller, taken.address)
        if refusal is not None:  # its rights were withdrawn while it waited
            for tags in tags_of(taken.deliveries):
                refused = Settle(0, asked.subscription, tags, accepted=False, tried=False)
                self.way.settle(gateway, asked.caller, refused)
            return refusal
        if not taken.acknowledge:  # the client need not say so; but that it has got here
            for tags in tags_of(taken.deliveries):
                self.way.settle(gateway, asked.caller, Settle(0, asked.subscription, tags))
        return taken

    def refused(self, asked: PassedRequest, error: GatewayError) -> None:
        """It cannot be passed on."""
        self._finish(asked, error)

    def cut(self, gateway: bytes) -> None:
        """The way to it has ended, or could not be opened: nothing that was asked of it will be answered."""
        for asked in [one for one in self._asked.values() if one.at == gateway]:
            self._wait(asked)
        for user in list(self._users.values()):
            if gateway in user.passed_to:
                user.passed_to.discard(gateway)
                self._use_again(user, [number for number, at in user.uses.items() if at == gateway])

    def _wait(self, asked: PassedRequest) -> None:
        if asked.at is not None:  # under another number from now on: what is on its way is the answer to nothing
            asked.at = None
            del self._asked[asked.number]
            asked.number = next(self._numbers)
            self._asked[asked.number] = asked
        if asked.waits_since is None:
            asked.waits_since = self._clock.now()
        self._look_later()

    def _look(self) -> None:
        self._looking = False
        now = self._clock.now()
        for asked in [one for one in self._asked.values() if one.waits_since is not None]:
            self._give_up(asked, now)
        self._look_at_waiting()
        if any(asked.waits_since is not None for asked in self._asked.values()):
            self._look_later()

    def _look_later(self) -> None:
        # one timer for all: who is answered in a look may ask again there and then
        if not self._looking:
            self._looking = True
            self._timers.call_at(self._clock.now() + LOOK_AGAIN, self._look)

    def _give_up(self, asked: PassedRequest, now: float) -> None:
        request, since = asked.request, asked.waits_since
        hold_until = request.hold_until if isinstance(request, Take) else None
        if hold_until is not None and hold_until <= now:
            self._finish(asked, Taken((), address=self.address_of(asked.subscription) or ""))
        elif since is not None and not asked.allowed and now >= since + UNKNOWN_FOR:
            unknown = UnknownSubscription()
            self._finish(asked, Settled([unknown] * len(request.tags)) if isinstance(request, Settle) else unknown)
        elif since is not None and now >= since + PATIENCE:
            self._finish(asked, OwnerAway())

    def _look_at_waiting(self) -> None:
        for asked in [one for one in self._asked.values() if one.waits_since is not None and one.at is None]:
            self._pass_on(asked)

    def _finish(self, asked: PassedRequest, outcome: Outcome) -> None:
        self._forget(asked)
        if not (isinstance(asked.request, UseSubscription) or asked.caller.detached):
            asked.caller.answer(asked.request.id, outcome)

    def _forget(self, asked: PassedRequest) -> None:
        self._asked.pop(asked.number, None)
        if not isinstance(asked.request, UseSubscription):
            self._of_request.pop((asked.caller.id, asked.request.id), None)

    # --- owners come and go ---

    def jobs(self) -> Iterable[tuple[str, int]]:
        return ((job_of(number), number) for number in self._here.durable())

    def take(self) -> None:
        self._here.restore(lambda number: self._here.names.owned(number) and not self._here.has(number))

    def leave(self, job: int) -> None:
        for waiting in self._here.let_go(job):
            if waiting.caller.far:
                waiting.end(AskedElsewhere())
            elif not waiting.caller.detached:
                self._ask(PassedRequest(next(self._numbers), waiting.caller, waiting.request, job))

    async def drain(self) -> None:
        await self._here.close()

    def _moved(self) -> None:
        self.shared_out()
        for asked in list(self._asked.values()):
            if asked.at is not None and self._owners.owner_of(asked.job) != asked.at:
                self._wait(asked)
        for user in list(self._users.values()):
            self._use_again(user, [one for one, at in user.uses.items() if self._owners.owner_of(job_of(one)) != at])
        self._look_at_waiting()

    def _use_again(self, user: SharingClient, numbers: Sequence[int]) -> None:
        for number in numbers:
            if user.uses[number] is not None:
                user.uses[number] = None  # until somebody has it
                self._ask(PassedRequest(next(self._numbers), user.caller, UseSubscription(0, number), number))

    # --- clients of this gateway ---

    def _uses_no_more(self, caller: Caller, number: int) -> None:
        # whoever has it next is not told that this is a client of it
        self._user(caller).uses.pop(number, None)
        for asked in list(self._asked.values()):
            request = asked.request
            if asked.caller is caller and isinstance(request, UseSubscription) and request.subscription == number:
                self._forget(asked)

    def _note(self, caller: Caller, number: int, gateway: bytes) -> None:
        self._user(caller).uses[number] = gateway

    def _user(self, caller: Caller) -> SharingClient:
        user = self._users.get(caller.id)
        if user is None:
            user = self._users[caller.id] = SharingClient(caller)
            caller.on_detach(lambda: self._detached(user))
        return user

    def _detached(self, user: SharingClient) -> None:
        self._users.pop(user.caller.id, None)
        for asked in [one for one in self._asked.values() if one.caller is user.caller]:
            self._forget(asked)
        for gateway in user.passed_to:
            if self.way is not None:
                self.way.gone(gateway, user.caller)

    # --- what other gateways ask for their clients ---

    def arrived(self, client: FarClient, request: AboutOne, number: int, topic: str = "") -> None:
        if self._owners.owns(_job(request, number)):
            self._serve(client, request, number, topic)
        else:
            client.answer(request.id, AskedElsewhere())

    def cancel_far(self, client: FarClient, request_id: int) -> None:
        self._here.cancel(client, request_id)


def _job(request: AboutOne, number: int) -> str:
    return request.job if isinstance(request, ResetForward) else job_of(number)


def _number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdecimal() and len(name) < LONGEST_NUMBER else None


def relative(request: AboutOne, number: int, now: float) -> AboutOne:
    """Under the number that it is asked by, with a time to wait instead of one on the clock of this process."""
    if isinstance(request, Take) and request.hold_until is not None and request.hold_until != math.inf:
        return replace(request, id=number, hold_until=max(0.0, request.hold_until - now))
    return replace(request, id=number)


def _is_awaited(caller: Caller, request: AboutOne) -> bool:
    # what a gateway asks for a client of its own that knows nothing of it
    return caller.far or not isinstance(request, UseSubscription)


def tags_of(deliveries: Sequence[Delivered]) -> Iterator[Sequence[int]]:
    for one in deliveries:
        yield list(range(one.first_tag, one.first_tag + one.run.count))
