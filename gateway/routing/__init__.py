"""Where an address leads: globs, templates, the compiled routing table."""
