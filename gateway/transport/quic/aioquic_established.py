"""Packets of an established connection, read and written in one go.

aioquic takes every packet the way that is right for all of them: some sixty calls and as many objects for a request and its
answer. Here is the way of those that are nearly all of them once the handshake is over: a short header, the path, the id and
the keys that are in use, ACK and STREAM frames. Whatever else comes up goes aioquic's way, a datagram or a flight as a whole,
or from the frame on where it begins. All state is aioquic's own, so both ways may follow each other at any time, and
`tests/quic/test_established.py` holds them against each other datagram for datagram.

Apart from `aioquic_credit`, which changes what aioquic does: this does the same.
"""

# ruff: noqa: SLF001 (private names are what this module is for)
# ruff: noqa: PLR1730, FURB136 (`min` and `max` are calls, and dearer than all else in such a line, of which each packet takes some)

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Final

import msgspec
from aioquic import tls
from aioquic.quic.congestion.base import K_GRANULARITY
from aioquic.quic.connection import QuicConnectionError, QuicConnectionState, QuicReceiveContext
from aioquic.quic.crypto import CryptoContext
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.recovery import MAX_ACK_RANGES
from aioquic.quic.stream import QuicStream as CoreStream
from aioquic.quic.stream import QuicStreamSender
from cryptography.exceptions import InvalidTag

from gateway.transport.quic.aioquic_credit import CreditedConnection

ACK: Final = 0x02
STREAM, STREAMS = 0x08, 0xF8
END, LENGTH, OFFSET = 0x01, 0x02, 0x04
"""Bits of a STREAM frame's type (RFC 9000, 19.8)."""
FORM_AND_FIXED, SHORT = 0xC0, 0x40
"""Of a short header's first byte (RFC 9000, 17.3.1), and the bits below that its protection covers (RFC 9001, 5.4.1)."""
SPIN, RESERVED, KEY_PHASE, NUMBER_LENGTH, PROTECTED = 0x20, 0x18, 0x04, 0x03, 0x1F
SAMPLED: Final = 4
"""A sample begins where a packet number of the full length would end (RFC 9001, 5.4.2)."""
SAMPLE: Final = 16
TAG: Final = 16
NONCE: Final = 12
NUMBER: Final = 2
"""Bytes of a packet number that is sent."""
FRAME_MIN: Final = 24
"""Room that a STREAM frame with any byte in it needs (RFC 9000, 19.8)."""
IDLE_PROBES: Final = 3
"""An idle time-out is no shorter than so many probe time-outs (RFC 9000, 10.1)."""

CONNECTED: Final = QuicConnectionState.CONNECTED
ONE_RTT: Final = tls.Epoch.ONE_RTT
ZERO_RTT: Final = tls.Epoch.ZERO_RTT
ACKED: Final = QuicDeliveryState.ACKED
_DATA_DELIVERY: Final = QuicStreamSender.on_data_delivery
Span = tuple[Any, int, int, bool]
"""What a packet has of a stream: its sender, from where to where, whether it is the end."""

_ACKNOWLEDGED: Final = (
    (struct.Struct(">BHBBB"), 0x4000, struct.Struct(">BHHBB")),
    (struct.Struct(">BIBBB"), 0x8000_0000, struct.Struct(">BIHBB")),
)
"""An ACK frame of one range (RFC 9000, 19.3) with few packets in it: by the length of the last one's number, and that of the
delay.
"""
_HEADS: Final = (struct.Struct(">BBH"), struct.Struct(">BBBH"), struct.Struct(">BBHH"), struct.Struct(">BBIH"))
"""What a STREAM frame begins with (RFC 9000, 19.8): by the length of the offset."""
_WAS_SENT: Final = attrgetter("was_sent")
_BYTES: Final = tuple(bytes((value,)) for value in range(256))


class _OtherFrame(Exception):
    """A frame that goes aioquic's way. Nothing of it has been taken in."""


