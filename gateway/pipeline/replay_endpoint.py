"""A replay's way into a running gateway by its admin address: everything of a message arrives, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self
from urllib.parse import urlsplit

from gateway.envelope import Columns
from gateway.errors import GatewayError, RequestError, Throttled, Unauthenticated
from gateway.pipeline.endpoint import Endpoint, EndpointWriter

MESSAGES = 10_000
"""At a time; their bytes have a bound too."""


class EndpointTarget:
    """The bulk API. A step is the producer's next epoch, so the gateway keeps what it knows of one step only."""

    knows_repeats = True
    carries_keys = True
    carries_headers = True
    step_messages = MESSAGES

    def __init__(self, endpoint: Endpoint, address_of: Callable[[str], str] = str) -> None:
        parts = urlsplit(endpoint.url)
        self.address = (parts.hostname or "", parts.port or 0)
        self._address_of = address_of
        self._writer = EndpointWriter(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def send(self, topic: str, columns: Columns, *, replay: str, step: int) -> Mapping[int, GatewayError]:
        """All at once; where one is refused all are, and then each for itself."""
        try:
            self._append(topic, columns, replay, step, 0)
        except (Unauthenticated, Throttled):
            raise
        except RequestError as error:
            if columns.count == 1:
                return {0: error}
        else:
            return {}
        refused: dict[int, GatewayError] = {}
        for index in range(columns.count):
            try:
                self._append(topic, columns.slice(index, index + 1), replay, step, index + 1)
            except RequestError as error:
                refused[index] = error
        return refused

    def close(self) -> None:
        self._writer.close()

    def _append(self, topic: str, columns: Columns, replay: str, step: int, sequence: int) -> None:
        self._writer.append(
            self._address_of(topic), columns, producer=f"replay/{replay}", epoch=step, sequence=sequence
        )
