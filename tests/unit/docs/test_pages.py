"""The README and the pages name every key, command and file they should, and nothing that is not there."""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gateway import docs
from gateway.cli.main import cli
from gateway.config.schema import json_schema
from gateway.protocols.registry import protocols, served

README = Path("README.md")
PAGES = [README, *(Path(f"gateway/docs/{name}.md") for name in docs.pages())]
TEXT = "\n".join(path.read_text() for path in PAGES)
CODE = " ".join(re.findall(r"`([^`\n]+)`", TEXT))
WORDS = set(re.findall(r"[\w-]+", CODE))


def found(pattern: str, flags: int = re.MULTILINE) -> list[Any]:
    """(page, what the pattern finds in it) of every page, as parameters with an id that says where."""
    return [
        pytest.param(path, match, id=f"{path.stem}-{number}")
        for path in PAGES
        for number, match in enumerate(re.findall(pattern, path.read_text(), flags))
    ]


def keys(node: Any) -> Iterator[str]:
    """Every key of the configuration, by its JSON Schema."""
    if isinstance(node, Mapping):
        yield from node.get("properties", {})
        for child in node.values():
            yield from keys(child)
    elif isinstance(node, list):
        for child in node:
            yield from keys(child)


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= 8000


def test_pages_are_found_and_the_index_names_each() -> None:
    named = set(re.findall(r"\]\(([\w-]+)\.md\)", docs.text("index")))
    assert named == set(docs.pages()) - {"index"}


def test_every_protocol_has_a_page() -> None:
    assert set(protocols()) <= set(docs.pages())


def test_every_key_of_the_configuration_is_in_the_reference() -> None:
    known = {key for key in keys(json_schema()) if not key.endswith("_file")}
    assert len(known) > 60
    assert sorted(known - WORDS) == []


def test_every_command_is_in_the_table_and_no_other() -> None:
    named = set(re.findall(r"^\| `gateway (\w+)", docs.text("command-line"), re.MULTILINE))
    assert named == set(cli.list_commands(click.Context(cli)))


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
    assert set(re.findall(r"--[a-z][a-z-]+", docs.text("command-line"))) - {"--help"} <= known


def wrapped(fragment: str) -> str:
    """A fragment of a configuration with what it leaves out: listeners of every protocol, and the upstream `legacy`."""
    given = yaml.safe_load(fragment)
    if "upstreams" not in given:
        fragment += "\nupstreams: {legacy: {protocol: flymq, address: '127.0.0.1:1'}}"
    if "listeners" not in given:
        fragment += "\nlisteners:\n" + "\n".join(
            f"  {name}: {{protocol: {name}, bind: '127.0.0.1:0'"
            + (", tls: self-signed}" if spec.transport.value == "quic" else ", auth: open}")
            for name, spec in served().items()
        )
    return f"version: 1\n{fragment}\n"


@pytest.mark.parametrize(("path", "fragment"), found(r"```yaml fragment\n(.*?)```", re.DOTALL))
def test_a_part_of_a_configuration_can_be_served(path: Path, fragment: str) -> None:
    from gateway.app import Gateway
    from gateway.config.load import parse

    Gateway(parse(wrapped(fragment), environ={}))


@pytest.mark.parametrize(("path", "whole"), found(r"```yaml\n(.*?)```", re.DOTALL))
def test_a_whole_configuration_is_one_that_the_tests_serve(path: Path, whole: str) -> None:
    assert whole in {example.read_text() for example in Path("gateway/docs/examples").glob("*.yaml")}


@pytest.mark.parametrize(("path", "info"), found(r"^```(yaml.*)$"))
def test_yaml_is_whole_or_marked_as_a_fragment(path: Path, info: str) -> None:
    assert info in {"yaml", "yaml fragment"}


def test_the_route_in_the_readme_is_the_one_that_is_shipped() -> None:
    (fragment,) = re.findall(r"```yaml fragment\n(.*?)```", README.read_text(), re.DOTALL)
    (route,) = yaml.safe_load(fragment)["routes"]
    assert route == yaml.safe_load(Path("routes.yaml").read_text())["routes"][0]


