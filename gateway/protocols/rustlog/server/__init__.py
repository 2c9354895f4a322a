"""The side of RustLog that serves."""
