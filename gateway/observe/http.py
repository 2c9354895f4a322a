"""Serves an ASGI application in the trio loop, on a socket that is bound before anything else starts."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

if TYPE_CHECKING:
    from starlette.types import ASGIApp

log = structlog.get_logger()
BACKLOG = 128
LARGEST_HEADER = 16 << 10
STALLED_MS = 5_000
"""A client that takes nothing for so long is cut off: the server under this one cannot be made to give up on it."""


def bind_http(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 lets the system choose (`getsockname` knows). OSError if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)  # inherited by what is accepted
        sock.bind((host, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def bind_http_here(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


async def serve_http(
    app: ASGIApp,
    sock: socket.socket,
    *,
    stop: trio.Event,
    tls: ssl.SSLContext | None = None,
    grace: float = 2.0,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set; requests under way get `grace` seconds. Reports its URLs when it is up."""
    from hypercorn.config import Config, Sockets
    from hypercorn.trio.run import worker_serve
    from hypercorn.utils import wrap_app

    class WithTls(Config):
        """Takes a context that was made elsewhere."""

        def create_ssl_context(self) -> ssl.SSLContext | None:
            return tls

    config = WithTls()
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.h11_max_incomplete_size = LARGEST_HEADER
    config.include_server_header = False
    config.graceful_timeout = grace
    await worker_serve(
        wrap_app(app, config.wsgi_max_body_size, "asgi"),  # type: ignore[arg-type]  # two spellings of the same ASGI type
        config,
        sockets=Sockets([sock], [], []) if tls is not None else Sockets([], [sock], []),
        shutdown_trigger=stop.wait,
        task_status=task_status,
    )


async def serve_http_when_asked(
    make: Callable[[], ASGIApp], sock: socket.socket, *, stop: trio.Event, tls: ssl.SSLContext | None = None
) -> None:
    """Serve from the first connection on: the application and the server under it are a third of what a start would
    import. They are loaded in a thread, while the gateway works; the connection waits in the socket's backlog.
    """
    app = None
    while app is None:
        await _readable(sock, stop)
        if stop.is_set():
            return
        app = await trio.to_thread.run_sync(_loaded, make)
        if app is None:
            _turn_away(sock)
    await serve_http(app, sock, stop=stop, tls=tls)


async def _readable(sock: socket.socket, stop: trio.Event) -> None:
    async def stopped() -> None:
        await stop.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stopped)
        await trio.lowlevel.wait_readable(sock)
        nursery.cancel_scope.cancel()


def _loaded(make: Callable[[], ASGIApp]) -> ASGIApp | None:
    # None, and a line in the log, where another version is installed under a gateway that serves, say: that must not end it
    try:
        import hypercorn.trio.run  # noqa: F401 - here, so that the event loop need not

        return make()
    except (ImportError, AttributeError, SyntaxError, EOFError, ValueError, OSError):
        log.exception("the pages of the gateway cannot be loaded")
        return None


def _turn_away(sock: socket.socket) -> None:
    # whoever asked, so that the next one is another try
    with contextlib.suppress(OSError):
        sock.accept()[0].close()
