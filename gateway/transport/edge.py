"""The edge of a connection: whatever goes wrong inside it ends this connection, and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast


class Connected(Protocol):
    def fail(self, error: Exception) -> None:
        """Something inside went wrong that nobody expected: say so, and cut it."""
        ...


_Method = TypeVar("_Method", bound=Callable[..., None])


def supervised(method: _Method) -> _Method:
    """For methods that are called from tasks which many connections share (the store's, the pump's, an endpoint's): an
    error that passed here would end the gateway.
    """

    @functools.wraps(method)
    def call(connection: Connected, *args: Any) -> None:
        try:
            method(connection, *args)
        except Exception as error:  # noqa: BLE001 - the one place that may catch everything
            connection.fail(error)

    return cast("_Method", call)
