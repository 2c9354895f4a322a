"""Sessions to talk to, and what a broker would answer them."""

from __future__ import annotations

from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.protocols.fujin.server.reader import PUSH_DELAY
from gateway.protocols.fujin.server.session import FujinServer
from gateway.protocols.fujin.settings import FujinSettings
from gateway.requests import Delivered, Subscribe, Subscribed, Taken
from gateway.settings import Dialect, Limits
from gateway.wire.session import SessionContext
from tests.protocols.script import Script, hexed

NOTHING = Taken(())
CONNECT_WRITER = hexed("01 00000000")
READER_OK = hexed("01 00")
GOODBYE = b"\x0a"


def fresh(
    dialect: Dialect = Dialect.AUTO, settings: FujinSettings | None = None, limits: Limits | None = None
) -> Script:
    """A connection with stream 0 open."""
    return Script(
        FujinServer(
            SessionContext(
                "fujin",
                settings if settings is not None else FujinSettings(),
                dialect=dialect,
                limits=limits if limits is not None else Limits(),
            )
        )
    )


def writer(dialect: Dialect = Dialect.AUTO, settings: FujinSettings | None = None) -> Script:
    """Stream 0 is a writer."""
    return fresh(dialect, settings).feed(CONNECT_WRITER).quiet()


def reader(*, push: bool, auto: bool, dialect: Dialect = Dialect.AUTO) -> Script:
    """Stream 0 is a reader of `sub`, subscription 2; a push reader is past its delay, and its first Take is out."""
    script = fresh(dialect)
    script.feed(bytes((2, 1 if push else 2, auto)) + hexed("00000003 737562"))
    script.answer(Subscribe, Subscribed(2, "sub")).sends(READER_OK)
    if push:
        script.pass_time(PUSH_DELAY)
    return script


def taken(*values: bytes, first_tag: int = 1) -> Taken:
    meta = BatchMeta(b"", Origin("test", "test"))
    run = Run("sub", 0, 0, Columns.of(values), [0] * len(values), [(0, 0, meta)])
    return Taken([Delivered(run, first_tag)])


def message_id(tag: int, subscription: int = 2) -> bytes:
    return subscription.to_bytes(8) + tag.to_bytes(8)


def sized(raw: bytes) -> bytes:
    return len(raw).to_bytes(4) + raw
