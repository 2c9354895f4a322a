"""A stream that writes (Fujin document, CONNECT WRITER to ROLLBACK TX; wire 1.4, 1.6, 3).

Consecutive WRITEs to one topic are one batch. Replies go out as they become known, matched by their cids. A transaction
begins with BEGIN and may hold any topics; its messages are appended in one unit at COMMIT.
"""

from __future__ import annotations

import struct
from functools import partial

from gateway.envelope import Batch
from gateway.errors import GatewayError, WireError
from gateway.protocols.fujin.server.seed_stream import SeedStream
from gateway.protocols.fujin.settings import FujinSettings, WriteHeaders
from gateway.protocols.fujin.states import Event, State
from gateway.protocols.fujin.wire import codec, mapping
from gateway.protocols.fujin.wire.codec import need
from gateway.protocols.fujin.wire.frames import LARGEST_NAME, Op, Reply
from gateway.requests import Begin, Begun, Commit, Outcome, Publish, Published, Rollback
from gateway.settings import Dialect

_U32 = struct.Struct(">I")
WRITE = Op.WRITE.value
"""Asked for with each command: the member would be looked up in its class, and compared as an enumeration."""

_AFTER_NUMBER = frozenset({Op.WRITE, Op.BEGIN, Op.COMMIT, Op.ROLLBACK, Op.DISCONNECT})
"""What can follow a CONNECT WRITER whose id is a number (wire 1.5, row 1)."""

_TX_REPLIES = {Op.BEGIN.value: Reply.BEGIN, Op.COMMIT.value: Reply.COMMIT, Op.ROLLBACK.value: Reply.ROLLBACK}


def connect_writer(data: bytes, at: int, dialect: Dialect) -> int:
    """Where CONNECT WRITER ends. Its id is a u32 in the document and a string in stock clients; 0 is the same in both,
    otherwise the next byte tells: no reply is due before it (wire 1.5, row 1). The id itself has no meaning here.
    """
    need(data, at + 5)
    size = _U32.unpack_from(data, at + 1)[0]
    if size and dialect is Dialect.AUTO:
        need(data, at + 6)
        if data[at + 5] in _AFTER_NUMBER:
            return at + 5
    if not size or dialect is Dialect.DOCUMENT:
        return at + 5
    if size > LARGEST_NAME:
        raise WireError(f"a writer id of {size} bytes")
    need(data, at + 5 + size)
    return at + 5 + int(size)


class SeedWriter:
    def __init__(self, stream: SeedStream) -> None:
        self._stream = stream
        self._headered = _headered(stream.context.settings, stream.context.dialect)
        """Whether WRITEs carry headers; None until the first one tells."""
        self._transaction = ""
        stream.machine.step(Event.CONNECT_WRITER)

    def command(self, op: int, data: bytes, at: int, now: float) -> int:
        if op == WRITE:
            return self._write(data, at)
        cid = codec.decode_cid(data, at)
        in_tx = self._stream.machine.state is State.IN_TX
        if (op == Op.BEGIN) is in_tx:
            self._stream.send(codec.reply(_TX_REPLIES[op], cid, mapping.INVALID_TX_STATE))
            return at + 5
        self._stream.busy = True
        if op == Op.BEGIN:
            self._stream.ask(Begin, partial(self._begun, cid))
        elif op == Op.COMMIT:
            self._stream.ask(partial(Commit, transaction=self._transaction), partial(self._committed, cid))
        else:
            self._stream.ask(partial(Rollback, transaction=self._transaction), partial(self._rolled_back, cid))
        return at + 5

    def end(self) -> None:
        # an open transaction is rolled back (wire 3)
        if self._transaction:
            self._stream.ask(partial(Rollback, transaction=self._transaction), self._forgotten)
            self._transaction = ""

    def room(self, now: float) -> None:
        """Nothing waits for it."""

    def timeout_at(self) -> float | None:
        return None

    def on_timeout(self, now: float) -> None:
        """Never asked for."""

    def _write(self, data: bytes, at: int) -> int:
        if self._headered is None:
            self._headered = codec.has_headers(data, codec.decode_write_head(data, at))
        run = codec.scan_writes(data, at, self._stream.part(at), headered=self._headered)
        try:
            topic = run.topic.decode()
        except UnicodeDecodeError:
            self._answer(run.cids, dict.fromkeys(range(run.columns.count), mapping.WRITER_NOT_FOUND))
            return run.end
        batch = Batch(topic, run.columns)
        publish = partial(Publish, batch=batch, transaction=self._transaction)
        self._stream.ask(publish, partial(self._published, run.cids))
        return run.end

    def _published(self, cids: bytes, outcome: Outcome, now: float) -> None:
        if isinstance(outcome, GatewayError):
            self._answer(cids, dict.fromkeys(range(len(cids) // 4), mapping.write_error(outcome)))
        elif isinstance(outcome, Published) and not outcome.refused:
            self._stream.send(codec.write_replies(cids))
        elif isinstance(outcome, Published):
            self._answer(cids, {index: mapping.write_error(error) for index, error in outcome.refused.items()})

    def _answer(self, cids: bytes, errors: dict[int, str]) -> None:
        # `02 cid` and what became of each
        for index in range(len(cids) // 4):
            cid = int.from_bytes(cids[4 * index : 4 * index + 4])
            self._stream.send(codec.reply(Reply.WRITE, cid, errors.get(index)))

    def _begun(self, cid: int, outcome: Outcome, now: float) -> None:
        error: str | None = None
        if isinstance(outcome, Begun):
            self._transaction = outcome.transaction
            if self._stream.ending:
                self.end()
            else:
                self._stream.machine.step(Event.BEGUN)
        elif isinstance(outcome, GatewayError):
            error = mapping.tx_error(outcome)
        self._stream.send(codec.reply(Reply.BEGIN, cid, error))
        self._stream.go_on(now)

    def _committed(self, cid: int, outcome: Outcome, now: float) -> None:
        # a COMMIT that fails leaves the transaction open (wire 3)
        error = mapping.tx_error(outcome) if isinstance(outcome, GatewayError) else None
        if error is None:
            self._over()
        self._stream.send(codec.reply(Reply.COMMIT, cid, error))
        self._stream.go_on(now)

    def _rolled_back(self, cid: int, outcome: Outcome, now: float) -> None:
        # a ROLLBACK that fails ends it all the same (wire 3)
        self._over()
        error = mapping.tx_error(outcome) if isinstance(outcome, GatewayError) else None
        self._stream.send(codec.reply(Reply.ROLLBACK, cid, error))
        self._stream.go_on(now)

    def _over(self) -> None:
        self._transaction = ""
        if not self._stream.ending:
            self._stream.machine.step(Event.TX_OVER)

    def _forgotten(self, outcome: Outcome, now: float) -> None:
        """Nobody is left to be told."""


def _headered(settings: FujinSettings, dialect: Dialect) -> bool | None:
    match settings.write_headers:
        case WriteHeaders.NEVER:
            return False
        case WriteHeaders.ALWAYS:
            return True
        case WriteHeaders.AUTO:
            return None
        case WriteHeaders.DIALECT:
            return dialect is Dialect.DOCUMENT
