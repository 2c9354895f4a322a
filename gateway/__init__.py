"""A protocol gateway and translation proxy for messaging: five wire protocols, one log, one routing table."""

__version__ = "0.1.0"
