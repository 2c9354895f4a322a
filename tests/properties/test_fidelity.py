"""What one protocol publishes another reads, with exactly the fields that the fidelity table promises.

Between them is a real process: its codecs, sessions, sockets and log. A Kafka elsewhere is a row as well: what a forward has sent
into it, and what an ingest has pulled from it. The table alone says what is expected, so that a changed row of it fails here.
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
from gateway.protocols.registry import Transport, carried, protocol, protocols, served
from gateway.requests import Fetch, Fetched, Publish, Published, Settle, Subscribe, Subscribed, Take, Taken
from gateway.routing.fidelity import Fate, Fidelity, Way, fidelity
from gateway.settings import Dialect
from gateway.transport.client import Connection, connect
from gateway.transport.tls import ClientTls
from gateway.wire.session import ClientContext, Credentials
from tests.integration.inside import stored
from tests.integration.running import Served, started
from tests.kafka.fixtures import KAFKA, Log
from tests.kafka.foreign import make
from tests.kafka.node import Kafka

pytestmark = pytest.mark.processes
CONFIG = """
version: 1
listeners:
  blipmq:  {{protocol: blipmq,  bind: "127.0.0.1:0", auth: {{api_keys: [dev-key]}}}}
  flymq:   {{protocol: flymq,   bind: "127.0.0.1:0"}}
  rustlog: {{protocol: rustlog, bind: "127.0.0.1:0"}}
  felix:   {{protocol: felix,   bind: "127.0.0.1:0", tls: self-signed}}
  fujin:   {{protocol: fujin,   bind: "127.0.0.1:0", tls: self-signed}}
storage: {storage}
"""
ELSEWHERE = """
upstreams:
  far: {{protocol: kafka, address: "{brokers}", ingest: [{pulled}]}}
routes:
  - name: sent
    match: {{topic: "*-to-kafka"}}
    to:
      - store: {{topic: "{{topic}}"}}
      - forward: {{upstream: far, address: "{sent}{{topic}}", accept_loss: all}}
  - {{name: rest, match: {{}}, to: [{{store: {{topic: "{{topic}}"}}}}]}}
"""
PULLED, SENT = "fidelity.pulled.", "fidelity.sent."
"""How topics begin that are a Kafka's elsewhere."""
CARRIES = carried(protocols())
HERE = list(carried(served()))
DIALECTS = {"fujin": Dialect.STOCK, "fujin 0.5": Dialect.SESSION, "fujin v1": Dialect.V1}
"""Which dialect a row is about, where there are several rows."""
Message = tuple[bytes, bytes | None, Headers]
PAIRS = list(itertools.product(HERE, repeat=2))
EACH_TWICE = list(zip(HERE, [*HERE[1:], HERE[0]], strict=True))
"""Every row writes and reads: what a log keeps does not depend on both."""
ELSEWHERES = [*itertools.product(HERE, [KAFKA]), *itertools.product([KAFKA], [*HERE, KAFKA])]
SOME: list[Message] = [
    (b"k", b"key", (("h", b"v"),)),
    (b"", None, ()),
    (b"\0\xff" * 500, b"\0\xff", (("h", b""), ("h", b"\0\xff"), ("other", b"2"))),
    (b"v", b"key", ()),
    (b"last", None, (("h", b"v"),)),
]
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
    served = Served(directory, CONFIG.format(storage=Log().storage(directory / "data", ", durability: memory")))
    served.start()
    try:
        yield served
    finally:
        assert served.end(signal.SIGTERM) == 0


@pytest.fixture(scope="module")
def kafka_ports(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, int]]:
    """Of one that has its log on a Kafka, which is the broker elsewhere, too."""
    directory = tmp_path_factory.mktemp("fidelity")
    pulled = [address_of(*pair) for pair in ELSEWHERES if pair[0] == KAFKA]
    sent = [address_of(*pair) for pair in ELSEWHERES if pair[1] == KAFKA]
    for topic in (*(PULLED + one for one in pulled), *(SENT + one for one in sent)):
        make(kafka, topic)
    ingests = ", ".join(f'{{from: "{PULLED}{one}", into: "{one}", group: fidelity}}' for one in pulled)
    config = CONFIG.format(storage=Log(kafka, "fidelity.log.").storage(directory / "data"))
    with started(directory, config + ELSEWHERE.format(brokers=kafka.brokers, pulled=ingests, sent=SENT)) as gateway:
        yield {**gateway.ports, KAFKA: int(kafka.brokers.rpartition(":")[2])}


