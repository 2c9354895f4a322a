"""The contract between a protocol and the driver that runs it.

A session is pure: bytes and time come in as arguments, requests are returned, output waits in `outputs()`. It never
awaits, never looks at a clock, never logs. Peer misbehaviour never escapes `receive()`: the session queues its
protocol's error and, where the protocol says so, a `Close`.

Channels are numbers. TCP has one, channel 0. On QUIC a channel is a stream: its own id (>= 0) when the peer opened it,
the (negative) token of the `Open` that asked for it when this side did.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import attrs
import msgspec

from gateway.errors import GatewayError
from gateway.requests import Completion, Outcome, Request
from gateway.settings import Dialect, Limits, Says, Transport

Buffer = bytes | memoryview
TURN_BYTES = 256 << 10
"""With so much put out at once, the rest has to wait for the connection's next turn: one late answer may have kept back many
that are known, and they must not all leave in one pass of the event loop.
"""
BEFORE_LOGIN = 64 << 10
"""Bytes of a frame from somebody who has to log in and has not yet: room for every login, and for nothing worth holding."""


class Kind(enum.Enum):
    """What a channel can do."""

    DUPLEX = "duplex"  # TCP, a bidirectional stream
    READ_ONLY = "read_only"  # a unidirectional stream of the peer's
    WRITE_ONLY = "write_only"  # a unidirectional stream of ours


# --- outputs ---


class Send(msgspec.Struct, frozen=True):
    """Bytes for a channel. With `notify`, `room(channel)` is called once they and all before them fell below low water."""

    channel: int
    data: Buffer
    notify: bool = False
    alone: bool = False
    """Not in one packet with what follows (QUIC peers that throw away the rest of a read)."""


class Open(msgspec.Struct, frozen=True):
    """Open a stream. `token` (negative) names it from now on: sends to it wait while the peer's limit blocks, `opened`
    says when it is there, `reset` when it is refused.
    """

    token: int
    kind: Kind


class Finish(msgspec.Struct, frozen=True):
    """No more bytes from this side on a channel, after what is queued."""

    channel: int


class Reset(msgspec.Struct, frozen=True):
    """Abandon this side of a channel."""

    channel: int
    code: int = 0


class StopSending(msgspec.Struct, frozen=True):
    """Ask the peer to stop sending on a channel."""

    channel: int
    code: int = 0


class Withhold(msgspec.Struct, frozen=True):
    """Hand on no more bytes of a channel, and give the peer no room for more of them; or, not `on`, go on with it."""

    channel: int
    on: bool = True


class Close(msgspec.Struct, frozen=True):
    """Close the connection after what is queued. `code` and `reason` travel on QUIC."""

    code: int = 0
    reason: str = ""


Output = Send | Open | Finish | Reset | StopSending | Withhold | Close
Requests = Sequence[Request]
NO_REQUESTS: Requests = ()


class Spoken(msgspec.Struct, frozen=True):
    """Which dialect a peer speaks, and by which sign it was recognised; empty where there is one alone, or no sign yet."""

    dialect: str = ""
    sign: str = ""


UNTOLD = Spoken()
LISTENER = "the listener's setting"
"""What stands for a sign where the dialect was configured."""


@attrs.frozen
class SessionContext:
    listener: str
    settings: Any
    """The protocol's own settings class (`ProtocolSpec.settings`)."""
    dialect: Dialect = Dialect.AUTO
    auth_required: bool = False
    """False: authentication succeeds whatever is sent, account operations are refused."""
    limits: Limits = attrs.Factory(Limits)
    advertised: str = ""
    """host:port of the listener, for protocols that tell clients where they are."""
    server_id: str = "gateway"
    transport: Transport | None = None
    """What carries this connection; None: what carries the protocol where nothing else is said."""
    alpn: str | None = None
    """What was agreed upon over QUIC."""


