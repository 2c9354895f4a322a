"""The bytes of Fujin: frames, codecs, dialects and words, for either side."""
