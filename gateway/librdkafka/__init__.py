"""Kafka's own library for C, as it is used here: for a log that is on Kafka, and for a Kafka that is a broker elsewhere."""
