"""What the composition root decides by itself."""

from __future__ import annotations

import pytest

from gateway import model
from gateway.app import _advertised


@pytest.mark.parametrize(
    ("host", "known_as", "told"),
    [
        ("127.0.0.1", "", "127.0.0.1:9092"),
        ("::1", "", "[::1]:9092"),
        ("10.0.0.1", "gw.example:7000", "10.0.0.1:9092"),
        ("0.0.0.0", "gw.example:7000", "gw.example:9092"),
        ("::", "[fd00::1]:7000", "[fd00::1]:9092"),
        ("0.0.0.0", "", "0.0.0.0:9092"),
    ],
)
def test_where_clients_are_told_that_a_listener_is(host: str, known_as: str, told: str) -> None:
    listener = model.Listener("l", ("flymq",), host, 0)
    config = model.Config(listeners={"l": listener}, routes=(), cluster=model.ClusterSettings(address=known_as))
    assert _advertised(config, listener, 9092) == told
