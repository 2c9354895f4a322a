"""The side of BlipMQ that asks."""
