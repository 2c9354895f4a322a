"""What only an administrator may do to a machine: a disk that is small, a network that falls apart. Who may not skips, and says why."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest


def system(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)  # noqa: TID251  # nothing else is to go on meanwhile


def allowed(what: str, *command: str) -> None:
    """Do it, or skip the test."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{what}: there is no {command[0]} here (Debian: iproute2, mount)")
    try:
        system(*command)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{what} is not allowed here: {error.stderr.decode().strip()}")


@attrs.frozen
class SmallDisk:
    """A file system in memory, of a size that may be changed."""

    directory: Path

    def resize(self, megabytes: int) -> None:
        system("mount", "-o", f"remount,size={megabytes}m", str(self.directory))


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[SmallDisk]:
    """In the place of a directory, with what is in it."""
    before = directory.with_name(f"{directory.name}.before")
    directory.rename(before)
    directory.mkdir()
    allowed("mounting a small disk", "mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory))
    try:
        shutil.copytree(before, directory, dirs_exist_ok=True)
        yield SmallDisk(directory)
    finally:
        system("umount", "--lazy", str(directory))


@attrs.frozen
class Elsewhere:
    """A network of its own, with two links to this one: one that is cut, and one for who looks on."""

    name: str
    here: str
    """The address of this side of the first link."""
    door: str
    """The address of the other side of the second."""
    link: str

    @property
    def within(self) -> Sequence[str]:
        """Runs a command there."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Nothing comes through any more, and nobody is told."""
        system(*self.within, "ip", "link", "set", self.link, "down")

    def mend(self) -> None:
        system(*self.within, "ip", "link", "set", self.link, "up")


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    number = os.getpid()
    name, net = f"gateway-{number}", f"10.{100 + number // 250 % 100}.{number % 250}"
    allowed("a network namespace", "ip", "netns", "add", name)
    try:
        made = Elsewhere(name, f"{net}.1", f"{net}.6", f"gwb{number}")
        for mine, theirs, first in ((f"gwa{number}", made.link, 1), (f"gwc{number}", f"gwd{number}", 5)):
            pair = ("type", "veth", "peer", "name", theirs, "netns", name)
            allowed("a link into another network", "ip", "link", "add", mine, *pair)
            system("ip", "address", "add", f"{net}.{first}/30", "dev", mine)
            system("ip", "link", "set", mine, "up")
            system(*made.within, "ip", "address", "add", f"{net}.{first + 1}/30", "dev", theirs)
            system(*made.within, "ip", "link", "set", theirs, "up")
        yield made
    finally:
        system("ip", "netns", "delete", name)
