"""Measuring brokers so that the figures can be believed: loops that load them, arithmetic, plots, and the bare loops beside."""
