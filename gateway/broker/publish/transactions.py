"""Transactions: bounded private buffers of prepared batches, appended in one unit at commit.

Until then nobody sees them and the log knows nothing of them. A transaction belongs to the connection that began it and
ends with it, or when its time is over.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Mapping

import attrs

from gateway.broker.administration.permissions import Permission
from gateway.broker.publish.appending import Appending
from gateway.broker.publish.publication import Prepared
from gateway.broker.service import Caller, Clock, Handler, Timers
from gateway.errors import Conflict, GatewayError, InvalidRequest, NotFound, Throttled, Unsupported
from gateway.requests import DONE, Begin, Begun, Commit, Publish, Published, Request, Rollback
from gateway.store.interface import Store, Ticket

TIMEOUT = 60.0
LONGEST_TIMEOUT = 900.0
MOST_PER_CONNECTION = 16
MOST_OPEN = 10_000
MOST_MESSAGES = 100_000
"""Messages in one transaction."""
MOST_BYTES = 32 << 20
"""In one transaction; a commit is one unit, and others wait behind it."""
MOST_BYTES_TOGETHER = 128 << 20
"""In all open transactions."""
_REMEMBERED = 64
"""Ended transactions of a connection whose fate it can still ask for."""


Permit = Callable[[Caller, Permission, str], None]


@attrs.define(eq=False)
class Transaction:
    id: str
    caller: Caller
    prepared: list[Prepared] = attrs.Factory(list)
    messages: int = 0
    bytes: int = 0
    addresses: set[str] = attrs.Factory(set)
    cancel_timer: Callable[[], None] = lambda: None


@attrs.define(eq=False)
class _Connection:
    open: dict[str, Transaction] = attrs.Factory(dict)
    ended: deque[tuple[str, str]] = attrs.field(factory=lambda: deque(maxlen=_REMEMBERED))
    """(id, what became of it)."""


class TransactionService:
    """Serves Begin; what belongs into a transaction, and its end, come through the pipeline."""

    def __init__(
        self, store: Store, appending: Appending, clock: Clock, timers: Timers, permit: Permit = lambda *_: None
    ) -> None:
        """`permit` raises unless the caller has a right on an address now."""
        self._permit = permit
        self._store = store
        self._appending = appending
        self._clock = clock
        self._timers = timers
        self._connections: dict[int, _Connection] = {}
        self._open = 0
        self._bytes = 0

    def handlers(self) -> Mapping[type[Request], Handler]:
        return {Begin: self.begin}

    def begin(self, caller: Caller, request: Begin) -> None:
        timeout = TIMEOUT if request.timeout is None else request.timeout
        if not (math.isfinite(timeout) and 0 < timeout <= LONGEST_TIMEOUT):
            raise InvalidRequest(f"a transaction lasts at most {LONGEST_TIMEOUT:g} seconds")
        connection = self._connections.get(caller.id)
        if connection is None:
            connection = self._connections[caller.id] = _Connection()
            # an open transaction holds memory for who may never come back
            caller.on_detach(lambda: self._leave(caller.id))
        if len(connection.open) >= MOST_PER_CONNECTION or self._open >= MOST_OPEN:
            raise Throttled("too many open transactions")
        transaction = Transaction(f"txn-{secrets.token_hex(8)}", caller)
        connection.open[transaction.id] = transaction
        self._open += 1
        transaction.cancel_timer = self._timers.call_at(self._clock.now() + timeout, lambda: self._expire(transaction))
        caller.answer(request.id, Begun(transaction.id))

    def admit(self, caller: Caller, request: Publish) -> None:
        """Raise unless there is room for a batch in an open transaction of the caller's."""
        transaction = self._find(caller, request.transaction)
        if request.deliver_at_ms or request.delay_ms:
            raise Unsupported("a message inside a transaction cannot be delayed")
        columns = request.batch.columns
        if transaction.messages + columns.count > MOST_MESSAGES or transaction.bytes + columns.value_bytes > MOST_BYTES:
            raise Throttled("the transaction is too large")
        if self._bytes + columns.value_bytes > MOST_BYTES_TOGETHER:
            raise Throttled("the open transactions hold too much together")

    def keep(self, caller: Caller, request: Publish, prepared: Prepared) -> None:
        """Keep a batch until the commit; the reply comes at once, with offset 0."""
        now_ms = self._clock.now_ms()
        columns = request.batch.columns
        transaction = self._find(caller, request.transaction)  # it may have ended while the batch was being validated
        transaction.prepared.append(prepared)
        transaction.addresses.add(request.batch.address)
        transaction.messages += columns.count
        transaction.bytes += columns.value_bytes
        self._bytes += columns.value_bytes
        caller.answer(request.id, Published(request.batch.address, now_ms, refused=prepared.refused))

    def commit(self, caller: Caller, request: Commit) -> None:
        # append everything in one unit, if the caller may still write all of it
        transaction = self._find(caller, request.transaction)
        try:
            # rights change while a transaction is open, and nothing of it is stored before this moment
            for address in transaction.addresses:
                self._permit(caller, Permission.WRITE, address)
        except GatewayError:
            self._end(transaction, "rolled back")
            self._appending.discard(transaction.prepared)
            raise
        self._end(transaction, "committed")
        if not transaction.prepared:
            caller.answer(request.id, DONE)
            return

        ended = self._connections[caller.id].ended

        def done(ticket: Ticket) -> None:
            if ticket.error is not None:
                ended.append((transaction.id, "failed"))  # the latest word about an id counts
            caller.answer(request.id, ticket.error or DONE)

        self._appending.commit(transaction.prepared, done=done)

    def rollback(self, caller: Caller, request: Rollback) -> None:
        transaction = self._find(caller, request.transaction)
        self._end(transaction, "rolled back")
        self._appending.discard(transaction.prepared)
        caller.answer(request.id, DONE)

    # --- inside ---

    def _find(self, caller: Caller, transaction: str) -> Transaction:
        connection = self._connections.get(caller.id)
        if connection is not None:
            found = connection.open.get(transaction)
            if found is not None:
                return found
            for ended, fate in reversed(connection.ended):
                if ended == transaction:
                    raise Conflict(f"transaction {fate}: {transaction}")
        # somebody else's is no different from one that never was
        raise NotFound(f"transaction not found: {transaction[:64]}")

    def _end(self, transaction: Transaction, fate: str) -> None:
        transaction.cancel_timer()
        connection = self._connections[transaction.caller.id]
        del connection.open[transaction.id]
        connection.ended.append((transaction.id, fate))
        self._open -= 1
        self._bytes -= transaction.bytes

    def _expire(self, transaction: Transaction) -> None:
        transaction.cancel_timer = lambda: None  # it is what is running
        self._end(transaction, "timed out")
        self._appending.discard(transaction.prepared)

    def _leave(self, connection: int) -> None:
        for transaction in list(self._connections[connection].open.values()):
            self._end(transaction, "rolled back")
            self._appending.discard(transaction.prepared)
        del self._connections[connection]
