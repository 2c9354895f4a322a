"""What other people's stacks are called here. A test that asks for one that is not there is skipped, with the reason."""

from pathlib import Path

import pytest

from tests.quic.foreign import stacks


@pytest.fixture(scope="session")
def quic_go() -> Path:
    return stacks.quic_go()


@pytest.fixture(scope="session")
def ngtcp2() -> str:
    return stacks.ngtcp2()
