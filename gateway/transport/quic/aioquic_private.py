"""Every private name of aioquic that this package uses is here, in `aioquic_credit.py` or in `aioquic_established.py`, and
nowhere else; `tests/quic/test_contract.py` holds a test for each. What is changed, and why:

* Receive credit: see `aioquic_credit.py`. The packets of a connection that is established: `aioquic_established.py`.
* Streams are walked twice per packet. With a hundred open streams that is most of the time; here both walks see only the
  streams that have something to do, and the second ends when the packet is full.
* ALPN is decided from the ClientHello, where "none offered" is a choice like any other.
* Streams per connection, datagram size and pacing follow the endpoint's limits.
* What every connection has alike there is once, and what only the handshake needs goes with it.
"""

# ruff: noqa: SLF001 (private names are what this module is for)

from __future__ import annotations

import functools
import hmac
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.quic import connection as core_module
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import END_STATES, QuicConnectionState
from aioquic.quic.packet import QuicErrorCode, pull_quic_transport_parameters
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.stream import QuicStream as CoreStream
from cryptography.x509 import Certificate

from gateway.transport.quic.aioquic_established import CONNECTED, FRAME_MIN, ONE_RTT, EstablishedConnection, add_unsent

# aioquic warns once per misbehaving peer, through a logger nobody configured: anybody could fill the disk.
logging.getLogger("quic").setLevel(logging.CRITICAL)

# aioquic looks into dictionaries by epoch some 25 times for a request and its answer, and an enumeration's own hash is a Python
# call. Its members are single: their identity is as good.
tls.Epoch.__hash__ = object.__hash__  # type: ignore[method-assign]

# A set for each kind of frame, of each connection: 7 KB, where there are five different ones in all.
core_module.EPOCHS = functools.cache(core_module.EPOCHS)

__all__ = [
    "Buffer",
    "Core",
    "acknowledge_within",
    "flight",
    "forget_handshake",
    "happenings",
    "is_reset",
    "peer_certificates",
    "probe_timeout",
    "stop_pacing",
    "use_datagrams_of",
]

ACKNOWLEDGE_AFTER = 8
"""Datagrams after which the acknowledgement does not wait: the sender's window would run dry."""
GRANULARITY = 1e-6
"""aioquic asks whether a timer's time is past where it is reached, or computes it back with a rounding error: without this, a
timer can stay due for as long as the clock stands still."""
UDP_MAX = 65_527
REASON_MAX = 400
"""A close frame has to fit a packet, whole; aioquic raises while it builds one that does not, its own ones included."""

Alpn = str | None


class _SendQueue(list[CoreStream]):
    """The streams a packet may take from. While sending, the first walk over it ends once the packet is full: aioquic
    would go on asking every stream for a frame of no bytes.
    """

    def __init__(self, streams: Iterable[CoreStream], core: Core) -> None:
        super().__init__(streams)
        self._core = core
        self._fresh = core._sending

    def __iter__(self) -> Iterator[CoreStream]:
        if not self._fresh:
            return super().__iter__()
        self._fresh = False
        return self._until_full()

    def _until_full(self) -> Iterator[CoreStream]:
        core = self._core
        core._packet_full = False
        for stream in super().__iter__():
            yield stream
            if core._packet_full:
                return


