"""The parts of the pages that follow from the code: `make docs` writes them, a test compares.

A part is what stands below a heading, up to the next of its rank. What is above and below it is written by hand.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import click
import msgspec

import gateway.admin
from gateway.bench.figures import MEASURED, Comparison, describe
from gateway.bench.figures import table as bench_table
from gateway.bridges import breaker
from gateway.cli.main import cli
from gateway.config.schema import json_schema
from gateway.observe import metrics
from gateway.protocols.registry import served
from tests.bench.beside import KEPT, kept
from tests.bench.beside import table as beside_table
from tests.unit.test_imports import RULES, VALUES

PAGES = Path("gateway/docs")
Transitions = Mapping[tuple[enum.Enum, enum.Enum], enum.Enum]


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# --- the keys of the configuration ---


@attrs.frozen
class Key:
    path: str
    schema: Mapping[str, Any]
    required: bool
    secret: bool

    def row(self, below: str) -> Sequence[str]:
        default = self.schema.get("default")
        shown = (
            str(default).lower()
            if isinstance(default, bool)
            else f"{default:.10g}"
            if isinstance(default, float)
            else default
        )
        name = self.path.rpartition(".")[2]
        return (
            f"`{self.path.removeprefix(below)}`",
            kind(self.schema) + (f", or `{name}_file`" if self.secret else ""),
            "required" if self.required else f"`{shown}`" if shown is not None else "–",
            self.schema.get("description", ""),
            self.schema.get("x-since", ""),
        )


def alternatives(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a value may be, without the `${NAME}` that may stand for everything."""
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return [one for one in inner if one.get("pattern") != r"\$\{"] if inner else [schema]


def kind(schema: Mapping[str, Any]) -> str:
    """The type of a value in words."""
    several = alternatives(schema)
    if several != [schema]:
        words = list(dict.fromkeys(kind(one) for one in several))
        if len(several) > 1 and several[-1] == {**several[-1], "type": "array"} and len(words) == 2:
            return f"{words[0]}, or a list"
        return ", or ".join(words)
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if "title" in schema:
        return re.sub(r"^(an?|the) ", "", schema["title"].split(": ")[0])
    match schema["type"]:
        case "array":
            return f"list of {kind(schema['items'])}"
        case "object":
            return "mapping" if "properties" in schema else f"names, each with {kind(schema['additionalProperties'])}"
        case "boolean":
            return "true or false"
        case "integer" | "number" as number:
            name = {"integer": "whole number", "number": "number"}[number]
            least, most = schema.get("minimum", 0), schema.get("maximum")
            if least == most:
                return f"`{least:g}`"
            bounds = f" from {least}" if least or most else ""
            return name + bounds + (f" to {most}" if most is not None else "")
        case _:
            return "text"


def keys(schema: Mapping[str, Any], path: str = "") -> Iterator[Key]:
    """Every key below a value, parents before their children."""
    for one in alternatives(schema):
        demanded = {*one.get("required", ()), *(part["oneOf"][0]["required"][0] for part in one.get("allOf", ()))}
        for name, inner in one.get("properties", {}).items():
            if name.endswith("_file") and name.removesuffix("_file") in one["properties"]:
                continue
            here = f"{path}.{name}".lstrip(".")
            if "description" in inner:
                yield Key(here, inner, name in demanded, f"{name}_file" in one["properties"])
            yield from keys(inner, here)
        if isinstance(one.get("additionalProperties"), Mapping):
            yield from keys(one["additionalProperties"], f"{path}.<{'glob' if path == 'topics' else 'name'}>")
        if "items" in one and one["items"] != one:
            yield from keys(one["items"], path)


KEY_HEAD = ("key", "type", "default", "what it says", "since")


def configuration() -> str:
    """A table of every key, with what its type, its default and its sentence are."""
    schema = json_schema()
    found = list(keys(schema))
    tops = [key for key in found if "." not in key.path]
    parts = [table(KEY_HEAD, (key.row("") for key in tops))]
    for top in tops:
        prefix = top.path + "."
        prefix += "<name>." if kind(top.schema).startswith("names") and top.path != "topics" else ""
        prefix += "<glob>." if top.path == "topics" else ""
        below = [key for key in found if key.path.startswith(prefix)]
        if below:
            parts += [f"### {prefix.rstrip('.')}", table(KEY_HEAD, (key.row(prefix) for key in below))]
    return "\n\n".join(parts)


