"""The log on Apache Kafka: any number of gateways in front of it, none of which holds anything of its own. The protocol of
what they share is in `gateway/docs/log-on-kafka.md`; begin with `engine`.
"""