class Core(EstablishedConnection):
    """One aioquic connection with the changes named above."""

    _sending = False
    _packet_full = False
    fed = 0
    """Datagrams since nothing was owed an acknowledgement."""
    ids_changed = False
    """Whether `host_ids` is another than when this was last set back."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        *,
        streams: int,
        alpns: Collection[Alpn] = (),
        ask_certificate: bool = False,
        reset_token: Callable[[bytes], bytes] | None = None,
        worker: int | None = None,
        original_destination_connection_id: bytes | None = None,
        retry_source_connection_id: bytes | None = None,
    ) -> None:
        super().__init__(
            configuration=configuration,
            original_destination_connection_id=original_destination_connection_id,
            retry_source_connection_id=retry_source_connection_id,
        )
        for limit in (self._local_max_streams_bidi, self._local_max_streams_uni):
            limit.value = limit.sent = streams
        self.server_name = configuration.server_name or ""
        self._alpns = alpns
        self._ask_certificate = ask_certificate
        self._reset_token = reset_token
        self._worker = worker
        """What every id begins with, where several processes share a port."""
        if worker is not None:
            first = self._host_cids[0]
            first.cid = self.host_cid = self._local_initial_source_connection_id = self._ours(first.cid)
        if reset_token is not None:
            self._host_cids[0].stateless_reset_token = reset_token(self.host_cid)
        self._ending: dict[int, CoreStream] = {}
        self._sweep = False
        self._peer_payload_limit = UDP_MAX
        self._loss._on_packets_lost = self._packets_lost  # type: ignore[method-assign]

    def _packets_lost(self, *, packets: Iterable[Any], **arguments: Any) -> None:
        self._sweep = self._sweep or bool(packets)
        type(self._loss)._on_packets_lost(self._loss, packets=packets, **arguments)

    # --- TLS ---

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        if self._is_client:
            return
        context = self.tls
        context._request_client_certificate = self._ask_certificate
        handle_hello = context._server_handle_hello

        def choose_protocol(message: Buffer, initial: Buffer, handshake: Buffer) -> None:
            hello = tls.pull_client_hello(Buffer(data=message.data_slice(0, message.capacity)))
            self.server_name = hello.server_name or ""
            offered = hello.alpn_protocols
            if offered is None:
                if None not in self._alpns:
                    raise tls.AlertNoApplicationProtocol("No common ALPN protocols")
            else:
                chosen = next((name for name in offered if name in self._alpns), None)
                if chosen is None:
                    raise tls.AlertNoApplicationProtocol("No common ALPN protocols")
                context._alpn_protocols = [chosen]
            handle_hello(message, initial, handshake)

        context._server_handle_hello = choose_protocol  # type: ignore[method-assign, assignment]

    # --- connection ids ---

    @property
    def host_ids(self) -> Sequence[bytes]:
        """The ids that the peer may send to: also those that it will only be told of by the next packet."""
        return [cid.cid for cid in self._host_cids]

    def _ours(self, cid: bytes) -> bytes:
        return bytes([self._worker or 0]) + cid[1:]

    def _replenish_connection_ids(self) -> None:
        # Called when ids may be issued and after each one that was retired, so before a packet names a new one. The event
        # that aioquic makes of it comes when that packet is built, and is seen when the peer may have used the id already.
        super()._replenish_connection_ids()
        self.ids_changed = True
        if self._worker is not None:  # those that no packet has told the peer of yet
            for cid in self._host_cids:
                if not cid.was_sent:
                    cid.cid = self._ours(cid.cid)
        if self._reset_token is not None:  # the same ones again for those that the peer has been told
            for cid in self._host_cids:
                cid.stateless_reset_token = self._reset_token(cid.cid)

    # --- sending ---

    def open(self, unidirectional: bool) -> int | None:
        """Reserve the next stream id, or None while the peer's limit forbids it."""
        stream_id = self.get_next_available_stream_id(is_unidirectional=unidirectional)
        limit = self._remote_max_streams_uni if unidirectional else self._remote_max_streams_bidi
        if stream_id // 4 >= limit:
            return None
        # get_next_available_stream_id does not reserve; a write of nothing does, without a byte on the wire.
        self.send_stream_data(stream_id, b"")
        return stream_id

    def write(self, stream_id: int, data: bytes | memoryview, end: bool = False) -> bool:
        """Queue bytes. False when the stream cannot take any: stopped by the peer, reset, finished or gone."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return False
        sender = stream.sender
        if sender._reset_error_code is not None or sender._buffer_fin is not None or sender.is_finished:
            return False
        self._queue.append(stream)
        if end:
            sender.write(bytes(data), end_stream=True)
            self._ending[stream_id] = stream
            return True
        add_unsent(sender, data)
        return True

    def abandon(self, stream_id: int, code: int) -> None:
        """Reset the sending side of a stream, if it still has one."""
        stream = self._streams.get(stream_id)
        if stream is not None and self._stream_can_send(stream_id):
            stream.sender.reset(code)
            self._queue.append(stream)
            self._ending[stream_id] = stream

    def refuse(self, stream_id: int, code: int) -> None:
        """Ask the peer to stop sending on a stream, if it still can."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.receiver.is_finished:
            stream.receiver.stop(code)
            self._queue.append(stream)

    def receive_ended(self, stream_id: int) -> None:
        """The peer's side of a stream is over: see to it that it is discarded once both are."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._ending[stream_id] = stream

    def unacknowledged(self, stream_id: int) -> int:
        """Bytes of a stream that were written and not acknowledged."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        sender = stream.sender
        return 0 if sender._reset_error_code is not None else sender._buffer_stop - sender._buffer_start

    def delivered(self, stream_id: int) -> bool:
        """Whether everything that was written, its end included, is acknowledged or abandoned."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.sender.is_finished:
            return True
        sender = stream.sender
        if sender._reset_error_code is not None:
            return not sender.reset_pending
        return sender._buffer_stop == sender._buffer_start and sender._buffer_fin is None

    def is_discarded(self, stream_id: int) -> bool:
        """Whether a stream is over in both directions and forgotten."""
        return stream_id not in self._streams

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        """As in aioquic, looking only at streams that have something to do."""
        if self._sweep:
            self._sweep = False
            self._queue.extend(self._streams[stream_id] for stream_id in self._streams)
        if self._ending:
            for stream_id, stream in list(self._ending.items()):
                if stream.is_finished:
                    del self._ending[stream_id]
                    self._queue.append(stream)
        if len(self._queue) > 1:
            self._queue = list(dict.fromkeys(self._queue))
        datagrams = super().datagrams_to_send(now)
        granted = self._table.granted
        if granted:
            self._table.granted = {
                stream_id: stream
                for stream_id, stream in granted.items()
                if stream.max_stream_data_local_sent != stream.max_stream_data_local and stream_id in self._streams
            }
        if self._queue:
            self._queue = list(filter(_has_work, self._queue))
        return datagrams

    def _general_datagrams(self, now: float) -> list[tuple[bytes, Any]]:
        self._sending = True
        self._streams_queue = self._queue
        datagrams = super()._general_datagrams(now)
        self._sending = False
        self._queue = self._queue[:]
        return datagrams

    @property
    def _streams_queue(self) -> list[CoreStream]:
        return self._queue

    @_streams_queue.setter
    def _streams_queue(self, streams: list[CoreStream]) -> None:
        self._queue = _SendQueue(streams, self)

    def _write_stream_frame(self, builder: QuicPacketBuilder, space: Any, stream: CoreStream, max_offset: int) -> int:
        used = super()._write_stream_frame(builder, space, stream, max_offset)
        self._packet_full = builder.remaining_flight_space < FRAME_MIN
        return used

    def _handle_max_stream_data_frame(self, context: Any, frame_type: int, buf: Buffer) -> None:
        start = buf.tell()
        stream = self._streams.get(buf.pull_uint_var())
        buf.seek(start)
        super()._handle_max_stream_data_frame(context, frame_type, buf)
        if stream is not None:
            self._queue.append(stream)

    # --- the connection ---

    def close(
        self, error_code: int = QuicErrorCode.NO_ERROR, frame_type: int | None = None, reason_phrase: str = ""
    ) -> None:
        reason = reason_phrase.encode(errors="replace")[:REASON_MAX].decode(errors="ignore")
        super().close(error_code=error_code, frame_type=frame_type, reason_phrase=reason)

    @property
    def is_over(self) -> bool:
        """Closed by either side, or about to be: nothing that is queued now will be sent."""
        state = self._state  # an enumeration's own hash is a Python call, and nearly always it is this one
        return self._close_event is not None or (state is not CONNECTED and state in END_STATES)

    @property
    def is_terminated(self) -> bool:
        return self._state is QuicConnectionState.TERMINATED

    @property
    def end(self) -> tuple[int, bool, str] | None:
        """Why it was closed: the code, whether it is an application's, the reason."""
        event = self._close_event
        return None if event is None else (int(event.error_code), event.frame_type is None, event.reason_phrase)

    @property
    def idle_limit(self) -> float:
        """The smaller of both sides' idle time-outs."""
        return min(self._configuration.idle_timeout, self._remote_max_idle_timeout or math.inf)

    @property
    def is_started(self) -> bool:
        """Whether a first packet could be read at all (a server's connection), or was made (a client's)."""
        return bool(self._network_paths) and (self._is_client or self._state is not QuicConnectionState.FIRSTFLIGHT)

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        self._peer_payload_limit = pull_quic_transport_parameters(Buffer(data=data)).max_udp_payload_size or UDP_MAX


