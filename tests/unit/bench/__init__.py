"""The benchmark's arithmetic, and its loops on a clock of their own."""
