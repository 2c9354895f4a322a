"""The parts of the store on Kafka that need no Kafka: names, the order of units, tables that are written and read back."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.store.kafka.gates import GateMode, Gates
from gateway.store.kafka.names import kafka_name, topic_name
from gateway.store.kafka.tables import PlaceInLine, Tables, place_key, record_key


@given(st.text(min_size=1, max_size=15))
def test_every_name_comes_back(topic: str) -> None:
    name = kafka_name("gw.", topic)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert topic_name("gw.", name) == topic


def test_names_as_operators_see_them() -> None:
    assert kafka_name("gw.", "orders.eu_1-x") == "gw.orders.eu_1-x"
    assert kafka_name("gw.", "acme/shop") == "gw.acme_x2Fshop"
    assert kafka_name("gw.", "a_x2Fb") == "gw.a_x5Fx2Fb"
    assert topic_name("gw.", "other.t") is None
    assert topic_name("gw.", "gw.a_xFF") is None
    with pytest.raises(InvalidRequest):
        kafka_name("gw.", "é" * 100)


@attrs.define(eq=False)
class Wants:
    needs: list[tuple[str, GateMode]]
    name: str
    log: list[str]
    blocked: int = 0

    def go(self) -> None:
        self.log.append(self.name)


def test_units_of_a_topic_go_in_order_and_others_pass() -> None:
    gates, log = Gates(), []

    def enter(name: str, **needs: GateMode) -> Wants:
        one = Wants(list(needs.items()), name, log)
        gates.enter(one)
        return one

    first, second = enter("plain", a=GateMode.PLAIN), enter("plain too", a=GateMode.PLAIN)
    unit = enter("unit", a=GateMode.UNIT, b=GateMode.UNIT)
    late = enter("behind the unit", b=GateMode.PLAIN)
    enter("elsewhere", c=GateMode.PLAIN)
    assert log == ["plain", "plain too", "elsewhere"]
    gates.leave(first)
    assert "unit" not in log
    gates.leave(second)
    assert log[-1] == "unit"
    gates.leave(unit)
    assert log[-1] == "behind the unit"
    maker = enter("maker", b=GateMode.ADMIN)
    assert gates.changing("b")
    gates.leave(late)
    assert log[-1] == "maker"
    gates.leave(maker)
    assert not gates.changing("b")


def test_two_that_need_the_same_two_never_wait_for_each_other() -> None:
    gates, log = Gates(), []
    one, two = (Wants([(x, GateMode.ADMIN), (y, GateMode.ADMIN)], x, log) for x, y in ("ab", "ba"))
    gates.enter(one)
    gates.enter(two)
    assert log == ["a"]
    gates.leave(one)
    assert log == ["a", "b"]


def test_what_is_read_before_it_is_acknowledged_is_ours_and_never_goes_back() -> None:
    tables = Tables()
    tables.writing("t", b"k")
    assert tables.read([(5, record_key("t", b"k"), b"mine")]) == []
    assert tables.read([(7, record_key("t", b"k"), b"theirs")]) == []
    assert tables.get("t", b"k") == b"theirs"
    tables.written(5, "t", b"k", b"mine")  # late: somebody else has written it since
    assert tables.get("t", b"k") == b"theirs"
    assert tables.wrote("t", b"k") == ("t", b"k", b"theirs")  # and not before this is known
    assert tables.read([(8, record_key("t", b"k"), b"mine")]) == [("t", b"k", b"mine")]


class Writer:
    """Who writes rows of one key, and takes what his writes were for what is so, unless he is told otherwise: also where they fail,
    which does not say that they are not in the log.
    """

    KEY = "t", b"k"

    def __init__(self) -> None:
        self.tables = Tables()
        self.log: list[bytes | None] = []
        self.under_way: list[tuple[int, bytes | None]] = []
        """Own records, and where they are in the log; -1: nowhere."""
        self._read = 0
        self.believed: bytes | None = None

    def write(self, value: bytes | None, *, arrives: bool) -> None:
        self.tables.writing(*self.KEY)
        self.under_way.append((len(self.log) if arrives else -1, value))
        if arrives:
            self.log.append(value)

    def hear(self, *, fails: bool) -> None:
        offset, value = self.under_way.pop(0)
        if offset >= 0 and not fails:
            self.tables.written(offset, *self.KEY, value)
            self.believed = value
        behind = self.tables.wrote(*self.KEY)
        if behind is not None:
            self.believed = behind[2]

    def read(self, count: int) -> None:
        batch = list(enumerate(self.log))[self._read : self._read + count]
        self._read += len(batch)
        for _table, _key, value in self.tables.read((at, record_key(*self.KEY), value) for at, value in batch):
            self.believed = value


VALUES = st.sampled_from([None, b"1", b"2"])


@settings(max_examples=500)
@example([("own", b"1", True), ("theirs", None), ("read", 2), ("hear", False)])
@example([("theirs", b"1"), ("own", None, True), ("read", 2), ("hear", False)])
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("own"), VALUES, st.booleans()),
            st.tuples(st.just("theirs"), VALUES),
            st.tuples(st.just("hear"), st.booleans()),
            st.tuples(st.just("read"), st.integers(1, 3)),
        ),
        max_size=30,
    )
)
def test_what_is_told_last_is_what_is_so(steps: list[tuple[Any, ...]]) -> None:
    """Whatever comes first: what became of an own write, it itself from the log, or what others have written before it and behind."""
    writer = Writer()
    for step, *given_ in steps:
        match step:
            case "own":
                writer.write(given_[0], arrives=given_[1])
            case "theirs":
                writer.log.append(given_[0])
            case "hear":
                if writer.under_way:
                    writer.hear(fails=given_[0])
            case "read":
                writer.read(given_[0])
    while writer.under_way:
        writer.hear(fails=False)
    writer.read(len(writer.log))
    last = writer.log[-1] if writer.log else None
    assert (writer.tables.get(*writer.KEY), writer.believed) == (last, last)


def test_what_was_written_here_is_not_told_and_never_goes_back() -> None:
    tables = Tables()
    tables.written(5, "t", b"k", b"mine")
    earlier, mine, later = (3, b"theirs before"), (5, b"mine"), (7, b"theirs after")
    for offset, value in (earlier, mine):
        assert tables.read([(offset, record_key("t", b"k"), value)]) == []
        assert tables.get("t", b"k") == b"mine"
    assert tables.read([(later[0], record_key("t", b"k"), later[1])]) == [("t", b"k", later[1])]
    assert tables.scan("t", b"", 9) == [(b"k", later[1])]
    tables.read([(8, record_key("t", b"a"), b"1"), (9, record_key("t", b"k"), None)])
    assert tables.scan("t", b"", 9) == [(b"a", b"1")]
    assert dict(tables.table("t")) == {b"a": b"1"}


def test_who_stands_in_line_keeps_his_place_until_he_leaves() -> None:
    tables = Tables()
    line = tables.line

    class Record(NamedTuple):
        of: tuple[int, bytes, bytes | None]
        error = staticmethod(lambda: None)

        def offset(self) -> int:
            return self.of[0]

        def key(self) -> bytes:
            return self.of[1]

        def value(self) -> bytes | None:
            return self.of[2]

    def read(*records: tuple[int, bytes, bytes | None]) -> None:
        assert tables.take_in(map(Record, records)) == []

    assert line.first is None
    read((3, place_key(b"a"), b""), (4, place_key(b"b"), b""), (5, place_key(b"a"), b""))
    assert line.first == PlaceInLine(b"a", 3)
    assert (line.before(b"a"), line.before(b"b"), line.before(b"c")) == (0, 1, 2)
    read((6, place_key(b"c"), None))  # who does not stand there does not leave
    tables.fill(map(Record, [(7, place_key(b"a"), None), (8, place_key(b"a"), b"")]))
    assert line.first == PlaceInLine(b"b", 4)
    assert b"a" in line
    read((9, place_key(b"b"), None))
    assert line.first == PlaceInLine(b"a", 8)
    assert tables.names() == []