class ServerSession(Protocol):
    """The serving side of one connection."""

    def opened(self, channel: int, kind: Kind, now: float) -> Requests:
        """A channel exists: the connection itself (TCP), a stream of the peer's, or the stream of an `Open`."""
        ...

    def receive(self, channel: int, data: bytes, now: float) -> Requests:
        """Bytes came in."""
        ...

    def eof(self, channel: int, now: float) -> Requests:
        """The peer will send no more on this channel."""
        ...

    def reset(self, channel: int, code: int) -> Requests:
        """The peer abandoned its side of the channel, or an `Open` was refused."""
        ...

    def stopped(self, channel: int, code: int) -> Requests:
        """The peer will read no more on this channel (STOP_SENDING)."""
        ...

    def lost(self) -> Requests:
        """The connection is gone. Nothing more can be sent."""
        ...

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        """A request ended."""
        ...

    def answered(self, request_id: int, outcome: Outcome, now: float) -> Requests | bytes | Send:
        """`complete`, of the one request that was under way. Bytes, in the place of what is to be asked: they are all there is to
        put out (on channel 0), nothing waits for room, and the session rests (`rests_until`), without a time of its own. So a
        turn with one request and its answer, as most are, comes to one call. A `Send` in that place says the same, where there
        are several channels: it is all there is to put out, with no wish, and the session rests as long as it did before.
        """
        ...

    def room(self, channel: int, now: float) -> Requests:
        """What was sent with `notify` has left, down to low water."""
        ...

    def drain(self, now: float) -> Requests:
        """The gateway is going down: say goodbye as the protocol does, then `Close` when nothing is in flight."""
        ...

    def timeout_at(self) -> float | None:
        """When `on_timeout` wants to be called."""
        ...

    def rests_until(self) -> float | None:
        """`timeout_at`, or `inf`, of a session that waits for its peer alone, as most do after most turns: nothing is in flight,
        held or kept, and the handshake is done. None: it does not. Asked for every turn, in the place of all of these.
        """
        ...

    def on_timeout(self, now: float) -> Requests:
        """The time of `timeout_at` has come."""
        ...

    def outputs(self) -> Sequence[Output]:
        """What was queued since the last call, in order: everything, or as much as one turn may have (`TURN_BYTES`)."""
        ...

    answer_due: bool
    """Whether something leaves for the peer when what is under way has ended, however it ends. To be asked of a session that has
    nothing to put out.
    """

    unsaid: bool
    """Whether the last `outputs` has left something for another turn. Such a session does not rest."""

    @property
    def in_flight(self) -> int:
        """Requests that are not completed: the driver stops reading at the listener's bound."""
        ...

    @property
    def held(self) -> bool:
        """Whether nothing more is to be read until something under way has ended (a barrier). It is no limit."""
        ...

    @property
    def kept(self) -> int:
        """Bytes that came in and are not worked on yet: frames that are not whole, frames behind a barrier."""
        ...

    @property
    def handshaken(self) -> bool:
        """Whether the peer has done what the protocol and the listener ask for first, a login included; ends the handshake
        time-out.
        """
        ...

    @property
    def spoken(self) -> Spoken:
        """Which dialect the peer speaks."""
        ...


class ServerBasics:
    """What most server sessions answer where nothing is to be done: a protocol without such a case leaves it out."""

    unsaid = False
    answer_due = False

    @property
    def in_flight(self) -> int:
        return 0

    def rests_until(self) -> float | None:
        if self.in_flight or self.held or self.kept or self.unsaid or not self.handshaken:
            return None
        due = self.timeout_at()
        return math.inf if due is None else due

    @property
    def handshaken(self) -> bool:
        return True

    @property
    def held(self) -> bool:
        return False

    @property
    def kept(self) -> int:
        return 0

    @property
    def spoken(self) -> Spoken:
        return UNTOLD

    def complete(self, request_id: int, outcome: Outcome, now: float) -> Requests:
        raise NotImplementedError

    def answered(self, request_id: int, outcome: Outcome, now: float) -> Requests | bytes | Send:
        return self.complete(request_id, outcome, now)

    def opened(self, _channel: int, _kind: Kind, _now: float) -> Requests:
        return NO_REQUESTS

    def eof(self, _channel: int, _now: float) -> Requests:
        return NO_REQUESTS

    def reset(self, _channel: int, _code: int) -> Requests:
        return NO_REQUESTS

    def stopped(self, _channel: int, _code: int) -> Requests:
        return NO_REQUESTS

    def lost(self) -> Requests:
        return NO_REQUESTS

    def room(self, _channel: int, _now: float) -> Requests:
        return NO_REQUESTS

    def timeout_at(self) -> float | None:
        return None

    def on_timeout(self, _now: float) -> Requests:
        return NO_REQUESTS


# --- the other role ---


class Mechanism(enum.Enum):
    """How a name and a password are shown, where a protocol has several ways of it (SASL)."""

    PLAIN = "PLAIN"
    SCRAM_256 = "SCRAM-SHA-256"
    SCRAM_512 = "SCRAM-SHA-512"


