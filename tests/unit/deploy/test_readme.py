"""The README names every key, every command and every file it should, and nothing that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from gateway.cli.main import cli
from gateway.config.schema import json_schema
from gateway.protocols.registry import protocols

TEXT = Path("README.md").read_text()
CODE = " ".join(re.findall(r"`([^`\n]+)`", TEXT))
WORDS = set(re.findall(r"[\w-]+", CODE))


def keys(node: Any) -> Iterator[str]:
    """Every key of the configuration, by its JSON Schema."""
    if isinstance(node, Mapping):
        yield from node.get("properties", {})
        for child in node.values():
            yield from keys(child)
    elif isinstance(node, list):
        for child in node:
            yield from keys(child)


def test_every_key_of_the_configuration_is_in_the_reference() -> None:
    found = {key for key in keys(json_schema()) if not key.endswith("_file")}
    assert len(found) > 60
    assert sorted(found - WORDS) == []


def test_every_command_is_in_the_table_and_no_other() -> None:
    named = set(re.findall(r"^\| `gateway (\w+)", TEXT, re.MULTILINE))
    assert named == set(cli.list_commands(click.Context(cli)))


@pytest.mark.parametrize("command", re.findall(r"^gateway (\w+) .*?(?:$)", TEXT, re.MULTILINE))
def test_a_command_in_an_example_exists(command: str) -> None:
    assert command in cli.list_commands(click.Context(cli))


def options(command: click.Command | None) -> Iterator[str]:
    """Every option of a command and of the commands below it."""
    assert command is not None
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from options(below)


def test_options_in_the_text_exist() -> None:
    context = click.Context(cli)
    known = {option for name in cli.list_commands(context) for option in options(cli.get_command(context, name))}
    text = TEXT.split("## Command line")[1].split("## Configuration")[0]
    assert set(re.findall(r"--[a-z][a-z-]+", text)) - {"--help"} <= known


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
def test_an_example_of_the_configuration_compiles(example: str) -> None:
    from gateway.config.load import parse
    from gateway.routing.table import compile_table

    if "upstreams:" not in example:
        example += "upstreams: {legacy: {protocol: flymq, address: '127.0.0.1:1'}}\n"
    listeners = "\n".join(
        f"  {name}: {{protocol: {name}, bind: '127.0.0.1:0'"
        + (", tls: self-signed}" if spec.alpn or spec.transport.value == "quic" else ", auth: open}")
        for name, spec in protocols().items()
    )
    compile_table(parse(f"version: 1\nlisteners:\n{listeners}\n{example}", environ={}))


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(upstreams:.*?)```", TEXT, re.DOTALL))
def test_the_examples_with_upstreams_are_good(example: str) -> None:
    from gateway.app import Gateway
    from gateway.config.load import parse

    Gateway(parse(f"version: 1\nlisteners: {{flymq: {{protocol: flymq, bind: '127.0.0.1:0'}}}}\n{example}", environ={}))


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#][^)]*)\)", TEXT))
def test_a_link_leads_somewhere(target: str) -> None:
    assert Path(target).exists()


@pytest.mark.parametrize("path", re.findall(r"`((?:deploy|grafana|gateway|tests)/[\w./*-]*)`", TEXT))
def test_a_path_in_the_text_exists(path: str) -> None:
    assert list(Path().glob(path))


def test_headings_in_the_contents_exist() -> None:
    headings = {
        re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-")
        for line in re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= headings
