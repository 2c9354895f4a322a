"""The data source for Spark's JVM: a jar that comes with the package, and how a session gets it."""

from __future__ import annotations

import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.files import write_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "gateway-spark.jar"
CLASS = "gateway.spark.GatewaySource"


def jar() -> Path:
    """The jar as a file; from a package that lies in an archive it is unpacked. Raises FileNotFoundError."""
    found = resources.files("gateway.pipeline").joinpath(NAME)
    if isinstance(found, Path):
        if not found.is_file():
            raise FileNotFoundError(found)
        return found
    data = found.read_bytes()
    path = Path(tempfile.gettempdir()) / f"gateway-spark-{os.getuid()}" / NAME
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data, synced=False)
    return path


def add_jar(spark: SparkSession) -> None:
    """Give a session that is there the jar, if it lacks it and takes one. Where it does not, Python reads."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return  # a session of Spark Connect: its server has its own jars
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    if loader.getResource(f"{CLASS.replace('.', '/')}.class") is None:
        spark.sql(f"ADD JAR '{jar()}'")
