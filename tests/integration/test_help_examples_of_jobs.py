"""Every example that the --help of a job shows, run as it stands there."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.integration.example_lines import EXAMPLES, World, ended, goes_on, world
from tests.pipeline.quick import Java, java_options

__all__ = ["world"]

OF_THE_PIPELINE: dict[str, list[str]] = {}
for _line, _name in EXAMPLES.items():
    if _name.startswith("gateway pipeline "):
        OF_THE_PIPELINE.setdefault(_name, []).append(_line)


@pytest.fixture(scope="module")
def archive(world: World) -> Path:
    """Made once, by a line that starts its own Java."""
    alone = attrs.evolve(world, environment={"JDK_JAVA_OPTIONS": java_options()})
    alone.end("gateway pipeline archive --path ./data --to ./archive")
    made = world.directory / "archive"
    return made.rename(world.directory / "archive-as-made")


@pytest.fixture(scope="module")
def java(world: World) -> Iterator[Java]:
    """For all other lines: of what they take, most is the start of it."""
    running = Java(world.directory)
    try:
        yield running
    finally:
        running.close()


@pytest.mark.spark
@pytest.mark.parametrize("name", OF_THE_PIPELINE)
def test_the_examples_of_a_job(world: World, archive: Path, java: Java, name: str) -> None:
    world = attrs.evolve(world, environment=java.environment)
    for made in ("archive", "rollup", "table"):
        shutil.rmtree(world.directory / made, ignore_errors=True)
    lines = OF_THE_PIPELINE[name]
    if any("./archive" in line for line in lines) and not name.endswith("archive"):
        shutil.copytree(archive, world.directory / "archive")
    if any("--archive ./table" in line for line in lines):
        world.end("gateway pipeline archive --path ./data --to ./table --format iceberg")
    for line in lines:
        if "--to ./table" in line:  # each of another format or with other columns than the one before
            shutil.rmtree(world.directory / "table", ignore_errors=True)
        if "--follow" in line:
            with ended(world.run(line)) as process:
                goes_on(process, b"what is under way\n", signal.SIGINT)
        else:
            world.end(line)
        java.next()
