"""The side of BlipMQ that serves."""
