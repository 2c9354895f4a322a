"""Every example that a command's --help shows, run as it stands there against a real gateway; those of jobs have a module of their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import click
import pytest

from gateway.cli.main import cli
from tests.integration.example_lines import EXAMPLES, World, ended, goes_on, world
from tests.kafka.node import Kafka

__all__ = ["world"]

GO_ON = {
    "gateway serve": (b"ready\n", signal.SIGTERM),
    "gateway tail": (b"\n", signal.SIGINT),
    "gateway tap": (b"an interrupt ends it\n", signal.SIGINT),
    "gateway top": (b"\n", signal.SIGINT),
}
"""Commands that do not end by themselves: how the line ends that shows that they work, and what ends them."""


@pytest.mark.parametrize(
    "line",
    [line for line, name in EXAMPLES.items() if not name.startswith("gateway pipeline") and "kafka://" not in line],
)
def test_an_example(world: World, line: str) -> None:
    if line.startswith("gateway dlq"):
        world.die()
    ends = "--no-follow" in line or "--count" in line
    how = next((one for start, one in GO_ON.items() if start in line and not ends), None)
    if how is not None:
        with ended(world.run(line)) as process:
            goes_on(process, *how)
    elif line.startswith("gateway sub"):
        with ended(world.run(line)) as process:
            while process.poll() is None:  # nothing tells when it has subscribed
                world.publish("orders", b"order")
                world.publish("acme/shop/orders", b"order")
            said, _ = process.communicate()
        assert process.returncode == 0, said.decode()
        assert said
    else:
        world.end(line)


def test_the_examples_of_a_copy_to_kafka(world: World, kafka: Kafka) -> None:
    lines = [line.replace("10.0.0.1:9092", kafka.brokers) for line in EXAMPLES if "kafka://" in line]
    assert len(lines) > 3
    for line in lines:
        world.end(line)
    assert (world.directory / "copy.json").exists()


def test_every_command_has_examples() -> None:
    def leaves(command: click.Command, name: str) -> Iterator[str]:
        if not isinstance(command, click.Group):
            yield name
            return
        context = click.Context(command, info_name=name)
        for one in command.list_commands(context):
            below = command.get_command(context, one)
            assert below is not None
            yield from leaves(below, f"{name} {one}")

    assert {*leaves(cli, "gateway")} - {*EXAMPLES.values()} <= {"gateway metrics"}  # there is nothing to choose
