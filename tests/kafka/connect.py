"""Kafka Connect, of its published jars: one worker by itself, configured as the page about the log on Kafka says."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway import docs
from tests.kafka.node import PATIENCE, command, properties

JARS = Path(".deps/jars/connect")
WORKER, SINK, SOURCE = "connect-standalone.properties", "to-a-file.properties", "from-a-file.properties"


def documented() -> Mapping[str, Mapping[str, str]]:
    """What the page has for each of the three files, whose names are the first lines."""
    found = re.findall(r"^```properties\n# (\S+)\n(.*?)^```", docs.text("log-on-kafka"), re.MULTILINE | re.DOTALL)
    return {name: dict(line.split("=", 1) for line in body.splitlines()) for name, body in found}


class Worker:
    """A worker that runs."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def look(self) -> None:
        """That it still runs, and no task of it has failed."""
        said = self._log.read_text(errors="replace")
        assert self._process.poll() is None, said[-2000:]
        assert " ERROR " not in said, said[said.index(" ERROR ") :][:2000]


@contextmanager
def working(directory: Path, changes: Mapping[str, Mapping[str, str]]) -> Iterator[Worker]:
    """`changes`: what is not as in the page, by file. Skips the test, saying why, where the jars are not there."""
    if not JARS.is_dir():
        pytest.skip("Kafka Connect's jars are not here: `make setup` fetches them where there is Maven")
    for name, settings in documented().items():
        (directory / name).write_text(properties({**settings, **changes[name]}))
    files = [str(directory / name) for name in (WORKER, SINK, SOURCE)]
    started = command(directory, "org.apache.kafka.connect.cli.ConnectStandalone", *files, jars=JARS)
    log = directory / "connect.log"
    with log.open("wb") as out:
        process = subprocess.Popen(started, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Worker(process, log)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