def _has_work(stream: CoreStream) -> bool:
    # Whether a packet should look at a stream. One that waits for the peer's credit comes back with that credit.
    sender = stream.sender
    receiver = stream.receiver
    if sender.reset_pending or receiver.stop_pending or (receiver.is_finished and sender.is_finished):
        return True
    if sender.buffer_is_empty:
        return False
    start = sender.next_offset
    return start < stream.max_stream_data_remote or start == sender._buffer_stop


def peer_certificates(core: Core) -> Sequence[Certificate]:
    """The certificate the other side showed, if any, and its chain. The proof that it owns the key was checked."""
    leaf = core.tls._peer_certificate
    return () if leaf is None else (leaf, *core.tls._peer_certificate_chain)


def is_reset(core: Core, datagram: bytes) -> bool:
    """Whether a datagram is the peer's word that it does not know this connection (RFC 9000, 10.3.1)."""
    token = datagram[-16:]
    known = (cid.stateless_reset_token for cid in (core._peer_cid, *core._peer_cid_available))
    return any(bool(mine) and hmac.compare_digest(mine, token) for mine in known)


def happenings(core: Core) -> deque[Any]:
    """What has happened and was not looked at yet: for a datagram mostly one thing."""
    return core._events


def flight(core: Core, now: float, *, settled: bool) -> list[tuple[bytes, Any]]:
    """What is to be sent by now. Once the handshake is over an acknowledgement that is owed goes along with anything else, and
    does not wait when many datagrams have come: left to itself, aioquic puts one that is not due into no packet, whatever room
    it has.
    """
    space = core._spaces[ONE_RTT]
    due = space.ack_at
    if settled and due is not None and due > now and (core._queue or core.fed >= ACKNOWLEDGE_AFTER):
        space.ack_at = now
    datagrams = core.datagrams_to_send(now + GRANULARITY)
    if space.ack_at is None:
        core.fed = 0
    return datagrams


