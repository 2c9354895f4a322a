"""aioquic with receive limits that only the owner raises, and with streams that keep what they send as it was written.

aioquic raises its limits with the bytes *received*, so an unread stream is delivered whole. Here they are raised from outside
(`grant_stream`, `grant_connection`), and the doubling never sees a received byte.

Apart from `aioquic_private`, which only names what is private: this changes what it does.
"""

# ruff: noqa: SLF001 (private names are what this module is for)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder
from aioquic.quic.stream import QuicStream as CoreStream

from gateway.transport.quic.unsent import Unsent


class _StreamTable(dict[int, CoreStream]):
    """aioquic's streams by id. Its only use of `values` is to look for limits to announce: give it just those."""

    buffer: Callable[[], Any] = Unsent

    def __init__(self) -> None:
        super().__init__()
        self.granted: dict[int, CoreStream] = {}

    def __setitem__(self, stream_id: int, stream: CoreStream) -> None:
        stream.sender._buffer = self.buffer()
        super().__setitem__(stream_id, stream)

    def values(self) -> list[CoreStream]:  # type: ignore[override]
        return list(self.granted.values())


class CreditedConnection(QuicConnection):
    """Receive limits that only the owner raises."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._table = _StreamTable()
        self._streams = self._table

    def grant_stream(self, stream_id: int, limit: int) -> None:
        """Let the peer send up to this offset on a stream."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.receiver.is_finished:
            stream.max_stream_data_local = limit
            self._table.granted[stream_id] = stream

    def grant_connection(self, limit: int) -> None:
        """Let the peer send up to this many bytes in all."""
        self._local_max_data.value = limit

    def received_on(self, stream_id: int) -> int:
        """The highest offset seen on a stream (its final size once it was reset)."""
        stream = self._streams.get(stream_id)
        return stream.receiver.highest_offset if stream is not None else 0

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: Any, stream: CoreStream) -> None:
        receiver = stream.receiver
        if receiver.is_finished:
            stream.max_stream_data_local_sent = stream.max_stream_data_local
            return
        received, receiver.highest_offset = receiver.highest_offset, 0
        try:
            super()._write_stream_limits(builder, space, stream)
        finally:
            receiver.highest_offset = received

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: Any) -> None:
        limit = self._local_max_data
        used, limit.used = limit.used, 0
        try:
            super()._write_connection_limits(builder, space)
        finally:
            limit.used = used

    def _on_max_stream_data_delivery(self, delivery: QuicDeliveryState, stream: CoreStream) -> None:
        super()._on_max_stream_data_delivery(delivery, stream)
        if delivery != QuicDeliveryState.ACKED and stream.stream_id in self._streams:
            self._table.granted[stream.stream_id] = stream
