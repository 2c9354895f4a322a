"""BlipMQ: vectors, transcripts, properties."""
