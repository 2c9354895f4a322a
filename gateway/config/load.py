"""From `routes.yaml` to the model, or to everything that is wrong with it at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from gateway import model
from gateway.config.checks import check
from gateway.config.document import INVALID, Notebook, compose
from gateway.config.grammar import grammar
from gateway.errors import ConfigError, ConfigProblem
from gateway.protocols.registry import ProtocolSpec
from gateway.protocols.registry import protocols as registered

Specs = Mapping[str, ProtocolSpec]
Probe = Callable[[model.Config, Notebook], None]


@attrs.frozen
class Examined:
    """What could be read of a configuration, and everything there is to say about it, in the order of the file."""

    config: model.Config | None
    problems: Sequence[ConfigProblem]
    warnings: Sequence[ConfigProblem] = ()


def load(
    path: str | os.PathLike[str], environ: Mapping[str, str] | None = None, protocols: Specs | None = None
) -> model.Config:
    """Read a configuration. ConfigError with every problem; OSError when the file cannot be read."""
    return _good(examine_file(path, environ, protocols))


def parse(
    text: str,
    file: str = "routes.yaml",
    environ: Mapping[str, str] | None = None,
    protocols: Specs | None = None,
) -> model.Config:
    """The same for text. `environ` and `protocols` stand in for the process's own."""
    return _good(examine(text, file, environ, protocols))


def _good(found: Examined) -> model.Config:
    if found.config is None or found.problems:
        raise ConfigError("the configuration has problems", found.problems)
    return found.config


def examine_file(
    path: str | os.PathLike[str],
    environ: Mapping[str, str] | None = None,
    protocols: Specs | None = None,
    probe: Probe | None = None,
) -> Examined:
    """`examine` for a file. OSError when it cannot be read."""
    raw = Path(path).read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return Examined(None, [ConfigProblem("not UTF-8 text", file=str(path), line=line)])
    return examine(text, str(path), environ, protocols, probe)


def examine(
    text: str,
    file: str = "routes.yaml",
    environ: Mapping[str, str] | None = None,
    protocols: Specs | None = None,
    probe: Probe | None = None,
) -> Examined:
    """Read all that can be read and note all that is wrong. `probe` looks further than the text, at what it names."""
    specs = registered() if protocols is None else protocols
    notes = Notebook(file, os.environ if environ is None else environ)
    config: model.Config | None = None
    document = compose(text, notes)
    if document is not None:
        found = document.read(grammar(specs))
        if found is not INVALID:
            config = _config(found, file, notes)
            notes.end_of_reading()
            check(config, specs, notes)
            if probe is not None:
                probe(config, notes)
    return Examined(config, _in_order(notes.problems), _in_order(notes.warnings))


def _config(found: dict[str, Any], file: str, notes: Notebook) -> model.Config:
    found.pop("version")
    routes = tuple(_named(route, notes) for route in found.pop("routes", ()))
    return model.Config(**found, routes=routes or (model.IDENTITY,), file=file)


def _named(route: model.Route, notes: Notebook) -> model.Route:
    # forwards that have no name get that of their route and upstream
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
    # by line, each once (a value that is looked at twice is wrong twice)
    unique = {(p.line, p.path, p.message): p for p in problems}
    return sorted(unique.values(), key=lambda p: p.line)
