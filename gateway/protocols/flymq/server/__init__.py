"""The side of FlyMQ that serves."""
