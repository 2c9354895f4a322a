"""Other people's QUIC clients, from Debian's packages: found, built once, or the reason why not."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.once import KEPT, made

GO = Path("/usr/bin/go")
"""Debian's: quic-go 0.29 is bound to the Go releases of its day, and another Go on this machine may be any."""
GOPATH = Path("/usr/share/gocode")
QUIC_GO = GOPATH / "src/github.com/lucas-clemente/quic-go"
SOURCE = Path(__file__).with_name("quicgo")
CHANGES = {
    # Felix has no ALPN, and its own clients' stack asks for none; quic-go cannot do without.
    "internal/handshake/crypto_setup.go": (r"(EnforceNextProtoSelection:\s+)true", r"\1false"),
    # It leaves its first id at once and each later one after about 10 000 packets: here after 8 to 23.
    "internal/protocol/params.go": (r"(const PacketsPerConnectionID = )10000", r"\g<1>16"),
}
"""What is changed in Debian's quic-go while it is compiled, by file."""


def quic_go() -> Path:
    """The program of `quicgo/`, built."""
    if not GO.exists():
        pytest.skip("quic-go: there is no /usr/bin/go (Debian: apt-get install golang-go)")
    if not QUIC_GO.exists():
        pytest.skip(f"quic-go: there is no {QUIC_GO} (Debian: golang-github-lucas-clemente-quic-go-dev)")
    inputs = (Path(__file__), *sorted(SOURCE.iterdir()), *(QUIC_GO / name for name in CHANGES))
    return made(f"quicgo-{hashlib.sha256(b''.join(path.read_bytes() for path in inputs)).hexdigest()[:16]}", _build)


def _build(program: Path) -> None:
    settings = {
        "PATH": "/usr/bin:/bin",
        "GO111MODULE": "off",
        "GOPATH": str(GOPATH),
        "GOCACHE": str(KEPT / "go-build"),
        "GOFLAGS": "-trimpath",
        "CGO_ENABLED": "0",
    }
    with tempfile.TemporaryDirectory(dir=KEPT) as directory:
        command = [str(GO), "build", "-overlay", str(_changed(Path(directory))), "-o", str(program), "."]
        built = trio.run(
            partial(
                trio.run_process,
                command,
                cwd=SOURCE,
                env=settings,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        )
    if built.returncode:
        pytest.skip(f"quic-go: does not build with {GO}: {built.stderr.decode().strip()[:500]}")


def _changed(directory: Path) -> Path:
    """Go's list of the files that are read instead of others."""
    replaced = {}
    for name, (old, new) in CHANGES.items():
        text, count = re.subn(old, new, (QUIC_GO / name).read_text())
        if count != 1:
            pytest.skip(f"quic-go: {name} is not what it was in 0.29")
        changed = directory / Path(name).name
        changed.write_text(text)
        replaced[str(QUIC_GO / name)] = str(changed)
    overlay = directory / "overlay.json"
    overlay.write_text(json.dumps({"Replace": replaced}))
    return overlay


def ngtcp2() -> str:
    """ngtcp2's client, made with GnuTLS: it speaks HTTP/3 and nothing else."""
    found = shutil.which("gtlsclient")
    if found is None:
        pytest.skip("ngtcp2: there is no gtlsclient (Debian: apt-get install ngtcp2-client)")
    return found