# --- commands ---


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=name)
    for one in group.list_commands(context):
        command = group.get_command(context, one)
        assert command is not None
        yield f"{name} {one}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {one}")


def paragraphs(text: str) -> str:
    """A command's help, filled as the terminal would."""
    parts = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(
        "```sh\n" + re.sub(r"^\s*\x08\n|^Examples:\n", "", part, count=2).replace("Examples:\n", "") + "\n```"
        if part.lstrip().startswith("\x08")
        else " ".join(part.split())
        for part in parts
    )


def option(parameter: click.Parameter, context: click.Context) -> Sequence[str]:
    if not isinstance(parameter, click.Option):
        return (f"`{parameter.make_metavar(context)}`", "", "required" if parameter.required else "–")
    value = "" if parameter.is_flag or parameter.count else f" {parameter.make_metavar(context)}".removesuffix(" RANGE")
    names = ", ".join(f"`{one}{value}`" for one in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.get_default(context, call=False)
    shown = (
        "required" if parameter.required else f"`{default}`" if parameter.show_default and default is not None else "–"
    )
    return names, (parameter.help or "").replace("\n", " "), shown


def command_line() -> str:
    """Every command with its options."""
    parts = []
    for name, command in commands(cli, "gateway"):
        context = click.Context(command, info_name=name)
        parts += [f"### {name}", "```\n" + command.get_usage(context).removeprefix("Usage: ") + "\n```"]
        parts.append(paragraphs(command.help or ""))
        described = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        if described:
            parts.append(table(("option", "meaning", "default"), (option(one, context) for one in described)))
        if command.epilog:
            parts.append("```sh\n" + "\n".join(line.strip() for line in command.epilog.splitlines()[2:]) + "\n```")
    return "\n\n".join(parts)


# --- rooms and states ---


def first_sentence(module: str) -> str:
    text = " ".join((importlib.import_module(module).__doc__ or "").split())
    return re.split(r"(?<=[.?!]) ", text)[0]


def rooms() -> str:
    """Who may import whom, from the rules that the tests hold."""

    def shown(package: str) -> str:
        return "itself" if package == "{self}" else f"`{package.removeprefix('gateway.')}`"

    rows = []
    for rule in RULES:
        where = rule.where.removesuffix(".py").removesuffix("/*").replace("/", ".")
        others = [package for package in rule.may if package not in {*VALUES, where}]
        may = [*(["values"] if set(VALUES) <= set(rule.may) else []), *map(shown, others)]
        plain = rule.where.removeprefix("gateway/")
        rows.append((f"`{plain}`", first_sentence(where), ", ".join(may) or "–"))
    values = ", ".join(shown(package) for package in VALUES)
    return f"Values are {values}.\n\n" + table(("room", "what it is", "may import, beside itself"), iter(rows))


def operations() -> str:
    """Every operation of the admin API: the methods that are marked as one."""
    rows = []
    for module in pkgutil.iter_modules(gateway.admin.__path__, "gateway.admin."):
        for resource in vars(importlib.import_module(module.name)).values():
            if not isinstance(resource, type) or resource.__module__ != module.name:
                continue
            for name, function in vars(resource).items():
                if (marked := getattr(function, "operation", None)) is not None:
                    method, path, role, media, _event = marked
                    says = " ".join((function.__doc__ or "").split())
                    live = " (live)" if "text/event-stream" in media else ""
                    rows.append((path, f"`{method} {path}`{live}", f"`{name}`", role.name.lower(), says))
    return table(("request", "operation", "role", "does"), (row[1:] for row in sorted(rows)))


def is_transition(key: object, to: object) -> bool:
    return isinstance(key, tuple) and isinstance(to, enum.Enum) and type(key[0]) is type(to)


def state_tables() -> Iterator[tuple[str, Transitions]]:
    """Every table of states of a protocol, and the bridges' own."""
    for name in served():
        module = importlib.import_module(f"gateway.protocols.{name}.states")
        for variable, value in vars(module).items():
            if isinstance(value, Mapping) and all(is_transition(*item) for item in value.items()):
                yield f"{name}: {variable.lower()}" if variable != "TABLE" else name, value
    yield "circuit of an upstream", breaker.CIRCUIT


def drawn(transitions: Transitions) -> str:
    """Each state with the arrows that leave it; what changes nothing stands beside its name."""
    lines = []
    for state in dict.fromkeys(key[0] for key in transitions):
        out: dict[enum.Enum, list[str]] = {}
        for (at, event), to in transitions.items():
            if at is state:
                out.setdefault(to, []).append(event.name.lower())
        stays = out.pop(state, [])
        lines.append(state.name.lower() + (f"   (stays: {', '.join(stays)})" if stays else ""))
        for number, (to, events) in enumerate(out.items(), 1):
            branch = "└" if number == len(out) else "├"
            lines.append(f"  {branch}── {', '.join(events)} ──► {to.name.lower()}")
    return "```\n" + "\n".join(lines) + "\n```"


def states() -> str:
    return "\n\n".join(f"**{name}**\n\n{drawn(transitions)}" for name, transitions in state_tables())


# --- complete configurations ---


def example(name: str) -> Callable[[], str]:
    """A file that users may copy, and the tests serve as it is."""
    path = PAGES / "examples" / f"{name}.yaml"
    return lambda: f"`{path}`; the tests serve it as it is.\n\n```yaml\n{path.read_text()}```"


def small_protocol() -> str:
    """The protocol with which the tests show that a folder is enough: what it is, and its serving side."""
    folder = Path("tests/integration/sixth/toy")
    parts = [
        "A protocol of lines. Its folder is put where the registry looks, and the tests serve it, route it and dial it."
    ]
    for name, what in (("__init__.py", "What the house needs to know:"), ("server.py", "The serving side:")):
        parts += [what, f"```python\n{(folder / name).read_text().strip()}\n```"]
    return "\n\n".join(parts)


def benchmark() -> str:
    """What a run of `tests.bench.compared` has found, workload by workload."""
    parts = []
    for name in MEASURED:
        file = PAGES / "images" / f"bench-{name}.json"
        found = msgspec.json.decode(file.read_bytes(), type=Comparison)
        parts.append(f"**{name}**\n\n```\n{bench_table(found)}\n```\n\n![{describe(found)}](images/bench-{name}.svg)")
        parts.append(f"[Every round](images/bench-{name}.json)")
    return "\n\n".join(parts)


def beside_bare() -> str:
    """What a run of `tests.bench.loads_quic` has found."""
    images = PAGES / "images"
    found = kept(images)
    rounds = len(found[0].rounds)
    return f"{beside_table(found)}\n\nMedians of {rounds} rounds in turns; [every round](images/{KEPT})."


# --- where they go ---

SECTIONS: Mapping[tuple[str, str], Callable[[], str]] = {
    ("configuration", "## Every key"): configuration,
    ("command-line", "## Every command"): command_line,
    ("benchmark", "### What was found"): benchmark,
    ("benchmark", "### Beside a bare loop"): beside_bare,
    ("metrics", "## Every metric"): metrics.table,
    ("admin-api", "## Operations"): operations,
    ("architecture", "### Who may import whom"): rooms,
    ("architecture", "### Drawn from the tables"): states,
    **{(name, "## A complete file"): example(name) for name in ("forward", "ingest", "mirror", "proxy")},
    ("routing", "## A complete file"): example("transform"),
    ("security", "## A complete file"): example("secured"),
    ("adding-a-protocol", "## A small one"): small_protocol,
}


def replaced(text: str, heading: str, part: str) -> str:
    """The page with this part below the heading."""
    rank = len(heading.split(" ", maxsplit=1)[0])
    before, found, rest = text.partition(heading + "\n")
    assert found, f"there is no {heading!r}"
    lines = rest.split("\n")
    fenced = False
    end = len(lines)
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if not fenced and re.match(rf"#{{1,{rank}}} ", line):
            end = number
            break
    after = "\n".join(lines[end:])
    return f"{before}{heading}\n\n{part.strip()}\n" + (f"\n{after}" if after else "")


def pages() -> Iterator[tuple[Path, str]]:
    """Every page with generated parts, as it should be."""
    for name in dict.fromkeys(name for name, _ in SECTIONS):
        path = PAGES / f"{name}.md"
        text = path.read_text()
        for (page, heading), make in SECTIONS.items():
            if page == name:
                text = replaced(text, heading, make())
        yield path, text


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text)
