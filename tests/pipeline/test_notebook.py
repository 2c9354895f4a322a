"""The notebook of the pipeline page, run as it stands there: it reads, plots, and replays a minute into a second gateway."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gateway import docs
from gateway.store.reader import LogReader
from tests.integration.running import Served
from tests.pipeline.stored import Log, filled
from tests.pipeline.test_replay import CONFIG

PNG = b"\x89PNG\r\n\x1a\n"


async def orders(log: Log) -> None:
    await log.create("orders.eu")
    await log.create("other")
    for number in range(7):
        await log.append("orders.eu", [b"%d" % number], keys=[b"k"])
        await log.append("other", [b"x"])
        log.clock.ms += 15_000


@pytest.mark.spark
def test_the_notebook(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, *_recipes = re.findall(r"```python\n(from pyspark.*?)```", docs.text("pipeline"), re.DOTALL)
    filled(tmp_path / "data", orders)
    (tmp_path / "second").mkdir()
    second = Served(tmp_path / "second", CONFIG.format(tmp_path / "second"))
    second.start()
    monkeypatch.chdir(tmp_path)
    try:
        here = {
            '"./data"': repr(str(tmp_path / "data")),  # Spark's own processes were started elsewhere
            "9601": str(second.ports["admin"]),
            "speed=10.0": "speed=1000.0",
        }
        for written, meant in here.items():
            assert written in code
            code = code.replace(written, meant)
        exec(code, {})
        with LogReader(second.data) as reader:
            found = [value for run in reader.read_chunks("orders.eu", 0) for value in run.columns.values()]
            found += [value for run in reader.read_chunks("orders.eu", 1) for value in run.columns.values()]
            assert set(reader.topics()) == {"orders.eu"}
    finally:
        second.end(15)
    assert found == [b"3", b"4", b"5", b"6"]  # of 22:14
    assert (tmp_path / "messages-per-minute.png").read_bytes().startswith(PNG)
    out = capsys.readouterr().out
    assert f"{len(found)} messages of" in out
    assert re.search(r"orders\.eu\|\s*flymq\|\s*orders\|\s*7", out)


def test_the_operator(tmp_path: Path) -> None:
    """Twenty lines for an orchestrator: a task that ends well with its number of records, or fails with what an audit found."""
    (code,) = re.findall(r"```python\n([^`]*class ArchiveAndAudit.*?)```", docs.text("pipeline"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    filled(tmp_path / "data", orders)
    operator = names["ArchiveAndAudit"](str(tmp_path / "data"), str(tmp_path / "archive"), "orders.*")
    assert operator.execute({}) == 7
    assert operator.execute({}) == 0
    next((tmp_path / "archive").glob("topic=*/day=*/*.parquet")).write_bytes(b"PAR1")
    with pytest.raises(names["GatewayError"], match="does not have its checksum"):
        operator.execute({})
