"""Every test that asks for `opener` runs over every implementation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.store.kit import IMPLEMENTATIONS, NO_CACHE, SMALL, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=IMPLEMENTATIONS)
def opener(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Callable[..., Any]:
    """Opens the store of this test; again after it was closed."""
    return partial(IMPLEMENTATIONS[request.param], tmp_path / "store", options=SMALL, now_ms=clock)


@pytest.fixture(params=[SMALL, NO_CACHE], ids=["cached", "from disk"])
def reading(request: pytest.FixtureRequest, opener: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with readers served from memory and from disk."""
    return partial(opener, options=request.param)
