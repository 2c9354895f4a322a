"""Fujin: vectors, transcripts, properties."""
