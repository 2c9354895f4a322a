"""Logs: one event per line on standard error, as JSON or for people, never with a payload.

`configure` is called once by the command line. Everything else says `structlog.get_logger()` and binds what it knows
(listener, connection, peer, route). Libraries that log through the standard module come out in the same shape.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TextIO, cast


@contextmanager
def _without(name: str) -> Iterator[None]:
    # let a module seem not to be installed while another one is imported that could do without it
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    if name in modules:
        yield
        return
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]


with _without("rich"):  # for tracebacks that nobody asks it for, and a quarter of what a start would import
    import structlog
    from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS = ("debug", "info", "warning", "error")


def without_payloads(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Bytes never reach a log: what a client sent is its own business. Their length does."""
    for key, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[key] = f"<{len(value)} bytes>"
    return event


def _single_line(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    # names that peers choose cannot start a new line or colour a terminal
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable() and key != "exception":
            event[key] = value.encode("unicode_escape").decode()
    return event


class UnfailingStream:
    """What is written to it is lost while it cannot be had, on a disk that is full: nobody ends because nobody can be told."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def configure(*, as_json: bool | None = None, level: str = "info", stream: TextIO | None = None) -> None:
    """Set logging up for this process. `as_json=None`: lines for people on a terminal, JSON otherwise."""
    out = stream if stream is not None else sys.stderr
    if as_json is None:
        as_json = not out.isatty()
    lines = UnfailingStream(out)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        without_payloads,
        structlog.processors.format_exc_info,
        _single_line,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer(sort_keys=True)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", lines)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # what libraries say below a warning is of use to their authors
    root.setLevel(max(threshold, logging.WARNING))
