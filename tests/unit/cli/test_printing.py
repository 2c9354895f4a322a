"""What `sub` and `tail` write."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest

from gateway.cli.printing import Printer
from gateway.cli.url import UrlTarget
from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.protocols.registry import protocols

RUN = Run(
    "orders",
    2,
    40,
    Columns.of([b"one", b"\x00\xff", b""], [b"k", None, b""], [(("h", b"\x01"),), (), ()]),
    [1000, 1001, 1002],
    [(0, 0, BatchMeta(b"\0" * 16, Origin("toy", "l")))],
)


def test_text_is_a_value_a_line_byte_for_byte(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Printer(UrlTarget(protocols()["rustlog"], "h", 1, "orders"), "text", None).show(RUN)
    assert capfdbinary.readouterr().out == b"one\n\x00\xff\n\n"


def test_json_has_everything_that_the_protocol_tells(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    spec = protocols()["rustlog"]
    Printer(UrlTarget(spec, "h", 1, "orders"), "json", None).show(RUN)
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [b64decode(line["value"]) for line in lines] == [b"one", b"\x00\xff", b""]
    assert [line["key"] for line in lines] == ["aw==", None, ""]
    assert lines[0]["headers"] == [["h", "AQ=="]]
    assert [line["offset"] for line in lines] == [40, 41, 42]
    assert {line["partition"] for line in lines} == {2}
    assert {line["address"] for line in lines} == {"orders"}


def test_what_the_protocol_does_not_tell_is_null(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Printer(UrlTarget(protocols()["blipmq"], "h", 1, "orders"), "json", None).show(RUN)
    line = json.loads(capfdbinary.readouterr().out.splitlines()[0])
    assert (line["offset"], line["partition"], line["timestamp_ms"]) == (None, None, None)


def test_it_counts_down(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = Printer(UrlTarget(protocols()["blipmq"], "h", 1, "orders"), "text", 5)
    printer.show(RUN)
    assert printer.left == 2
