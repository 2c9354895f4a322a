"""The sizes are those of the files that are really there, at the moment of the scrape."""

from __future__ import annotations

from pathlib import Path

from gateway.observe.prometheus import PrometheusRecorder
from gateway.observe.sizes import Sizes
from tests.unit.observe.test_prometheus import value


def test_a_scrape_shows_what_is_on_disk_and_in_memory_now(tmp_path: Path) -> None:
    recorder = PrometheusRecorder()
    used = [7]
    recorder.on_scrape(
        Sizes(recorder, tmp_path, topics=lambda: 3, budget_used=lambda: used[0], budget_limit=100),
    )
    (tmp_path / "log.db").write_bytes(b"x" * 10)
    (tmp_path / "log.db-wal").write_bytes(b"x" * 20)
    (tmp_path / "sub").mkdir()
    assert value(recorder, "gateway_store_size_bytes", file="database") == 10
    assert value(recorder, "gateway_store_size_bytes", file="wal") == 20
    assert value(recorder, "gateway_budget_used_bytes") == 7
    assert value(recorder, "gateway_budget_limit_bytes") == 100
    assert value(recorder, "gateway_store_topics") == 3
    assert value(recorder, "gateway_store_free_bytes") > 0
    (tmp_path / "log.db-wal").unlink()
    used[0] = 9
    assert value(recorder, "gateway_store_size_bytes", file="wal") == 0
    assert value(recorder, "gateway_budget_used_bytes") == 9
