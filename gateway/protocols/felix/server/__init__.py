"""The side of Felix that serves."""
