"""Builds the data source for Spark's JVM, gateway/pipeline/gateway-spark.jar, from gateway/pipeline/java.

Needs a JDK 17 (Debian: openjdk-17-jdk-headless), the jars that come with the package pyspark, and Kafka's client, which
`deploy/jars.sh spark-kafka` fetches. The jar is part of the repository, so that nobody else needs a compiler; the same sources
give the same classes, and a test builds it again and compares.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent / "gateway" / "pipeline"
SOURCES = ROOT / "java"
KAFKA = Path(__file__).parent.parent / ".deps" / "jars" / "spark-kafka"
JAR = ROOT / "gateway-spark.jar"
RELEASE = 17
"""The oldest Java that Spark runs on."""
SERVICES = {"META-INF/services/org.apache.spark.sql.sources.DataSourceRegister": b"gateway.spark.GatewaySource\n"}
MANIFEST = b"Manifest-Version: 1.0\r\nAutomatic-Module-Name: gateway.spark\r\n\r\n"
WHEN = (1980, 1, 1, 0, 0, 0)


def compiler() -> str:
    """A javac of the release that the committed classes were made by; others may make different ones. Empty: there is none."""
    home = os.environ.get("JAVA_HOME", "")
    places = [Path(home, "bin", "javac"), *Path("/usr/lib/jvm").glob(f"*{RELEASE}*/bin/javac"), shutil.which("javac")]
    for place in filter(None, places):
        if Path(place).is_file():
            told = subprocess.check_output([place, "-version"], text=True, stderr=subprocess.STDOUT)  # noqa: S603  # a compiler of this machine
            if told.startswith(f"javac {RELEASE}."):
                return str(place)
    return ""


def classes(javac: str, directory: Path) -> dict[str, bytes]:
    """Compile all of it; what goes into the jar, by name."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    found = [*(Path(spark.origin).parent / "jars").glob("*.jar"), *KAFKA.glob("kafka-clients-*.jar")]
    jars = ":".join(map(str, sorted(found)))
    # the annotations of Scala's classes are not on the path; errors of ours are in one file
    lint = "-Xlint:all,-classfile,-path,-serial,-auxiliaryclass,-processing"
    sources = [str(one.relative_to(SOURCES)) for one in sorted(SOURCES.rglob("*.java"))]
    options = ["--release", str(RELEASE), "-encoding", "UTF-8", "-g:source,lines", "-proc:none", lint, "-cp", jars]
    subprocess.check_call([javac, *options, "-d", str(directory), *sources], cwd=SOURCES)  # noqa: S603  # as above
    made = {str(one.relative_to(directory)): one.read_bytes() for one in sorted(directory.rglob("*.class"))}
    return {"META-INF/MANIFEST.MF": MANIFEST, **SERVICES, **made}


def build(javac: str, to: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        entries = classes(javac, Path(directory))
    fresh = to.with_name(f".{to.name}.new")  # a Java that has the old one open goes on with it
    with zipfile.ZipFile(fresh, "w") as jar:
        for name, data in entries.items():
            entry = zipfile.ZipInfo(name, WHEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            jar.writestr(entry, data, compresslevel=9)
    fresh.rename(to)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--to", type=Path, default=JAR)
    found = compiler()
    if not found:
        sys.exit(f"jar: there is no javac of Java {RELEASE} here (Debian: apt-get install openjdk-17-jdk-headless)")
    build(found, parser.parse_args().to)
