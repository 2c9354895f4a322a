"""The bulk API and its client without an event loop: ranges out, appends in once, errors by their type."""

from __future__ import annotations

import base64
import http.client
import io
import json
import pickle  # noqa: TID251  # what Spark does to options
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import trustme

from gateway import model
from gateway.arrow.columns import record_batch
from gateway.arrow.schema import SCHEMA
from gateway.bulk import wire
from gateway.envelope import Columns, Run
from gateway.errors import (
    Conflict,
    CorruptChunk,
    Denied,
    GatewayError,
    InvalidRequest,
    OffsetOutOfRange,
    SchemaViolation,
    Status,
    TargetError,
    TooLarge,
    Unauthenticated,
    UnknownPartition,
    UnknownTopic,
)
from gateway.pipeline.endpoint import Endpoint, EndpointLog, EndpointWriter
from gateway.pipeline.source import open_log
from gateway.recorder import DoorCounts
from gateway.store.reader import LogReader
from tests.pipeline.served import Gateway, gateway
from tests.pipeline.stored import Log, filled
from tests.store.kit import START_MS


async def orders(log: Log) -> None:
    await log.create("orders.eu", partitions=2)
    for number in range(10):
        await log.append("orders.eu", [b"a%d" % number, b"b"], 0, [b"k", None], [(("h", b"1"),), ()], [0, START_MS])
        await log.append("orders.eu", [b"c%d" % number], 1)
        log.clock.ms += 1000


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Gateway]:
    filled(tmp_path / "store", orders)
    with gateway(tmp_path / "store") as running:
        yield running


def facts(run: Run) -> list[Any]:
    return list(run.envelopes())


def everything(runs: Iterator[Run]) -> list[Any]:
    return [one for run in runs for one in run.envelopes()]


def test_an_endpoint_reads_what_the_store_holds(served: Gateway, tmp_path: Path) -> None:
    with open_log(served.endpoint) as remote, LogReader(tmp_path / "store") as local:
        ours, theirs = remote.topics(), local.topics()
        assert ours.keys() == theirs.keys()
        assert ours["orders.eu"].epoch == theirs["orders.eu"].epoch
        assert ours["orders.eu"].config == theirs["orders.eu"].config
        for partition in (0, 1):
            assert remote.bounds("orders.eu", partition) == local.bounds("orders.eu", partition)
            for start, end in ((None, None), (3, 17), (0, 1), (5, 5), (19, 20)):
                expected = everything(local.read_chunks("orders.eu", partition, start, end))
                assert everything(remote.read_chunks("orders.eu", partition, start, end)) == expected
            for time in (0, START_MS + 4500, START_MS + 10**9):
                expected_offset = local.offset_for_time("orders.eu", partition, time)
                assert remote.offset_for_time("orders.eu", partition, time) == expected_offset


def test_what_cannot_be_read_is_said_by_its_type(served: Gateway) -> None:
    with EndpointLog(served.endpoint) as log:
        with pytest.raises(UnknownTopic, match="there is no topic nothing at http://127"):
            log.topic("nothing")
        with pytest.raises(UnknownTopic, match="there is no topic nothing"):
            list(log.read_chunks("nothing", 0, 0, 5))
        with pytest.raises(UnknownPartition, match="has partitions 0 to 1"):
            list(log.read_chunks("orders.eu", 2, 0, 5))
        with pytest.raises(UnknownTopic):
            log.offset_for_time("nothing", 0, 5)


def test_a_range_as_arrow(served: Gateway, tmp_path: Path) -> None:
    url = f"{served.url}{wire.LOG}?topic=orders.eu&partition=0&start=2&end=9"
    with urllib.request.urlopen(url) as answer:
        assert answer.headers["content-type"] == wire.ARROW
        table = pa.ipc.open_stream(io.BytesIO(answer.read())).read_all()
    with LogReader(tmp_path / "store") as local:
        expected = record_batch(list(local.read_chunks("orders.eu", 0, 2, 9)))
    assert table.schema == SCHEMA
    assert table.to_pylist() == pa.Table.from_batches([expected]).to_pylist()


