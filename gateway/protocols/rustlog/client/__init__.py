"""The side of RustLog that asks."""
