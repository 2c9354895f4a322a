"""A session of the dialects that bind: 0.5 with HELLO, v1 without (wire 6.2). One stream of QUIC is one, or one whole connection.

    NEW --HELLO--> GREETED --BIND--> BOUND <--COMMIT, ROLLBACK-- IN_TX
                                       +---------BEGIN------------^

A session produces and consumes. A connector is a name for some topics, and its routes are those topics; a profile says what the
caller may do with each.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from gateway.envelope import Batch, Delivery
from gateway.errors import GatewayError
from gateway.protocols.fujin.server.bound_readers import BoundReader
from gateway.protocols.fujin.server.stream import Stream, StreamContext
from gateway.protocols.fujin.states import BOUND_EVENTS, SESSIONS, BoundEvent, BoundState
from gateway.protocols.fujin.wire import bound_codec as codec
from gateway.protocols.fujin.wire import bound_mapping as mapping
from gateway.protocols.fujin.wire.bound_codec import FETCHES, HEADERED, Bind, ReaderCommand, RefusedBound
from gateway.protocols.fujin.wire.bound_frames import (
    MOST_SUBSCRIPTIONS,
    BoundOp,
    BoundReply,
    Can,
    Failure,
    Guarantee,
    RouteProfile,
)
from gateway.protocols.fujin.wire.bound_headers import taken_out
from gateway.protocols.fujin.wire.codec import need, string, write_replies
from gateway.requests import (
    AddressProfile,
    Authenticate,
    Begin,
    Begun,
    Commit,
    DescribeTopics,
    Outcome,
    Profile,
    Profiles,
    Publish,
    Published,
    Rollback,
    Topics,
)
from gateway.wire.machine import Machine

MOST_ROUTES = 10_000
"""In the answer to BIND. What is not in it can be used all the same."""

INIT_PATIENCE = 1.0
"""Seconds after which `01 0000` is no BIND whose rest is late, but the whole INIT of an older client that waits for its answer
(wire 6.1)."""
OLDER = "sessions begin with BIND, CONNECTOR here (Fujin 0.2 to 0.4) or with HELLO (0.5); use a client of one of these"

CHANGING_NOTHING = frozenset(("transactional_id",))
"""Overrides that stock clients need for other brokers: transactions here need no id."""

_AROUND = {
    BoundOp.BEGIN.value: BoundReply.BEGIN,
    BoundOp.COMMIT.value: BoundReply.COMMIT,
    BoundOp.ROLLBACK.value: BoundReply.ROLLBACK,
}


class BoundStream(Stream):
    GOODBYE = bytes((BoundReply.DISCONNECT,))
    STOP = bytes((BoundReply.STOP,))

    def __init__(self, channel: int, context: StreamContext, admitted: Callable[[], None], *, greets: bool) -> None:
        """`greets`: it begins with HELLO. `admitted` is called when a BIND was accepted."""
        super().__init__(channel, context)
        self._admitted = admitted
        self._greets = greets
        self._machine = Machine(SESSIONS, BoundState.NEW if greets else BoundState.GREETED)
        self._topics: frozenset[str] | None = None
        """The routes of its connector; None: whatever there is."""
        self._transaction = ""
        self._tx_route = b""
        self._readers: dict[int, BoundReader] = {}
        self._implicit: dict[tuple[bytes, bool, bool], BoundReader] = {}
        self._incarnations = itertools.count(1)
        self._unsent = 0
        self._asked_for_room = False
        self._init_until: float | None = None

    # --- what readers need ---

    @property
    def stream(self) -> Stream:
        return self

    @property
    def has_room(self) -> bool:
        return self._unsent < self.window

    def push(self, data: bytes) -> None:
        self._unsent += len(data)
        self.send_apart(data, notify=not self._asked_for_room)
        self._asked_for_room = True

    def closed(self, reader: BoundReader) -> None:
        self._readers.pop(reader.number, None)
        for key in [key for key, one in self._implicit.items() if one is reader]:
            del self._implicit[key]

    def room(self, now: float) -> None:
        self._unsent = 0
        self._asked_for_room = False
        for reader in list(self._readers.values()):
            reader.pump()

    # --- commands ---

    def _command(self, data: bytes, at: int, now: float) -> int:
        event = BOUND_EVENTS.get(data[at])
        if event is None or not self._machine.allows(event):
            self.end()
            return at
        try:
            return self._COMMANDS[event](self, data, at, now)
        except RefusedBound as error:
            self.send(error.reply)
            if error.end is not None:
                return error.end
            self.end()
            return at

    def _hello(self, data: bytes, at: int, now: float) -> int:
        hello = codec.decode_hello(data, at)
        self._machine.step(BoundEvent.HELLO)
        self.send(codec.hello_done(self.context.build))
        return hello.end

    def _pong(self, data: bytes, at: int, now: float) -> int:
        return at + 1

    def _disconnect(self, data: bytes, at: int, now: float) -> int:
        self.end()
        return at + 1

    # --- BIND ---

    def _bind(self, data: bytes, at: int, now: float) -> int:
        if not self._greets and self._is_older(data, at, now):
            return at
        bind = codec.decode_bind(data, at)
        self._init_until = None
        settings = self.context.settings
        connector = settings.connectors.get(bind.connector)
        if not bind.connector or (settings.connectors and connector is None):
            self._refuse_bind(mapping.NO_CONNECTOR)
        elif any(path.rpartition(".")[2] not in CHANGING_NOTHING for path, _ in bind.overrides):
            self._refuse_bind(mapping.NO_OVERRIDES)
        else:
            self._topics = frozenset(connector.topics) if connector is not None else None
            self._log_in(bind)
        return bind.end

    def _refuse_bind(self, failure: Failure) -> None:
        self.send(codec.bind_failed(failure))

    def _is_older(self, data: bytes, at: int, now: float) -> bool:
        # CONNECT and INIT of the dialects between the seed's and v1 begin with the same byte, and have other fields behind
        # it: an empty id, or a number of overrides where the high half of a name's length is (wire 6.1)
        if len(data) - at == 3 and data[at + 1 : at + 3] == b"\0\0" and self._init_until is None:
            self._init_until = now + INIT_PATIENCE
        need(data, at + 5)
        if data[at + 1] or data[at + 2]:
            self._refuse_init()
        elif (
            data[at + 1 : at + 5] == b"\0\0\0\0"
        ):  # CONNECT has no answer: what it would hear at its end is all it knows
            self.send(self.GOODBYE)
            self.end()
        return self.ending

    def _refuse_init(self) -> None:
        self.send(bytes((BoundReply.BIND, 1)) + string(OLDER.encode()) + self.GOODBYE)
        self.end()

    def timeout_at(self) -> float | None:
        return self._init_until if not self.ending else None

    def on_timeout(self, now: float) -> None:
        if self._init_until is not None and now >= self._init_until and not self.ending:
            self._init_until = None
            if self.buffer.size == 3:
                self._refuse_init()

    def _log_in(self, bind: Bind) -> None:
        self.busy = True
        if not self.context.auth_required:
            self._find_routes("")
            return
        meta = dict(bind.meta)
        if not any(meta.get(name) for name in ("api_key", "token", "password")):
            self._bind_ended(mapping.NO_KEY, 0.0)
            return
        authenticate = partial(
            Authenticate,
            username=meta.get("username", ""),
            password=meta.get("password", ""),
            api_key=meta.get("api_key") or None,
            token=meta.get("token") or None,
        )
        self.ask(authenticate, self._logged_in)

    def _logged_in(self, outcome: Outcome, now: float) -> None:
        if isinstance(outcome, GatewayError):
            self._bind_ended(mapping.failure(outcome), now)
            self.go_on(now)
        else:
            self._find_routes("")

    def _find_routes(self, after: str, found: Sequence[AddressProfile] = ()) -> None:
        # the topics the connector shows, page by page, and what may be done with them
        if self._topics is not None:
            self.ask(partial(Profile, addresses=sorted(self._topics)), partial(self._profiled, found, ""))
        else:
            self.ask(partial(DescribeTopics, after=after), partial(self._described, found))

    def _described(self, found: Sequence[AddressProfile], outcome: Outcome, now: float) -> None:
        if isinstance(outcome, Topics) and not self.ending:
            addresses = [topic.address for topic in outcome.topics]
            self.ask(partial(Profile, addresses=addresses), partial(self._profiled, found, outcome.following))
        else:
            self._profiled(found, "", outcome, now)

    def _profiled(self, found: Sequence[AddressProfile], following: str, outcome: Outcome, now: float) -> None:
        if not self.ending:
            if isinstance(outcome, GatewayError):
                self._bind_ended(mapping.failure(outcome), now)
            elif isinstance(outcome, Profiles):
                found = [*found, *outcome.profiles]
                if following and len(found) < MOST_ROUTES:
                    self._find_routes(following, found)
                    return
                self._machine.step(BoundEvent.ACCEPTED)
                self._admitted()
                self.send(codec.bind_done([_profile(one) for one in found[:MOST_ROUTES]]))
        self.go_on(now)

    def _bind_ended(self, failure: Failure, now: float) -> None:
        # it may be tried again (wire 6.2)
        self.busy = False
        self._topics = None
        self._refuse_bind(failure)

    # --- producing ---

    def _produce(self, data: bytes, at: int, now: float) -> int:
        run = codec.scan_produces(data, at, self.part(at))
        kind = run.kind
        address = self._address(self._tx_route if self._transaction else run.route)
        if address is None:
            self._answer(kind, run.cids, dict.fromkeys(range(run.columns.count), _unknown(run.route)))
            return run.end
        batch = Batch(address, taken_out(run.columns), Delivery.AT_LEAST_ONCE)
        publish = partial(Publish, batch=batch, transaction=self._transaction)
        self.ask(publish, partial(self._published, kind, run.cids, bool(self._transaction)))
        return run.end

    def _address(self, route: bytes) -> str | None:
        # None where the connector has no such route
        try:
            address = route.decode()
        except UnicodeDecodeError:
            return None
        return address if self._topics is None or address in self._topics else None

    def _published(self, kind: BoundReply, cids: bytes, in_tx: bool, outcome: Outcome, now: float) -> None:
        differently = mapping.IN_TRANSACTION if in_tx else None
        if isinstance(outcome, GatewayError):
            failure = mapping.failure(outcome, differently)
            self._answer(kind, cids, dict.fromkeys(range(len(cids) // 4), failure))
        elif isinstance(outcome, Published):
            refused = {index: mapping.failure(error) for index, error in outcome.refused.items()}
            self._answer(kind, cids, refused)

    def _answer(self, kind: BoundReply, cids: bytes, failures: dict[int, Failure]) -> None:
        if not failures:
            self.send(write_replies(cids, kind))
            return
        for index in range(len(cids) // 4):
            cid = int.from_bytes(cids[4 * index : 4 * index + 4])
            failure = failures.get(index)
            self.send(codec.failed(kind, cid, failure) if failure is not None else codec.done(kind, cid))

    # --- transactions ---

    def _transact(self, data: bytes, at: int, now: float) -> int:
        kind = _AROUND[data[at]]
        in_tx = self._machine.state is BoundState.IN_TX
        if kind is BoundReply.BEGIN:
            cid, route, end = codec.decode_route(data, at, kind)
        else:
            need(data, at + 5)
            cid, route, end = int.from_bytes(data[at + 1 : at + 5]), b"", at + 5
        if kind is BoundReply.BEGIN and in_tx:
            self.send(codec.failed(kind, cid, mapping.TRANSACTION_ACTIVE))
        elif kind is not BoundReply.BEGIN and not in_tx:
            self.send(codec.failed(kind, cid, mapping.NO_TRANSACTION))
        elif kind is BoundReply.BEGIN and self._address(route) is None:
            self.send(codec.failed(kind, cid, _unknown(route)))
        else:
            self.busy = True
            if kind is BoundReply.BEGIN:
                self.ask(Begin, partial(self._begun, cid, route))
            else:
                request = Commit if kind is BoundReply.COMMIT else Rollback
                self.ask(partial(request, transaction=self._transaction), partial(self._over, kind, cid))
        return end

    def _begun(self, cid: int, route: bytes, outcome: Outcome, now: float) -> None:
        failure: Failure | None = None
        if isinstance(outcome, Begun):
            self._transaction = outcome.transaction
            if self.ending:
                self._roll_back()
            else:
                self._tx_route = route
                self._machine.step(BoundEvent.BEGUN)
        elif isinstance(outcome, GatewayError):
            failure = mapping.failure(outcome)
        self._end_command(BoundReply.BEGIN, cid, failure, now)

    def _over(self, kind: BoundReply, cid: int, outcome: Outcome, now: float) -> None:
        # however it ended: there is none any more (wire 6.2)
        self._transaction = ""
        if not self.ending:
            self._machine.step(BoundEvent.TX_OVER)
        failure = mapping.failure(outcome, mapping.IN_TRANSACTION) if isinstance(outcome, GatewayError) else None
        self._end_command(kind, cid, failure, now)

    def _end_command(self, kind: BoundReply, cid: int, failure: Failure | None, now: float) -> None:
        self.send(codec.failed(kind, cid, failure) if failure is not None else codec.done(kind, cid))
        self.go_on(now)

    def _roll_back(self) -> None:
        if self._transaction:
            self.ask(partial(Rollback, transaction=self._transaction), lambda _outcome, _now: None)
            self._transaction = ""

    # --- reading ---

    def _subscribe(self, data: bytes, at: int, now: float) -> int:
        command = codec.decode_reader(data, at)
        if self._machine.state is BoundState.GREETED:
            self.send(codec.failed(command.kind, command.cid, mapping.NOT_BOUND))
        else:
            self._open(command)
        return command.end

    def _read(self, data: bytes, at: int, now: float) -> int:
        op = data[at]
        if op in (BoundOp.ACK, BoundOp.NACK):
            settle = codec.decode_bound_settle(data, at, self.part(at))
            reader = self._readers.get(settle.subscription)
            if reader is None:
                self.send(codec.failed(settle.kind, settle.cid, mapping.NO_SUBSCRIPTION))
            else:
                reader.settle(settle)
            return settle.end
        if op == BoundOp.UNSUBSCRIBE:
            cid, number, end = codec.decode_unsubscribe(data, at)
            reader = self._readers.get(number)
            if reader is not None:
                reader.close()
            failure = mapping.NO_SUBSCRIPTION if reader is None else None
            kind = BoundReply.UNSUBSCRIBE
            self.send(codec.failed(kind, cid, failure) if failure is not None else codec.done(kind, cid))
            return end
        command = codec.decode_reader(data, at)
        if command.kind in FETCHES:
            self._fetch(command, now)
        else:
            self._open(command)
        return command.end

    def _fetch(self, command: ReaderCommand, now: float) -> None:
        reader = self._implicit.get(_key(command))
        if not command.most:
            self.send(codec.failed(command.kind, command.cid, mapping.NO_BATCH))
        elif reader is None:
            self._open(command)
        elif reader.fetching is not None:
            self.send(codec.failed(command.kind, command.cid, mapping.BUSY))
        else:
            reader.fetch(command.cid, command.most, now)

    def _open(self, command: ReaderCommand) -> None:
        address = self._address(command.route)
        number = next((number for number in range(MOST_SUBSCRIPTIONS) if number not in self._readers), None)
        if address is None or number is None:
            failure = mapping.NO_IDS_LEFT if number is None else _unknown(command.route)
            self.send(codec.failed(command.kind, command.cid, failure))
            return
        reader = BoundReader(self, number, command, next(self._incarnations))
        self._readers[number] = reader
        if command.kind in FETCHES:
            self._implicit[_key(command)] = reader
        reader.subscribe(address)

    # --- the end ---

    def _leave(self) -> bool:
        bound = self._machine.state in (BoundState.BOUND, BoundState.IN_TX)
        self._machine.step(BoundEvent.END)
        self._roll_back()
        for reader in list(self._readers.values()):
            reader.close()
        return bound

    _COMMANDS: ClassVar[Mapping[BoundEvent, Callable[[BoundStream, bytes, int, float], int]]] = {
        BoundEvent.HELLO: _hello,
        BoundEvent.BIND: _bind,
        BoundEvent.PRODUCE: _produce,
        BoundEvent.TX: _transact,
        BoundEvent.TX_PRODUCE: _produce,
        BoundEvent.SUBSCRIBE: _subscribe,
        BoundEvent.READ: _read,
        BoundEvent.PONG: _pong,
        BoundEvent.DISCONNECT: _disconnect,
    }


def _key(command: ReaderCommand) -> tuple[bytes, bool, bool]:
    return command.route, command.auto, command.kind in HEADERED


def _unknown(route: bytes) -> Failure:
    return mapping.unknown_route(route.decode(errors="replace"))


def _profile(one: AddressProfile) -> RouteProfile:
    return RouteProfile(one.address, *_rights(one.readable, one.writable, one.durable))


@functools.cache  # there are eight, and a session that binds is told ten thousand
def _rights(readable: bool, writable: bool, durable: bool) -> tuple[Can, Guarantee, int, int]:
    can = Can.HEADERS
    if writable:
        can |= Can.PRODUCE | Can.TRANSACTIONS
    if readable:
        can |= Can.SUBSCRIBE | Can.FETCH | Can.SETTLE
    guarantee = Guarantee.NONE if not writable else Guarantee.DURABLE if durable else Guarantee.PEER
    return can, guarantee, int(readable), int(readable)
