"""HTTP to a gateway's admin address: one connection, opened again when it breaks, and errors by their type."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs
import msgspec

from gateway.bulk import wire
from gateway.errors import GatewayError, InvalidRequest, Status, TargetError, Unauthenticated

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Between two attempts, in seconds, doubling."""
LATER = frozenset({Status.READ_ONLY, Status.THROTTLED, Status.SHUTTING_DOWN, Status.UNKNOWN_OUTCOME})
"""Refusals after which the same may succeed; whatever is asked may be asked twice."""
BUFFER = 1 << 20
LONGEST_EVENT = 8 << 20
"""Bytes of one line of live events."""

T = TypeVar("T")


class EndpointUnreachable(TargetError):
    """The admin address of a gateway does not answer."""


class Cut(TargetError):
    """A connection ended in the midst of an answer."""


@attrs.frozen
class Endpoint:
    """Where a gateway's admin address is, and how it is trusted. A value that may be pickled."""

    url: str
    token: str = attrs.field(default="", repr=False)
    ca: str = attrs.field(default="", repr=False)
    """Certificates in PEM; empty: the system's roots."""
    fingerprint: str = ""
    insecure: bool = False
    gzip: bool = False
    """Whether ranges come compressed: for what is far away."""
    timeout: float = 60.0
    """Seconds without a byte after which a connection counts as broken."""
    patience: float = 10.0
    """Seconds for which what cannot be served just now is asked for again."""

    @classmethod
    def of(
        cls,
        url: str,
        *,
        token: str = "",
        token_file: str = "",
        ca: str = "",
        fingerprint: str = "",
        insecure: bool = False,
    ) -> Endpoint:
        """Check the parts; `ca` and `token_file` are files, read here. Raises InvalidRequest."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"endpoint: {url!r}: {error}") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.path.strip("/"):
            raise InvalidRequest(f"endpoint: a gateway's admin address, like http://127.0.0.1:9600, not {url!r}")
        if (ca or fingerprint or insecure) and parts.scheme != "https":
            raise InvalidRequest(f"endpoint: {url} has no TLS that ca, fingerprint or insecure could be about")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(
            f"{parts.scheme}://{host}:{port or 9600}",
            token or (_text(token_file, "token file").strip() if token_file else os.environ.get("GATEWAY_TOKEN", "")),
            _text(ca, "ca") if ca else "",
            fingerprint.replace(":", "").lower(),
            insecure,
        )


def _text(path: str, what: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise InvalidRequest(f"endpoint: the {what} {path} cannot be read: {error.strerror}") from error


class EndpointCaller:
    """Asks; for one thread at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._connection: http.client.HTTPConnection | None = None
        self._give_up_at: float | None = None
        self._pause = FIRST_PAUSE

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def ask(self, method: str, path: str, answer: type[T], body: bytes = b"", kind: str = "") -> T:
        """One request and its answer; repeated while that may help: everything the API does may be said twice."""
        while True:
            try:
                with self._response(method, path, wire.JSON, body, kind) as response:
                    text = response.read()
                found = msgspec.json.decode(text, type=answer)
            except Cut as error:
                self.again(error)
            except msgspec.DecodeError as error:
                raise TargetError(f"{self.endpoint.url} does not answer like a gateway: {error}") from error
            except GatewayError as error:
                if error.status not in LATER:
                    raise
                self.again(error)
            else:
                self._give_up_at, self._pause = None, FIRST_PAUSE
                return found

    @contextmanager
    def stream(self, path: str, accept: str) -> Iterator[Callable[[int], bytes]]:
        """A long answer; yields a function that reads exactly so many bytes. Raises Cut when it ends too soon."""
        with self._response("GET", path, accept) as response:
            packed = response.headers.get("Content-Encoding") == "gzip"
            plain: Any = gzip.GzipFile(fileobj=response) if packed else response
            buffered = io.BufferedReader(plain, BUFFER)

            def read(size: int) -> bytes:
                with _translated(self):
                    data = buffered.read(size)
                if len(data) < size:
                    raise Cut(f"{self.endpoint.url} ended its answer too soon")
                return data

            yield read
            with _translated(self):
                buffered.read()  # what is left of the encoding, so that the connection can be used again

    def events(self, path: str) -> Iterator[tuple[str, bytes]]:
        """Live events, (name, data) each, until the connection ends. Raises Cut then."""
        with self._response("GET", path, "text/event-stream") as response:
            name = ""
            while True:
                with _translated(self):
                    line = response.readline(LONGEST_EVENT)
                if not line.endswith(b"\n"):
                    raise Cut(f"{self.endpoint.url} ended its answer")
                field, _, rest = line.rstrip(b"\n").partition(b": ")
                if field == b"event":
                    name = rest.decode()
                elif field == b"data":
                    yield name, rest

    def again(self, error: GatewayError, *, progress: bool = False) -> None:
        """Wait a little before the next attempt; raises the error when there were enough."""
        now = time.monotonic()
        if progress or self._give_up_at is None:
            self._give_up_at, self._pause = now + self.endpoint.patience, FIRST_PAUSE
        if now >= self._give_up_at:
            self._give_up_at = None
            if isinstance(error, Cut):
                raise EndpointUnreachable(error.message) from error
            raise error
        threading.Event().wait(min(self._pause, self._give_up_at - now))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    # --- inside ---

    @contextmanager
    def _response(
        self, method: str, path: str, accept: str, body: bytes = b"", kind: str = ""
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Accept": accept}
        if kind:
            headers["Content-Type"] = kind
        if self.endpoint.gzip and accept == wire.CHUNKS:
            headers["Accept-Encoding"] = "gzip"
        if self.endpoint.token:
            headers["Authorization"] = f"Bearer {self.endpoint.token}"
        complete = False
        try:
            with _translated(self):
                if self._connection is None:
                    self._connection = self._open()
                self._connection.request(method, path, body or None, headers)
                response = self._connection.getresponse()
            if response.status != http.client.OK:
                with _translated(self):
                    text = response.read()
                complete = True
                raise self._refusal(response.status, text)
            yield response
            complete = response.isclosed()
        finally:
            if not complete:
                self.close()  # the rest of an answer nobody read must not be taken for the next one

    def _refusal(self, status: int, text: bytes) -> GatewayError:
        try:
            return wire.error_of(msgspec.json.decode(text, type=wire.Problem))
        except msgspec.DecodeError:
            if status == http.client.UNAUTHORIZED:
                return Unauthenticated(f"{self.endpoint.url} asks for another token (admin.token of its configuration)")
            return TargetError(f"{self.endpoint.url} answered {status}: is it the admin address of a gateway?")

    def _open(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.endpoint.url)
        host, port, timeout = parts.hostname or "", parts.port, self.endpoint.timeout
        if parts.scheme == "http":
            plain = http.client.HTTPConnection(host, port, timeout=timeout)
            plain.connect()
            return plain
        secure = http.client.HTTPSConnection(host, port, timeout=timeout, context=self._context())
        secure.connect()
        wanted = self.endpoint.fingerprint
        if wanted:
            shown = hashlib.sha256(secure.sock.getpeercert(binary_form=True) or b"").hexdigest()
            if shown != wanted:
                secure.close()
                raise TargetError(f"{self.endpoint.url} shows a certificate with the fingerprint {shown}")
        return secure

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self.endpoint.ca:
            context = ssl.create_default_context(cadata=self.endpoint.ca)
        if self.endpoint.insecure or self.endpoint.fingerprint:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@contextmanager
def _translated(caller: EndpointCaller) -> Iterator[None]:
    # What goes wrong with a connection, as Cut: the same may be asked again. What will not change, as TargetError.
    url = caller.endpoint.url
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise TargetError(f"{url}: its certificate is not trusted: {error.verify_message}") from error
    except ssl.SSLError as error:
        raise TargetError(f"{url}: TLS failed ({error.reason}): is it http:// there?") from error
    except ConnectionRefusedError as error:
        raise Cut(f"nothing listens at {url}: is the gateway running, with this `admin.bind`?") from error
    except ConnectionResetError as error:
        raise Cut(f"{url}: {error}: is it the admin address, and {urlsplit(url).scheme}:// there?") from error
    except UnicodeError as error:
        raise TargetError(f"{url}: no name of a host") from error
    except (OSError, EOFError, zlib.error, http.client.HTTPException) as error:
        raise Cut(f"{url}: {str(error) or type(error).__name__}") from error
