"""The side of Fujin that asks."""
