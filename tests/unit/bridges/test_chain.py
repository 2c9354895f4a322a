"""Several requests of a forward under way at once: whatever becomes of each, nothing overtakes what is sent again."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bridges.chain import MESSAGES, REQUESTS, Chain, ChainedRequest
from gateway.bridges.lanes import LaneEntry, Lanes, copies_of
from gateway.envelope import BatchMeta, Columns, Copies, Origin, Run
from gateway.errors import TargetLost, TargetOutOfTurn, TargetRefused
from gateway.model import Retry
from gateway.requests import Outcome, Published
from gateway.settings import Backoff, Seconds

META = BatchMeta(b"batch" * 4, Origin("toy", "door"))
TAKEN = Published("t", 0)
LATER = TargetRefused("later")
NEVER = TargetRefused("never", final=True)


@attrs.define(eq=False)
class Carrier:
    """What a chain knows of the connection that it is on."""

    keeps_turns: bool = True
    of_use: bool = True
    out_of_turn: bool = False


def entry(number: int, key: bytes | None = None) -> LaneEntry:
    """A message that lies by itself in the log."""
    return LaneEntry(Run("t", 0, number, Columns.of([b"x"], [key]), [0], [(0, number, META)]), 0)


def copies(*numbers: int, after: Any = None) -> Copies:
    return copies_of(b"s" * 16, b"me" * 8, [entry(number) for number in numbers], after)


def add(chain: Chain, connection: Any, *numbers: int) -> ChainedRequest:
    return chain.add(connection, copies(*numbers, after=chain.after), len(numbers), again=False)


@pytest.fixture
def connection() -> Any:
    return Carrier()


def test_each_request_comes_after_the_last_message_of_the_one_before(connection: Any):
    chain = Chain()
    assert (chain.connection, chain.after, chain.short) == (None, None, False)
    first = add(chain, connection, 5, 7)
    assert (chain.connection, chain.after, chain.short) == (connection, (7, META.id, 7), True)
    second = add(chain, connection, 8)
    assert chain.after == (8, META.id, 8)
    assert not chain.ended(first, TAKEN)
    assert not chain.ended(second, TAKEN)
    assert (chain.connection, chain.after) == (None, None)


def test_nothing_goes_behind_many_messages_or_requests(connection: Any):
    many, few = Chain(), Chain()
    add(many, connection, *range(MESSAGES))
    assert not many.short
    for number in range(REQUESTS):
        assert few.short is bool(number)
        add(few, connection, number)
    assert not few.short
    assert few.connection is connection  # what need not wait for them goes the same way


def test_who_keeps_no_turns_gets_no_chain(connection: Any):
    connection.keeps_turns = False
    chain = Chain()
    request = add(chain, connection, 1)
    assert (chain.connection, chain.after, chain.short) == (None, None, False)
    assert not chain.ended(request, TargetOutOfTurn("out of turn"))  # it has its own reason to say so


def test_what_came_behind_a_request_that_failed_was_not_looked_at(connection: Any):
    for failure in (LATER, NEVER, TargetLost("gone"), Published("t", 0, refused={0: LATER})):
        chain = Chain()
        before, failed, behind, last = (add(chain, connection, number) for number in range(4))
        assert not chain.ended(before, TAKEN)
        assert not chain.ended(failed, failure)
        assert (chain.connection, chain.short) == (None, False)
        by_itself = add(chain, connection, 9)
        assert chain.ended(behind, TargetOutOfTurn("out of turn"))
        assert chain.ended(last, NEVER)
        assert not chain.ended(by_itself, NEVER)
        assert not connection.out_of_turn
        add(chain, connection, 10)
        assert chain.short


def test_nothing_is_sent_again_until_all_that_came_behind_a_failure_is_answered(connection: Any):
    """They come after what would be sent again: were it there, they would be stored, without what was to be before it."""
    chain = Chain()
    failed, behind, last = (add(chain, connection, number) for number in range(3))
    assert chain.orphans == 0
    assert not chain.ended(failed, LATER)
    assert chain.orphans == 2
    assert chain.ended(behind, TargetOutOfTurn("out of turn"))
    assert chain.orphans == 1
    assert chain.ended(last, TargetLost("gone")) is False
    assert chain.orphans == 0


def test_what_is_answered_too_early_takes_nothing_from_those_before(connection: Any):
    chain = Chain()
    before, failed, behind = (add(chain, connection, number) for number in range(3))
    assert not chain.ended(failed, NEVER)
    assert chain.ended(behind, NEVER)
    assert not chain.ended(before, NEVER)


def test_what_may_have_been_sent_before_has_no_place_in_a_chain(connection: Any):
    chain = Chain()
    first = add(chain, connection, 1)
    chain.leave()
    chain.add(connection, copies(2), 1, again=True)
    assert (chain.connection, chain.after, chain.short) == (None, None, False)
    chain.ended(first, TAKEN)
    later = Chain()
    later.add(connection, copies(2), 1, again=True)
    assert later.connection is None


def test_who_is_out_of_turn_for_no_reason_is_not_asked_again(connection: Any):
    chain = Chain()
    first, second = add(chain, connection, 1), add(chain, connection, 2)
    assert not chain.ended(first, TAKEN)
    assert chain.ended(second, TargetOutOfTurn("out of turn"))
    assert connection.out_of_turn


def test_a_connection_of_no_use_ends_the_chain(connection: Any):
    chain = Chain()
    first = add(chain, connection, 1)
    connection.of_use = False
    assert (chain.connection, chain.after) == (None, None)
    other: Any = Carrier()
    add(chain, other, 2)
    assert chain.connection is None  # not while something is under way that it would have to come after
    chain.ended(first, TargetLost("gone"))


class Target:
    """It stores what it is sent, in the order that it is told of, or not at all; now and then it does not want to. Whatever came
    last by another connection, nothing is in order by this one.
    """

    def __init__(self, chance: random.Random) -> None:
        self.stored: list[int] = []
        self._by: Carrier | None = None
        self._chance = chance

    def answer(self, said: Copies, by: Carrier) -> Outcome:
        if said.after is not None and (said.after[0] not in self.stored or self._by is not by):
            return TargetOutOfTurn("out of turn")
        outcome = self._chance.choice([TAKEN, TAKEN, TAKEN, LATER, NEVER, TargetLost("before"), TargetLost("after")])
        self._by = None
        if outcome is TAKEN or (isinstance(outcome, TargetLost) and outcome.message == "after"):
            offsets = [offset for first, _id, _index, count in said.ranges for offset in range(first, first + count)]
            self.stored += [offset for offset in offsets if offset not in self.stored]
            self._by = by
        return outcome


@attrs.define(eq=False)
class Forwarding:
    """The sender's side, connections of which some are lost, and what the target still reads of those."""

    entries: list[LaneEntry]
    luck: random.Random
    lanes: Lanes
    target: Target
    chain: Chain = attrs.field(factory=Chain)
    connections: list[Carrier] = attrs.field(factory=lambda: [Carrier(), Carrier()])
    under_way: list[tuple[ChainedRequest, list[LaneEntry], Copies]] = attrs.field(factory=list)
    still_read: list[tuple[Carrier, Copies]] = attrs.field(factory=list)
    settled: list[LaneEntry] = attrs.field(factory=list)
    given_up: set[int] = attrs.field(factory=set)
    now: float = 0.0

    def send(self) -> bool:
        chosen = (
            []
            if self.chain.orphans
            else self.lanes.choose(self.luck.randint(1, 5), 1 << 20, self.now, behind=self.chain.short)
        )
        if chosen:
            again = any(one.again for one in chosen)
            if again:
                self.chain.leave()
            connection: Any = self.chain.connection or self.chain.beside or self.luck.choice(self.connections)
            said = copies_of(b"s" * 16, b"me" * 8, chosen, self.chain.after)
            self.under_way.append((self.chain.add(connection, said, len(chosen), again=again), chosen, said))
        return bool(chosen)

    def answer(self) -> None:
        """One is read, in their order on each connection."""
        first = {id(one[0].connection): at for at, one in reversed(list(enumerate(self.under_way)))}
        request, sent, said = self.under_way.pop(self.luck.choice(sorted(first.values())))
        connection: Any = request.connection
        self._ended(request, sent, self.target.answer(said, connection))

    def lose(self) -> None:
        """A connection. What it carried is lost to the sender; the target has it, and reads it when it comes to it."""
        at = self.luck.randrange(len(self.connections))
        connection: Any = self.connections[at]
        self.connections[at], connection.of_use = Carrier(), False
        lost = [one for one in self.under_way if one[0].connection is connection]
        self.under_way = [one for one in self.under_way if one[0].connection is not connection]
        self.still_read += [(connection, said) for _request, _sent, said in lost]
        for request, sent, _said in lost:
            self._ended(request, sent, TargetLost("lost"))

    def read_on(self) -> None:
        """The target reads one request of a connection that is lost to the sender."""
        first = {id(connection): at for at, (connection, _said) in reversed(list(enumerate(self.still_read)))}
        connection, said = self.still_read.pop(self.luck.choice(sorted(first.values())))
        self.target.answer(said, connection)

    def _ended(self, request: ChainedRequest, sent: list[LaneEntry], outcome: Outcome) -> None:
        if self.chain.ended(request, outcome):
            self.lanes.put_back(sent)
        elif outcome is TAKEN:
            self.lanes.free(sent)
            self.settled += sent
        else:
            gone = self.lanes.failed(sent, outcome, self.now)
            self.given_up |= {one.offset for one in gone}
            self.settled += gone


