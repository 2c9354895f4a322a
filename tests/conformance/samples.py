"""Client bytes of every protocol, found beside its tests: `tests/protocols/<name>/samples.py` defines `SAMPLES`; or in its
own folder, where that is all there is.

A protocol joins the conformance suite by existing; without samples the suite fails.
"""

from __future__ import annotations

import importlib
import importlib.util

from gateway.protocols.registry import Transport, served
from tests.conformance.sample import Sample


def samples_of(name: str) -> list[Sample]:
    """The samples of one protocol."""
    beside = f"tests.protocols.{name}"
    package = beside if importlib.util.find_spec(beside) is not None else f"gateway.protocols.{name}"
    found: list[Sample] = importlib.import_module(f"{package}.samples").SAMPLES
    return found


ALL = [(name, sample) for name in served() for sample in samples_of(name)]
IDS = [f"{name}-{sample.name}" for name, sample in ALL]
NAMES = list(served())
TCP = [name for name, spec in served().items() if spec.transport is Transport.TCP]
