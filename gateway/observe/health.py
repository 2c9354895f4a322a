"""Whether the process lives, and whether it should be sent traffic: two different questions.

It lives as long as its event loop answers. It is ready between the end of starting and the begin of draining, while the
store takes writes and every further condition (an upstream that must be connected, ...) holds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence

from gateway.observe import metrics as m
from gateway.recorder import Recorder
from gateway.store.interface import StoreHealth


class ProcessPhase(enum.Enum):
    """Where in its life the process is."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Health:
    """The state behind `/livez` and `/readyz`, and the gauges that say the same."""

    def __init__(self, recorder: Recorder, store: Callable[[], StoreHealth] | None = None) -> None:
        self._recorder = recorder
        self._store = store
        self._conditions: list[Callable[[], Iterable[tuple[str, str]]]] = []
        self._notices: list[Callable[[], Iterable[tuple[str, str]]]] = []
        self.phase = ProcessPhase.STARTING
        self.enter(ProcessPhase.STARTING)

    def enter(self, phase: ProcessPhase) -> None:
        self.phase = phase
        for each in ProcessPhase:
            self._recorder.gauge(m.PHASE.name, float(each is phase), phase=each.value)

    def watch_store(self, health: Callable[[], StoreHealth]) -> None:
        """Ask this about the store from now on (it opens after the admin listener is up)."""
        self._store = health

    def conditions(self, problems: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Also ask this: it names conditions, and says of each what is wrong, or an empty text."""
        self._conditions.append(problems)

    def notices(self, waiting: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Also show this: what is worth knowing, and no reason to be sent no traffic."""
        self._notices.append(waiting)

    def waiting(self) -> Sequence[str]:
        return [f"{name}: {text}" for notices in self._notices for name, text in notices()]

    def problems(self) -> Sequence[str]:
        """Why it is not ready; nothing when it is."""
        found: list[str] = []
        if self.phase is not ProcessPhase.READY:
            found.append(self.phase.value)
        if self._store is not None:
            health = self._store()
            if not health.writable:
                found.append(f"store is read-only: {health.reason}" if health.reason else "store is read-only")
        for problems in self._conditions:
            found += [f"{name}: {text}" for name, text in problems() if text]
        return found

    def refresh(self) -> None:
        """Bring the store's gauge up to date, for the recorder's `on_scrape`."""
        if self._store is not None:
            self._recorder.gauge(m.STORE_WRITABLE.name, float(self._store().writable))