def test_an_append_is_made_once_however_often_it_is_said(served: Gateway, tmp_path: Path) -> None:
    columns = Columns.of([b"a", b"b", b"c"], [b"k", None, b"l"], [(("h", b"1"),), (), ()], [0, START_MS * 2, 0])
    key: dict[str, Any] = {"producer": "job/3", "epoch": 1, "sequence": 0}
    with EndpointWriter(served.endpoint) as out:
        assert out.producer("job/3") == wire.Producer(-1, -1, 0)
        first = out.append("new", columns, **key)
        assert (first.stored, first.duplicate) == (3, False)
        assert first.places == [wire.Stretch("new", 0, 0, 3)]
        other = out.append("new", Columns.of([b"d"]), producer="job/4", epoch=0, sequence=0)
        assert other.places == [wire.Stretch("new", 0, 3, 1)]
        again = out.append("new", columns, **key)
        assert again == msgspec.structs.replace(first, duplicate=True)
        with pytest.raises(Conflict, match="appended something else as epoch 1, sequence 0"):
            out.append("new", Columns.of([b"a", b"b", b"x"]), **key)
        with pytest.raises(Conflict, match="appended something else"):
            out.append("other", columns, **key)
        spread = out.append("orders.eu", columns, producer="job/3", epoch=1, sequence=1)
        assert sorted(one.count for one in spread.places) == [1, 2] or len(spread.places) == 1
        assert out.producer("job/3").sequence == 1
    with gateway_again(served, tmp_path) as after, EndpointWriter(after.endpoint) as out:
        assert out.append("new", columns, **key) == msgspec.structs.replace(first, duplicate=True)
        assert out.append("orders.eu", columns, producer="job/3", epoch=1, sequence=1).places == spread.places
        assert out.producer("job/3").epoch == 1
        later = out.append("new", columns, producer="job/3", epoch=2, sequence=0)
        assert later.places == [wire.Stretch("new", 0, 4, 3)]
        with pytest.raises(Conflict, match="job/3 is in epoch 2: epoch 1 is over"):
            out.append("new", columns, **key)
        with EndpointLog(after.endpoint) as log:
            found = everything(log.read_chunks("new", 0))
    assert [one.value for one in found] == [b"a", b"b", b"c", b"d", b"a", b"b", b"c"]
    assert (found[0].key, found[0].headers, found[1].expires_ms) == (b"k", (("h", b"1"),), START_MS * 2)
    assert {(one.origin.protocol, one.origin.listener, one.route) for one in found} == {("bulk", "admin", "identity")}


def gateway_again(served: Gateway, tmp_path: Path) -> Any:
    """Another process would have to wait for the first to end; the fixture's own end does not mind."""
    served.end()
    return gateway(tmp_path / "store")


def test_earlier_epochs_and_old_producers_are_forgotten(served: Gateway) -> None:
    one = Columns.of([b"x"])
    with EndpointWriter(served.endpoint) as out:
        for epoch in range(3):
            for sequence in range(2):
                out.append("t", one, producer="p", epoch=epoch, sequence=sequence)
        out.append("t", one, producer="q", epoch=0, sequence=0)

    async def rows() -> list[int]:
        return [len(await served.store.scan(table, b"", 100)) for table in ("producers", "producer_appends")]

    assert served.inside(rows) == [2, 3]

    async def much_later() -> None:
        appends = served.bulk.appends
        now = appends._clock.now_ms()
        appends._clock = type("Later", (), {"now_ms": lambda _self: now + 8 * 24 * 3600 * 1000})()
        await appends.sweep()

    served.inside(much_later)
    assert served.inside(rows) == [0, 0]


def test_all_or_nothing(tmp_path: Path) -> None:
    schema = b'{"type": "object", "required": ["a"]}'
    settings = model.TopicSettings(schema="s")
    route = model.Route("strict", model.Match(), (model.StoreTarget("{topic}", settings),))
    with gateway(tmp_path / "store", routes=[route]) as served, EndpointWriter(served.endpoint) as out:

        async def register() -> None:
            from gateway.requests import RegisterSchema
            from tests.unit.broker.house import Client

            await Client(served.house).ask(RegisterSchema(0, "s", "json", schema))

        served.inside(register)
        with pytest.raises(SchemaViolation):
            out.append("t", Columns.of([b'{"a": 1}', b"{}"]), producer="p", epoch=0, sequence=0)
        assert served.inside(topics_of, served) == []
        done = out.append("t", Columns.of([b'{"a": 1}']), producer="p", epoch=0, sequence=0)
        assert done.places == [wire.Stretch("t", 0, 0, 1)]
        (door,) = served.inside(doors_of, served)
        assert (door.received, door.stored, door.unaccounted) == (3, 1, 0)


