"""The way into the log: what becomes of a publish, from its request to its reply. Begin with `pipeline`."""
