"""What Spark reads a Kafka with beside its own jars, as `make setup` fetched it."""

from __future__ import annotations

from pathlib import Path

SPARK_KAFKA = Path(".deps/jars/spark-kafka").absolute()


def spark_kafka() -> str:
    """Its jars, as Spark wants them; empty where there was no Maven to fetch them."""
    return ",".join(str(one) for one in sorted(SPARK_KAFKA.glob("*.jar")))
