"""Which of its two dialects a connection speaks, and what is said differently in them.

The document and the shipped clients disagree on a few payloads (FlyMQ wire 0.1). `document` is the document to the
byte, `stock` what the shipped clients read. `auto` starts with the document and turns to the other for good at the
first thing that only a shipped client sends: a SUBSCRIBE mode behind a u8 length, a filter behind a FETCH, operation
0x53, flags 0x00. Where one form pleases everyone it is used in `auto` whatever the signs (FlyMQ wire 2.3).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gateway.errors import Truncated, WireError
from gateway.protocols.flymq.wire.frames import Op, frame
from gateway.protocols.flymq.wire.layout import BOOL, I32, NAMES, STR, STR8, Layout, many
from gateway.settings import Dialect
from gateway.wire.reader import Reader
from gateway.wire.session import LISTENER, Spoken

DOCUMENT_MESSAGE = 127
"""The longest error text in the document's shape: one shipped client reads longer ones as broken UTF-8 (FlyMQ wire 2.3)."""
OTHER_MESSAGE = 60_000
"""The longest in the other shapes: what a u16 length can say, rounded down."""

FLAG = Layout(BOOL, STR)
FLAG_ONLY = Layout(BOOL)
AUTH_DOCUMENT = Layout(BOOL, STR, STR, NAMES)
AUTH_STOCK = Layout(BOOL, STR, many(STR8), STR)
IDENTITY = Layout(BOOL, STR, NAMES, NAMES)
ERROR_DOCUMENT = FLAG
ERROR_CODED = Layout(I32, STR)
NO_ROLES = b"\x00" * 8
"""Two empty arrays: every client reads them as no roles (FlyMQ wire 2.3)."""

UNFLAGGED = "a frame with flags 0x00"
NEWER = "a filter behind a FETCH, or operation 0x53"
NARROW = "a SUBSCRIBE mode behind a u8 length"


class Speech:
    """The dialect of one connection: set by the listener, moved by signs, never back."""

    __slots__ = ("_coded", "_unflagged", "dialect", "seen", "stock")

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.stock = dialect is Dialect.STOCK
        self.seen = ""
        """The first sign that the peer is a shipped client."""
        self._coded = False
        self._unflagged = False

    def sign(self, *, newer: bool = False, unflagged: bool = False) -> None:
        """The peer did what only a shipped client does; `newer` ones read errors with a code (FlyMQ wire 1), the one
        that sends no flags reads logins in a layout of its own (FlyMQ wire 3.3).
        """
        if self.dialect is not Dialect.DOCUMENT:
            self.stock = True
            if not self.seen:
                self.seen = UNFLAGGED if unflagged else NEWER if newer else NARROW
            # never back: a client does not change while it is connected, and a sign once given stays one
            self._coded = self._coded or newer
            self._unflagged = self._unflagged or unflagged

    @property
    def spoken(self) -> Spoken:
        if self.dialect is not Dialect.AUTO:
            return Spoken(self.dialect.value, LISTENER)
        return Spoken("stock", self.seen) if self.stock else Spoken("document", "no sign of another yet")

    def error(self, text: str) -> bytes:
        """An ERROR frame in the shape this peer reads (FlyMQ document, ERROR; FlyMQ wire 2.1)."""
        if not self.stock:
            return frame(Op.ERROR, ERROR_DOCUMENT.encode(False, shorten(text, DOCUMENT_MESSAGE)))
        if self._coded:
            return frame(Op.ERROR, ERROR_CODED.encode(1, shorten(text, OTHER_MESSAGE)))
        return frame(Op.ERROR, shorten(text, OTHER_MESSAGE).encode(), flags=0)

    def flag(self, op: Op, message: str = "") -> bytes:
        """`bool, str`, or the bool alone as the shipped server answers (FlyMQ document, CREATE_TOPIC; FlyMQ wire 2.3)."""
        return frame(op, FLAG_ONLY.encode(True) if self.stock else FLAG.encode(True, message))

    def logged_in(self, username: str, roles: Sequence[str]) -> bytes:
        if self._unflagged:
            payload = Layout(BOOL, STR).encode(True, username) + NO_ROLES
        elif self.stock:
            payload = AUTH_STOCK.encode(True, username, roles, "")
        elif self.dialect is Dialect.DOCUMENT:
            payload = AUTH_DOCUMENT.encode(True, "", username, roles)
        else:
            # which layout the peer reads is not known yet: this one every client takes for a login without roles
            payload = b"\x01" + b"\x00" * 10
        return frame(Op.AUTH_RESPONSE, payload)

    def not_logged_in(self, text: str) -> bytes:
        """A refused AUTH. The document's layout is read right by the shipped clients too, but for one (FlyMQ wire 2.3)."""
        if self._unflagged:
            return frame(Op.AUTH_RESPONSE, bytes(11))
        layout = (False, "", (), text) if self.stock else (False, text, "", ())
        return frame(Op.AUTH_RESPONSE, (AUTH_STOCK if self.stock else AUTH_DOCUMENT).encode(*layout))

    def identity(self, authenticated: bool, name: str, roles: Sequence[str], permissions: Sequence[str]) -> bytes:
        """WHOAMI. No form with roles is read by all shipped clients, so but for the document's dialect they stand
        behind two empty lists, where only those look who know (FlyMQ wire 2.3).
        """
        known = IDENTITY.encode(authenticated, name, roles, permissions)
        if self.dialect is Dialect.DOCUMENT:
            return frame(Op.WHOAMI, known)
        return frame(Op.WHOAMI, Layout(BOOL, STR).encode(authenticated, name) + NO_ROLES + known)


