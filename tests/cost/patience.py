"""Who takes its time to acknowledge over QUIC, and says so: no clock decides then what is sent, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioquic.quic import connection as aioquic_connection
from aioquic.quic.packet import QuicTransportParameters

from gateway.transport.quic import connection as quic_connection

PATIENT = 16_383
"""Milliseconds in which it acknowledges: the most that one may ask for (RFC 9000, 18.2). One that only listens does so after a
few datagrams, in some of the turns.
"""


def be_patient(set_to: Callable[[Any, str, Any], None]) -> None:
    """All connections that begin from now on, as long as that stays set."""
    set_to(quic_connection, "ACKNOWLEDGE_WITHIN", PATIENT / 1000)
    set_to(aioquic_connection, "QuicTransportParameters", _patient)


def _patient(**parameters: Any) -> QuicTransportParameters:
    return QuicTransportParameters(**{**parameters, "max_ack_delay": PATIENT})
