"""What a local Spark starts its Python workers with: PySpark's own daemon, which does not report what is no fault.

Spark hangs up on workers that it has no more work for, at the latest when it ends. One that notices by a failing write has a
stack printed to the user's terminal, of an error that nobody made.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace

from pyspark import daemon


def _print_exc() -> None:
    """What the daemon calls before it ends a worker."""
    if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
        traceback.print_exc()


def quiet() -> None:
    """Let it report everything else."""
    vars(daemon)["traceback"] = SimpleNamespace(print_exc=_print_exc, format_exc=traceback.format_exc)


if __name__ == "__main__":
    quiet()
    daemon.manager()