def address_of(source: str, target: str) -> str:
    return f"{source}-to-{target}".translate(str.maketrans(" .", "--"))


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
    if name == KAFKA:  # the first is sent there when it is
        while not runs:
            fetched = await connection.request(Fetch(0, address, 0, 0, 1, 1 << 20))
            assert isinstance(fetched, Fetched)
            runs += fetched.runs
        assert [runs.pop().columns.values()] == [[b"before"]]
    while sum(run.count for run in runs) < count:
        if CARRIES[name].offset:
            offset = runs[-1].next_offset if runs else 1
            fetched = await connection.request(Fetch(0, address, 0, offset, count, 1 << 20))
            assert isinstance(fetched, Fetched)
            runs += fetched.runs
            continue
        wanted = count - sum(run.count for run in runs)
        taken = await connection.request(Take(0, subscription, wanted, hold_until=trio.current_time() + 5))
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


def by_key(messages: list[Message]) -> list[Message]:
    """Those of one key side by side."""
    return sorted(messages, key=lambda one: one[1] or b"")


async def cross(ports: Mapping[str, int], promised: Fidelity, sent: list[Message], address: str = "") -> None:
    """Publish there, read here, compare with the table."""
    source, target = promised.source, promised.target
    messages = [one for one in sent if len(one[0]) >= CARRIES[source].min_value]
    wanted = expected(promised, messages)
    address = address or f"pair-{next(NUMBERS)}-{address_of(source, target)}"
    there = PULLED + address if source == KAFKA else address
    here = SENT + address if target == KAFKA else address
    with trio.fail_after(PATIENCE):
        async with connected(target, ports) as reader, connected(source, ports) as writer:
            # so that an offset is the log's and not a count of what came
            await writer.request(Publish(0, Batch(there, Columns.of([b"before"]))))
            if source == KAFKA:
                await stored(ports["flymq"], address, bool)
            subscription = await begin(reader, target, here)
            keys = [key for _, key, _ in messages] if CARRIES[source].key else None
            headers = [pairs for *_, pairs in messages] if CARRIES[source].headers else None
            if messages:
                columns = Columns.of([value for value, *_ in messages], keys, headers)
                partition = 0 if CARRIES[source].partition else None
                reply = await writer.request(Publish(0, Batch(there, columns, partition=partition)))
                assert isinstance(reply, Published)
                assert not reply.refused
            runs = await read(reader, target, here, subscription, len(wanted)) if wanted else []
    found = [
        (run.columns.value(index), run.columns.key(index), run.columns.headers_of(index))
        for run in runs
        for index in range(run.count)
    ]
    got = [(value, key, tuple(pair for pair in headers if pair[0] != WHICH)) for value, key, headers in found]
    if promised.field("ordering").note.startswith("per key"):
        got, wanted = by_key(got), by_key(wanted)
    assert got == wanted, (source, target)
    told = promised.way is Way.FORWARD and promised.field("provenance").fate is Fate.MAPPED
    ids = [data for *_, headers in found for name, data in headers if name == WHICH]
    assert len(set(ids)) == len(ids) == told * len(wanted)
    if promised.field("offset").fate is Fate.MAPPED:
        offsets = [run.base_offset + index for run in runs for index in range(run.count)]
        if KAFKA in (source, target):  # what is pulled and what is sent is so by transactions, whose ends have offsets
            assert offsets == sorted(set(offsets))
            assert min(offsets) >= 1
        else:
            assert offsets == list(range(1, 1 + len(wanted)))


NUMBERS = itertools.count()
PATIENCE = 60
WHICH = "gateway.id"
"""The header that says which message of a log it is."""


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


@pytest.mark.parametrize(("source", "target"), EACH_TWICE)
def test_a_log_on_kafka_keeps_what_the_table_promises(kafka_ports: Mapping[str, int], source: str, target: str) -> None:
    trio.run(cross, kafka_ports, fidelity(source, target, CARRIES, Way.BRIDGE), SOME)


@pytest.mark.parametrize(("source", "target"), ELSEWHERES)
def test_a_kafka_elsewhere_keeps_what_the_table_promises(
    kafka_ports: Mapping[str, int], source: str, target: str
) -> None:
    way = Way.FORWARD if target == KAFKA else Way.BRIDGE
    trio.run(cross, kafka_ports, fidelity(source, target, CARRIES, way), SOME, address_of(source, target))


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
