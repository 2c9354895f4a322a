"""Stored messages are sent again, by real Spark into a real second gateway, and compared with it message by message."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.cli.connection import Dialling
from gateway.cli.pipeline_replay import target_at
from gateway.envelope import Columns
from gateway.errors import Conflict, GatewayError, InvalidRequest, NotAStore, TargetError, UnknownTopic
from gateway.pipeline.archive import archive
from gateway.pipeline.frames import messages_at
from gateway.pipeline.progress import Wanted
from gateway.pipeline.replay import dry_run, replay, same_gateway
from gateway.settings import Dialect
from gateway.store.reader import LogReader
from gateway.store.serving import served_at
from gateway.wire.session import Credentials
from tests.integration.running import Served
from tests.pipeline.stored import Log, filled
from tests.store.kit import START_MS

pytestmark = pytest.mark.spark

CONFIG = """
version: 1
listeners: {{flymq: {{protocol: flymq, bind: "127.0.0.1:0"}}}}
admin: {{bind: "127.0.0.1:0"}}
storage: {{path: "{}/data"}}
routes: [{{name: all, match: {{}}, to: [{{store: {{topic: "{{topic}}", partitions: 2}}}}]}}]
"""
PLAIN = Dialling(Credentials(), False, "", "", False, "", Dialect.AUTO, 30.0)


async def orders(log: Log) -> None:
    await log.create("orders.eu", partitions=2)
    await log.create("orders.us")
    await log.create("other")
    for number in range(20):
        keys = [b"k%d" % (number % 3), None, b""]
        for partition in (0, 1):
            # a key is always in one partition, as it is when a producer gives it
            own = [None if key is None else b"%d-" % partition + key for key in keys]
            values = [b"%d.%d.%d" % (partition, number, index) for index in range(3)]
            await log.append("orders.eu", values, partition, own, [(("h", b"\0\1"), ("h", b"2")), (), (("é", b""),)])
        await log.append("orders.us", [b"us%d" % number], keys=[b"k"])
        log.clock.ms += 1000
    await log.append("orders.us", [b"", b"gone"], expires=[0, START_MS])
    await log.append("other", [b"x"])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    filled(tmp_path / "store", orders)
    return tmp_path / "store"


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("second")
    served = Served(directory, CONFIG.format(directory))
    served.start()
    yield served
    assert served.end(15) == 0


Message = tuple[bytes | None, tuple[tuple[str, bytes], ...], bytes]


def stored(path: Path, topic: str) -> list[list[Message]]:
    """(key, headers, value) of each partition in its order."""
    with LogReader(path) as reader:
        return [
            [
                (run.columns.key(index), run.columns.headers_of(index), run.columns.value(index))
                for run in reader.read_chunks(topic, partition.number)
                for index in range(run.count)
            ]
            for partition in reader.topic(topic).partitions
        ]


def by_key(partitions: Sequence[Sequence[Message]]) -> Mapping[bytes | None, list[Message]]:
    """The messages of each key in their order; a key is in one partition only."""
    found: dict[bytes | None, list[Message]] = {}
    where: dict[bytes, int] = {}
    for number, messages in enumerate(partitions):
        for message in messages:
            found.setdefault(message[0], []).append(message)
            if message[0] is not None:
                assert where.setdefault(message[0], number) == number
    found[None] = sorted(found.get(None, []))  # without a key only what there is counts, not its order
    return found


def wanted(source: Path, served: Served, template: str, **more: Any) -> Wanted:
    return Wanted(str(source), f"http://127.0.0.1:{served.ports['admin']}/{template}", **more)


def replayed(spark: Any, wants: Wanted, deaths: Sequence[tuple[int, float]], *accept_loss: str) -> tuple[Any, Any]:
    """By processes that are killed and one that is not: how they ended, and what the last one did."""
    java = spark.sparkContext._gateway.gateway_parameters
    job = {
        "port": java.port,
        "secret": java.auth_token,
        "wanted": attrs.asdict(wants),
        "messages": 30,
        "deaths": deaths,
        "accept_loss": accept_loss,
    }
    out = subprocess.check_output([sys.executable, "-m", "tests.pipeline.replaying", json.dumps(job)], timeout=300)
    codes, done = map(json.loads, out.splitlines())
    return codes, done


def test_message_by_message_however_often_it_is_killed(spark: Any, store: Path, second: Served, tmp_path: Path) -> None:
    source = tmp_path / "archive"
    archive(str(store), source, records_per_file=16)
    wants = wanted(source, second, "again.{topic}", topics="orders.*")
    dice = random.Random(6)
    # before a step is written down, before it is sent, before its answer is seen, before that is written down
    deaths = [(at, 0.0) for at in (1, 2, 3)]
    deaths += [(dice.randrange(4), dice.uniform(0.0001, 0.02)) for _ in range(2)]
    codes, done = replayed(spark, wants, deaths)
    assert codes == [-signal.SIGKILL] * len(deaths)
    assert done["finished"]
    assert done["resumed"]
    assert done["sent"] == 141
    for topic in ("orders.eu", "orders.us"):
        expected, found = by_key(stored(store, topic)), by_key(stored(second.data, f"again.{topic}"))
        if topic == "orders.us":
            expected = {**expected, None: [(None, (), b"")]}  # not what had expired
        assert found == expected
    assert not list(tmp_path.glob(".archive.replay-*"))


def test_time_topic_and_predicate(spark: Any, store: Path, second: Served, capfd: pytest.CaptureFixture[str]) -> None:
    wants = wanted(
        store,
        second,
        "part",
        topics="orders.eu",
        from_ms=START_MS + 5000,
        before_ms=START_MS + 7000,
        where="partition = 0 and cast(key as string) like '0-k%'",
    )
    found = dry_run(spark, messages_at(wants.source), wants)
    assert (found.topics, found.messages, found.keys, found.headers) == ({"orders.eu": 2}, 2, 2, 2)
    assert (found.first_ms, found.last_ms, found.bytes) == (START_MS + 5000, START_MS + 6000, 10)
    seen: list[tuple[int, int]] = []
    with target_at(wants.target, PLAIN) as target:
        done = replay(
            spark,
            messages_at(wants.source),
            wants,
            target,
            speed=1000.0,
            progress=lambda *numbers: seen.append(numbers),
        )
    assert (done.sent, done.bytes, done.resumed) == (2, 10, False)
    assert seen[-1] == (2, 2)
    headers = (("h", b"\0\1"), ("h", b"2"))
    assert by_key(stored(second.data, "part")) == {
        b"0-k2": [(b"0-k2", headers, b"0.5.0")],
        b"0-k0": [(b"0-k0", headers, b"0.6.0")],
        None: [],
    }
    with target_at(wants.target, PLAIN) as target, pytest.raises(InvalidRequest, match="nosuch"):
        replay(spark, messages_at(wants.source), attrs.evolve(wants, where="nosuch > 1"), target)
    assert capfd.readouterr().err == ""  # the error says it, and nothing else does
    with pytest.raises(UnknownTopic, match="there is no topic absent"):
        dry_run(spark, messages_at(wants.source), attrs.evolve(wants, topics="absent"))
    with pytest.raises(NotAStore, match="there is no store at"):
        messages_at(str(store / "none"))


def test_over_a_protocol_what_is_lost_has_to_be_accepted(spark: Any, store: Path, second: Served) -> None:
    url = f"flymq://127.0.0.1:{second.ports['flymq']}/flat.{{topic}}"
    wants = Wanted(str(store), url, "orders.eu")
    stop = threading.Event()
    with target_at(url, PLAIN) as target:
        with pytest.raises(
            InvalidRequest, match="cannot carry the headers that 80 messages have: --accept-loss headers"
        ):
            replay(spark, messages_at(wants.source), wants, target)
        target.step_messages = 25
        stopped = replay(
            spark,
            messages_at(wants.source),
            wants,
            target,
            accept_loss=["headers"],
            stop=stop,
            rate=300.0,
            progress=lambda *_: stop.set(),
        )
        assert not stopped.finished
        assert 0 < stopped.sent < 120
        done = replay(spark, messages_at(wants.source), wants, target, accept_loss=["headers"])
    assert (done.sent, done.resumed, done.finished) == (120, True, True)
    expected = {
        key: [(key, (), value) for _, _, value in messages]
        for key, messages in by_key(stored(store, "orders.eu")).items()
    }
    expected[None].sort()
    assert by_key(stored(second.data, "flat.orders.eu")) == expected
    with pytest.raises((TargetError, ExceptionGroup)), target_at("flymq://127.0.0.1:1/x", PLAIN):
        pass


def test_over_a_protocol_a_kill_repeats_no_more_than_its_step(spark: Any, store: Path, second: Served) -> None:
    wants = Wanted(str(store), f"flymq://127.0.0.1:{second.ports['flymq']}/killed.{{topic}}", "orders.eu")
    codes, done = replayed(spark, wants, [(1, 0.0)], "headers")  # behind the answer, which is not written down
    assert (codes, done["sent"], done["finished"]) == ([-signal.SIGKILL], 120, True)
    meant, found = (
        Counter((key, value) for messages in stored(path, topic) for key, _, value in messages)
        for path, topic in ((store, "orders.eu"), (second.data, "killed.orders.eu"))
    )
    assert set(meant) == set(found)
    assert 0 < found.total() - 120 <= 30
    assert max(found.values()) == 2


def test_never_into_its_own_source_without_saying_so(spark: Any, second: Served, tmp_path: Path) -> None:
    with target_at(f"http://127.0.0.1:{second.ports['admin']}/", PLAIN) as target:
        target.send("mine", Columns.of([b"1", b"2"]), replay="fill", step=1)
        out = tmp_path / "archive"
        archive(str(second.data), out, topics=None)
        admin = f"http://localhost:{second.ports['admin']}"
        for source in (str(second.data), str(out), admin):
            wants = Wanted(source, f"http://127.0.0.1:{second.ports['admin']}", "mine")
            with pytest.raises(Conflict, match=r"the gateway that serves \S*, the source"):
                replay(spark, messages_at(wants.source), wants, target)
        assert replay(spark, messages_at(wants.source), wants, target, allow_same_source=True).sent == 2
    assert by_key(stored(second.data, "mine"))[None] == [(None, (), value) for value in (b"1", b"1", b"2", b"2")]
    assert {port for _, port in served_at(second.data)} == set(second.ports.values())
    assert same_gateway([str(second.data)], ("localhost", second.ports["flymq"])) == str(second.data)
    assert same_gateway([str(second.data)], ("127.0.0.1", 1)) is None
    assert same_gateway([str(tmp_path)], ("127.0.0.1", second.ports["flymq"])) is None


def test_what_the_target_refuses(spark: Any, store: Path, second: Served, tmp_path: Path) -> None:
    wants = wanted(store, second, "bad\\name", topics="other")
    with target_at(wants.target, PLAIN) as target:
        with pytest.raises(GatewayError, match=r"other/0 offset 0: .*--skip-refused"):
            replay(spark, messages_at(wants.source), wants, target, state=tmp_path / "state")
        done = replay(spark, messages_at(wants.source), wants, target, state=tmp_path / "state", skip_refused=True)
    assert (done.sent, done.refused) == (0, 1)
    assert done.refusals[0].startswith("other/0 offset 0: ")
    assert list((tmp_path / "state").iterdir()) == []