def release(core: Core) -> None:
    """Let a connection that is gone fall apart. All it is made of refers to it, or to its TLS: some three hundred objects, which
    only the collector would find.
    """
    if core.is_started:
        vars(core.tls).clear()
    event, state = core._close_event, core._state  # how it has ended may still be asked
    vars(core).clear()
    core._close_event, core._state = event, state


def forget_handshake(core: Core) -> None:
    """Once it is done nothing is written for it any more: three buffers of 16 KiB, which is as much as all the rest."""
    core._crypto_buffers = {}


def acknowledge_within(core: Core, seconds: float) -> None:
    """How long an acknowledgement may wait for something to travel with. Peers are told 25 ms (RFC 9000, 13.2.1)."""
    core._ack_delay = seconds


def probe_timeout(core: Core) -> float:
    """How long a packet may go unanswered before it counts as lost, by the round trips measured so far."""
    return core._loss.get_probe_timeout()


def use_datagrams_of(core: Core, size: int) -> None:
    """Send larger datagrams from now on, as far as the peer takes them (RFC 9000, 18.2 max_udp_payload_size)."""
    size = min(size, core._peer_payload_limit)
    if size <= core._max_datagram_size:
        return
    control: Any = core._loss._cc
    control.congestion_window = max(control.congestion_window, 10 * size)
    core._max_datagram_size = control._max_datagram_size = core._loss._pacer._max_datagram_size = size


def stop_pacing(core: Core) -> None:
    """Send as fast as the congestion window allows: there is no queue on the way that a burst could overrun."""
    pacer: Any = core._loss._pacer
    core.paces = False
    pacer.packet_time = None
    pacer.update_rate = lambda **_: None
