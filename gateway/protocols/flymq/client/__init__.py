"""The side of FlyMQ that asks."""
