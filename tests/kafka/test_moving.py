"""A store moves to Kafka and back, whole: records and all that is kept beside them; killed in between it goes on; an audit that can fail."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gateway import docs
from gateway.bridges import forward_rows
from gateway.broker.consume import cursors, group_offsets
from gateway.broker.consume.consumer import Tally
from gateway.bulk import redrive
from gateway.envelope import BatchMeta, Columns, Delivery, Origin
from gateway.errors import Conflict, InvalidRequest, NotAStore, StoreInUse, Unsupported
from gateway.moving import copying
from gateway.moving.copying import copy, plan
from gateway.moving.places import CopyPlace, place_at
from gateway.moving.proof import prove
from gateway.moving.tables import COPIED_TABLES
from gateway.requests import Subscribe
from gateway.store import moved
from gateway.store.ack_window import AckWindow
from gateway.store.interface import Append, DropTopic, MakeTopic, Put, TopicConfig, Unit
from gateway.store.reader import LogReader
from gateway.store.sqlite import open_store
from tests.kafka.foreign import make, produce
from tests.kafka.node import Kafka
from tests.store.kit import SMALL, Clock, append, open_on_kafka, unit

PATIENCE = 240


def on_kafka(kafka: Kafka, prefix: str) -> CopyPlace:
    return place_at(f"kafka://{kafka.brokers}/{prefix}")


async def fill(store: Any, clock: Clock, records: int = 500) -> None:
    """Some of everything."""
    await store.submit(
        Unit(
            creates=[
                MakeTopic("orders", TopicConfig(3)),
                MakeTopic("a/b", TopicConfig(retention_seconds=10**9, schema="s")),
                MakeTopic("empty", TopicConfig()),
                MakeTopic("gone", TopicConfig()),
            ]
        )
    ).wait()
    other = BatchMeta(b"y" * 16, Origin("p", "l", "ann", "c", ("ab" * 16,)), "r2", Delivery.AT_MOST_ONCE)
    for number in range(records):
        clock.ms += number % 3
        headers = [(("h", b"1"), ("h", b"%d" % number)), ()]
        await store.submit(
            unit(
                append(
                    "orders", b"a%d" % number, b"", partition=number % 3, keys=[b"k%d" % number, None], headers=headers
                ),
                append("a/b", b"x" * (number % 50), meta=other, expires=[2**42 + number], indexes=[number]),
            )
        ).wait()
    await store.submit(unit(append("gone", b"1"))).wait()
    orders, gone = store.topics["orders"], store.topics["gone"]
    window = AckWindow(orders.partitions[0].start + 5)
    window.hand_out(window.low + 1)
    window.settle_range(window.low + 3, window.low + 7)
    forwarded = AckWindow(orders.partitions[1].start + 9)
    request = Subscribe(0, "orders", name="n", acknowledge=True)
    row = cursors.stored(request, "orders", orders.epoch, "blip", "", 77)
    tally = Tally(0, acknowledged=4, filtered=5)
    puts = [
        Put(group_offsets.TABLE, group_offsets.encode_key("orders", "g", 1), group_offsets.row_of(40)),
        Put(group_offsets.TABLE, group_offsets.encode_key("orders", "g", 2), group_offsets.row_of(1 << 40)),
        Put(group_offsets.TABLE, group_offsets.encode_key("gone", "g", 0), group_offsets.row_of(1)),
        cursors.subscription_row(7, row),
        cursors.cursor_row(7, 0, window.to_bytes()),
        cursors.subscription_row(8, cursors.stored(request, "gone", gone.epoch, "blip", "", 1)),
        forward_rows.known_row("far"),
        Put("forwards", b"\0store", b"i" * 16),
        forward_rows.cursor_row("far", "orders", 1, orders.epoch, forwarded, tally),
        Put(redrive.TABLE, redrive.row_key("orders", orders.epoch, 2, 4), b"1"),
        Put("accounts", b"ann", b"{}"),
        Put("copies", b"s" * 18, b"m" * 1024),
        Put("delays", b"d" * 16, b"row"),
    ]
    await store.submit(Unit(puts=puts)).wait()
    await store.submit(Unit(deletes=[DropTopic("gone")])).wait()


@attrs.frozen
class Kept:
    """What can be said of a store without its offsets."""

    records: dict[tuple[str, int], list[Any]]
    rows: dict[str, dict[bytes, bytes]]
    configs: dict[str, TopicConfig]


def kept(place: CopyPlace) -> Kept:
    records: dict[tuple[str, int], list[Any]] = {}
    with place.reading() as reader:
        topics = reader.topics()
        for name, topic in topics.items():
            for part in topic.partitions:
                records[name, part.number] = [
                    (
                        one.key,
                        one.value,
                        one.headers,
                        one.timestamp_ms,
                        one.expires_ms,
                        one.delivery,
                        one.origin,
                        one.route,
                        one.id,
                    )
                    for run in reader.read_chunks(name, part.number)
                    for one in run.envelopes()
                ]
        rows = {table: dict(reader.rows(table)) for table in COPIED_TABLES}
        return Kept(records, rows, {name: place.config(reader, one) for name, one in topics.items()})


async def test_there_and_back(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    clock, first, back = Clock(), place_at(str(tmp_path / "first")), place_at(str(tmp_path / "back"))
    there = on_kafka(kafka, topics)
    with trio.fail_after(PATIENCE):
        async with open_store(tmp_path / "first", SMALL, now_ms=clock) as store:
            await fill(store, clock)
        planned = plan(first, there)
        assert (planned.topics, planned.partitions, planned.offsets, planned.resumes) == (3, 5, 1500, False)
        assert not there.occupied()
        done = await copy(first, there)
        assert (done.records, done.copied) == (1500, 1500)
        assert done.left == {"group_offsets": 1, "subscriptions": 1}
        proof = prove(first, there)
        assert proof.good, proof.differences
        assert proof.records == 1500
        one, two = kept(first), kept(there)
        assert one.records == two.records
        assert one.configs == two.configs
        assert one.rows["accounts"] == two.rows["accounts"]
        assert (await copy(first, there)).copied == 0

        await copy(there, back)
        again = prove(there, back)
        assert again.good, again.differences
        assert [part.digest for part in proof.partitions] == [part.digest for part in again.partitions]
        three = kept(back)
        assert one.records == three.records
        assert one.configs == three.configs
        places = {"group_offsets", "subscriptions", "forwards", "cursors", "redriven"}
        assert {name: rows for name, rows in one.rows.items() if name not in places} == {
            name: rows for name, rows in three.rows.items() if name not in places
        }
        judge_places(tmp_path / "first", tmp_path / "back")


def judge_places(before: Path, after: Path) -> None:
    """What named an offset names the same record."""
    with LogReader(before) as one, LogReader(after) as two:
        group, beyond = (group_offsets.encode_key("orders", "g", number) for number in (1, 2))
        assert dict(two.rows("group_offsets")) == {
            group: group_offsets.row_of(40),
            beyond: group_offsets.row_of(two.bounds("orders", 2)[1]),
        }
        assert two.get("cursors", cursors.cursor_key(7, 0)) == one.get("cursors", cursors.cursor_key(7, 0))
        ((found, row, _windows),) = cursors.read_subscriptions(dict(two.rows("subscriptions")), {})
        assert found == 7
        assert row.epoch == two.topic("orders").epoch
        key = forward_rows.row_key("far", "orders", 1)
        epoch, window, tally = forward_rows.read_cursor(two.get("forwards", key) or b"", 1 << 62)
        assert (epoch, window.low) == (two.topic("orders").epoch, 9)
        assert attrs.astuple(tally) == attrs.astuple(Tally(0, acknowledged=4, filtered=5))
        assert list(two.rows("redriven")) == [(redrive.row_key("orders", epoch, 2, 4), b"1")]


async def test_offsets_with_gaps_and_records_of_others(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """What any client of Kafka wrote, deletions among it; what groups have committed leads to the same records."""
    clock, there, back = Clock(), on_kafka(kafka, topics), place_at(str(tmp_path / "back"))
    with trio.fail_after(PATIENCE):
        async with open_on_kafka(kafka.brokers, topics, now_ms=clock) as store:
            await fill(store, clock, 30)
        make(kafka, topics + "theirs")
        produce(topics + "theirs", b"hello", **{"bootstrap.servers": kafka.brokers})
        with there.reading() as reader:
            marked = [run.base_offset + index for run in reader.read_chunks("orders", 0) for index in range(run.count)]
            assert marked != list(range(len(marked))), "there are gaps"
        async with open_on_kafka(kafka.brokers, topics, now_ms=clock) as store:
            group = group_offsets.encode_key("orders", "h", 0)
            await store.submit(Unit(puts=[Put("group_offsets", group, group_offsets.row_of(marked[7]))])).wait()
            await store.submit(
                Unit(puts=[Put("group_offsets", group[:-4] + b"\0\0\0\1", group_offsets.row_of(3))])
            ).wait()
        await copy(there, back)
        proof = prove(there, back)
        assert proof.good, proof.differences
        assert kept(there).records == kept(back).records
        with LogReader(tmp_path / "back") as reader:
            assert reader.get("group_offsets", group) == group_offsets.row_of(7)
            assert len(list(reader.read_chunks("theirs", 0))) == 1


async def test_what_only_kafka_knows_of_a_topic(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """It comes along to another Kafka, and is named where there is no place for it."""
    clock, there, further = Clock(), on_kafka(kafka, topics), on_kafka(kafka, f"further.{topics}")
    compacted = {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": "60000", "segment.bytes": "1048576"}
    with trio.fail_after(PATIENCE):
        async with open_on_kafka(kafka.brokers, topics, now_ms=clock) as store:
            await fill(store, clock, 5)
        make(kafka, topics + "table", **compacted, max_message_bytes="2000000")
        produce(topics + "table", b"hello", **{"bootstrap.servers": kafka.brokers})
        await copy(there, further)
        proof = prove(there, further)
        assert proof.good, proof.differences
        with further.reading() as reader:
            assert further.own_settings(reader, ["table", "orders"]) == {"table": compacted, "orders": {}}
        further.take_settings({"table": {"segment.bytes": "2097152", "no.such.setting": "1"}})
        assert prove(there, further).differences == ["topic table: its segment.bytes is not 1048576, as at the source"]
        command = f"{sys.executable} -m gateway store copy --from kafka://{kafka.brokers}/{topics} --to back"
        ended = await trio.run_process(shlex.split(command), cwd=tmp_path, capture_stdout=True)
        assert ended.stdout.decode().splitlines()[-4:-1] == [
            f"left behind: {key} = {value} of table, which only Kafka knows" for key, value in compacted.items()
        ]


async def test_the_audit_finds_what_differs(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    clock, first, there = Clock(), place_at(str(tmp_path / "first")), on_kafka(kafka, topics)
    with trio.fail_after(PATIENCE):
        async with open_store(tmp_path / "first", SMALL, now_ms=clock) as store:
            await fill(store, clock, 20)
        await copy(first, there)
        async with open_on_kafka(kafka.brokers, topics) as store:
            await store.submit(unit(append("orders", b"invented", partition=2))).wait()
            await store.submit(Unit(puts=[Put("accounts", b"bob", b"{}")])).wait()
        async with open_store(tmp_path / "first", SMALL, now_ms=clock) as store:
            await store.submit(unit(append("a/b", b"one more"))).wait()
            await store.submit(unit(append("empty", b"one"))).wait()
        proof = prove(first, there)
        assert not proof.good
        said = "\n".join(proof.differences)
        assert "orders/2: the source has nothing" in said
        assert "a/b/0: the copy has nothing" in said
        assert "empty/0: the copy has nothing" in said
        assert "table accounts: the row b'bob' is not the source's" in said
        assert proof.different == 4


async def test_a_record_that_is_another_is_found(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    """In each thing that is known of it."""
    clock, first = Clock(), tmp_path / "first"
    async with open_store(first, SMALL, now_ms=clock) as store:
        await store.submit(Unit(creates=[MakeTopic("t", TopicConfig())])).wait()
        await store.submit(unit(append("t", b"a", b"b", keys=[b"k", b"k"], headers=[(), (("h", b"1"),)]))).wait()
    (run,) = LogReader(first).read_chunks("t", 0)
    meta = run.batches[0][2]
    forged = {
        "value": Columns.of([b"a", b"c"], run.columns.keys, run.columns.headers),
        "key": Columns.of([b"a", b"b"], [b"k", None], run.columns.headers),
        "headers": Columns.of([b"a", b"b"], run.columns.keys, [(), (("h", b"2"),)]),
        "expiry": Columns.of([b"a", b"b"], run.columns.keys, run.columns.headers, [0, 2**43]),
        "id, origin or route": run.columns,
    }
    with trio.fail_after(PATIENCE):
        for number, (what, columns) in enumerate(forged.items()):
            there = on_kafka(kafka, f"{topics}{number}.")
            await copy(place_at(str(first)), there)
            async with open_on_kafka(kafka.brokers, f"{topics}{number}.", now_ms=clock) as store:
                await store.submit(Unit(deletes=[DropTopic("t")])).wait()
                meta_there = meta if what != "id, origin or route" else BatchMeta(meta.id, meta.origin, "another")
                await store.submit(Unit(creates=[MakeTopic("t", TopicConfig())])).wait()
                await store.submit(
                    Unit([Append("t", 0, columns, meta_there)], [Put("x", b"", b"")])
                ).wait()  # a transaction, as the copy's was
            proof = prove(place_at(str(first)), there)
            assert any(f"the {what} of the record at" in one for one in proof.differences), (what, proof.differences)


KILLED = """
import os, signal, sys, trio
from gateway.moving.copying import copy
from gateway.moving.places import place_at
import gateway.moving.copying as module
module.COMMIT_RECORDS = 20
seen = 0
def progress(done, total):
    global seen
    seen += 1
    if seen == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
