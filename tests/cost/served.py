"""A gateway that counts what it does: `python -m tests.cost.served CONFIG [calls|objects|held COUNTER [LIBRARY]]`.

The counter is eight bytes of a file, which whoever asks reads while the gateway goes on: to be asked costs it nothing. For a gateway
that is counted every disk is quick: which way a commit goes must not depend on who else is at it. And what is done a while later,
whatever else happens, is done after the last turn: on a busy machine it fell into each of forty. So it is with what it acknowledges
by itself, and it tells whoever it talks to over QUIC not to wait for that.
"""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import signal
import sys
import threading
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import gateway as package
from gateway.broker.consume import consumer
from gateway.cli.main import main
from gateway.observe import lag
from gateway.store import loop
from tests.cost.patience import be_patient

LATER = 3600.0


def count_calls(counter: memoryview) -> None:
    """Calls of Python code under gateway/, and of what attrs generates for it, in every thread."""
    ours = str(Path(package.__file__).parent)
    known: dict[object, bool] = {}

    def called(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            counts = known.get(code)
            if counts is None:
                name = code.co_filename
                counts = known[code] = name.startswith((ours, "<attrs generated methods gateway."))
            if counts:
                counter[0] += 1

    threading.setprofile(called)
    sys.setprofile(called)


def count_objects(shared: mmap.mmap, library: str) -> None:
    """Blocks asked of the allocator of objects. What Python keeps in store (frames, short tuples) is not asked for."""
    ctypes.PyDLL(library).count_objects(ctypes.byref(ctypes.c_uint64.from_buffer(shared)))


def tell_what_is_held(shared: memoryview) -> None:
    """When it is signalled: how often it was, bytes that are in use, and blocks of the allocator of objects."""
    tracemalloc.start()

    def tell(_signal: int, _frame: FrameType | None) -> None:
        gc.collect()  # also of what Python keeps in store of things to be made again
        shared[1], shared[2] = tracemalloc.get_traced_memory()[0], sys.getallocatedblocks()
        shared[0] += 1

    signal.signal(signal.SIGUSR1, tell)


def serve(config: str, what: str = "", counter: str = "", *library: str) -> None:
    loop.QUICK_COMMIT = loop.SLOW_COMMIT = math.inf
    consumer.WRITE_BEHIND = lag.EVERY = LATER
    be_patient(setattr)
    if what:
        with Path(counter).open("r+b") as file:
            shared = mmap.mmap(file.fileno(), 0)
        if what == "calls":
            count_calls(memoryview(shared).cast("Q"))
        elif what == "held":
            tell_what_is_held(memoryview(shared).cast("Q"))
        else:
            count_objects(shared, *library)
    sys.argv = ["gateway", "serve", "--config", config, "--log-level", "error"]
    main()


if __name__ == "__main__":
    serve(*sys.argv[1:])
