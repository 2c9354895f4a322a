"""One folder per protocol, the same file names in each. No protocol imports another."""