trio.run(copy, place_at(sys.argv[1]), place_at(sys.argv[2]), progress)
"""


KILLED_IN_A_COMMIT = """
import os, signal, sys, trio
from gateway.moving.copying import copy
from gateway.moving.places import place_at
from gateway.store.kafka.transactions import Transactions
import gateway.moving.copying as module
module.COMMIT_RECORDS = 20
really, seen = Transactions.commit, 0
def commit(self):
    global seen
    seen += 1
    last = seen == int(sys.argv[3])
    if last and sys.argv[4] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    really(self)
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
Transactions.commit = commit
trio.run(copy, place_at(sys.argv[1]), place_at(sys.argv[2]))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_in_the_middle_of_a_commit_it_goes_on(
    kafka: Kafka, topics: str, tmp_path: Path, moment: str
) -> None:
    """What it had begun is open in Kafka, and it stands first in line: the next attempt looks without waiting for it, ends it,
    and is not refused. Once before anything of a copy is known to be there, and once in the middle of the records.
    """
    clock, target = Clock(), f"kafka://{kafka.brokers}/{topics}"
    with trio.fail_after(PATIENCE):
        async with open_store(tmp_path / "first", SMALL, now_ms=clock) as store:
            await fill(store, clock, 100)
        here, there = place_at(str(tmp_path / "first")), place_at(target)
        for commits in ("1", "8"):
            command = [sys.executable, "-c", KILLED_IN_A_COMMIT, here.shown, target, commits, moment]
            ended = await trio.run_process(command, check=False)
            assert ended.returncode == -signal.SIGKILL
            assert not plan(here, there).whole
        assert plan(here, there).resumes
        done = await copy(here, there)
        assert 0 < done.copied < done.records
        proof = prove(here, there)
        assert proof.good, proof.differences


