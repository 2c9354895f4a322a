"""A client's writing stream (Fujin document, WRITE to ROLLBACK TX)."""

from __future__ import annotations

import attrs

from gateway.errors import GatewayError, InvalidRequest, TooLarge
from gateway.protocols.fujin.client.lane import ClientCore, StreamLane, refused
from gateway.protocols.fujin.wire import codec
from gateway.protocols.fujin.wire.codec_replies import decode_answer
from gateway.protocols.fujin.wire.frames import LARGEST_PUSH, Op, Reply
from gateway.requests import DONE, Begin, Begun, Commit, Outcome, Publish, Published, Rollback
from gateway.settings import Dialect

_REPLIES = {Op.BEGIN: Reply.BEGIN, Op.COMMIT: Reply.COMMIT, Op.ROLLBACK: Reply.ROLLBACK}


@attrs.define(eq=False)
class PendingPublish:
    """A Publish whose WRITEs are not all answered."""

    request: Publish
    left: int
    refused: dict[int, GatewayError] = attrs.Factory(dict)

    def outcome(self) -> Outcome:
        count = self.request.batch.columns.count
        if count and len(self.refused) == count:
            return self.refused[0]
        return Published(self.request.batch.address, 0, refused=self.refused)


class WriterLane(StreamLane):
    """Publishes, and at most one transaction at a time."""

    def __init__(self, core: ClientCore, channel: int) -> None:
        super().__init__(core, channel, codec.connect_writer())
        self._writes: dict[int, tuple[PendingPublish, int]] = {}
        self._publishes = 0
        self._commands: dict[tuple[Reply, int], Begin | Commit | Rollback] = {}

    def __len__(self) -> int:
        return self._publishes + len(self._commands)

    def publish(self, request: Publish) -> None:
        # A WRITE per message. Values that a reader could not be given are refused here (wire 0, rule 6).
        columns = request.batch.columns
        topic = request.batch.address.encode()
        headered = self.core.dialect is Dialect.DOCUMENT
        pending = PendingPublish(request, columns.count)
        self._publishes += 1
        for index, value in enumerate(columns.values()):
            if 0 < len(value) <= LARGEST_PUSH:
                cid = self.cid()
                self._writes[cid] = pending, index
                self.send(codec.write(cid, topic, value, columns.headers_of(index) if headered else None))
                continue
            pending.left -= 1
            pending.refused[index] = (
                TooLarge(f"a message of {len(value)} bytes is too large for Fujin")
                if value
                else InvalidRequest("Fujin has no empty messages")
            )
        self._end_if_answered(pending)

    def transact(self, op: Op, request: Begin | Commit | Rollback) -> None:
        cid = self.cid()
        self._commands[_REPLIES[op], cid] = request
        self.send(codec.command(op, cid))

    def reply(self, op: int, data: bytes, at: int, now: float) -> int:
        if not Reply.WRITE <= op <= Reply.ROLLBACK:
            return at + 1
        answer = decode_answer(data, at)
        if op == Reply.WRITE:
            pending, index = self._writes.pop(answer.cid, (None, 0))
            if pending is not None:
                pending.left -= 1
                if answer.error is not None:
                    pending.refused[index] = refused(answer.error)
                self._end_if_answered(pending)
            return answer.end
        request = self._commands.pop((Reply(op), answer.cid), None)
        if request is not None:
            done: Outcome = Begun(str(self.channel)) if isinstance(request, Begin) else DONE
            self.core.done(request.id, done if answer.error is None else refused(answer.error))
            if not isinstance(request, Begin) and (answer.error is None or isinstance(request, Rollback)):
                self.leave()  # a transaction has a stream of its own
        return answer.end

    def fail(self, error: GatewayError) -> None:
        super().fail(error)
        pending = {id(each): each for each, _ in self._writes.values()}
        for each in pending.values():
            self.core.done(each.request.id, error)
        for request in self._commands.values():
            self.core.done(request.id, error)
        self._publishes = 0
        self._writes.clear()
        self._commands.clear()

    def _end_if_answered(self, pending: PendingPublish) -> None:
        if not pending.left:
            self._publishes -= 1
            self.core.done(pending.request.id, pending.outcome())
