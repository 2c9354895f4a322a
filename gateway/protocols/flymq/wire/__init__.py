"""The bytes of FlyMQ: frames, codecs, dialects and words, for either side."""
