"""What one protocol publishes another reads, with exactly the fields that the fidelity table promises.

Between them is a real process: its codecs, sessions, sockets and log. The table alone says what is expected, so that a
changed row of it fails here.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import AsyncIterator, Iterator, Mapping

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.envelope import Batch, Columns, Headers, Run
from gateway.protocols.registry import Transport, carried, protocol, served
from gateway.requests import Fetch, Fetched, Publish, Published, Settle, Subscribe, Subscribed, Take, Taken
from gateway.routing.fidelity import Fate, Fidelity, Way, fidelity
from gateway.settings import Dialect
from gateway.transport.client import Connection, connect
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext, Credentials
from tests.integration.running import Served

pytestmark = pytest.mark.processes
CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
storage: {{path: "{data}", durability: memory}}
"""
CARRIES = carried(served())
DIALECTS = {"fujin": Dialect.STOCK, "fujin 0.5": Dialect.SESSION, "fujin v1": Dialect.V1}
"""Which dialect a row is about, where there are several rows."""
Message = tuple[bytes, bytes | None, Headers]
PAIRS = list(itertools.product(CARRIES, repeat=2))
MESSAGES = st.lists(
    st.tuples(
        st.binary(min_size=0, max_size=40),
        st.none() | st.binary(min_size=1, max_size=8),
        st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), st.binary(max_size=4)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=5,
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for every pair and example; addresses tell them apart."""
    directory = tmp_path_factory.mktemp("fidelity")
    served = Served(directory, CONFIG.format(data=directory / "data"))
    served.start()
    try:
        yield served
    finally:
        assert served.end(signal.SIGTERM) == 0


@contextlib.asynccontextmanager
async def connected(name: str, ports: Mapping[str, int]) -> AsyncIterator[Connection]:
    """A client of a protocol, in the dialect of the row."""
    spec = protocol(name.split(maxsplit=1)[0])
    tls = ClientTls(insecure=True) if spec.transport is Transport.QUIC else None
    context = ClientContext(credentials=Credentials(api_key="dev-key"), dialect=DIALECTS.get(name, Dialect.AUTO))
    async with connect(spec, "127.0.0.1", ports[spec.name], context=context, tls=tls) as connection:
        yield connection


async def begin(connection: Connection, name: str, address: str) -> int:
    """A subscription, for protocols without offsets."""
    if CARRIES[name].offset:
        return 0
    wanted = Subscribe(0, address, name=address, acknowledge=CARRIES[name].consumer_acknowledges)
    reply = await connection.request(wanted)
    assert isinstance(reply, Subscribed)
    return reply.subscription


async def read(connection: Connection, name: str, address: str, subscription: int, count: int) -> list[Run]:
    """So many messages."""
    runs: list[Run] = []
    while sum(run.count for run in runs) < count:
        if CARRIES[name].offset:
            offset = runs[-1].next_offset if runs else 1
            fetched = await connection.request(Fetch(0, address, 0, offset, count, 1 << 20))
            assert isinstance(fetched, Fetched)
            runs += fetched.runs
            continue
        taken = await connection.request(Take(0, subscription, count, hold_until=trio.current_time() + 5))
        assert isinstance(taken, Taken)
        for delivered in taken.deliveries:
            runs.append(delivered.run)
            if CARRIES[name].consumer_acknowledges:
                tags = range(delivered.first_tag, delivered.first_tag + delivered.run.count)
                await connection.request(Settle(0, subscription, tags))
    return runs


def expected(promised: Fidelity, messages: list[Message]) -> list[Message]:
    """What the table says a reader gets."""
    keys = promised.field("key").fate is Fate.KEPT
    small = promised.field("size").fate is Fate.LOST
    assert promised.field("ordering").fate in (Fate.KEPT, Fate.MAPPED)
    headers = promised.field("headers").fate is Fate.KEPT
    least = CARRIES[promised.target].min_value if small else 0
    return [
        (value, key if keys else None, pairs if headers else ())
        for value, key, pairs in messages
        if len(value) >= least
    ]


async def cross(ports: Mapping[str, int], promised: Fidelity, sent: list[Message]) -> None:
    """Publish there, read here, compare with the table."""
    source, target = promised.source, promised.target
    messages = [one for one in sent if len(one[0]) >= CARRIES[source].min_value]
    wanted = expected(promised, messages)
    address = f"pair-{source}-{target}-{next(NUMBERS)}".replace(" ", "-")
    with trio.fail_after(20):
        async with connected(target, ports) as reader, connected(source, ports) as writer:
            # so that an offset is the log's and not a count of what came
            await writer.request(Publish(0, Batch(address, Columns.of([b"before"]))))
            subscription = await begin(reader, target, address)
            keys = [key for _, key, _ in messages] if CARRIES[source].key else None
            headers = [pairs for *_, pairs in messages] if CARRIES[source].headers else None
            if messages:
                columns = Columns.of([value for value, *_ in messages], keys, headers)
                partition = 0 if CARRIES[source].partition else None
                reply = await writer.request(Publish(0, Batch(address, columns, partition=partition)))
                assert isinstance(reply, Published)
                assert not reply.refused
            runs = await read(reader, target, address, subscription, len(wanted)) if wanted else []
    got = [
        (run.columns.value(index), run.columns.key(index), run.columns.headers_of(index))
        for run in runs
        for index in range(run.count)
    ]
    assert got == wanted, (source, target)
    if promised.field("offset").fate is Fate.MAPPED:
        assert [run.base_offset + index for run in runs for index in range(run.count)] == list(
            range(1, 1 + len(wanted))
        )


NUMBERS = itertools.count()


@pytest.mark.parametrize(("source", "target"), PAIRS)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES)
def test_a_pair_keeps_what_the_table_promises(
    gateway: Served, source: str, target: str, messages: list[Message]
) -> None:
    promised = fidelity(source, target, CARRIES, Way.BRIDGE)
    trio.run(cross, gateway.ports, promised, [(b"k", b"key", (("h", b"v"),)), *messages])


@pytest.mark.parametrize(
    ("source", "target", "field", "fate"),
    [
        ("flymq", "flymq", "key", Fate.LOST),
        ("flymq", "felix", "key", Fate.KEPT),
        ("flymq", "rustlog", "ordering", Fate.LOST),
        ("felix", "flymq", "headers", Fate.KEPT),
        ("fujin", "fujin", "offset", Fate.MAPPED),
        ("fujin 0.5", "fujin v1", "headers", Fate.LOST),
        ("fujin 0.5", "fujin", "key", Fate.KEPT),
    ],
)
def test_a_changed_row_of_the_table_is_noticed(
    gateway: Served, source: str, target: str, field: str, fate: Fate
) -> None:
    promised = fidelity(source, target, CARRIES, Way.BRIDGE)
    assert promised.field(field).fate is not fate
    rows = tuple(attrs.evolve(row, fate=fate) if row.name == field else row for row in promised.fields)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        trio.run(
            cross,
            gateway.ports,
            attrs.evolve(promised, fields=rows),
            [(b"k", None, (("h", b"v"),)), (b"v", b"key", ())],
        )


async def outlived(ports: Mapping[str, int], target: str) -> None:
    """A message whose time is over before anybody reads, and one that stays."""
    address = f"short-lived-{target}"
    with trio.fail_after(20):
        async with connected(target, ports) as reader, connected("flymq", ports) as writer:
            subscription = await begin(reader, target, address)
            for value, ttl in ((b"gone", 1), (b"stays", 0)):
                batch = Batch(address, Columns.of([value]))
                assert isinstance(await writer.request(Publish(0, batch, ttl_ms=ttl)), Published)
            runs: list[Run] = []
            while [run.base_offset for run in runs] != [1]:  # until a millisecond is over, however long that takes
                fetched = await writer.request(Fetch(0, address, 0, 0, 10, 1 << 20))
                assert isinstance(fetched, Fetched)
                runs = list(fetched.runs)
            (run,) = await read(reader, target, address, subscription, 1)
            assert run.columns.values() == [b"stays"]


@pytest.mark.parametrize("target", ["flymq", "rustlog", "blipmq"])
def test_what_expired_is_read_by_nobody(gateway: Served, target: str) -> None:
    """For the protocols whose readers ask; what is pushed is away before its time is over."""
    assert fidelity("flymq", target, CARRIES, Way.BRIDGE).field("expiry").fate is Fate.KEPT
    assert fidelity("flymq", target, CARRIES, Way.FORWARD).losses >= {"expiry"}  # no broker elsewhere is told
    trio.run(outlived, gateway.ports, target)
