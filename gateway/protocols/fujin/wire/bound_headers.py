"""A key and an expiry as headers: the dialects that bind have no other place for them, and between two gateways nothing is to be
lost. Who sends a header of these names says what the message's key is, or until when it is of use.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import Columns, Headers

KEY = "x-gateway-key"
EXPIRES = "x-gateway-expires-ms"
"""Milliseconds since the epoch, in decimal digits."""

_LONGEST = 18
"""Digits of a time: what is longer is none."""


def taken_out(columns: Columns) -> Columns:
    """What such headers say, as the columns they are about."""
    if columns.headers is None or not any(name in (KEY, EXPIRES) for one in columns.headers for name, _ in one):
        return columns
    keys: list[bytes | None] = []
    expires: list[int] = []
    headers: list[Headers] = []
    for one in columns.headers:
        key: bytes | None = None
        until = 0
        own: list[tuple[str, bytes]] = []
        for name, value in one:
            if name == KEY:
                key = value
            elif name == EXPIRES and value.isdigit() and len(value) <= _LONGEST:
                until = int(value)
            else:
                own.append((name, value))
        keys.append(key)
        expires.append(until)
        headers.append(tuple(own))
    return Columns(
        columns.packed,
        columns.ends,
        keys if any(key is not None for key in keys) else None,
        headers if any(headers) else None,
        expires if any(expires) else None,
    )


def put_in(columns: Columns) -> Sequence[Headers] | None:
    """The headers of each message with its key and its expiry among them; None where no message has any."""
    if columns.keys is None and columns.expires is None:
        return columns.headers
    found: list[Headers] = []
    for index in range(columns.count):
        headers = columns.headers_of(index)
        key = columns.key(index)
        if key is not None:
            headers = (*headers, (KEY, key))
        if columns.expires is not None and columns.expires[index]:
            headers = (*headers, (EXPIRES, str(columns.expires[index]).encode()))
        found.append(headers)
    return found
