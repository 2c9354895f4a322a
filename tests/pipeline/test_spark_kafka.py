"""A log on Kafka by Spark's own source for it, and by the data source in Python: the same rows, whoever wrote them."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from pyspark.errors import StreamingQueryException

from gateway.errors import InvalidRequest
from gateway.pipeline.datasource import PythonDataSource
from gateway.pipeline.frames import is_served, messages_at
from gateway.pipeline.options import TopicSelection
from gateway.store.interface import Put, Unit
from tests.integration.gateways import configured
from tests.integration.raw import CLIENTS
from tests.integration.running import Served
from tests.kafka import fixtures
from tests.kafka.foreign import make, produce_all
from tests.kafka.node import PASSWORD, USER, Kafka
from tests.kafka.test_log_reader import under_way
from tests.kafka.test_log_security import config, login, options
from tests.kafka.tokens import Issuer
from tests.pipeline.driver import micro_batches
from tests.pipeline.jars import SPARK_KAFKA
from tests.pipeline.patient import run_to_the_end
from tests.pipeline.test_kafka_log import store
from tests.pipeline.test_live import live, short
from tests.store.kit import append, create, publish

pytestmark = pytest.mark.skipif(
    not SPARK_KAFKA.is_dir(),
    reason="the jars of Spark's source for Kafka are not here: `make setup` fetches them by Maven",
)
__all__ = ["short"]  # a fixture
READERS = ("spark", "gateway")
PATIENCE = 300
SECRETS = PASSWORD, "PRIVATE KEY"
EACH = 2
ORIGIN = b'{"protocol":"felix","listener":"x","principal":"ann","delivery":0}'
FORGED = [
    [
        ("gw.id", b"x" * 20),
        ("gw.origin", ORIGIN),
        ("gw.expires", b"1700000000000"),
        ("own", "é".encode()),
        ("own", None),
    ],
    [("gw.id", b"x" * 20), ("gw.origin", ORIGIN), ("gw.run", b"40")],
    [("gw.id", b"x" * 20), ("gw.origin", ORIGIN), ("gw.expires", b"9" * 30)],
    [("gw.id", b"x" * 20), ("gw.origin", ORIGIN), ("gw.expires", b"9" * 16)],
    [("gw.id", b"x" * 20), ("gw.origin", ORIGIN), ("gw.run", b"-1")],
    [("gw.id", b"x" * 19), ("gw.origin", ORIGIN)],
    [("gw.id", b"x" * 20), ("gw.origin", None)],
    [("gw.origin", ORIGIN), ("gw.id", b"x" * 20)],
    *(
        [("gw.id", b"x" * 20), ("gw.origin", origin)]
        for origin in (
            b'{"protocol":"a"}',
            b'{"protocol":"a","listener":null}',
            b'{"protocol":"a","listener":"b"} more',
            b'{"protocol":"a","listener":"b","delivery":7}',
            b'{"protocol":"a","listener":"b","delivery":"1"}',
            b'{"protocol":"a","listener":"b","via":[1]}',
            b'{"protocol":"\\ud800","listener":"b"}',
            b'{"protocol":"a\xff","listener":"b"}',
            b"[]",
            b"",
            b'{"protocol":"a","protocol":"c","listener":"b","via":["x"],"route":"r","further":{}}',
        )
    ),
    [("plain", b"1"), ("plain", None), ("größe", b"\0\xff")],
    [],
]
"""Headers that others write: what nearly is a gateway's, and what is not meant to be."""


@attrs.frozen
class Log:
    """One that all five protocols and others have written to."""

    kafka: Kafka
    prefix: str

    def options(self, reader: str, **others: str) -> dict[str, str]:
        return {"kafka": self.kafka.brokers, "kafkaPrefix": self.prefix, "kafkaReader": reader, **others}

    def load(self, spark: Any, reader: str, schema: str = "", **others: str) -> Any:
        read = spark.read.format("gateway").options(**self.options(reader, **others))
        return read.schema(schema).load() if schema else read.load()

    def rows(self, spark: Any, reader: str, **others: str) -> list[Any]:
        return ordered(self.load(spark, reader, **others))


