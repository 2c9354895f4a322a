"""The log: topics, partitions, offsets, tables; group commit; retention."""
