"""The table of what Felix and Fujin cost beside the bare loop is of the rounds that are kept, each against its own."""

from __future__ import annotations

from pathlib import Path

from tests.bench.beside import BesideBare, PairedRound, keep, kept, table

FOUND = [
    BesideBare(
        "a publish",
        [
            PairedRound(gateway=4_000, gateway_processor=10_000, bare=5_000, bare_processor=20_000),
            PairedRound(gateway=6_000, gateway_processor=8_000, bare=5_000, bare_processor=8_000),
            PairedRound(gateway=5_000, gateway_processor=9_000, bare=5_000, bare_processor=10_000),
        ],
    ),
    BesideBare("a message", [PairedRound(2_000_000, 2_500_000, 1_000_000, 2_000_000)]),
]


def test_a_ratio_is_of_what_was_measured_side_by_side() -> None:
    publish, message = table(FOUND).splitlines()[2:]
    # the medians of the rates would give 0.9 as well, and not say that one round found half
    assert publish == "| a publish | 111 | 100 | 0.90 (0.50–1.00) | 1.00 (0.80–1.20) | 5,000 |"
    assert message == "| a message | 0.40 | 0.50 | 1.25 (1.25–1.25) | 2.00 (2.00–2.00) | 2,000,000 |"


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    keep(FOUND, tmp_path)
    assert kept(tmp_path) == FOUND
