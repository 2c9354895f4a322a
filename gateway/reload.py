"""A configuration that is read again while its gateway serves: what it says now, or the last good one.

Data flow:

    SIGHUP ─► read and check (a thread) ─► what needs a restart? ─► prepare ─► the swap ─► what was stopped ends ─► "applied"
                   │ invalid                    │ refused              │ failed     └ one step between two requests
                   └────────────────────────────┴──────────────────────┴─► nothing has changed, the log says why

Where messages go (`routes`, `topics`, `upstreams`) changes in the swap: what was decided before it ends as it was decided,
what comes after it finds the new table. The bridges change with it (`gateway.bridges.assembly`): those that mean what they did
go on untouched, the others stop, and are followed where they ended. Everything else that was opened for the old configuration
(listeners, the store, the admin address) stays; a file that asks for something else there is refused, with the names of what
would need a restart. The next reload begins when the one before has ended.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import attrs
import structlog
import trio

from gateway.config.load import load
from gateway.errors import ConfigError, ConfigProblem, Conflict, GatewayError, ShuttingDown
from gateway.files import write_whole
from gateway.model import Config
from gateway.observe.prometheus import PrometheusRecorder
from gateway.routing.table import RoutingTable, compile_table


@attrs.frozen
class Reloaded:
    """What became of a reload, and why."""

    outcome: str
    why: Sequence[str] = ()


APPLIED, INVALID, REFUSED, FAILED = "applied", "invalid", "refused", "failed"
"""What becomes of a reload."""

RELOADED = ("routes", "topics", "upstreams", "file")
"""The parts of a configuration that may change; `file` is its own name."""
WRITTEN = {"host": "bind", "port": "bind", "protocols": "protocol", "addresses": "address"}
"""What the file calls a field that the model calls otherwise."""

log = structlog.get_logger()


class ReloadableBridges(Protocol):
    """What goes to brokers elsewhere, and comes from there."""

    @property
    def used(self) -> Container[str]:
        """The upstreams that are used."""
        ...

    async def prepare(self, table: RoutingTable) -> None:
        """Do all that can fail on the way to other bridges; a GatewayError leaves everything as it is."""
        ...

    def become(self, config: Config, table: RoutingTable) -> None:
        """From now on there are the bridges of this configuration, whose table is in force."""
        ...

    async def handed_over(self) -> Mapping[str, int]:
        """Until what was stopped has ended. By forward that is no more, the messages it has left undelivered."""
        ...


class Reloads:
    """Reads the file when asked to, and lets the table and the bridges be what it says."""

    def __init__(
        self,
        config: Config,
        table: RoutingTable,
        recorder: PrometheusRecorder,
        ours: Callable[[Config], Config] = lambda config: config,
    ) -> None:
        """`ours`: what this process makes of a configuration that it has read."""
        self._config = config
        self.ours = ours
        self._table = table
        self._recorder = recorder
        self._asked = trio.Event()
        self._until_closed = trio.CancelScope()
        self._one_at_a_time = trio.Lock()
        self._bridges: ReloadableBridges | None = None

    @property
    def config(self) -> Config:
        return self._config

    def ask(self) -> None:
        """The file has changed. Who asks while it is being read is answered by reading it once more."""
        self._asked.set()

    def close(self) -> None:
        self._until_closed.cancel()

    async def run(self, bridges: ReloadableBridges) -> None:
        """Do what is asked for until closed."""
        self._bridges = bridges
        with self._until_closed:
            while True:
                await self._asked.wait()
                # before it is read: who asks from here on wants what the file says later
                self._asked = trio.Event()
                async with self._one_at_a_time:
                    await self._reload(bridges)

    async def apply(self, text: str, seen: str) -> Reloaded:
        """Let the file say this from now on, and the gateway with it; if that cannot be, both stay as they are. `seen`: the
        digest of the text that was changed. Raises Conflict if the file says something else by now.
        """
        path = Path(self._config.file)
        async with self._one_at_a_time:
            if self._bridges is None or self._until_closed.cancel_called:
                raise ShuttingDown
            before = await trio.to_thread.run_sync(path.read_bytes)
            # two people may change it at the same time: the second has not seen what the first has written
            if digest(before) != seen:
                raise Conflict(f"{path.name} has changed since it was looked at: look at it again")
            in_force = self._config
            _replace(path, text.encode())
            try:
                return await self._reload(self._bridges)
            finally:
                if self._config is in_force:  # a file that was not applied does not stay, whatever ended this
                    _replace(path, before)

    async def _reload(self, bridges: ReloadableBridges) -> Reloaded:
        file = self._config.file
        try:  # in a thread: others are served meanwhile
            config, table = await trio.to_thread.run_sync(_read, file, abandon_on_cancel=True)
            config = self.ours(config)
        except ConfigError as error:
            problems = [one for one in error.exceptions if isinstance(one, ConfigProblem)]
            _tell(problems)
            self._failed(INVALID, problems=len(error.exceptions))
            return Reloaded(INVALID, [str(one) for one in problems])
        except OSError as error:
            reason = f"cannot read {file}: {error.strerror or error}"
            self._failed(INVALID, reason=reason)
            return Reloaded(INVALID, [reason])
        # all or nothing: of a file half of which is in force nobody could say what the gateway does
        if changed := list(changes(self._config, config)):
            self._failed(REFUSED, restart_for=", ".join(changed))
            return Reloaded(REFUSED, [f"{one}: needs a restart" for one in changed])
        try:
            # everything that can fail is done before anything is changed
            await bridges.prepare(table)
        except GatewayError as error:
            self._failed(FAILED, reason=error.message)
            return Reloaded(FAILED, [error.message])
        # no await between these two: a request finds the old table and its bridges, or the new ones
        before, self._config = self._config, config
        self._table.become(table)
        bridges.become(config, table)
        self._recorder.foreseen.routes([route.name for route in config.routes], config.upstreams)
        self._recorder.foreseen.upstreams(bridges.used)
        left = await bridges.handed_over()
        for forward, messages in left.items():
            log.warning("a forward that is no more has not delivered everything", forward=forward, messages=messages)
        self._recorder.reloaded(APPLIED)
        routes = _difference({one.name: one for one in before.routes}, {one.name: one for one in config.routes})
        upstreams = _difference(before.upstreams, config.upstreams)
        log.info(
            "configuration reloaded",
            file=file,
            **routes,
            **{f"upstreams_{how}": names for how, names in upstreams.items() if names},
        )
        return Reloaded(APPLIED)

    def _failed(self, outcome: str, **why: object) -> None:
        self._recorder.reloaded(outcome)
        log.error("the configuration is not reloaded, the last good one stays", outcome=outcome, **why)


def _difference(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, list[str]]:
    return {
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
        "changed": [name for name in after if name in before and after[name] != before[name]],
    }


def plan(before: Config, after: Config) -> Sequence[str]:
    """What a reload would change, in words; what would need a restart."""
    found = [f"{name}: needs a restart" for name in changes(before, after)]
    for what, old, new in (
        ("route", {one.name: one for one in before.routes}, {one.name: one for one in after.routes}),
        ("upstream", before.upstreams, after.upstreams),
        ("topics", before.topics, after.topics),
    ):
        for how, names in _difference(old, new).items():
            found += [f"{what} {name}: {how}" for name in names]
    if [one.name for one in before.routes if one in after.routes] != [
        one.name for one in after.routes if one in before.routes
    ]:
        found.append("routes: in another order")
    return found


def digest(text: bytes) -> str:
    """What a file's content is known by."""
    return hashlib.sha256(text).hexdigest()


def _replace(path: Path, content: bytes) -> None:
    # who may read it stays who may: there may be secrets in it, and others who must go on reading them
    path = path.resolve()
    write_whole(path, content, stat.S_IMODE(path.stat().st_mode))


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


def _read(file: str) -> tuple[Config, RoutingTable]:
    config = load(file)
    return config, compile_table(config)
