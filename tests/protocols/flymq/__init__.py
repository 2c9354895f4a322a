"""FlyMQ: vectors, transcripts and properties."""
