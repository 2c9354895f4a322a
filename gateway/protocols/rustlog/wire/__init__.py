"""The bytes of RustLog: frames, codecs, dialects and words, for either side."""