async def doors_of(served: Gateway) -> Sequence[DoorCounts]:
    return served.house.snapshot().doors


async def topics_of(served: Gateway) -> list[str]:
    return list(served.store.topics)


BODY = {"address": "t", "producer": "p", "values": ["YQ=="]}


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"address": ""}, InvalidRequest, "must not be empty"),
        ({"address": "__x"}, GatewayError, "__x"),
        ({"producer": ""}, InvalidRequest, "1 to 512 characters"),
        ({"producer": "a\0b"}, InvalidRequest, "NUL"),
        ({"epoch": -1}, InvalidRequest, "count from 0"),
        ({"epoch": "x"}, InvalidRequest, "cannot be read"),
        ({"keys": []}, InvalidRequest, "1 values and 0 keys"),
        ({"values": None, "packed": "AAAAAg==", "count": 1}, GatewayError, "cut off"),
        ({"values": None, "packed": "AAAAAA==", "count": 99}, GatewayError, "more messages are announced"),
        ({"values": ["YQ=="] * 25_001}, TooLarge, "at most 25000 values in a column: values has more"),
        ({"keys": [None] * 25_001}, TooLarge, "at most 25000 values in a column: keys has more"),
        ({"headers": [[]] * 25_001}, TooLarge, "at most 25000 values in a column: headers has more"),
        ({"values": None, "packed": base64.b64encode(bytes(100_004)).decode(), "count": 25_001}, TooLarge, "25000"),
        ({"protocol": "felix"}, InvalidRequest, "no listener felix; there are door"),
        ({"partition": 7}, UnknownPartition, ""),
        ({"partition": -1}, UnknownPartition, ""),
        ({"expires": [1 << 63]}, InvalidRequest, "milliseconds since the epoch"),
        ({"expires": [-1]}, InvalidRequest, "milliseconds since the epoch"),
    ],
)
def test_a_body_that_makes_no_sense(
    tmp_path: Path, change: dict[str, Any], kind: type[GatewayError], said: str
) -> None:
    with gateway(tmp_path / "store", protocols={"door": ["toy"]}) as served:
        status, error = post(served, {**BODY, **change})
        assert status >= 400
        assert isinstance(error, kind)
        assert said in error.message


def post(served: Gateway, body: dict[str, Any], kind: str = wire.JSON) -> tuple[int, GatewayError]:
    connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=30)
    connection.request("POST", wire.APPEND, json.dumps(body), {"Content-Type": kind})
    answer = connection.getresponse()
    problem = msgspec.json.decode(answer.read(), type=wire.Problem)
    connection.close()
    return answer.status, wire.error_of(problem)


def test_a_browsers_form_appends_nothing_and_too_much_is_not_received(served: Gateway) -> None:
    assert post(served, BODY, "text/plain")[1].message.startswith("the content type has to be application/msgpack")
    with EndpointWriter(served.endpoint) as out, pytest.raises(TooLarge, match="at most 25165824 bytes"):
        out.append("t", Columns.of([b"x" * (25 << 20)]), producer="p", epoch=0, sequence=0)
    too_much = msgspec.msgpack.encode({**BODY, "values": [b"x" * (25 << 20)]})
    request = urllib.request.Request(served.url + wire.APPEND, too_much, {"Content-Type": wire.MSGPACK})
    with pytest.raises(OSError):  # 413, or a connection that takes no more
        urllib.request.urlopen(request)


def test_every_status_has_a_number_and_errors_keep_what_they_carry() -> None:
    assert set(wire.HTTP) == set(Status)
    gone = wire.error_of(wire.problem_of(OffsetOutOfRange(first=7, next_offset=9)))
    assert isinstance(gone, OffsetOutOfRange)
    assert (gone.first, gone.next_offset) == (7, 9)
    corrupt = wire.error_of(wire.problem_of(CorruptChunk("t", 1, 5, 8)))
    assert str(corrupt) == str(CorruptChunk("t", 1, 5, 8))
    assert wire.error_of(wire.Problem(type="Unheard", status="throttled", message="m")).message == "m"