@pytest.mark.parametrize("back", [False, True], ids=["to Kafka", "from Kafka"])
async def test_killed_in_the_middle_it_goes_on(kafka: Kafka, topics: str, tmp_path: Path, back: bool) -> None:
    clock, source, target = Clock(), str(tmp_path / "first"), f"kafka://{kafka.brokers}/{topics}"
    with trio.fail_after(PATIENCE):
        if back:
            source, target = target, source
            async with open_on_kafka(kafka.brokers, topics, now_ms=clock) as store:
                await fill(store, clock, 50)
        else:
            async with open_store(tmp_path / "first", SMALL, now_ms=clock) as store:
                await fill(store, clock, 100)
        here, there = place_at(source), place_at(target)
        for commits in ("2", "3"):
            ended = await trio.run_process([sys.executable, "-c", KILLED, source, target, commits], check=False)
            assert ended.returncode == -signal.SIGKILL
            if back:
                async with open_store(tmp_path / "first", SMALL) as store:
                    with pytest.raises(StoreInUse, match="not finished"):
                        await moved.refuse_unfinished(store)
        planned = plan(here, there)
        assert planned.resumes
        assert not planned.whole
        before = prove(here, there)
        assert "the copy is not finished" in before.differences
        done = await copy(here, there)
        assert 0 < done.copied < done.records
        proof = prove(here, there)
        assert proof.good, proof.differences
        assert kept(here).records == kept(there).records


