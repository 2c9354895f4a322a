"""Where the tasks of a job run: one after the other in this process, or on Spark's executors."""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from gateway.errors import GatewayError, StoreError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

NO_SPACE = "No space left on device: make room where the output and Spark's temporary files are, and run it again"

Session: TypeAlias = "SparkSession | Callable[[], SparkSession]"
"""A session, or what makes one once there is something to do: who made a mistake need not wait for Spark to hear of it."""


def session_of(spark: Session) -> SparkSession:
    return spark() if callable(spark) else spark


T = TypeVar("T")
R = TypeVar("R")


class TaskFailed(StoreError):
    """A task of a job could not do its part."""


class Spread(Protocol):
    """Runs a function over tasks. The results are in the tasks' order; what fails raises."""

    @property
    def width(self) -> int:
        """How many tasks run at a time."""
        ...

    def __call__(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Run them all."""
        ...


class Here:
    """Runs tasks one after the other, in this process."""

    width = 1

    def __call__(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        return [work(task) for task in tasks]


class OnSpark:
    """A Spark task for each; what fails for a known reason is reported by that reason, not by a Java stack."""

    def __init__(self, spark: Session) -> None:
        self._spark = spark

    @functools.cached_property
    def _context(self) -> SparkContext:
        return session_of(self._spark).sparkContext

    @property
    def width(self) -> int:
        width: int = self._context.defaultParallelism
        return width

    def __call__(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        if not tasks:
            return []

        def guarded(task: T) -> tuple[list[R], str]:
            try:
                return [work(task)], ""
            except (GatewayError, OSError) as error:
                full = isinstance(error, OSError) and error.errno == errno.ENOSPC
                return [], NO_SPACE if full else f"{type(error).__name__}: {error}"

        results: list[R] = []
        for result, error in self._context.parallelize(tasks, len(tasks)).map(guarded).collect():
            if error:
                raise TaskFailed(error)
            results += result
        return results