# --- who may ---


def test_a_token_opens_it_and_without_one_only_this_machine_may(tmp_path: Path) -> None:
    with gateway(tmp_path / "store", token="s3cret") as served:
        for token in ("", "wrong"):
            with (
                EndpointLog(Endpoint(served.url, token)) as log,
                pytest.raises(Unauthenticated, match=r"asks for a(nother| bearer) token"),
            ):
                log.topics()
        with EndpointLog(Endpoint.of(served.url, token="s3cret")) as log:
            assert log.topics() == {}
    with gateway(tmp_path / "store") as served, pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(served.url + wire.TOPICS, headers={"Host": "127.example.org"}))
    with (
        gateway(tmp_path / "store", host="0.0.0.0") as served,
        EndpointLog(served.endpoint) as log,
        pytest.raises(Denied, match=r"open to other machines: set admin.token"),
    ):
        log.topics()


def test_tls_by_ca_by_fingerprint_and_not_by_chance(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = authority.issue_cert("127.0.0.1")
    certificate.configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "token").write_text("s3cret\n")
    import hashlib

    der = ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())
    fingerprint = hashlib.sha256(der).hexdigest()
    with gateway(tmp_path / "store", token="s3cret", tls=context) as served:
        file = str(tmp_path / "token")
        for trust in ({"ca": str(tmp_path / "ca.pem")}, {"fingerprint": fingerprint}, {"insecure": True}):
            endpoint = Endpoint.of(served.url, token_file=file, **trust)
            endpoint = pickle.loads(pickle.dumps(endpoint))  # as it travels to an executor
            with EndpointWriter(endpoint) as out:
                assert out.append("t", Columns.of([b"x"]), producer="p", epoch=0, sequence=0).stored == 1
        for trust, said in (({}, "is not trusted"), ({"fingerprint": "00"}, f"the fingerprint {fingerprint}")):
            with (
                EndpointLog(Endpoint.of(served.url, token="s3cret", **trust)) as log,
                pytest.raises(TargetError, match=said),
            ):
                log.topics()
        assert "s3cret" not in repr(endpoint)
        plain = Endpoint(served.url.replace("https", "http"), patience=0.1)
        with EndpointLog(plain) as log, pytest.raises(TargetError, match="and http:// there"):
            log.topics()


