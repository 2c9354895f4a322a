"""QUIC on trio."""