def shorten(text: str, limit: int) -> str:
    """Cut a text to so many bytes of UTF-8, never inside a character."""
    raw = text.encode()
    return text if len(raw) <= limit else raw[:limit].decode(errors="ignore")


def read_error(payload: bytes) -> str:
    """The text of an ERROR in any of its three shapes, which cannot be mistaken for each other (FlyMQ wire 2.3)."""
    size = len(payload)
    if size >= 6 and payload[:2] == b"\x00\x00" and int.from_bytes(payload[4:6], "big") == size - 6:
        return payload[6:].decode(errors="replace")
    if size >= 3 and payload[0] == 0 and int.from_bytes(payload[1:3], "big") == size - 3:
        return payload[3:].decode(errors="replace")
    return payload.decode(errors="replace")


def read_login(payload: bytes) -> tuple[bool, str, Sequence[str], str]:
    """(ok, user name, roles, error) of an AUTH_RESPONSE in any layout."""
    if (values := AUTH_STOCK.exact(payload)) is not None:
        if not values[0] and not values[3]:  # a refusal in the document's layout reads so too, its text first
            return False, "", (), values[1]
        return values[0], values[1], values[2], values[3]
    if (values := AUTH_DOCUMENT.exact(payload)) is not None:
        return values[0], values[2], values[3], values[1]
    if not payload:
        raise Truncated("buffer too small")
    return payload[0] != 0, "", (), ""


def read_identity(payload: bytes) -> tuple[bool, str, Sequence[str], Sequence[str]]:
    """(authenticated, name, roles, permissions) of a WHOAMI."""
    reader = Reader(payload)
    known = reader.u8() != 0, reader.text16()
    if payload[reader.position : reader.position + 8] == NO_ROLES:
        full = IDENTITY.exact(payload, reader.position + 8)
        return (full[0], full[1], full[2], full[3]) if full is not None else (*known, (), ())
    for layout, roles, permissions in ((IDENTITY, 2, 3), (AUTH_STOCK, 2, None)):
        if (values := layout.exact(payload)) is not None:
            return values[0], values[1], values[roles], values[permissions] if permissions is not None else ()
    return (*known, (), ())


def read_mode(rest: bytes, speech: Speech) -> str:
    """The mode of a SUBSCRIBE, whose length is a u16 in the document and a u8 in every shipped client.

    The two cannot be confused while the text is shorter than 256 bytes (FlyMQ wire 2.3); the u8 is a sign.
    """
    size = len(rest)
    if speech.dialect is not Dialect.DOCUMENT and size and rest[0] == size - 1:
        speech.sign()
        return _words(rest[1:])
    if size < 2:
        raise Truncated("buffer too small")
    length = int.from_bytes(rest[:2], "big")
    if length <= size - 2:
        return _words(rest[2 : 2 + length])
    if speech.dialect is not Dialect.DOCUMENT and rest[0] < size:
        speech.sign()
        return _words(rest[1 : 1 + rest[0]])
    raise Truncated("buffer too small")


def read_word(reader: Reader) -> str:
    """A mode or kind in either width, without meaning (RESET_OFFSET, schemas): the words are short and start with a
    letter, so a first byte of zero is the upper half of a u16.
    """
    wide = reader.left >= 2 and reader.data[reader.position] == 0
    return reader.text16() if wide else reader.text8()


def _words(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise WireError("invalid binary format") from None


def filter_suffix(rest: bytes) -> str | None:
    """The filter behind a FETCH of newer clients: there only if it fills the payload (FlyMQ wire 1)."""
    if len(rest) < 2 or struct.unpack_from(">H", rest)[0] != len(rest) - 2:
        return None
    return _words(rest[2:])
