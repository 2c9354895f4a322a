"""Sockets that are files: for peers on this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import trio

from gateway.errors import TargetError

BACKLOG = 4096


@contextlib.contextmanager
def unix_listener(path: str, mode: int) -> Iterator[socket.socket]:
    """A listening socket; its file goes with it. One that a process left behind is taken over, one that is in use is not."""
    _remove_left_behind(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        sock.bind(path)
        made = Path(path).lstat()
        try:
            Path(path).chmod(mode)  # nobody can connect before it listens
            sock.listen(BACKLOG)
            yield sock
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(made, Path(path).lstat()):
                    Path(path).unlink()


def _remove_left_behind(path: str) -> None:
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "there is something else of that name")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


async def open_unix(path: str, timeout: float) -> socket.socket:
    try:
        with trio.fail_after(timeout):
            stream = await trio.open_unix_socket(path)
    except (OSError, trio.TooSlowError) as error:
        raise TargetError(f"cannot connect to {path}: {str(error) or 'no answer in time'}") from error
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock
