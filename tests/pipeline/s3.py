"""An S3 that tests talk to: moto's server, in a process of its own, with a bucket `lake`."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import attrs

BUCKET = "lake"
JARS = Path(".deps/jars/s3").absolute()
"""What Spark reads s3a:// with, as `make setup` fetched it."""
NUMBERS = itertools.count(1)


@attrs.frozen
class ObjectStore:
    url: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def prefix(self) -> str:
        """One that nobody else uses."""
        return f"s3a://{BUCKET}/test{next(NUMBERS)}"


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Runs it while the block runs; whoever uses it has the environment of it."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.pipeline.s3"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        store = ObjectStore(f"http://127.0.0.1:{int(run.stdout.readline())}")
        before = {name: os.environ.get(name) for name in store.environment}
        os.environ.update(store.environment)
        try:
            with urlopen(Request(f"{store.url}/{BUCKET}", method="PUT")):
                yield store
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            run.kill()


def main() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()  # with whoever started it
    threading.Event().wait()


if __name__ == "__main__":
    main()
