"""Settings for Spark where there is little to compute and starting is what takes time.

Half of a start is Java reading some ten thousand classes out of their jars. So one Java writes down what it made of them, and all
others begin with that (an archive for class data sharing; Java looks itself whether it fits its jars, and does without if not).
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import pyspark
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from gateway.pipeline.jvm import jar
from gateway.pipeline.session import find_java, java_home, spark_session
from tests.once import made

PATIENCE = 600.0
LITTLE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable"
PLAIN = {
    "spark.sql.shuffle.partitions": "2",
    # compiling takes longer than what it would save
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@functools.cache
def java_options() -> str:
    """For a Java that lives for seconds. It has read its classes already."""
    classes = made(f"spark-{pyspark.__version__}-java-{find_java()[1]}.jsa", _learned)
    return f"{LITTLE} -XX:SharedArchiveFile={classes}"


def quick() -> dict[str, str]:
    """The settings."""
    kinds = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")
    return PLAIN | dict.fromkeys(kinds, java_options())


class Java:
    """A Java that is up, as `spark-submit` starts one before a program in Python: here for several programs in turn."""

    def __init__(self, directory: Path) -> None:
        """`directory`: the one that the programs are started in, since it is Java that opens files."""
        os.environ["JAVA_HOME"] = str(java_home(Path(gettempdir()) / f"gateway-spark-{os.getuid()}"))
        settings = {"spark.jars": str(jar()), "spark.driver.defaultJavaOptions": java_options()}
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        self._client = launch_gateway(conf, {"cwd": directory, "stderr": subprocess.DEVNULL})
        parameters = self._client.java_parameters
        self.environment = {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }
        """With this a program finds it, and starts none."""

    def next(self) -> None:
        """A program has ended: so does what it had in Java."""
        session = self._client.jvm.SparkSession.getDefaultSession()
        if session.isDefined():
            session.get().stop()

    def close(self) -> None:
        process = self._client.proc
        self._client.shutdown()
        process.stdin.close()
        process.wait(PATIENCE)


def _learned(archive: Path) -> None:
    # in a process of its own: there is one Java for each, and this one has to end
    subprocess.run(  # noqa: TID251  # nothing is to go on meanwhile
        [sys.executable, "-m", "tests.pipeline.quick", str(archive)],
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    archive.touch()  # not every Java can; what is empty is none


def _learn(archive: str) -> None:
    # what many tests do: the archive has the classes that were in use
    java = f"{LITTLE} -XX:ArchiveClassesAtExit={archive}"
    spark = spark_session("local[2]", settings={**PLAIN, "spark.driver.defaultJavaOptions": java})
    with TemporaryDirectory() as directory:
        rows = spark.range(100).selectExpr("id % 7 AS one", "cast(id AS string) AS text", "current_timestamp() AS at")
        rows.write.parquet(f"{directory}/rows", partitionBy="one")
        again = spark.read.parquet(f"{directory}/rows")
        again.groupBy("one").count().orderBy("one").write.csv(f"{directory}/counted")
        again.where("one > 2").write.json(f"{directory}/lines")
        again.mapInPandas(lambda parts: parts, again.schema).toPandas()
    process = spark.sparkContext._gateway.proc
    spark.stop()
    process.stdin.close()  # which ends Java, and that is when it writes
    process.wait(PATIENCE)


if __name__ == "__main__":
    _learn(sys.argv[1])