class _PlainPacket(msgspec.Struct):
    """What aioquic's recovery asks of one, and no more: most are forgotten within a turn."""

    epoch: ClassVar[tls.Epoch] = ONE_RTT
    is_crypto_packet: ClassVar[bool] = False
    packet_type: ClassVar[QuicPacketType] = QuicPacketType.ONE_RTT
    quic_logger_frames: ClassVar[Sequence[dict[str, Any]]] = ()

    packet_number: int
    sent_bytes: int
    sent_time: float
    is_ack_eliciting: bool
    space: Any
    acknowledged: int
    """The highest packet of which it says that it has come; -1 if it says nothing of that."""
    spans: list[Span]

    @property
    def in_flight(self) -> bool:
        return self.is_ack_eliciting

    @property
    def delivery_handlers(self) -> list[tuple[Callable[..., None], Any]]:
        """Who is to be told what became of it, as aioquic has it."""
        handlers: list[tuple[Callable[..., None], Any]] = []
        if self.acknowledged >= 0:
            handlers.append((_on_ack_delivery, (self.space, self.acknowledged)))
        handlers += [(sender.on_data_delivery, (start, stop, end)) for sender, start, stop, end in self.spans]
        return handlers


class _PacketKeys:
    """One direction's, until they are replaced."""

    __slots__ = ("aead", "crypt", "iv", "mask")

    def __init__(self, context: CryptoContext, receiving: bool) -> None:
        aead: Any = context.aead
        protection: Any = context.hp
        self.aead = aead
        self.crypt: Callable[[bytes, bytes, bytes], bytes] = aead._aead.decrypt if receiving else aead._aead.encrypt
        self.iv: int = aead._iv
        self.mask: Callable[[bytes], bytes] = (
            protection._mask if protection._is_chacha20 else protection._encryptor.update
        )


