"""One store into another of the other kind: records, tables, and the proof that all of it is there. Begin with `copying`."""
