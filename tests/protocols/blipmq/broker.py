"""What a broker would answer, built for transcripts."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.envelope import BatchMeta, Columns, Delivery, Origin, Run
from gateway.protocols.blipmq.server.session import BlipmqServer
from gateway.protocols.blipmq.settings import BlipmqSettings
from gateway.requests import Authenticate, Delivered, Identity, Subscribe, Subscribed, Taken
from gateway.wire.session import SessionContext
from tests.protocols.blipmq import vectors
from tests.protocols.script import Script

NOTHING = Taken(())


def taken(
    *messages: tuple[bytes, Delivery],
    first_tag: int = 1,
    acknowledge: bool = True,
    settled: bool = False,
    address: str = "demo",
    topic: str = "the.topic.behind",
) -> Taken:
    """One run, a batch per change of delivery."""
    batches: list[tuple[int, int, BatchMeta]] = []
    for index, (_, delivery) in enumerate(messages):
        if not batches or batches[-1][2].delivery is not delivery:
            batches.append((index, 0, BatchMeta(b"", Origin("test", "test"), delivery=delivery)))
    columns = Columns.of([value for value, _ in messages])
    run = Run(topic, 0, 0, columns, [0] * len(messages), batches)
    return Taken([Delivered(run, first_tag, settled=settled)], address=address, acknowledge=acknowledge)


def qos1(*values: bytes) -> Sequence[tuple[bytes, Delivery]]:
    return [(value, Delivery.AT_LEAST_ONCE) for value in values]


def qos0(*values: bytes) -> Sequence[tuple[bytes, Delivery]]:
    return [(value, Delivery.AT_MOST_ONCE) for value in values]


def fresh(settings: BlipmqSettings | None = None) -> Script:
    """A connection that has said nothing yet."""
    context = SessionContext("blipmq", settings if settings is not None else BlipmqSettings(), auth_required=True)
    return Script(BlipmqServer(context))


def ready(settings: BlipmqSettings | None = None) -> Script:
    """A connection that is logged in."""
    script = fresh(settings)
    script.feed(vectors.HELLO + vectors.AUTH)
    script.answer(Authenticate, Identity(authenticated=True))
    return script.sends(vectors.HELLO_DONE + vectors.AUTH_DONE)


def subscribed(qos: int = 1) -> Script:
    """A connection with subscription 2 on `demo`."""
    script = ready()
    script.feed(vectors.SUBSCRIBE[:-1] + bytes((qos,)))
    return script.answer(Subscribe, Subscribed(2, "demo")).sends(vectors.SUBSCRIBED)
