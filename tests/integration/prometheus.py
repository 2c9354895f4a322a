"""The real Prometheus from Debian's package: found on the machine, or unpacked into .deps without being installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import trio

UNPACKED = Path(".deps/prometheus")


def tool(name: str) -> Path:
    """`prometheus` or `promtool`; skips the test, saying why, where neither exists nor can be had."""
    installed = shutil.which(name)
    if installed:
        return Path(installed)
    binary = UNPACKED / "usr/bin" / name
    if not binary.exists():
        _unpack()
    return binary.resolve()


def _unpack() -> None:
    """Download the package and unpack it. Two at once do no harm: the folder appears whole or not at all."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("there is no prometheus on this machine and no apt-get to get it with")
    work = UNPACKED.with_name(f"prometheus.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        if _call(["apt-get", "download", "prometheus"], work) != 0:
            _call(["apt-get", "-qq", "update"], work)  # a fresh machine has no package lists; needs root
            if _call(["apt-get", "download", "prometheus"], work) != 0:
                pytest.skip("there is no prometheus on this machine and apt-get cannot download it")
        for package in work.glob("*.deb"):
            subprocess.check_call(["dpkg-deb", "-x", package.name, "."], cwd=work)
            package.unlink()
        if not UNPACKED.exists():
            work.rename(UNPACKED)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _call(command: list[str], directory: Path) -> int:
    return subprocess.call(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def eventually_listening(port: int) -> None:
    """Wait until something accepts connections there."""
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            await trio.sleep(0.05)
        else:
            await stream.aclose()
            return