def anchors(path: Path) -> set[str]:
    """What a link into a page may name: its headings, as code hosts write them."""
    return {
        re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-")
        for line in re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize(("path", "target"), found(r"\]\(([^)]+)\)"))
def test_a_link_leads_somewhere(path: Path, target: str) -> None:
    name, _, anchor = target.partition("#")
    page = path.parent / name if name else path
    assert page.exists()
    assert not anchor or anchor in anchors(page)


@pytest.mark.parametrize(("path", "named"), found(r"`((?:deploy|grafana|gateway|tests)/[\w./*-]*)`"))
def test_a_path_in_the_text_exists(path: Path, named: str) -> None:
    ignored = Path(".gitignore").read_text().split()  # what whoever runs it puts there
    assert list(Path().glob(named)) or any(named.startswith(entry.strip("/")) for entry in ignored)


def test_the_run_book_has_an_entry_for_each_alert_with_its_severity() -> None:
    rules = [
        rule
        for group in yaml.safe_load(Path("deploy/prometheus/alerts.yml").read_text())["groups"]
        for rule in group["rules"]
    ]
    book = docs.text("operations").split("## Run-book\n")[1]
    entries = re.findall(r"^### (\w+)\n\n`(\w+)`\. ", book, re.MULTILINE)
    assert entries == [(rule["alert"], rule["labels"]["severity"]) for rule in rules]


def test_what_the_run_book_says_is_in_the_log_is_said_somewhere() -> None:
    code = "\n".join(path.read_text() for path in Path("gateway").rglob("*.py"))
    book = docs.text("operations").split("## Run-book\n")[1]
    said = re.findall(r"\(`(an? [a-z ]+)`\)|has `(an? [a-z ]+)`", book)
    assert len(said) > 2
    assert [line for pair in said for line in pair if line and f'"{line}"' not in code] == []


def command_lines(path: Path) -> Iterator[str]:
    """The lines of a page's blocks of commands, without comments, in one piece each."""
    for info, body in re.findall(r"^```([^\n]*)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
        if info == "sh":
            yield from filter(None, body.replace("\\\n", " ").splitlines())


COMMAND_LINES = [pytest.param(line, id=f"{path.stem}: {line}") for path in PAGES for line in command_lines(path)]


def parsed(words: list[str], *, whole: bool) -> None:
    """Goes as far as the command would before it does anything; `whole`: also what has to be given is there."""
    command: click.Command = cli
    context = click.Context(cli, info_name="gateway")
    while isinstance(command, click.Group) and words:
        name, *words = words
        below = command.get_command(context, name)
        assert below is not None, f"there is no command {name!r}"
        command, context = below, click.Context(below, info_name=name, parent=context)
    if whole and not isinstance(command, click.Group):
        files = [one for one in command.params if isinstance(one.type, click.Path)]
        with pytest.MonkeyPatch.context() as patched:
            for one in files:  # that a file of an example is not here says nothing about the example
                assert isinstance(one.type, click.Path)
                patched.setattr(one, "type", click.Path(path_type=one.type.type))
            command.make_context(context.info_name, words, context.parent)
    else:
        known = set(options(command))
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known | {"--help"}


OTHERS = {".", "curl", "grep", "jq", "python", "seq", "sqlite3", "routes.schema.json"}
"""Programs in the examples that are none of ours, and where one of ours writes."""


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_line_is_one_that_the_program_takes(line: str) -> None:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>&")
    lexer.whitespace_split = True
    operators = ("|", "&&", ">")
    for operator, words in itertools.groupby(lexer, operators.__contains__):
        match [] if operator else [word for word in words if not re.fullmatch(r"[A-Z_]+=.*", word)]:
            case []:
                pass
            case ["gateway", *arguments]:
                parsed(arguments, whole=True)
            case ["make", target]:
                assert re.search(rf"^{target}:", Path("Makefile").read_text(), re.MULTILINE)
            case [program, *_]:
                assert program in OTHERS or Path(program).exists()


@pytest.mark.parametrize(("path", "line"), found(r"`gateway ([a-z][^`\n]*)`"))
def test_a_command_in_the_text_is_one_that_the_program_takes(path: Path, line: str) -> None:
    parsed(shlex.split(line.replace("`", "")), whole=False)


@pytest.mark.parametrize(("path", "code"), found(r"```python\n(.*?)```", re.DOTALL))
def test_python_in_a_page_is_python(path: Path, code: str) -> None:
    compile(code, str(path), "exec")


def test_pages_and_examples_are_in_the_package() -> None:
    patterns = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["gateway"]
    packed = {path for pattern in patterns for path in Path("gateway").glob(pattern)}
    assert packed >= {*Path("gateway/docs").rglob("*.md"), *Path("gateway/docs").rglob("*.yaml")}


def test_every_path_of_the_bulk_api_is_in_its_page() -> None:
    from gateway.bulk import wire

    paths = {value for value in vars(wire).values() if isinstance(value, str) and value.startswith("/v1/")}
    assert len(paths) > 5
    assert {path for path in paths if f" {path}" not in docs.text("bulk-api")} == set()
