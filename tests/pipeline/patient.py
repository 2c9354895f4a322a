"""Streaming queries on a machine that has much else to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException

LATE = "failed to connect back"
"""Spark gives a new Python process ten seconds to say that it is there; no setting makes that longer."""
ATTEMPTS = 6


def run_to_the_end(start: Callable[[], Any]) -> Any:
    """Start a query and wait for its end; once more where Spark had no patience. Returns the query."""
    for attempt in range(ATTEMPTS):
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if LATE not in str(error) or attempt == ATTEMPTS - 1:
                raise
        else:
            return query
        finally:
            query.stop()
    return None
