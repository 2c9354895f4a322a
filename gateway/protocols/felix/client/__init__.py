"""The side of Felix that asks."""
