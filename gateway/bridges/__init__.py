"""Brokers elsewhere, in both directions."""