class EstablishedConnection(CreditedConnection):
    """The plain way of packets, where it can be gone."""

    _receiving: _PacketKeys | None = None
    _writing: _PacketKeys | None = None
    _queue: list[CoreStream]
    """Streams that may have something to send, those that were served last behind. To aioquic it is `_streams_queue`."""
    _silence = 0.0
    """How long the peer may be silent, by the round trips measured so far; 0 where that is to be worked out."""
    _idle = 0.0
    """The same, as far as both sides have agreed on it."""
    _ids_told = False
    """Each id that the peer may send to is in some packet that is not lost."""
    paces = True
    """Whether packets leave evenly, and not as soon as the congestion window has room for them."""
    take: Callable[[int, bytes], None] | None = None
    """Takes the next bytes of a stream, by its id, as they are read; without it, and behind what has happened and was not looked
    at yet, they are an event like any other.
    """

    # --- receiving ---

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        cid = self.host_cid
        begin = 1 + len(cid)
        if (
            not self._handshake_confirmed
            or self._state is not CONNECTED
            or self._close_event is not None
            or len(data) < begin + SAMPLED + SAMPLE
            or data[0] & FORM_AND_FIXED != SHORT
            or data[1:begin] != cid
            or (path := self._network_paths[0]).addr != addr
            or not path.is_validated
            or self._quic_logger is not None
        ):
            self._silence = 0.0
            super().receive_datagram(data, addr, now)
            return
        pair = self._cryptos[ONE_RTT]
        context = pair.recv
        keys = self._receiving
        if keys is None or keys.aead is not context.aead:
            if self._cryptos[ZERO_RTT].recv.aead is not None:
                self._silence = 0.0
                super().receive_datagram(data, addr, now)
                return
            keys = self._receiving = _PacketKeys(context, receiving=True)

        mask = keys.mask(data[begin + SAMPLED : begin + SAMPLED + SAMPLE])
        first = data[0] ^ (mask[0] & PROTECTED)
        if (first & KEY_PHASE) >> 2 != context.key_phase or first & RESERVED:
            self._silence = 0.0
            super().receive_datagram(data, addr, now)
            return
        length = (first & NUMBER_LENGTH) + 1
        start = begin + length
        if length == NUMBER:
            truncated = (data[begin] ^ mask[1]) << 8 | data[begin + 1] ^ mask[2]
        else:
            truncated = int.from_bytes(data[begin:start], "big") ^ int.from_bytes(mask[1 : 1 + length], "big")
        space = self._spaces[ONE_RTT]
        expected, bits = space.expected_packet_number, 8 * length
        number = expected >> bits << bits | truncated
        if number != expected and abs(number - expected) >= 1 << (bits - 1):
            number = _whole(truncated, bits, expected)
        header = b"%c%b%b" % (first, cid, truncated.to_bytes(length, "big"))
        try:
            payload = keys.crypt((keys.iv ^ number).to_bytes(NONCE, "big"), data[start:], header)
        except InvalidTag:
            return
        received = space.received_packets
        if number < received._lower or number in received._received:
            return  # twice the same
        if number > space.expected_packet_number:
            space.expected_packet_number = number + 1
        if number > self._spin_highest_pn:
            self._spin_bit = bool(first & SPIN) is not self._is_client  # a client turns it over
            self._spin_highest_pn = number

        try:
            eliciting = self._frames(payload, now)
        except QuicConnectionError as error:
            self._logger.warning(error)
            self.close(error_code=error.error_code, frame_type=error.frame_type, reason_phrase=error.reason_phrase)
            return
        if self._close_pending or self._state is not CONNECTED:
            return

        self._close_at = now + (self._silence or self._idle_timeout())
        self._ack_eliciting_sent_since_receipt = False
        if number > space.largest_received_packet:
            space.largest_received_packet = number
            space.largest_received_time = now
        queue = space.ack_queue
        ranges = queue._RangeSet__ranges  # type: ignore[attr-defined]
        if not ranges:
            ranges.append(range(number, number + 1))
        elif (last := ranges[-1]).stop == number:
            ranges[-1] = range(last.start, number + 1)
        else:
            queue.add(number)
            if len(ranges) > MAX_ACK_RANGES:
                queue.shift()
        seen = received._received
        seen.add(number)
        lower = number - received._size + 1
        if lower > received._lower:
            if len(seen) > 2 * received._size:
                received.add(number)  # forgets those that are too old
            received._lower = lower
        if eliciting and space.ack_at is None:
            space.ack_at = now + self._ack_delay

    def _frames(self, payload: bytes, now: float) -> bool:
        """Take in what a packet says. Whether it has to be acknowledged."""
        position, end = 0, len(payload)
        eliciting = False
        try:
            while position < end:
                kind = payload[position]
                if kind & STREAMS == STREAM:
                    position = self._stream(payload, position + 1, end, kind)
                    eliciting = True
                elif kind == ACK:
                    position = self._acknowledgement(payload, position + 1, now)
                else:
                    raise _OtherFrame
        except (_OtherFrame, IndexError):
            context = QuicReceiveContext(
                epoch=ONE_RTT,
                host_cid=self.host_cid,
                network_path=self._network_paths[0],
                quic_logger_frames=None,
                time=now,
                version=None,
            )
            self._silence = 0.0
            more, _probing = self._payload_received(context, payload[position:])
            return eliciting or more
        if not end:
            self._payload_received(None, payload)  # type: ignore[arg-type]  # says what is wrong with it
        return eliciting

    def _stream(self, payload: bytes, position: int, end: int, kind: int) -> int:
        """The next bytes of a stream that is there, in order. Where they end."""
        offset = 0
        number = payload[position]
        position += 1
        if number >= 0x40:
            number, position = _varint(payload, position - 1)
        if kind & OFFSET:
            offset = payload[position]
            if offset < 0x40:
                position += 1
            elif offset < 0x80:
                offset = (offset & 0x3F) << 8 | payload[position + 1]
                position += 2
            elif offset < 0xC0:
                offset = (offset & 0x3F) << 24 | payload[position + 1] << 16
                offset |= payload[position + 2] << 8 | payload[position + 3]
                position += 4
            else:
                offset, position = _varint(payload, position)
        if kind & LENGTH:
            length = payload[position]
            if length < 0x40:
                position += 1
            elif length < 0x80:
                length = (length & 0x3F) << 8 | payload[position + 1]
                position += 2
            else:
                length, position = _varint(payload, position)
        else:
            length = end - position
        stop = position + length
        stream = self._streams.get(number)
        if stream is None or kind & END or not length or stop > end:
            raise _OtherFrame
        receiver = stream.receiver
        reached = offset + length
        limit = self._local_max_data
        fresh = reached - receiver.highest_offset
        if (
            receiver._buffer_start != offset
            or receiver._buffer
            or receiver._final_size is not None
            or receiver.is_finished
            or fresh < 0
            or reached > stream.max_stream_data_local
            or limit.used + fresh > limit.value
        ):
            raise _OtherFrame
        receiver._buffer_start = receiver.highest_offset = reached
        limit.used += fresh
        if self.take is None or self._events:
            self._events.append(StreamDataReceived(payload[position:stop], False, number))
        else:
            self.take(number, payload[position:stop])
        return stop

    def _acknowledgement(self, payload: bytes, position: int, now: float) -> int:
        """What the peer has received (RFC 9000, 19.3). Where that ends."""
        largest = payload[position]
        if largest < 0x40:
            position += 1
        elif largest < 0x80:
            largest = (largest & 0x3F) << 8 | payload[position + 1]
            position += 2
        else:
            largest, position = _varint(payload, position)
        delay = payload[position]
        if delay < 0x40:
            position += 1
        elif delay < 0x80:
            delay = (delay & 0x3F) << 8 | payload[position + 1]
            position += 2
        else:
            delay, position = _varint(payload, position)
        if payload[position]:  # several ranges
            raise _OtherFrame
        first = payload[position + 1]
        if first < 0x40:
            position += 2
        else:
            first, position = _varint(payload, position + 1)
        low = largest - first
        if low < 0:
            raise _OtherFrame
        loss = self._loss
        loss.peer_completed_address_validation = True
        space = self._spaces[ONE_RTT]
        if largest > space.largest_acked_packet:
            space.largest_acked_packet = largest
        sent = space.sent_packets
        if not sent:
            return position
        numbers = list(sent)
        if numbers[0] < low or numbers[-1] > largest:  # mostly it is all there is
            numbers = numbers[bisect_left(numbers, low) : bisect_left(numbers, largest + 1)]
            if not numbers:
                return position
        eliciting = False
        control: Any = loss._cc
        for number in numbers:
            packet: Any = sent.pop(number)
            if packet.is_ack_eliciting:
                eliciting = True
                space.ack_eliciting_in_flight -= 1
            if type(packet) is _PlainPacket:
                if packet.is_ack_eliciting:
                    control.on_packet_acked(packet=packet, now=now)
                if packet.acknowledged >= 0:
                    _forget_acknowledged(space, packet.acknowledged)
                for sender, start, stop, fin in packet.spans:
                    _data_acknowledged(sender, start, stop, fin)
            else:
                if packet.in_flight:
                    control.on_packet_acked(packet=packet, now=now)
                for handler, arguments in packet.delivery_handlers:
                    handler(ACKED, *arguments)
        if numbers[-1] == largest and eliciting:
            self._measure(now - packet.sent_time, (delay << self._remote_ack_delay_exponent) / 1_000_000, now)
        if sent and next(iter(sent)) <= space.largest_acked_packet:
            loss._detect_loss(now=now, space=space)
        else:
            space.loss_time = None
        loss._pto_count = 0
        return position

    def _measure(self, latest: float, delay: float, now: float) -> None:
        """A round trip took so long, of which the peer may have waited some (RFC 9002, 5)."""
        loss = self._loss
        if not loss._rtt_initialized:
            loss._rtt_first_sample_time = now
        if delay > loss.max_ack_delay:
            delay = loss.max_ack_delay
        adjusted = latest if latest > K_GRANULARITY else K_GRANULARITY
        lowest = loss._rtt_min
        if adjusted < lowest:
            lowest = loss._rtt_min = adjusted
        if adjusted > lowest + delay:
            adjusted -= delay
        loss._rtt_latest = adjusted
        if loss._rtt_initialized:
            loss._rtt_variance = 3 / 4 * loss._rtt_variance + 1 / 4 * abs(lowest - adjusted)
            loss._rtt_smoothed = 7 / 8 * loss._rtt_smoothed + 1 / 8 * adjusted
        else:
            loss._rtt_initialized = True
            loss._rtt_variance = latest / 2
            loss._rtt_smoothed = latest
        loss._cc.on_rtt_measurement(now=now, rtt=latest)
        if self.paces:
            loss._pacer.update_rate(congestion_window=loss._cc.congestion_window, smoothed_rtt=loss._rtt_smoothed)
        # seldom: a round trip is short beside that
        if self._silence != self._idle or IDLE_PROBES * _measured_probe(loss) > self._idle:
            self._silence = 0.0

    # --- sending ---

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        if not self._says_nothing_special(now):
            return self._general_datagrams(now)
        context = self._cryptos[ONE_RTT].send
        keys = self._writing
        if keys is None or keys.aead is not context.aead:
            keys = self._writing = _PacketKeys(context, receiving=False)
        loss, space = self._loss, self._spaces[ONE_RTT]
        control: Any = loss._cc
        pacer: Any = loss._pacer
        path = self._network_paths[0]
        address = path.addr
        cid = self._peer_cid.cid
        overhead = 1 + len(cid) + NUMBER + TAG
        first = SHORT | self._spin_bit << 5 | context.key_phase << 2 | (NUMBER - 1)
        window = control.congestion_window - control.bytes_in_flight
        size = self._max_datagram_size
        number = self._packet_number
        datagrams: list[tuple[bytes, Any]] = []
        self._pacing_at = None
        due, paces = space.ack_at, self.paces
        if paces and (due is None or due >= now):
            self._pacing_at = pacer.next_send_time(now=now)
            if self._pacing_at is not None:
                return datagrams
        parts: list[Any] = []
        acknowledged = -1
        room = (size if size < window else window) - overhead
        if due is not None and due <= now:
            frame = _ack_frame(space, now, self._local_ack_delay_exponent)
            parts.append(frame)
            acknowledged = space.largest_received_packet
            space.ack_at = None
            room -= len(frame)
        while True:
            spans: list[Span] = []
            eliciting = self._stream_frames(room, parts, spans)
            if not parts:
                break
            truncated = number & 0xFFFF
            header = b"%c%b%b" % (first, cid, truncated.to_bytes(NUMBER, "big"))
            sealed = keys.crypt((keys.iv ^ number).to_bytes(NONCE, "big"), b"".join(parts), header)
            mask = keys.mask(sealed[SAMPLED - NUMBER : SAMPLED - NUMBER + SAMPLE])
            hidden = truncated ^ (mask[1] << 8 | mask[2])
            datagram = b"".join((_BYTES[first ^ (mask[0] & PROTECTED)], cid, hidden.to_bytes(NUMBER, "big"), sealed))
            length = len(datagram)
            packet: Any = _PlainPacket(number, length, now, eliciting, space, acknowledged, spans)
            space.sent_packets[number] = packet
            if eliciting:
                space.ack_eliciting_in_flight += 1
                loss._time_of_last_sent_ack_eliciting_packet = now
                control.bytes_in_flight += length
                window -= length
                if not self._ack_eliciting_sent_since_receipt:
                    self._close_at = now + (self._silence or self._idle_timeout())
                    self._ack_eliciting_sent_since_receipt = True
            path.bytes_sent += length
            datagrams.append((datagram, address))
            number += 1
            if paces:
                pacer.update_after_send(now=now)
                self._pacing_at = pacer.next_send_time(now=now)
                if self._pacing_at is not None:
                    break
            room = (size if size < window else window) - overhead
            if room >= FRAME_MIN and _none_left(self._queue):
                self._queue = []
                break
            parts, acknowledged = [], -1
        self._packet_number = number
        return datagrams

    def _says_nothing_special(self, now: float) -> bool:
        """Whether all there may be to send is an acknowledgement and bytes of streams."""
        if (
            not self._handshake_confirmed
            or self._state is not CONNECTED
            or self._close_event is not None
            or self._quic_logger is not None
            or self._handshake_done_pending
            or self._retire_connection_ids
            or self._streams_blocked_pending
            or self._ping_pending
            or self._probe_pending
            or self._datagrams_pending
            or self._table.granted
            or len(self._network_paths) > 1
        ):
            return False
        for stream in self._queue:
            receiver, sender = stream.receiver, stream.sender
            if receiver.stop_pending or sender.reset_pending or (receiver.is_finished and sender.is_finished):
                return False
        both, one = self._local_max_streams_bidi, self._local_max_streams_uni
        if (both.value != both.sent or one.value != one.sent) and (_wants_raising(both) or _wants_raising(one)):
            return False
        path, data = self._network_paths[0], self._local_max_data
        space: Any = self._spaces[ONE_RTT]
        if not self._ids_told:
            self._ids_told = all(map(_WAS_SENT, self._host_cids))
        return (
            self._ids_told
            and path.is_validated
            and not path.remote_challenges
            and data.value == data.sent
            and not (space.ack_at is not None and space.ack_at <= now and len(space.ack_queue._RangeSet__ranges) != 1)
            and not self._cryptos[ONE_RTT]._update_key_requested
            and self._crypto_streams[ONE_RTT].sender.buffer_is_empty
        )

    def _replenish_connection_ids(self) -> None:
        super()._replenish_connection_ids()
        self._ids_told = False

    def _on_new_connection_id_delivery(self, delivery: QuicDeliveryState, connection_id: Any) -> None:
        super()._on_new_connection_id_delivery(delivery, connection_id)
        self._ids_told = False

    def _general_datagrams(self, now: float) -> list[tuple[bytes, Any]]:
        return super().datagrams_to_send(now)

    def _stream_frames(self, room: int, parts: list[Any], spans: list[Span]) -> bool:
        """STREAM frames for a packet with so much room, in the order in which they were served least lately. Whether there
        are any.
        """
        queue = self._queue
        served: list[CoreStream] = []
        taken = False
        for stream in queue:
            sender = stream.sender
            if stream.is_blocked or sender.buffer_is_empty:
                continue
            before = sender.highest_offset
            limit = before + self._remote_max_data - self._remote_max_data_used
            if limit > stream.max_stream_data_remote:
                limit = stream.max_stream_data_remote
            used = _stream_frame(stream.stream_id or 0, sender, room, limit, parts, spans)
            if used:
                taken = True
                room -= used
                fresh = sender.highest_offset - before
                if fresh > 0:
                    self._remote_max_data_used += fresh
                    served.append(stream)
            if room < FRAME_MIN:
                break
        if served:
            self._queue = (
                served if len(served) == len(queue) else [*(one for one in queue if one not in served), *served]
            )
        return taken

    # --- time ---

    def get_timer(self) -> float | None:
        loss = self._loss
        if (
            not self._handshake_confirmed
            or self._state is not CONNECTED
            or not loss.peer_completed_address_validation
            or not self._network_paths[0].is_validated
        ):
            return super().get_timer()
        space = self._spaces[ONE_RTT]
        timer: float = self._close_at or 0.0
        due = space.ack_at
        if due is not None and due < timer:
            timer = due
        due = space.loss_time
        if due is None and space.ack_eliciting_in_flight:
            probe = _measured_probe(loss) if loss._rtt_initialized else loss.get_probe_timeout()
            if loss._pto_count:
                probe *= 2**loss._pto_count
            due = loss._time_of_last_sent_ack_eliciting_packet + probe
        self._loss_at = due
        if due is not None and due < timer:
            timer = due
        due = self._pacing_at
        return due if due is not None and due < timer else timer

    def _idle_timeout(self) -> float:
        loss = self._loss
        idle: float = self._configuration.idle_timeout
        remote = self._remote_max_idle_timeout
        if remote is not None and remote < idle:
            idle = remote
        probe = _measured_probe(loss) if loss._rtt_initialized else loss.get_probe_timeout()
        self._idle = idle
        self._silence = max(idle, IDLE_PROBES * probe)
        return self._silence