async def written(kafka: Kafka, prefix: str, directory: Path) -> None:
    served = Served(directory, configured(fixtures.Log(kafka, prefix), directory / "data"))
    await trio.to_thread.run_sync(served.start)
    try:
        for name, number in itertools.product(CLIENTS, range(EACH)):
            client = CLIENTS[name]()
            async with client.connect(served.ports[name]) as wire:
                await client.publish(wire, f"by.{name}{number}", name.encode())
    finally:
        await trio.to_thread.run_sync(served.end, signal.SIGTERM)
    async with store(kafka, prefix) as opened:
        await create(opened, "orders", partitions=2)
        await create(opened, "acme/büro_x41", partitions=1)
        await publish(opened, "orders", *(b"long %d" % number for number in range(700)), partition=0)
        for number in range(5):  # each a transaction, whose end takes an offset
            both = [append("orders", b"both %d" % number, partition=part) for part in (0, 1)]
            await opened.submit(Unit(both, [Put("rows", b"%d" % number, b"")])).wait()
        await publish(opened, "acme/büro_x41", b"", partition=0)
    await trio.to_thread.run_sync(foreign, kafka, prefix)


def foreign(kafka: Kafka, prefix: str) -> None:
    from confluent_kafka import Producer

    for number, ends in enumerate((Producer.abort_transaction, Producer.commit_transaction)):
        producer = Producer({"bootstrap.servers": kafka.brokers, "transactional.id": f"{prefix}{number}"})
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(f"{prefix}orders", b"of a transaction", b"key", partition=1)
        producer.flush()
        ends(producer)
    producer = Producer({"bootstrap.servers": kafka.brokers, "enable.idempotence": True})
    for headers in FORGED:
        producer.produce(f"{prefix}orders", b"forged", b"", partition=1, headers=headers)
    producer.produce(f"{prefix}orders", None, b"gone", partition=1, headers=[("why", b"deleted")])
    producer.produce(f"{prefix}orders", None, b"gone", partition=1)
    producer.produce(f"{prefix}orders", b"", None, partition=1, timestamp=1_000)
    assert producer.flush(PATIENCE) == 0


