"""One Spark for all tests of the pipeline, and stores with something in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.pipeline.jars import spark_kafka
from tests.pipeline.quick import quick


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from gateway.pipeline.session import spark_session

    session = spark_session("local[2]", settings=quick() | {"spark.jars": spark_kafka()})
    yield session
    session.stop()