def add_unsent(sender: Any, data: bytes | memoryview) -> None:
    """As `sender.write`, of a stream that can be written to: bytes behind all that it was given."""
    size = len(data)
    if not size:
        return
    start = sender._buffer_stop
    stop = sender._buffer_stop = start + size
    pending = sender._pending._RangeSet__ranges
    if not pending:
        pending.append(range(start, stop))
    elif pending[-1].stop == start:
        pending[-1] = range(pending[-1].start, stop)
    else:
        sender._pending.add(start, stop)
    sender.buffer_is_empty = False
    sender._buffer += data


def _whole(truncated: int, bits: int, expected: int) -> int:
    """A packet number, of which so many bits were sent (RFC 9000, A.3)."""
    window = 1 << bits
    candidate = (expected & ~(window - 1)) | truncated
    if candidate <= expected - window // 2 and candidate < (1 << 62) - window:
        return candidate + window
    if candidate > expected + window // 2 and candidate >= window:
        return candidate - window
    return candidate


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number and where it ends (RFC 9000, 16). Raises IndexError if that is not in the data."""
    first = data[position]
    if first < 0x40:
        return first, position + 1
    size = 1 << (first >> 6)
    end = position + size
    if end > len(data):
        raise IndexError
    return int.from_bytes(data[position:end], "big") & ((1 << (8 * size - 2)) - 1), end


def _number(value: int) -> bytes:
    """A number in as few bytes as will do (RFC 9000, 16)."""
    if value < 0x40:
        return value.to_bytes(1, "big")
    if value < 0x4000:
        return (value | 0x4000).to_bytes(2, "big")
    if value < 0x4000_0000:
        return (value | 0x8000_0000).to_bytes(4, "big")
    return (value | 0xC000_0000_0000_0000).to_bytes(8, "big")


def _ack_frame(space: Any, now: float, exponent: int) -> bytes:
    """Everything up to the last is there."""
    (known,) = space.ack_queue._RangeSet__ranges
    delay = int((now - space.largest_received_time) * 1_000_000) >> exponent
    last = known.stop - 1
    count = last - known.start
    if 0x40 <= last < 0x4000_0000 and delay < 0x4000 and count < 0x40:
        soon, length, late = _ACKNOWLEDGED[last >= 0x4000]
        if delay < 0x40:
            return soon.pack(ACK, last | length, delay, 0, count)
        return late.pack(ACK, last | length, delay | 0x4000, 0, count)
    return b"\2%b%b\0%b" % (_number(last), _number(delay), _number(count))


def _measured_probe(loss: Any) -> float:
    """How long a packet may go unanswered (RFC 9002, 6.2.1), where a round trip was measured."""
    variance: float = 4 * loss._rtt_variance
    if variance < K_GRANULARITY:
        variance = K_GRANULARITY
    return loss._rtt_smoothed + variance + loss.max_ack_delay  # type: ignore[no-any-return]


def _wants_raising(limit: Any) -> bool:
    return bool(limit.value != limit.sent and limit.sent - limit.used < limit.value - limit.sent)


def _none_left(queue: Sequence[CoreStream]) -> bool:
    """Whether no stream has anything left to send, as far as one can see without a packet for it."""
    for stream in queue:
        sender: Any = stream.sender
        if stream.is_blocked or sender._pending._RangeSet__ranges or sender._pending_eof:
            return False
    for stream in queue:
        stream.sender.buffer_is_empty = True
    return True


def _stream_frame(number: int, sender: Any, room: int, limit: int, parts: list[Any], spans: list[Span]) -> int:
    """The next bytes of a stream, as far as there is room and credit. How long the frame is: nothing, if there is none."""
    pending = sender._pending._RangeSet__ranges
    if pending:
        first = pending[0]
        start = first.start
    else:
        start = sender._buffer_stop
        if not sender._pending_eof and room >= FRAME_MIN:
            sender.buffer_is_empty = True
            return 0
    offset = 0 if not start else 1 if start < 0x40 else 2 if start < 0x4000 else 4
    plain = number < 0x40 and start < 0x4000_0000
    if plain:
        size = 4 + offset
    else:
        name, place = _number(number), _number(start) if start else b""
        size = 3 + len(name) + len(place)
    room -= size
    if room < 0:
        return 0
    if pending:
        last = stop = first.stop
        if stop > start + room:
            stop = start + room
        if stop > limit:
            stop = limit
        if stop <= start:
            return 0
        if stop == last:
            del pending[0]
        else:
            pending[0] = range(stop, last)
        if stop > sender.highest_offset:
            sender.highest_offset = stop
        end = sender._buffer_fin == stop
    else:
        if not sender._pending_eof:
            sender.buffer_is_empty = True
            return 0
        stop, end = start, True
    if end:
        sender._pending_eof = False
    length: int = stop - start
    kind = STREAM | LENGTH | (OFFSET if start else 0) | end
    if not plain:
        parts.append(b"%c%b%b%b" % (kind, name, place, (length | 0x4000).to_bytes(2, "big")))
    elif offset == 4:
        parts.append(_HEADS[3].pack(kind, number, start | 0x8000_0000, length | 0x4000))
    elif offset:
        parts.append(_HEADS[offset].pack(kind, number, start | (0x4000 if offset == 2 else 0), length | 0x4000))
    else:
        parts.append(_HEADS[0].pack(kind, number, length | 0x4000))
    if length:
        base = sender._buffer_start
        parts += sender._buffer.views(start - base, stop - base)
    spans.append((sender, start, stop, end))
    return size + length


def _on_ack_delivery(delivery: QuicDeliveryState, space: Any, highest: int) -> None:
    if delivery is ACKED:
        _forget_acknowledged(space, highest)


def _data_acknowledged(sender: Any, start: int, stop: int, end: bool) -> None:
    """Bytes of a stream have arrived: mostly those that were the oldest on their way."""
    if (
        sender._buffer_start != start
        or stop <= start
        or end
        or sender._acked._RangeSet__ranges
        or sender._reset_error_code is not None
    ):
        _DATA_DELIVERY(sender, ACKED, start, stop, end)
        return
    sender._buffer_start = stop
    sender._buffer.forget(stop - start)
    if stop == sender._buffer_fin and sender._acked_fin:
        sender.is_finished = True


def _forget_acknowledged(space: Any, highest: int) -> None:
    """The peer knows that we have everything up to there."""
    ranges = space.ack_queue._RangeSet__ranges
    while ranges and ranges[0].stop <= highest + 1:
        del ranges[0]
    if ranges and ranges[0].start <= highest:
        ranges[0] = range(highest + 1, ranges[0].stop)