@pytest.fixture(scope="module")
def log(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Log:
    trio.run(written, kafka, "spark.kafka.", tmp_path_factory.mktemp("served"))
    return Log(kafka, "spark.kafka.")


@pytest.fixture(scope="module")
def ours(spark: Any, log: Log) -> Any:
    """All of it, as the data source in Python reads it: once, for to plan a read is dear there."""
    return log.load(spark, "gateway").localCheckpoint()


def ordered(frame: Any) -> list[Any]:
    found: list[Any] = frame.orderBy("topic", "partition", "offset").collect()
    return found


def plan(frame: Any) -> str:
    return str(frame._jdf.queryExecution().toString())


def test_both_give_the_same_rows(spark: Any, log: Log, ours: Any) -> None:
    there, found = ordered(ours), ordered(log.load(spark, "spark"))
    assert len(there) == 5 * EACH + 700 + 10 + 1 + 3 + len(FORGED) + 3
    assert found == there
    assert {row.protocol for row in found} >= set(CLIENTS) | {"kafka", "felix", "c"}
    assert {row.topic for row in found if not row.topic.startswith("by.")} == {"orders", "acme/büro_x41"}
    assert [row.headers for row in found if row.key == b"gone"] == [
        [("why", b"deleted"), ("gw.absent", b"value")],
        [("gw.absent", b"value")],
    ]
    assert sum(row.expires is not None for row in found) == 1
    assert log.load(spark, "auto").count() == len(found)


def test_the_plan_says_which_it_is(spark: Any, log: Log) -> None:
    assert "kafka://" in plan(log.load(spark, "spark"))
    assert "by Spark's own source for Kafka" in plan(log.load(spark, "auto"))
    assert "gateway-python" in plan(log.load(spark, "gateway"))
    # what it cannot be told, the other one reads
    settings = {"kafkaSettings": json.dumps({"queued.max.messages.kbytes": "1024"})}
    with logging(spark) as logged:
        assert "gateway-python" in plan(log.load(spark, "auto", **settings))
        assert "by the data source in Python: kafkaSettings has queued.max.messages.kbytes" in logged()
    for wrong, said in (
        ({"queued.max.messages.kbytes": "1024"}, "kafkaReader: kafkaSettings has queued.max.messages.kbytes"),
        ({"ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----"}, "Java's client takes a key in PKCS#8 alone"),
        ({"enable.ssl.certificate.verification": "false"}, "cannot do without a look at certificates"),
        ({"ssl.key.pem": "-----BEGIN PRIVATE KEY-----"}, "a key is there, and no certificate of it"),
        ({"ssl.ca.location": "/nowhere"}, "ssl.ca.location is no file that can be read as text"),
        ({"ssl.ca.location": "\0"}, "ssl.ca.location is no file that can be read as text"),
        ({"socket.timeout.ms": "soon"}, "socket.timeout.ms is no number of milliseconds"),
        ({"sasl.mechanism": "GSSAPI"}, "the mechanism is GSSAPI"),
        ({"sasl.mechanisms": "OAUTHBEARER"}, "the mechanism is OAUTHBEARER, and not by oidc"),
        ([], "kafkaSettings: JSON like"),
        ({"client.id": 1}, "kafkaSettings: JSON like"),
    ):
        with pytest.raises(Exception, match=re.escape(said)):
            log.load(spark, "spark", kafkaSettings=json.dumps(wrong))
    with pytest.raises(Exception, match="kafkaReader: auto, spark or gateway, not 'both'"):
        log.load(spark, "both")
    with pytest.raises(InvalidRequest, match="this is the one in Python"):
        PythonDataSource(log.options("spark")).schema()


CONDITIONS = [
    "topic like 'by.%' and partition = 0",
    "partition = 1 and offset between 2 and 20",
    "timestamp < timestamp '1970-01-02'",
    "timestamp >= timestamp '2020-01-01' and offset > 3",
    "protocol = 'felix' and expires is null",
    "size(headers) > 1 or key is null",
    "timestamp in (timestamp '1970-01-01 00:00:01', timestamp '1970-01-01 00:00:02') and value is not null",
]
CHOICES: list[tuple[dict[str, str], str]] = [
    ({"subscribe": "orders"}, "topic = 'orders'"),
    ({"subscribePattern": r"by\.f.*"}, "topic like 'by.f%'"),
    ({"assign": '{"orders": [1]}'}, "topic = 'orders' and partition = 1"),
    (
        {"topics": "orders", "startingOffsets": '{"orders": {"0": 5, "1": -1}}'},
        "topic = 'orders' and partition = 0 and offset >= 5",
    ),
    (
        {"topics": "orders", "endingOffsets": '{"orders": {"0": 5}}', "minPartitions": "4"},
        "topic = 'orders' and (partition = 1 or offset < 5)",
    ),
    # where a time was first reached: what is older and lies behind is among it
    ({"topics": "orders", "startingTimestamp": "2001-01-01", "maxRecordsPerPartition": "100"}, "topic = 'orders'"),
    (
        {"topics": "orders", "startingOffsetsByTimestamp": '{"orders": {"1": 4102444800000}}'},
        "topic = 'orders' and partition = 0",
    ),
    ({"topics": "none.*"}, "false"),
]


def test_options_and_conditions_leave_what_they_say(spark: Any, log: Log, ours: Any) -> None:
    """Of all the rows, as the data source in Python has read them."""
    for condition in CONDITIONS:
        assert ordered(log.load(spark, "spark").where(condition)) == ordered(ours.where(condition)), condition
    for chosen, condition in CHOICES:
        assert ordered(log.load(spark, "spark", **chosen)) == ordered(ours.where(condition)), chosen
    columns = "offset bigint, headers array<struct<name: string>>, topic string, id binary, partition int"
    narrow = "offset", "headers.name", "topic", "id", "partition"
    found = log.load(spark, "spark", columns.replace("<name: string>", "<name: string, value: binary>")).selectExpr(
        *narrow
    )
    assert ordered(found) == ordered(ours.selectExpr(*narrow))
    # of what a gateway has said nothing is asked: what is passed over is the same
    bare = "value", "topic", "partition", "offset"
    assert ordered(log.load(spark, "spark").select(*bare)) == ordered(ours.select(*bare))
    assert "headers" not in log.load(spark, "spark", includeHeaders="false").columns
    assert len(log.load(spark, "spark", "value binary").limit(3).collect()) == 3
    assert log.load(spark, "spark", topics="orders", minPartitions="8").rdd.getNumPartitions() >= 8
    for wrong, said in (
        ({"topics": "nothing"}, "there is no topic nothing in kafka://"),
        ({"assign": '{"orders": [7]}'}, "assign: orders has partitions 0 to 1, not 7"),
        ({"startingOffsets": '{"orders": {"0": 9999}}'}, r"orders/0 ends at \d+, before 9999"),
        ({"path": "x"}, "path and kafka exclude each other"),
        ({"history": "x"}, "read together by the data source in Python"),
    ):
        with pytest.raises(Exception, match=said):
            log.rows(spark, "spark", **wrong)


STREAMED = ["topic", "partition", "offset", "value", "route"]


def collected(spark: Any, log: Log, reader: str, place: Path, **others: str) -> list[tuple[Any, ...]]:
    """All that a stream has found, over its runs."""
    frame = spark.readStream.format("gateway").options(**log.options(reader, **others)).load()
    found = frame.select(*STREAMED).writeStream.format("parquet")
    found = found.option("checkpointLocation", str(place / "checkpoint")).option("path", str(place / "out"))
    run_to_the_end(lambda: found.trigger(availableNow=True).start())
    return sorted(tuple(row) for row in spark.read.parquet(str(place / "out")).collect())


def test_a_stream_goes_on_by_either(spark: Any, log: Log, tmp_path: Path) -> None:
    """What one has written down the other goes on from; each record is in one micro-batch, over gaps and restarts."""
    others = {"topics": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "300"}
    for readers in (READERS, READERS[::-1]):
        counts = []
        for reader in readers:
            found = collected(spark, log, reader, tmp_path / readers[0], **others)
            batch = log.load(spark, "spark", topics="orders").select(*STREAMED).collect()
            assert found == sorted(tuple(row) for row in batch)
            counts.append(len(found))
            foreign(log.kafka, log.prefix)
        assert counts[1] == counts[0] + 3 + len(FORGED) + 3


def test_a_stream_whose_driver_is_killed_goes_on(spark: Any, log: Log, tmp_path: Path) -> None:
    """What was written of the micro-batch that was under way is written again, and the same."""
    given = log.options("spark", topics="orders", startingOffsets="earliest", maxOffsetsPerTrigger="300")
    command = [sys.executable, "-m", "tests.pipeline.driver", "kafka", str(tmp_path), json.dumps(given), "1"]
    with subprocess.Popen(command, start_new_session=True) as running:
        assert running.wait(PATIENCE) == -signal.SIGKILL
    begun = spark.read.parquet(f"{tmp_path}/batch=1").select(*STREAMED).collect()
    assert begun
    foreign(log.kafka, log.prefix)
    run_to_the_end(lambda: micro_batches(spark, tmp_path, given))
    assert sorted(begun) == sorted(spark.read.parquet(f"{tmp_path}/batch=1").select(*STREAMED).collect())
    found = spark.read.parquet(str(tmp_path / "batch=*")).select(*STREAMED).collect()
    assert sorted(found) == sorted(log.load(spark, "spark", topics="orders").select(*STREAMED).collect())


@pytest.mark.parametrize("where", ["kafka", "endpoint"])
def test_a_query_that_is_stopped_while_it_asks_has_not_failed(spark: Any, tmp_path: Path, where: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        given = {"kafka": address, "kafkaReader": "spark"} if where == "kafka" else {"endpoint": f"http://{address}"}
        frame = spark.readStream.format("gateway").options(**given).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        asked, _ = server.accept()
        if where == "endpoint":  # who hangs in an answer is not to be woken; who waits before he asks again is
            asked.close()
            server.accept()[0].close()
    query.stop()
    asked.close()
    assert query.exception() is None


def test_real_time_mode_is_for_other_logs(short: Any, log: Log, tmp_path: Path) -> None:
    query = live(short, tmp_path, **log.options("spark"))
    with pytest.raises(StreamingQueryException, match="real-time mode is for a store or an endpoint"):
        query.awaitTermination(PATIENCE)


def test_what_kafka_has_removed_is_an_error_or_passed_over(spark: Any, log: Log, kafka: Kafka, topics: str) -> None:
    from confluent_kafka import TopicPartition

    mine = Log(kafka, topics)

    async def fill() -> None:
        async with store(kafka, topics) as opened:
            await create(opened, "orders")
            await publish(opened, "orders", *(b"%d" % number for number in range(10)))

    trio.run(fill)
    (gone,) = kafka.admin.delete_records([TopicPartition(f"{topics}orders", 0, 4)]).values()
    gone.result()
    assert [row.offset for row in mine.rows(spark, "spark")] == [4, 5, 6, 7, 8, 9]
    begins = {"startingOffsets": '{"orders": {"0": 2}}'}
    with pytest.raises(Exception, match=r"orders: the log does not hold all that was to be read.*failOnDataLoss=false"):
        mine.rows(spark, "spark", **begins)
    assert [row.offset for row in mine.rows(spark, "spark", failOnDataLoss="false", **begins)] == [4, 5, 6, 7, 8, 9]


def test_what_is_under_way_is_waited_for(spark: Any, kafka: Kafka, topics: str) -> None:
    """Kafka answers a commit before its partitions hear of it."""
    producer = under_way(kafka, topics + "orders")
    found: list[bytes] = []

    def read() -> None:
        found.extend(row.value for row in Log(kafka, topics).rows(spark, "spark"))

    reading = threading.Thread(target=read)
    reading.start()
    while reading.is_alive():
        stacks = spark._jvm.java.util.ArrayList(spark._jvm.java.lang.Thread.getAllStackTraces().values()).toArray()
        if "gateway.spark.KafkaLog.ends" in spark._jvm.java.util.Arrays.deepToString(stacks):
            break
    producer.commit_transaction(PATIENCE)
    reading.join(PATIENCE)
    assert found == [b"in it", b"behind it"]


def test_a_topic_that_is_gone_takes_no_other_along(spark: Any, kafka: Kafka, topics: str) -> None:
    """It is deleted between planning and reading, and its loss is passed over."""
    for name in ("goes", "stays"):
        make(kafka, topics + name)
        produce_all(kafka, topics + name, [name.encode()])
    rows = Log(kafka, topics).load(spark, "spark", failOnDataLoss="false").rdd
    assert rows.getNumPartitions() == 2
    (gone,) = kafka.admin.delete_topics([f"{topics}goes"], operation_timeout=PATIENCE).values()
    gone.result()
    assert [row.value for row in rows.collect()] == [b"stays"]


def logged_in(kafka: Kafka, log: Log, how: str, token_url: str = "") -> dict[str, str]:
    """The options of somebody who logs in, with librdkafka's settings for that."""
    listener, more = login(kafka, how, token_url)
    asked = options(config(kafka, listener, log.prefix, more))
    settings = json.dumps({name: str(value) for name, value in asked.security.items()})
    return {
        "kafka": ",".join(asked.brokers),
        "kafkaPrefix": log.prefix,
        "kafkaSettings": settings,
        "topics": "by.flymq*",
    }


@contextmanager
def logging(spark: Any) -> Iterator[Callable[[], str]]:
    """What Spark's Java logs meanwhile."""
    log4j, writer = spark._jvm.org.apache.logging.log4j, spark._jvm.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    appender = log4j.core.appender.WriterAppender.createAppender(layout, None, writer, "test", False, True)
    appender.start()
    root = log4j.LogManager.getRootLogger()
    root.addAppender(appender)
    spark.sparkContext.setLogLevel("INFO")
    try:
        yield writer.toString
    finally:
        spark.sparkContext.setLogLevel("OFF")
        root.removeAppender(appender)


@pytest.mark.parametrize("how", ["mtls", "plain", "scram-sha-512", "oauthbearer"])
@pytest.mark.parametrize("reader", ["auto", "spark", "gateway"])
def test_it_is_let_in_and_says_no_secret(spark: Any, log: Log, kafka: Kafka, how: str, reader: str) -> None:
    with kafka.issuer.endpoint() as tokens, logging(spark) as logged:
        given = logged_in(kafka, log, how, tokens)
        frame = spark.read.format("gateway").options(**given, kafkaReader=reader).load()
        assert [row.value for row in frame.collect()] == [b"flymq"] * EACH
        assert not any(secret in plan(frame) for secret in SECRETS)
        printed = logged()
    assert (f"the log on Kafka {given['kafka']} is read by Spark's own source for Kafka" in printed) == (
        reader != "gateway"
    )
    assert ("ConsumerConfig values" in printed) == (reader != "gateway")
    assert not any(secret in printed for secret in SECRETS)


def test_who_is_not_let_in_hears_why(spark: Any, log: Log, kafka: Kafka) -> None:
    def refused(given: dict[str, str], why: str) -> str:
        with pytest.raises(Exception, match=why) as raised:
            spark.read.format("gateway").options(**given, kafkaReader="spark").load().collect()
        return str(raised.value)

    for other in ("no-such-secret", "no\\nsuch-secret"):
        given = logged_in(kafka, log, "plain")
        given["kafkaSettings"] = given["kafkaSettings"].replace(PASSWORD, other)
        assert "such-secret" not in refused(given, "the brokers do not let us in: Authentication failed")
    with kafka.issuer.endpoint() as tokens:
        given = logged_in(kafka, log, "oauthbearer", tokens)
        given["kafkaSettings"] = given["kafkaSettings"].replace(PASSWORD, "no-such-secret")
        said = refused(given, "kafka: The response code 401 ")
        assert "no-such-secret" not in said
        assert "\tat " not in said
    with Issuer(USER, PASSWORD).endpoint() as tokens:
        refused(logged_in(kafka, log, "oauthbearer", tokens), "the brokers do not let us in: .*invalid_token")
    with kafka.issuer.endpoint("a-token-for-others") as tokens:
        said = refused(logged_in(kafka, log, "oauthbearer", tokens), "takes a token that is a signed JWT, and no other")
        assert "a-token-for-others" not in said


def test_jobs_take_it_as_a_place(spark: Any, log: Log) -> None:
    place = f"kafka://{log.kafka.brokers}/{log.prefix}"
    assert is_served(place)
    messages = messages_at(place)
    assert messages.stores() == [place]
    spans = messages.spans(TopicSelection(("by.*",)))
    assert [span.topic for span in spans] == sorted(f"by.{name}{number}" for name in CLIENTS for number in range(EACH))
    rows: Callable[[], Any] = messages.frame(spark, spans, ["topic", "offset", "value"]).collect
    assert len(rows()) == 5 * EACH
    with pytest.raises(InvalidRequest):
        messages_at("kafka://nowhere")
