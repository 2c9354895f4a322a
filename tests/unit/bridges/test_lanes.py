"""Lanes as values: no network, no clock. Order within a key holds whatever fails."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.bridges.lanes import LOSSES_TO_FEAR, PARK_MESSAGES, LaneEntry, Lanes, columns_of
from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import Status, TargetError, TargetLost, TargetRefused
from gateway.model import Retry
from gateway.settings import Backoff, Seconds

META = BatchMeta(b"", Origin("toy", "door"))
LATER = TargetRefused("later")
NEVER = TargetRefused("never", final=True)
LOGIN = TargetRefused("401", refusal=Status.UNAUTHENTICATED, final=True)


def entries(*keys: bytes | None) -> list[LaneEntry]:
    values = [b"%d" % number for number in range(len(keys))]
    run = Run("t", 0, 100, Columns.of(values, keys), [0] * len(keys), [(0, 0, META)])
    return [LaneEntry(run, index) for index in range(len(keys))]


def lanes(*keys: bytes | None, atomic: bool = True, gives_up: bool = True, most: int = 3) -> Lanes:
    retry = Retry(most, Backoff(Seconds(1.0), Seconds(8.0)))
    made = Lanes(retry, atomic=atomic, gives_up=gives_up, chance=random.Random(1))
    for entry in entries(*keys):
        made.push(entry)
    return made


def offsets(chosen: list[LaneEntry]) -> list[int]:
    return [entry.offset for entry in chosen]


def keys_of(chosen: list[LaneEntry]) -> list[bytes | None]:
    return sorted(entry.key for entry in chosen)


def test_one_request_takes_many_messages_in_the_order_of_the_log():
    some = lanes(b"a", b"b", b"a", None, None)
    assert offsets(some.choose(10, 1 << 20, 0.0)) == [100, 101, 102, 103, 104]


def test_a_target_that_takes_parts_gets_one_message_of_a_key_at_a_time():
    some = lanes(b"a", b"a", None, None, atomic=False)
    first = some.choose(10, 1 << 20, 0.0)
    assert offsets(first) == [100, 102, 103]
    assert some.choose(10, 1 << 20, 0.0) == []
    some.free(first)
    assert offsets(some.choose(10, 1 << 20, 0.0)) == [101]


def test_a_failed_key_waits_and_the_others_go_on():
    some = lanes(b"a", b"b", b"a", atomic=False)
    chosen = some.choose(10, 1 << 20, 0.0)
    assert some.answered(chosen, {0: LATER}, 0.0) == []
    assert some.parked == 2
    for entry in entries(b"b"):
        some.push(entry)
    assert [entry.key for entry in some.choose(10, 1 << 20, 0.1)] == [b"b"]
    due = some.next_due()
    assert due is not None
    assert 0.5 <= due <= 1.0
    again = some.choose(10, 1 << 20, due)
    assert offsets(again) == [100]
    some.free(again)
    assert some.parked == 0
    assert offsets(some.choose(10, 1 << 20, due)) == [102]


def test_back_off_grows_and_ends_in_giving_up():
    some = lanes(b"a", b"a", most=3)
    now, waits = 0.0, []
    for _ in range(2):
        chosen = some.choose(1, 1 << 20, now)
        assert some.failed(chosen, LATER, now) == []
        due = some.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits[0] <= 1.0 <= waits[1] <= 2.0
    (given_up,) = some.failed(some.choose(1, 1 << 20, now), TargetRefused("still"), now)
    assert (given_up.offset, given_up.attempts) == (100, 3)
    assert (given_up.first_error, given_up.last_error) == ("later", "still")
    assert offsets(some.choose(9, 1 << 20, now)) == [101]


def test_who_of_a_refused_request_was_the_reason_is_found_out_one_by_one():
    some = lanes(b"a", b"b", b"c")
    assert some.failed(some.choose(9, 1 << 20, 0.0), NEVER, 0.0) == []
    lost = []
    while chosen := some.choose(9, 1 << 20, 0.0):
        assert len(chosen) == 1
        if chosen[0].key == b"b":
            lost += some.failed(chosen, NEVER, 0.0)
        else:
            some.free(chosen)
    assert [(entry.key, entry.attempts) for entry in lost] == [(b"b", 1)]


def test_without_dead_letters_a_lane_waits_for_ever():
    some = lanes(b"a", gives_up=False, most=1)
    now = 0.0
    for _ in range(20):
        assert some.failed(some.choose(1, 1 << 20, now), NEVER, now) == []
        now = some.next_due() or 0.0
    assert some.held == some.parked == 1


def test_what_nobody_answered_is_no_attempt():
    some = lanes(b"a", b"a", b"b", most=1)
    for error in (TargetLost("gone"), TargetError("cannot connect"), LOGIN):
        assert some.failed(some.choose(9, 1 << 20, 0.0), error, 0.0) == []
    assert some.parked == 0
    assert [entry.attempts for entry in some.choose(9, 1 << 20, 0.0)] == [0, 0, 0]


def test_what_was_under_way_at_each_lost_connection_goes_with_nothing_beside_it():
    some = lanes(b"a", b"b", b"c")
    for _ in range(LOSSES_TO_FEAR):
        assert some.failed(some.choose(9, 1 << 20, 0.0), TargetLost("gone"), 0.0) == []
    killer = some.choose(9, 1 << 20, 0.0)
    assert (offsets(killer), some.choose(9, 1 << 20, 0.0)) == ([100], [])
    some.failed(killer, TargetLost("gone"), 0.0)
    order = []
    while chosen := some.choose(9, 1 << 20, 0.0):
        order += offsets(chosen)
        (some.failed(chosen, TargetLost("gone"), 0.0) if chosen[0].offset == 100 else some.free(chosen))
        if len(order) == 4:
            break
    assert order == [101, 102, 100, 100]  # the others had their turn


def test_what_nobody_answered_of_a_request_is_no_attempt():
    some = lanes(b"a", b"b", most=1, atomic=False)
    assert some.answered(some.choose(9, 1 << 20, 0.0), {0: TargetLost("gone")}, 0.0) == []
    assert offsets(some.choose(9, 1 << 20, 0.0)) == [100]


def test_what_has_waited_for_too_long_leaves_in_order_and_the_rest_stays():
    some = lanes(b"a", b"b", b"a")
    chosen = some.choose(9, 1 << 20, 0.0)
    assert offsets(chosen) == [100, 101, 102]
    some.put_back([chosen[1]], gone=[chosen[0], chosen[2]])
    assert some.held == 1
    assert offsets(some.choose(9, 1 << 20, 0.0)) == [101]


def test_behind_what_is_under_way_goes_what_was_never_sent():
    some = lanes(b"a", b"b")
    under_way = some.choose(9, 1 << 20, 0.0)
    for entry in entries(b"a", b"c"):
        some.push(entry)
    assert [entry.key for entry in some.choose(9, 1 << 20, 0.0)] == [b"c"]
    for entry in entries(b"d", b"a"):
        some.push(entry)
    assert keys_of(some.choose(9, 1 << 20, 0.0, behind=True)) == [b"a", b"a", b"d"]
    some.put_back(under_way)
    for entry in entries(b"e", b"a"):
        some.push(entry)
    # with what was sent before goes only what need not wait: others of a are under way
    assert keys_of(some.choose(9, 1 << 20, 0.0, behind=True)) == [b"b", b"e"]
    assert some.choose(9, 1 << 20, 0.0, behind=True) == []


def test_what_comes_back_late_is_behind_what_was_sent_before_it():
    some = lanes(None, None, None, None)
    one, two = some.choose(1, 1 << 20, 0.0, behind=True), some.choose(2, 1 << 20, 0.0, behind=True)
    assert (offsets(one), offsets(two)) == ([100], [101, 102])
    some.put_back(one)
    some.put_back(two)
    assert offsets(some.choose(9, 1 << 20, 0.0)) == [100, 101, 102, 103]


def test_the_park_has_a_bound():
    some = lanes(*[b"a"] * PARK_MESSAGES)
    assert not some.full
    some.failed(some.choose(1, 1 << 20, 0.0), LATER, 0.0)
    assert some.full


def test_columns_are_a_slice_where_messages_stand_side_by_side():
    several = entries(b"a", b"b", b"c", b"d")
    assert columns_of(several[1:3]).values() == [b"1", b"2"]
    assert columns_of([several[0], several[2], several[3]]).values() == [b"0", b"2", b"3"]


@given(
    keys=st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=25),
    atomic=st.booleans(),
    luck=st.randoms(use_true_random=False),
)
def test_every_message_is_settled_once_and_each_key_in_order(keys, atomic, luck):
    some = lanes(*keys, atomic=atomic, most=4)
    settled: list[LaneEntry] = []
    order: list[LaneEntry] = []
    under_way: list[list[LaneEntry]] = []
    now = 0.0

    def give_up(lost: list[LaneEntry]) -> None:
        settled.extend(lost)

    while len(settled) < len(keys):
        if chosen := some.choose(luck.randint(1, 5), 1 << 20, now):
            under_way.append(chosen)
        if not under_way:
            now = max(now, some.next_due() or now)
            continue
        request = under_way.pop(luck.randrange(len(under_way)))
        outcome = luck.choice(["ok", "ok", "later", "never", "parts", "down"])
        if outcome == "down":
            assert some.failed(request, TargetLost("gone"), now) == []
        elif outcome == "ok" or (outcome == "parts" and atomic):
            some.free(request)
            settled += request
            order += request
        elif outcome == "parts":
            refused = {index: luck.choice([LATER, NEVER]) for index in range(len(request)) if luck.random() < 0.5}
            taken = [entry for index, entry in enumerate(request) if index not in refused]
            settled += taken
            order += taken
            give_up(some.answered(request, refused, now))
        else:
            give_up(some.failed(request, LATER if outcome == "later" else NEVER, now))
    assert sorted(entry.offset for entry in settled) == list(range(100, 100 + len(keys)))
    assert some.held == some.parked == some.parked_bytes == 0
    for key in {*keys} - {None}:
        mine = [entry.offset for entry in order if entry.key == key]
        assert mine == sorted(mine)
