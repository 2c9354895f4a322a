"""The asking side of a FlyMQ connection: requests become frames, answers come back in the same order.

FlyMQ has no correlation ids, so what was sent is a queue: each answer belongs to its head. Each request is a generator
(`client_operations`, `client_reader`) that yields what to ask and gets the answer; runs of messages to publish have a
way of their own, because they are many.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from gateway.errors import GatewayError, Status, TargetError, TargetLost, TargetRefused, Unsupported, WireError
from gateway.protocols.flymq.client.accounts import ACCOUNTS
from gateway.protocols.flymq.client.operations import STEPS
from gateway.protocols.flymq.client.publish import PublishedRun
from gateway.protocols.flymq.client.reader import READING
from gateway.protocols.flymq.client.steps import Ask, ClientShared, ClientSteps, WaitUntil
from gateway.protocols.flymq.states import CLIENT, ClientPhase, ClientStep
from gateway.protocols.flymq.wire.dialect import read_error, read_login
from gateway.protocols.flymq.wire.frames import HEADER, HEADER_SIZE, Op, check_header, frame
from gateway.protocols.flymq.wire.mapping import refusal
from gateway.requests import DONE, Cancel, Completion, Outcome, Publish, Reply, Request
from gateway.wire.buffer import ReceiveBuffer
from gateway.wire.machine import Machine
from gateway.wire.session import NO_COMPLETIONS, ClientContext, Close, Completions, Kind, Output, Send

_HANDLERS = {**STEPS, **ACCOUNTS, **READING}


class _Asking:
    __slots__ = ("id", "op", "steps")

    def __init__(self, request_id: int, steps: ClientSteps) -> None:
        self.id = request_id
        self.steps = steps
        self.op = Op.ERROR


class _Login:
    """What waits for the answer to AUTH."""


_Waiting = _Asking | PublishedRun | _Login


class FlymqClient:
    keeps_turns = False

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._machine = Machine(CLIENT, ClientPhase.DIALLING)
        self._buffer = ReceiveBuffer()
        self._upstream = ClientShared(context.dialect)
        self._queued: deque[Request] = deque()
        self._sent: deque[_Waiting] = deque()
        self._paused: dict[int, tuple[float, _Asking]] = {}
        self._outputs: list[bytes] = []
        self._closing = False
        self._refused: TargetRefused | None = None
        """What the broker said to our login."""
        self._now = 0.0

    @property
    def in_flight(self) -> int:
        return len(self._queued) + len(self._sent) + len(self._paused)

    @property
    def admitted(self) -> bool | GatewayError:
        return self._refused or self._machine.state is ClientPhase.OPEN

    def opened(self, channel: int, kind: Kind, now: float) -> Completions:
        self._now = now
        credentials = self._context.credentials
        if not credentials.username:
            return self._admit()
        self._machine.step(ClientStep.LOG_IN)
        payload = self._upstream.request(Op.AUTH, credentials.username, credentials.password)
        self._outputs.append(frame(Op.AUTH, payload))
        self._sent.append(_Login())
        return NO_COMPLETIONS

    def submit(self, request: Request, now: float) -> Completions:
        self._now = now
        phase = self._machine.state
        if phase in {ClientPhase.DIALLING, ClientPhase.LOGIN}:
            self._queued.append(request)
            return NO_COMPLETIONS
        if phase is not ClientPhase.OPEN:
            return ((request.id, TargetError("the connection is closed")),)
        completions: list[Completion] = []
        self._start(request, completions)
        return completions

    def receive(self, channel: int, data: bytes, now: float) -> Completions:
        self._now = now
        whole = self._buffer.feed(data)
        completions: list[Completion] = []
        position = 0
        size = len(whole)
        wanted = 0
        while position < size:
            if size - position < HEADER_SIZE:
                wanted = HEADER_SIZE
                break
            magic, version, code, _, length = HEADER.unpack_from(whole, position)
            try:
                check_header(magic, version, length)
            except WireError as error:
                return [*completions, *self._fail(error.message)]
            end = position + HEADER_SIZE + length
            if end > size:
                wanted = HEADER_SIZE + length
                break
            if not self._answered(code, whole[position + HEADER_SIZE : end], completions):
                return [*completions, *self._fail(f"an answer nobody asked for: operation 0x{code:02x}")]
            position = end
        if position < size and self._machine.state is not ClientPhase.CLOSED:
            self._buffer.keep(whole[position:] if position else whole, wanted)
        return completions

    def eof(self, channel: int, now: float) -> Completions:
        return self._fail("the connection was closed by the peer")

    def reset(self, channel: int, code: int) -> Completions:
        return self._fail("the connection was reset by the peer")

    def stopped(self, channel: int, code: int) -> Completions:
        return self._fail("the connection was reset by the peer")

    def lost(self) -> Completions:
        # the connection is gone: what was asked may have happened, what waited has not
        return self._end("the connection was lost")

    def room(self, channel: int, now: float) -> Completions:
        # nothing waits for room: how much is under way is the caller's choice
        return NO_COMPLETIONS

    def close(self, now: float) -> Completions:
        # FlyMQ has no goodbye
        self._machine.step(ClientStep.CLOSE)
        self._closing = True
        return NO_COMPLETIONS

    def timeout_at(self) -> float | None:
        return min((when for when, _ in self._paused.values()), default=None)

    def on_timeout(self, now: float) -> Completions:
        self._now = now
        completions: list[Completion] = []
        for request_id, (when, job) in list(self._paused.items()):
            if when <= now:
                del self._paused[request_id]
                self._advance(job, None, completions)
        return completions

    def outputs(self) -> Sequence[Output]:
        outputs: list[Output] = []
        if self._outputs:
            outputs.append(Send(0, b"".join(self._outputs)))
            self._outputs.clear()
        if self._closing:
            self._closing = False
            outputs.append(Close())
        return outputs

    # --- inside ---

    def _admit(self) -> Completions:
        self._machine.step(ClientStep.ADMITTED)
        completions: list[Completion] = []
        while self._queued:
            self._start(self._queued.popleft(), completions)
        return completions

    def _start(self, request: Request, completions: list[Completion]) -> None:
        if type(request) is Publish and PublishedRun.fits(request):
            run = PublishedRun(request)
            if run.left:
                self._outputs.append(run.data)
                self._sent.append(run)
            else:
                completions.append((run.id, run.outcome()))
            return
        if type(request) is Cancel:
            self._cancel(request.request, completions)
            completions.append((request.id, DONE))
            return
        steps = _HANDLERS.get(type(request))
        if steps is None:
            completions.append((request.id, Unsupported(f"FlyMQ has no word for {type(request).__name__}")))
            return
        self._advance(_Asking(request.id, steps(self._upstream, request)), None, completions)

    def _cancel(self, request_id: int, completions: list[Completion]) -> None:
        # a reader that pauses stops waiting; one whose FETCH is under way answers with what that brings
        paused = self._paused.pop(request_id, None)
        if paused is not None:
            self._upstream.cancelled.add(request_id)
            self._advance(paused[1], None, completions)
        elif any(isinstance(waiting, _Asking) and waiting.id == request_id for waiting in self._sent):
            self._upstream.cancelled.add(request_id)

    def _advance(self, job: _Asking, answer: bytes | GatewayError | None, completions: list[Completion]) -> None:
        self._upstream.now = self._now
        outcome: Outcome
        try:
            step = job.steps.throw(answer) if isinstance(answer, GatewayError) else job.steps.send(answer)
        except StopIteration as stop:
            result: Reply = stop.value
            outcome = result
        except GatewayError as error:
            outcome = error
        else:
            if isinstance(step, WaitUntil):
                self._paused[job.id] = (step.until, job)
            else:
                self._ask(job, step)
            return
        self._upstream.cancelled.discard(job.id)
        completions.append((job.id, outcome))

    def _ask(self, job: _Asking, ask: Ask) -> None:
        job.op = ask.op
        self._outputs.append(frame(ask.op, ask.payload))
        self._sent.append(job)

    def _answered(self, code: int, payload: bytes, completions: list[Completion]) -> bool:
        # give an answer to who waits for it; False if nobody does
        if not self._sent:
            return False
        waiting = self._sent[0]
        refused = refusal(read_error(payload)) if code == Op.ERROR else None
        if isinstance(waiting, PublishedRun):
            if refused is None and code != Op.PRODUCE:
                return False
            if waiting.answered(payload, refused):
                self._sent.popleft()
                completions.append((waiting.id, waiting.outcome()))
            return True
        expected = Op.AUTH_RESPONSE if isinstance(waiting, _Login) or waiting.op is Op.AUTH else waiting.op
        if refused is None and code != expected:
            return False
        self._sent.popleft()
        if isinstance(waiting, _Login):
            completions.extend(self._logged_in(payload, refused))
        else:
            self._advance(waiting, refused if refused is not None else payload, completions)
        return True

    def _logged_in(self, payload: bytes, refused: TargetRefused | None) -> Completions:
        if refused is None:
            try:
                ok, _, _, text = read_login(payload)
            except WireError as error:
                return self._fail(error.message)
            if ok:
                return self._admit()
            refused = refusal(text or "invalid username or password")
        if refused.final:  # whatever the words: with these credentials nothing will ever be taken
            refused = TargetRefused(refused.message, refusal=Status.UNAUTHENTICATED, final=True)
        self._refused = refused
        completions: list[Completion] = [(request.id, refused) for request in self._queued]
        self._queued.clear()
        return [*completions, *self._fail(refused.message)]

    def _fail(self, reason: str) -> Completions:
        # hang up: there is nothing left that could be understood
        self._closing = self._machine.state is not ClientPhase.CLOSED
        return self._end(reason)

    def _end(self, reason: str) -> Completions:
        self._machine.step(ClientStep.LOSE)
        self._buffer.clear()
        lost = [waiting.id for waiting in self._sent if not isinstance(waiting, _Login)]
        paused = list(self._paused)
        completions: list[Completion] = [
            (request_id, TargetLost(reason)) for request_id in itertools.chain(lost, paused)
        ]
        completions.extend((request.id, TargetError(reason)) for request in self._queued)
        self._sent.clear()
        self._paused.clear()
        self._queued.clear()
        return completions
