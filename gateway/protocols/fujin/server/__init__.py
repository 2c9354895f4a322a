"""The side of Fujin that serves."""
