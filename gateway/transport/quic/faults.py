"""The exceptions that aioquic may raise over a peer's bytes."""

from __future__ import annotations

from aioquic.quic.connection import QuicConnectionError
from aioquic.quic.packet_builder import QuicPacketBuilderStop
from aioquic.tls import Alert
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

FAULTS: tuple[type[Exception], ...] = (
    Alert,
    ArithmeticError,
    AssertionError,
    AttributeError,
    InvalidSignature,
    LookupError,
    QuicConnectionError,
    QuicPacketBuilderStop,
    RuntimeError,
    TypeError,
    UnsupportedAlgorithm,
    ValueError,
)
"""What aioquic might raise over a peer's bytes that it did not foresee: costs that connection, nothing else."""