async def test_the_second_of_two_goes_on_and_the_first_ends(
    kafka: Kafka, topics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "COMMIT_RECORDS", 5)
    clock, first, there = Clock(), on_kafka(kafka, f"{topics}1."), on_kafka(kafka, f"{topics}2.")
    begun, taken, ended = trio.Event(), trio.Event(), []
    finish = copying._Copy._finish

    def first_says(_done: int, _total: int) -> None:
        begun.set()

    async def held(one: Any, *args: Any) -> None:
        await finish(one, *args)
        if one._progress is first_says and begun.is_set():  # or else it may be through before there is a second
            await taken.wait()

    monkeypatch.setattr(copying._Copy, "_finish", held)

    async def other() -> None:
        with pytest.raises(StoreInUse, match="another process copies"):
            await copy(first, there, first_says)
        ended.append(True)

    with trio.fail_after(PATIENCE):
        async with open_on_kafka(kafka.brokers, f"{topics}1.", now_ms=clock) as store:
            await fill(store, clock, 60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await begun.wait()
            done = await copy(first, there, lambda _done, _total: taken.set())
        assert ended
        assert 0 < done.copied < done.records == 180
        proof = prove(first, there)
        assert proof.good, proof.differences


async def test_what_is_in_the_way_is_named(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    clock, first, there = Clock(), place_at(str(tmp_path / "first")), on_kafka(kafka, topics)
    with trio.fail_after(PATIENCE):
        with pytest.raises(NotAStore):
            await copy(first, there)
        async with open_store(tmp_path / "first", SMALL, now_ms=clock) as store:
            await fill(store, clock, 5)
            with pytest.raises(StoreInUse):
                await copy(first, there)
            await store.submit(Unit(creates=[MakeTopic("n" * 248, TopicConfig())])).wait()
        with pytest.raises(InvalidRequest, match="249"):
            plan(first, there)
        async with open_store(tmp_path / "first", SMALL, now_ms=clock) as store:
            await store.submit(Unit(deletes=[DropTopic("n" * 248)], puts=[Put("of tomorrow", b"", b"")])).wait()
        with pytest.raises(Unsupported, match="of tomorrow"):
            await copy(first, there)
        async with open_store(tmp_path / "first", SMALL, now_ms=clock) as store:
            await store.submit(Unit(puts=[Put("of tomorrow", b"", None)])).wait()
        make(kafka, topics + "theirs")
        with pytest.raises(Conflict, match="not empty"):
            await copy(first, there)
        with pytest.raises(Conflict, match="not empty"):
            plan(first, there)
        with pytest.raises(InvalidRequest, match="another prefix"):
            await copy(there, on_kafka(kafka, f"{topics}within."))
        second = on_kafka(kafka, f"{topics}2.")
        await copy(first, second)
        async with open_store(tmp_path / "other", SMALL, now_ms=clock) as store:
            await fill(store, clock, 5)
        with pytest.raises(Conflict, match="has a copy of"):
            await copy(place_at(str(tmp_path / "other")), second)
        with pytest.raises(Unsupported, match="copying its files"):
            await copy(first, place_at(str(tmp_path / "other")))


async def test_what_is_served_is_not_copied(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    there, back = on_kafka(kafka, topics), place_at(str(tmp_path / "back"))
    with trio.fail_after(PATIENCE):
        async with open_on_kafka(kafka.brokers, topics) as store:
            handed = trio.Event()
            await store.submit(Unit(creates=[MakeTopic("t", TopicConfig())])).wait()
            store.on_slots(lambda slots: handed.set() if slots else None)
            await handed.wait()
            with pytest.raises(StoreInUse, match="served by a gateway"):
                await copy(there, back)
        await copy(there, back)


async def test_the_page_shows_what_it_prints(kafka: Kafka, topics: str, tmp_path: Path) -> None:
    commands, shown = re.search(r"```sh\n(.*?)```.*?```text\n(.*?)```", docs.text("moving"), re.DOTALL).groups()
    with trio.fail_after(PATIENCE):
        async with open_store(tmp_path / "data", SMALL) as store:
            await store.submit(
                Unit(creates=[MakeTopic("orders", TopicConfig()), MakeTopic("events", TopicConfig())])
            ).wait()
            await store.submit(
                unit(append("orders", b"1", b"2", b"3"), append("events", b"1", b"2", b"3", b"4"))
            ).wait()
            group = group_offsets.encode_key("orders", "billing", 0)
            await store.submit(Unit(puts=[Put("group_offsets", group, group_offsets.row_of(2))])).wait()
        said = b""
        for line in commands.splitlines():
            line = line.replace("gateway", f"{sys.executable} -m gateway", 1).replace(
                "10.0.0.1:9092/gw.", f"{kafka.brokers}/{topics}"
            )
            ended = await trio.run_process(shlex.split(line), cwd=tmp_path, capture_stdout=True)
            said += ended.stdout
        assert said.decode() == shown
        report = json.loads((tmp_path / "copy.json").read_text())
        assert (report["exit_code"], report["result"]["good"], report["result"]["records"]) == (0, True, 7)
        there = await trio.run_process(
            shlex.split(
                f"{sys.executable} -m gateway store copy --from ./data --to kafka://{kafka.brokers}/{topics} --audit --output json"
            ),
            cwd=tmp_path,
            capture_stdout=True,
        )
        assert json.loads(there.stdout)["partitions"] == report["result"]["partitions"]
        async with open_on_kafka(kafka.brokers, topics) as store:
            await store.submit(unit(append("orders", b"more"))).wait()
        differs = await trio.run_process(
            shlex.split(
                f"{sys.executable} -m gateway store copy --from ./data --to kafka://{kafka.brokers}/{topics} --audit"
            ),
            cwd=tmp_path,
            capture_stdout=True,
            check=False,
        )
        assert differs.returncode == 1
        assert b"orders/0: the source has nothing for what is at" in differs.stdout
