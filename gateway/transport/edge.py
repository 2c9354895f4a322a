"""The edge of a connection: whatever goes wrong inside it ends this connection, and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast


class Connected(Protocol):
    def fail(self, error: Exception) -> None:
        """Something inside went wrong that nobody expected: say so, and cut it."""
        ...


_Arguments = ParamSpec("_Arguments")
_Connection = TypeVar("_Connection", bound=Connected)


def supervised(
    method: Callable[Concatenate[_Connection, _Arguments], object],
) -> Callable[Concatenate[_Connection, _Arguments], None]:
    """For methods that are called from tasks which many connections share (the store's, the pump's, an endpoint's): an
    error that passed here would end the gateway.
    """

    @functools.wraps(method)
    def call(connection: Any, *args: Any) -> None:
        try:
            method(connection, *args)  # type: ignore[call-arg]  # none of them has arguments by name alone
        except Exception as error:  # noqa: BLE001 - the one place that may catch everything
            connection.fail(error)

    return cast("Callable[Concatenate[_Connection, _Arguments], None]", call)
