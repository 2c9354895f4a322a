"""The bytes of BlipMQ: frames, codecs, dialects and words, for either side."""
