"""A gateway in which nothing is collected until somebody asks: `python -m tests.integration.uncollected CONFIG`.

When it is signalled it writes a line about what of itself the collector has found that nothing else would have, and how many
connections it has.
"""

from __future__ import annotations

import gc
import json
import math
import signal
import sys
from collections import Counter
from types import FrameType

from gateway.cli.main import main
from gateway.observe import collecting
from gateway.transport.driver import Driver
from gateway.transport.quic.connection import QuicLink
from gateway.transport.tcp import TcpLink

OURS = ("gateway.", "aioquic.")


def name(one: object) -> str:
    kind = type(one)
    return f"{kind.__module__}.{kind.__qualname__}"


def tell(_signal: int, _frame: FrameType | None) -> None:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = Counter(map(name, gc.garbage))
    gc.garbage.clear()
    gc.collect()
    connections = sum(isinstance(one, Driver | QuicLink | TcpLink) for one in gc.get_objects())
    ours = {kind: count for kind, count in found.items() if kind.startswith(OURS)}
    print(json.dumps({"found": ours, "connections": connections}), flush=True)


if __name__ == "__main__":
    gc.disable()
    gc.freeze = lambda: None  # or what is to be found would be out of sight
    collecting.EVERY = math.inf
    signal.signal(signal.SIGUSR1, tell)
    sys.argv = ["gateway", "serve", "--config", sys.argv[1], "--log-level", "error"]
    main()
