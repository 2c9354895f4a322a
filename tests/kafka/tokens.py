"""Who vouches for those that log in by OAUTHBEARER: signed tokens, where they are to be had, and the key that brokers look at them by."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

NUMBER = 32
"""Bytes of a number of this curve."""
LIFE = 3600


class Issuer:
    """Gives tokens to one client, which knows a secret."""

    def __init__(self, client: str, secret: str) -> None:
        self._client, self._secret = client, secret
        self._key = ec.generate_private_key(ec.SECP256R1())

    def keys(self) -> str:
        """What a broker has to know of it (a JSON Web Key Set)."""
        public = self._key.public_key().public_numbers()
        point = {name: _text(number.to_bytes(NUMBER, "big")) for name, number in (("x", public.x), ("y", public.y))}
        return json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "kid": "1", "alg": "ES256", "use": "sig", **point}]})

    def token(self) -> str:
        """One that says who the client is."""
        now = int(time.time())
        parts = {"alg": "ES256", "kid": "1"}, {"sub": self._client, "iat": now, "exp": now + LIFE}
        said = ".".join(_text(json.dumps(part).encode()) for part in parts)
        numbers = decode_dss_signature(self._key.sign(said.encode(), ec.ECDSA(SHA256())))
        return f"{said}.{_text(b''.join(number.to_bytes(NUMBER, 'big') for number in numbers))}"

    @contextmanager
    def endpoint(self, token: str = "") -> Iterator[str]:
        """Where the client gets one, or what is given here."""
        client, secret = self._client, self._secret

        class Answer(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805
                asked = base64.b64decode(handler.headers["Authorization"].removeprefix("Basic ")).decode()
                known = unquote(asked) == f"{client}:{secret}"
                said = {"access_token": token or self.token(), "token_type": "Bearer", "expires_in": LIFE}
                body = json.dumps(said if known else {"error": "invalid_client"}).encode()
                handler.send_response(200 if known else 401)
                handler.send_header("Content-Type", "application/json")
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/token"
            server.shutdown()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