@pytest.mark.parametrize(
    ("url", "more", "said"),
    [
        ("127.0.0.1:9600", {}, "like http://127.0.0.1:9600"),
        ("http://h:x", {}, "Port"),
        ("http://h:9600/v1", {}, "admin address"),
        ("http://h", {"insecure": True}, "has no TLS"),
        ("https://h", {"ca": "/nowhere/ca.pem"}, "/nowhere/ca.pem cannot be read"),
        ("https://h", {"token_file": "/nowhere/token"}, "token file /nowhere/token cannot be read"),
    ],
)
def test_an_endpoint_that_makes_no_sense(url: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Endpoint.of(url, **more)


def test_nobody_there(tmp_path: Path) -> None:
    with gateway(tmp_path / "store") as served:
        url = served.url
    said = r"nothing listens at http://127.* is the gateway running"
    with EndpointLog(Endpoint(url, patience=0.1)) as log, pytest.raises(TargetError, match=said):
        log.topics()


def test_an_executor_needs_no_event_loop_and_a_tool_no_arrow() -> None:
    without = "import sys; sys.modules.update(dict.fromkeys({!r})); import {}"
    for blocked, modules in (
        (["trio", "aioquic", "hypercorn", "starlette"], "gateway.pipeline.datasource, gateway.pipeline.sink"),
        (["trio", "pyarrow", "numpy", "pyspark", "pandas"], "gateway.pipeline.endpoint"),
        (["pyarrow", "numpy", "pyspark", "pandas"], "gateway.admin.log, gateway.cli.letters"),
    ):
        subprocess.check_call([sys.executable, "-c", without.format(blocked, modules)])


# --- damage and interruption ---


def test_a_damaged_chunk_is_named_after_what_is_good(tmp_path: Path) -> None:
    import sqlite3

    async def fill(log: Log) -> None:
        await log.create("t")
        for number in range(5):
            await log.append("t", [b"%d" % number] * 10)

    filled(tmp_path / "store", fill)
    database = sqlite3.connect(tmp_path / "store" / "log.sqlite")
    with database:
        ((row, data),) = database.execute("SELECT id, data FROM chunks ORDER BY id LIMIT 1 OFFSET 3")
        database.execute("UPDATE chunks SET data = ? WHERE id = ?", (data[:-1] + b"\0", row))
    database.close()
    with gateway(tmp_path / "store") as served, EndpointLog(served.endpoint) as log:
        found: list[int] = []
        with pytest.raises(CorruptChunk, match=r"topic=t partition=0 offsets=\[30, 40\)"):
            found.extend(
                offset for run in log.read_chunks("t", 0) for offset in range(run.base_offset, run.next_offset)
            )
        assert found == list(range(30))
        assert everything(log.read_chunks("t", 0, 40, 50))[0].offset == 40
        with pytest.raises(http.client.IncompleteRead):  # an Arrow stream cannot say it, so it has no end
            urllib.request.urlopen(f"{served.url}{wire.LOG}?topic=t&partition=0").read()


def test_chunks_go_out_as_they_lie_on_the_disk(tmp_path: Path) -> None:
    """Whole ones: damaged or not, since whoever takes them apart looks at their checksums. What has to be cut is looked at."""
    import sqlite3

    async def fill(log: Log) -> None:
        await log.create("t")
        for number in range(5):
            await log.append("t", [b"%d" % number] * 10)

    def frames(served: Any, start: int, end: int) -> list[tuple[int, bytes]]:
        url = f"{served.url}{wire.LOG}?topic=t&partition=0&start={start}&end={end}"
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": wire.CHUNKS})) as answer:
            body, found = answer.read(), []
        while body:
            size, kind = wire.FRAME.unpack_from(body)
            found.append((kind, body[wire.FRAME.size : wire.FRAME.size + size]))
            body = body[wire.FRAME.size + size :]
        return found

    filled(tmp_path / "store", fill)
    database = sqlite3.connect(tmp_path / "store" / "log.sqlite")
    with database:
        ((row, data),) = database.execute("SELECT id, data FROM chunks ORDER BY id LIMIT 1 OFFSET 3")
        database.execute("UPDATE chunks SET data = ? WHERE id = ?", (data[:-1] + b"\0", row))
        chunks = [data for (data,) in database.execute("SELECT data FROM chunks ORDER BY id")]
    database.close()
    with gateway(tmp_path / "store") as served:
        *sent, end = frames(served, 0, 50)
        places = [wire.PLACE.pack(base, 10) for base in range(0, 50, 10)]
        assert sent == [(wire.CHUNK_FRAME, place + chunk) for place, chunk in zip(places, chunks, strict=True)]
        assert end == (wire.END_FRAME, wire.NEXT.pack(50))
        # the damaged one is to be cut: what is before it goes out, and then what is wrong
        good, (kind, said) = frames(served, 20, 35)
        assert good == (wire.CHUNK_FRAME, places[2] + chunks[2])
        assert kind == wire.PROBLEM_FRAME
        assert b"CorruptChunk" in said


def test_a_reader_goes_on_after_the_gateway_was_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.observe.http.STALLED_MS", 200)  # the first reader takes nothing while it goes down

    async def fill(log: Log) -> None:
        await log.create("t")
        for number in range(60):
            await log.append("t", [b"%04d" % number + b"x" * 60_000] * 10)

    filled(tmp_path / "store", fill)
    with gateway(tmp_path / "store") as served:
        endpoint = Endpoint(served.url, patience=30.0)
        port = int(served.url.rsplit(":", 1)[1])
        log = EndpointLog(endpoint)
        runs = log.read_chunks("t", 0)
        found = [next(runs)]
    with gateway(tmp_path / "store", port=port):
        found += runs
    log.close()
    assert [offset for run in found for offset in range(run.base_offset, run.next_offset)] == list(range(600))
    assert [run.columns.value(0)[:4] for run in found] == [b"%04d" % (run.base_offset // 10) for run in found]
