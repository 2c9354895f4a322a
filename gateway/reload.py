"""A configuration that is read again while its gateway serves: the routes that are in it now, or the last good ones.

What decides where messages go (`routes`, `topics`) changes in one step between two requests: what was decided before it ends
as it was decided, what comes after it finds the new table. Everything that was opened for the old configuration (listeners,
the store, connections to upstreams, the cursors of forwards) is not touched; a file that asks for something else there is
refused, with the names of what would need a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import structlog
import trio

from gateway.config.load import load
from gateway.config.model import Config
from gateway.errors import ConfigError, ConfigProblem
from gateway.observe.recorder import PrometheusRecorder
from gateway.routing.table import RemoteRule, RoutingTable, compile_table

APPLIED, INVALID, REFUSED = "applied", "invalid", "refused"
"""What becomes of a reload."""

RELOADED = ("routes", "topics", "file")
"""The parts of a configuration that may change; `file` is its own name."""
WRITTEN = {"host": "bind", "port": "bind", "protocols": "protocol", "addresses": "address"}
"""What the file calls a field that the model calls otherwise."""

log = structlog.get_logger()


class Reloads:
    """Reads the file when asked to, and lets the table be what it says."""

    def __init__(self, config: Config, table: RoutingTable, recorder: PrometheusRecorder) -> None:
        self._config = config
        self._table = table
        self._recorder = recorder
        self._proxied = _proxied(table)
        self._asked = trio.Event()
        self._closed = False

    def ask(self) -> None:
        """The file has changed. Who asks while it is being read is answered by reading it once more."""
        self._asked.set()

    def close(self) -> None:
        """Change nothing any more."""
        self._closed = True

    async def run(self) -> None:
        """Do what is asked for until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            await self._reload()

    async def _reload(self) -> None:
        try:  # in a thread: others are served meanwhile
            config, table = await trio.to_thread.run_sync(_read, self._config.file, abandon_on_cancel=True)
        except ConfigError as error:
            _tell([one for one in error.exceptions if isinstance(one, ConfigProblem)])
            self._failed(INVALID, problems=len(error.exceptions))
            return
        except OSError as error:
            self._failed(INVALID, reason=f"cannot read {self._config.file}: {error.strerror or error}")
            return
        if self._closed:
            log.warning("the configuration is not reloaded: the gateway goes down")
            return
        changed = [*changes(self._config, config), *self._remote_changes(table)]
        if changed:
            self._failed(REFUSED, restart_for=", ".join(changed))
            return
        before = {route.name: route for route in self._config.routes}
        after = {route.name: route for route in config.routes}
        self._table.become(table)
        self._config = config
        self._recorder.reloaded(APPLIED, after)
        log.info(
            "configuration reloaded",
            file=config.file,
            added=[name for name in after if name not in before],
            removed=[name for name in before if name not in after],
            changed=[name for name in after if name in before and after[name] != before[name]],
        )

    def _failed(self, outcome: str, **why: object) -> None:
        self._recorder.reloaded(outcome)
        log.error("the configuration is not reloaded, the last good one stays", outcome=outcome, **why)

    def _remote_changes(self, table: RoutingTable) -> Iterator[str]:
        """Targets elsewhere that run and are not there any more, or are there and do not run."""
        for kind, old, new in (
            ("forward", self._table.forwards, table.forwards),
            ("mirror", self._table.mirrors, table.mirrors),
        ):
            for route in sorted({rule.route for rule in (*old, *new)}):
                if _of(route, old) != _of(route, new):
                    yield f"routes.{route}.{kind}"
        for upstream in sorted(_proxied(table) - self._proxied):
            yield f"proxies to {upstream}"


def _tell(problems: Sequence[ConfigProblem]) -> None:
    for one in problems:
        log.error("configuration problem", where=f"{one.file}:{one.line}", path=one.path, problem=one.message)


def changes(old: Config, new: Config) -> Iterator[str]:
    """What differs between two configurations beside the parts that may change, by the names the file has for it."""
    for field in attrs.fields(Config):
        if field.name not in RELOADED:
            yield from _differences(field.name, getattr(old, field.name), getattr(new, field.name))


def _differences(name: str, old: object, new: object) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            if key in old and key in new:
                yield from _differences(f"{name}.{key}", old[key], new[key])
            else:
                yield f"{name}.{key}"
    elif attrs.has(kind := type(old)) and kind is type(new) and name.count(".") < 2:
        differing = [one.name for one in attrs.fields(kind) if getattr(old, one.name) != getattr(new, one.name)]
        yield from dict.fromkeys(f"{name}.{WRITTEN.get(one, one)}" for one in differing)
    else:
        yield name


def _of(route: str, rules: Sequence[RemoteRule]) -> Sequence[object]:
    return [rule.meaning for rule in rules if rule.route == route]


def _proxied(table: RoutingTable) -> frozenset[str]:
    return frozenset(route.proxy[1].upstream for route in table.routes if route.proxy is not None)


def _read(file: str) -> tuple[Config, RoutingTable]:
    config = load(file)
    return config, compile_table(config)
