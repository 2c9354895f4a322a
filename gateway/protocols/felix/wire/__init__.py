"""The bytes of Felix: frames, codecs, dialects and words, for either side."""
