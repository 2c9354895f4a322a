"""A standalone cluster of Spark: a master and two workers, each a process, and a gateway behind TLS and a token for it to read."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import attrs
import pyspark
import trustme

from gateway.pipeline.jvm import jar
from gateway.pipeline.session import java_home
from tests.pipeline.quick import java_options, quick
from tests.pipeline.served import Gateway, gateway

TOKEN = "s3cret"
PATIENCE = 300.0
HOME = Path(pyspark.__file__).parent
ROOT = Path.cwd()
MORTAL = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Of a test run that is killed nothing stays."""
SETTINGS = {
    # nothing runs before both workers are there, and none is given up because the machine is slow
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.network.timeout": "600s",
    "spark.executor.memory": "768m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@attrs.frozen
class StandaloneCluster:
    """Where to submit to, and what is sent along."""

    master: str
    package: Path
    """The wheel, as Python on executors takes one: by the name of an archive."""
    directory: Path

    def submit(self, program: Path, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        """As somebody would: `spark-submit` with the wheel and the jar. Its own process group, so that all of it can be killed;
        what it says on standard error is in `said`.
        """
        settings = [word for name, value in (quick() | SETTINGS).items() for word in ("--conf", f"{name}={value}")]
        with self.said.open("w") as said:
            return self._submitted(said, settings, program, arguments, environment)

    @property
    def said(self) -> Path:
        return self.directory / "said"

    def _submitted(
        self,
        said: IO[str],
        settings: Sequence[str],
        program: Path,
        arguments: Sequence[object],
        environment: Mapping[str, str],
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *MORTAL,
                HOME / "bin" / "spark-submit",
                *("--master", self.master, "--py-files", self.package, "--jars", jar(), *settings),
                *(program, *map(str, arguments)),
            ],
            cwd=self.directory,
            env={**_environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    scratch = Path(os.environ.get("TMPDIR", "/tmp")) / f"gateway-spark-{os.getuid()}"
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    java = {"JAVA_HOME": str(java_home(scratch)), "SPARK_DAEMON_JAVA_OPTS": java_options()}
    return {**os.environ, **python, **java, "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def standalone(directory: Path) -> Iterator[StandaloneCluster]:
    """Two workers of one core each."""
    package = _wheel(directory).rename(directory / "gateway.zip")
    with ExitStack() as running:
        words = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        found = _started(running, directory / "master.log", words, r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            work = ("--cores", "1", "--memory", "1g", "--work-dir", directory / f"work-{number}")
            words = ("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", *work, found)
            _started(running, directory / f"worker-{number}.log", words, r"(Successfully registered with master)")
        yield StandaloneCluster(found, package, directory)


def _started(running: ExitStack, log: Path, words: Sequence[object], says: str) -> str:
    # returns what it says, once it has said it
    with log.open("w") as out:
        process = subprocess.Popen(
            [*MORTAL, HOME / "bin" / "spark-class", *map(str, words)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=_environment(),
        )
    running.callback(process.wait)
    running.callback(process.kill)
    pause = threading.Event()
    for _ in range(int(PATIENCE * 10)):
        match = re.search(says, log.read_text())
        if match is not None:
            return match[1]
        assert process.poll() is None, log.read_text()
        pause.wait(0.1)
    raise AssertionError(log.read_text())


def _wheel(directory: Path) -> Path:
    # of what is here, built as anybody would
    made = directory / "wheels"
    words = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", made)
    # from a copy: a build leaves its own directories beside what it builds
    source = directory / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    subprocess.check_call(["cp", "-r", str(ROOT / "gateway"), str(source)])
    subprocess.check_call([sys.executable, *map(str, words), str(source)])
    (wheel,) = made.glob("gateway-*.whl")
    return wheel


@contextmanager
def behind_tls(store: Path, directory: Path) -> Iterator[tuple[Gateway, Path]]:
    """A gateway that asks for a token, and the file of the CA that it is to be trusted by."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    roots = directory / "ca.pem"
    authority.cert_pem.write_to_path(str(roots))
    with gateway(store, token=TOKEN, tls=context) as served:
        yield served, roots
