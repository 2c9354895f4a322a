"""From `routes.yaml` to the model, or to everything that is wrong with it at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from gateway.config import model
from gateway.config.checks import check
from gateway.config.document import INVALID, Notebook, compose
from gateway.config.grammar import grammar
from gateway.errors import ConfigError, ConfigProblem
from gateway.protocols.registry import ProtocolSpec
from gateway.protocols.registry import protocols as registered

Specs = Mapping[str, ProtocolSpec]


def load(
    path: str | os.PathLike[str], environ: Mapping[str, str] | None = None, protocols: Specs | None = None
) -> model.Config:
    """Read a configuration. ConfigError with every problem; OSError when the file cannot be read."""
    raw = Path(path).read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            "the configuration has problems", [ConfigProblem("not UTF-8 text", file=str(path), line=line)]
        ) from None
    return parse(text, str(path), environ, protocols)


def parse(
    text: str,
    file: str = "routes.yaml",
    environ: Mapping[str, str] | None = None,
    protocols: Specs | None = None,
) -> model.Config:
    """The same for text. `environ` and `protocols` stand in for the process's own."""
    config, problems = examine(text, file, environ, protocols)
    if config is None or problems:
        raise ConfigError("the configuration has problems", problems)
    return config


def examine(
    text: str,
    file: str = "routes.yaml",
    environ: Mapping[str, str] | None = None,
    protocols: Specs | None = None,
) -> tuple[model.Config | None, Sequence[ConfigProblem]]:
    """What could be read of a configuration, and everything that is wrong with it, in the order of the file."""
    specs = registered() if protocols is None else protocols
    notes = Notebook(file, os.environ if environ is None else environ)
    config: model.Config | None = None
    document = compose(text, notes)
    if document is not None:
        found = grammar(specs).read(document)
        if found is not INVALID:
            config = _config(found, file, notes)
            notes.end_of_reading()
            check(config, specs, notes)
    return config, _in_order(notes.problems)


def _config(found: dict[str, Any], file: str, notes: Notebook) -> model.Config:
    found.pop("version")
    routes = tuple(_named(route, notes) for route in found.pop("routes", ()))
    return model.Config(**found, routes=routes or (model.IDENTITY,), file=file)


def _named(route: model.Route, notes: Notebook) -> model.Route:
    """Forwards that have no name get that of their route and upstream."""
    targets: list[model.Target] = []
    for target in route.targets:
        if isinstance(target, model.Forward) and not target.name:
            named = attrs.evolve(target, name=f"{route.name}-{target.upstream}")
            notes.place(named, notes.path_of(target))
            targets.append(named)
        else:
            targets.append(target)
    complete = attrs.evolve(route, targets=tuple(targets))
    notes.place(complete, notes.path_of(route))
    return complete


def _in_order(problems: Sequence[ConfigProblem]) -> Sequence[ConfigProblem]:
    """By line, each once (a value that is looked at twice is wrong twice)."""
    unique = {(p.line, p.path, p.message): p for p in problems}
    return sorted(unique.values(), key=lambda p: p.line)
