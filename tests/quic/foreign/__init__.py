"""The QUIC stacks of others, as clients of ours."""
