"""Log lines: one per event, in one shape, with context and without payloads."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from gateway.observe.logging import configure


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_lines_carry_the_context_of_connection_and_route() -> None:
    out = io.StringIO()
    configure(as_json=True, stream=out)
    with structlog.contextvars.bound_contextvars(listener="front", connection=7):
        structlog.get_logger().bind(route="orders").warning("refused", reason="schema")
    (line,) = lines(out)
    assert line.items() >= {"event": "refused", "level": "warning", "listener": "front", "connection": 7}.items()
    assert line.items() >= {"route": "orders", "reason": "schema"}.items()
    assert str(line["timestamp"]).endswith("Z")


@pytest.mark.parametrize("payload", [b"secret", bytearray(b"secret"), memoryview(b"secret")])
@pytest.mark.parametrize("as_json", [True, False])
def test_payloads_never_reach_a_log(payload: bytes, as_json: bool) -> None:
    out = io.StringIO()
    configure(as_json=as_json, stream=out)
    structlog.get_logger().error("odd frame", frame=payload)
    assert "secret" not in out.getvalue()
    assert "<6 bytes>" in out.getvalue()


def test_a_name_cannot_forge_a_line_or_colour_a_terminal() -> None:
    out = io.StringIO()
    configure(as_json=False, stream=out)
    structlog.get_logger().info("topic created", topic="a\nlevel=critical \x1b[31m")
    assert len(out.getvalue().splitlines()) == 1
    assert "\x1b" not in out.getvalue()


def test_the_level_is_kept_and_libraries_speak_up_only_to_warn() -> None:
    out = io.StringIO()
    configure(as_json=True, level="info", stream=out)
    structlog.get_logger().debug("hidden")
    structlog.get_logger().info("shown")
    logging.getLogger("some.library").info("hidden too")
    logging.getLogger("some.library").warning("shown too: %s", 5)
    assert [line["event"] for line in lines(out)] == ["shown", "shown too: 5"]
    assert lines(out)[1]["logger"] == "some.library"


def test_an_exception_is_part_of_its_line() -> None:
    out = io.StringIO()
    configure(as_json=True, stream=out)
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger().exception("failed")
    (line,) = lines(out)
    assert "ValueError: boom" in str(line["exception"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
@pytest.mark.parametrize("buffering", [1, -1], ids=["by line", "in blocks"])
def test_a_disk_that_takes_no_line_ends_nobody(buffering: int) -> None:
    out = open("/dev/full", "w", buffering)  # noqa: SIM115, PTH123  # to close it is to be told at last
    configure(as_json=True, stream=out)
    structlog.get_logger().error("nobody reads this", much="x" * 100_000)
    logging.getLogger("a library").error("nor this")
    with pytest.raises(OSError, match="No space left"):
        out.close()
