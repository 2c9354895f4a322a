"""A gateway's admin address over a store, in a thread of this process: real sockets, the real broker, the bulk API."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from gateway import model
from gateway.admin.access import Access
from gateway.admin.app import admin_app
from gateway.admin.log import StoredLog
from gateway.admin.operation import operations_of
from gateway.broker.assembly import open_house
from gateway.bulk.service import Bulk, Listeners
from gateway.observe.health import Health
from gateway.observe.http import bind_http, serve_http
from gateway.observe.prometheus import PrometheusRecorder
from gateway.pipeline.endpoint import Endpoint
from gateway.routing.table import compile_table
from gateway.store.sqlite import StoreOptions, open_store
from gateway.transport.limits import Budget

SMALL = StoreOptions(tail_cache=0, page_cache=1 << 20, free_space_floor=0)


class Gateway:
    """What a test may touch; `url` is where it answers."""

    def __init__(self) -> None:
        self.url = ""
        self.recorder = PrometheusRecorder()
        self.store: Any = None
        self.house: Any = None
        self.bulk: Any = None
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop = trio.Event()

    @property
    def endpoint(self) -> Endpoint:
        """For a client that does not wait for what will not come."""
        return Endpoint(self.url, timeout=30.0, patience=0.5)

    def inside(self, work: Any, *args: Any) -> Any:
        """Call something in the gateway's own loop."""
        return trio.from_thread.run(work, *args, trio_token=self._token)

    async def run(
        self,
        ready: threading.Event,
        path: Path,
        token: str,
        routes: Sequence[model.Route],
        protocols: Any,
        **admin: Any,
    ) -> None:
        config = model.Config(listeners={}, routes=tuple(routes) or (model.IDENTITY,))
        table = compile_table(config, {})
        clock = {"now_ms": admin.pop("now_ms")} if "now_ms" in admin else {}
        self._token = trio.lowlevel.current_trio_token()
        async with (
            open_store(path, SMALL, recorder=self.recorder, **clock) as self.store,
            open_house(self.store, table, self.recorder, Budget(256 << 20)) as self.house,
            trio.open_nursery() as nursery,
        ):
            bulk = self.bulk = Bulk(self.store, self.house, table, Listeners(protocols))
            host = admin.pop("host", "127.0.0.1")
            access = Access(model.Admin(host=host, token=token), now=time.time)
            app = admin_app(self.recorder, Health(self.recorder), access, list(operations_of(StoredLog(bulk))))
            sock = bind_http("127.0.0.1", admin.pop("port", 0))
            nursery.start_soon(bulk.run, self._stop)
            await nursery.start(
                lambda task_status: serve_http(app, sock, stop=self._stop, task_status=task_status, **admin)
            )
            scheme = "https" if admin.get("tls") else "http"
            self.url = f"{scheme}://127.0.0.1:{sock.getsockname()[1]}"
            ready.set()
            await self._stop.wait()

    def start(
        self, path: Path, token: str = "", routes: Sequence[model.Route] = (), protocols: Any = None, **admin: Any
    ) -> None:
        """Returns when it serves."""
        ready = threading.Event()
        failed: list[BaseException] = []

        def serve() -> None:
            try:
                trio.run(lambda: self.run(ready, path, token, routes, protocols or {}, **admin))
            except BaseException as error:  # noqa: BLE001  # raised in the test's own thread
                failed.append(error)
            ready.set()

        self._thread = threading.Thread(target=serve)
        self._thread.start()
        ready.wait()
        self._failed = failed
        if failed:
            self.end()

    def end(self) -> None:
        """Returns when it has stopped."""
        thread, self._thread = self._thread, None
        if thread is not None:
            if not self._failed:
                trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
            thread.join()
            if self._failed:
                raise self._failed[0]


@contextmanager
def gateway(
    path: Path, *, token: str = "", routes: Sequence[model.Route] = (), protocols: Any = None, **admin: Any
) -> Iterator[Gateway]:
    """A gateway on the store in a directory, for the length of the block."""
    made = Gateway()
    made.start(path, token, routes, protocols, **admin)
    try:
        yield made
    finally:
        made.end()