@attrs.frozen
class Credentials:
    """What a client may need to be let in."""

    api_key: Annotated[str, Says("The key that is shown.")] = attrs.field(default="", repr=False)
    username: Annotated[str, Says("The account.")] = ""
    password: Annotated[str, Says("Its password.")] = attrs.field(default="", repr=False)
    tenant: Annotated[str, Says("The tenant a token is for.")] = ""
    token: Annotated[str, Says("The token that is shown.")] = attrs.field(default="", repr=False)
    mechanism: Annotated[
        Mechanism, Says("Kafka: how name and password are shown (a token is shown by OAUTHBEARER).")
    ] = Mechanism.PLAIN
    connector: Annotated[
        str, Says("The connector that is bound (Fujin 0.5 and v1); `gateway`, if nothing is said.")
    ] = ""


@attrs.frozen
class ClientContext:
    credentials: Credentials = attrs.Factory(Credentials)
    dialect: Dialect = Dialect.AUTO
    settings: Any = None
    says_copies: bool = False
    """Offer to say which messages of another log these are (`Batch.copies`): a gateway that forwards does."""
    transport: Transport | None = None
    """What is dialled; None: what carries the protocol where nothing else is said."""
    alpn: str | None = None
    """What was agreed upon over QUIC."""
    caller: str = ""
    """What we are called there, the same after a restart and nobody else's; empty: nothing."""


Completions = Sequence[Completion]
NO_COMPLETIONS: Completions = ()


class ClientSession(Protocol):
    """The client side of one connection: takes the broker's requests, gives the broker's replies.

    The handshake starts at `opened(0)` (TCP) or `opened(CONNECTION)` (QUIC). Requests submitted before it is done wait;
    if it is refused, all of them end with that error. A request the protocol cannot express ends with `Unsupported`.
    When the connection is lost, what was under way ends with `TargetLost`. Every client session has `drain`'s
    counterpart `close`, and the same channels, outputs and times as a server session.
    """

    def opened(self, channel: int, kind: Kind, now: float) -> Completions:
        """The connection (channel 0 on TCP, CONNECTION on QUIC) is up, or a stream exists."""
        ...

    def submit(self, request: Request, now: float) -> Completions:
        """Start a request. Its id names the completion."""
        ...

    def receive(self, channel: int, data: bytes, now: float) -> Completions:
        """Bytes came in."""
        ...

    def eof(self, channel: int, now: float) -> Completions:
        """The peer will send no more on this channel."""
        ...

    def reset(self, channel: int, code: int) -> Completions:
        """The peer abandoned its side of the channel, or an `Open` was refused."""
        ...

    def stopped(self, channel: int, code: int) -> Completions:
        """The peer will read no more on this channel."""
        ...

    def lost(self) -> Completions:
        """The connection is gone."""
        ...

    def room(self, channel: int, now: float) -> Completions:
        """What was sent with `notify` has left."""
        ...

    def close(self, now: float) -> Completions:
        """Say goodbye as the protocol does, then `Close`."""
        ...

    def timeout_at(self) -> float | None:
        """When `on_timeout` wants to be called."""
        ...

    def on_timeout(self, now: float) -> Completions:
        """The time of `timeout_at` has come."""
        ...

    def outputs(self) -> Sequence[Output]:
        """Everything queued since the last call, in order."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests that are not completed."""
        ...

    @property
    def admitted(self) -> bool | GatewayError:
        """Whether the broker has let us in, or why it never will (its refusal is `Status.UNAUTHENTICATED` then). Protocols
        that log in with each stream say yes as soon as the connection is up.
        """
        ...

    @property
    def keeps_turns(self) -> bool:
        """Whether the broker stores a publish that says what it comes after (`Copies.after`) behind that, or not at all."""
        ...


class ClientBasics:
    """What most client sessions answer where nothing is to be done."""

    keeps_turns = False

    def reset(self, _channel: int, _code: int) -> Completions:
        return NO_COMPLETIONS

    def stopped(self, _channel: int, _code: int) -> Completions:
        return NO_COMPLETIONS

    def room(self, _channel: int, _now: float) -> Completions:
        return NO_COMPLETIONS

    def timeout_at(self) -> float | None:
        return None

    def on_timeout(self, _now: float) -> Completions:
        return NO_COMPLETIONS


CONNECTION = -1 << 62
"""The channel number by which a QUIC client session is told (`opened`) that the connection itself is up."""
