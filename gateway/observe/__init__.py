"""Metrics, health, logging."""