@given(
    keys=st.lists(st.sampled_from([b"a", b"b", None]), max_size=40),
    luck=st.randoms(use_true_random=False),
)
def test_every_message_is_settled_once_and_each_key_is_stored_in_order(keys: list[bytes | None], luck: random.Random):
    some = Lanes(Retry(4, Backoff(Seconds(1.0), Seconds(8.0))), atomic=True, gives_up=True, chance=random.Random(1))
    target = Target(luck)
    forwarding = Forwarding([entry(number, key) for number, key in enumerate(keys)], luck, some, target)
    coming = list(reversed(forwarding.entries))
    while len(forwarding.settled) < len(keys):
        for _ in range(min(len(coming), luck.randint(1, 4))):
            some.push(coming.pop())
        sent = forwarding.send()
        if forwarding.still_read and luck.random() < 0.3:
            forwarding.read_on()
        if not forwarding.under_way:
            forwarding.now = max(forwarding.now, some.next_due() or forwarding.now)
        elif luck.random() < 0.1:
            forwarding.lose()
        elif not sent or luck.random() < 0.4:
            forwarding.answer()
    assert sorted(one.offset for one in forwarding.settled) == list(range(len(keys)))
    assert some.held == some.parked == some.parked_bytes == 0
    for key in set(keys):
        # what was given up may be there all the same, whenever the target came to it
        mine = [offset for offset in target.stored if keys[offset] == key and offset not in forwarding.given_up]
        assert mine == sorted(mine)
