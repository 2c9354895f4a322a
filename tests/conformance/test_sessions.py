"""What holds for the server session of every protocol."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway import errors
from gateway.errors import GatewayError, Status
from gateway.requests import Publish
from gateway.wire.session import Close, Kind
from tests.conformance.harness import Harness
from tests.conformance.replier import reply
from tests.conformance.sample import Sample
from tests.conformance.samples import ALL, IDS, NAMES, samples_of

cases = pytest.mark.parametrize(("name", "sample"), ALL, ids=IDS)


def error_of(status: Status) -> GatewayError:
    """An error with this status, of a type that carries it."""
    found = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, GatewayError) and kind.__dict__.get("status") is status
    ]
    if found[0] is errors.CorruptChunk:
        return errors.CorruptChunk("orders", 0, 1, 2)
    return found[0]()


@cases
def test_single_bytes_give_what_the_whole_gives(name: str, sample: Sample):
    whole, split = Harness(name), Harness(name)
    whole.play(sample)
    split.play(sample, split=0)
    assert split.bytes_out() == whole.bytes_out()
    assert split.closed == whole.closed
    published = [sum(r.batch.columns.count for r in one.asked if isinstance(r, Publish)) for one in (whole, split)]
    assert published[0] == published[1]


@cases
def test_a_cut_at_every_byte_gives_what_the_whole_gives(name: str, sample: Sample):
    whole = Harness(name)
    whole.play(sample)
    longest = max(len(data) for _channel, data in sample.steps)
    for cut in range(1, longest, max(1, longest // 60)):
        split = Harness(name)
        split.play(sample, split=cut)
        assert split.bytes_out() == whole.bytes_out(), f"cut at {cut}"


@cases
def test_nothing_stays_in_flight(name: str, sample: Sample):
    harness = Harness(name)
    harness.play(sample)
    assert harness.session.in_flight <= harness.takes_left()


@cases
def test_every_status_can_be_said(name: str, sample: Sample):
    for status in Status:
        harness = Harness(name, lambda _request, status=status: error_of(status))
        harness.play(sample)
        assert harness.session.in_flight <= harness.takes_left(), status


@cases
def test_a_lost_connection_takes_late_answers_quietly(name: str, sample: Sample):
    harness = Harness(name)
    for channel, kind in sample.kinds:
        harness.open(channel, kind)
    for channel, data in sample.steps:
        harness.feed(channel, data)
    pending = list(harness.pending)
    harness.session.lost()
    for request in pending:
        harness.session.complete(request.id, harness.answer(request), harness.now)
    assert not [output for output in harness.session.outputs() if not isinstance(output, Close)]


@cases
def test_drain_closes_once_nothing_is_in_flight(name: str, sample: Sample):
    harness = Harness(name)
    harness.play(sample)
    harness.take_in(harness.session.drain(harness.now))
    harness.settle()
    for channel, _kind in sample.kinds:
        if not harness.closed:
            harness.take_in(harness.session.eof(channel, harness.now))
            harness.settle()
    assert harness.closed


@cases
def test_eof_in_the_middle_of_a_frame_is_no_error(name: str, sample: Sample):
    channel, data = sample.steps[-1]
    for cut in {1, len(data) // 2, len(data) - 1}:
        harness = Harness(name)
        for number, kind in sample.kinds:
            harness.open(number, kind)
        for earlier, piece in sample.steps[:-1]:
            harness.feed(earlier, piece)
            harness.settle()
        harness.feed(channel, data[:cut])
        harness.take_in(harness.session.eof(channel, harness.now))
        harness.settle()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=5))
def test_garbage_never_escapes(name: str, data: list[bytes]):
    harness = Harness(name)
    harness.open(0, Kind.DUPLEX)
    for piece in data:
        if harness.closed:
            break
        harness.feed(0, piece)
        harness.settle()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_flipped_byte_never_escapes(name: str, data: st.DataObject):
    sample = data.draw(st.sampled_from(samples_of(name)))
    step = data.draw(st.integers(0, len(sample.steps) - 1))
    position = data.draw(st.integers(0, len(sample.steps[step][1]) - 1))
    value = data.draw(st.integers(0, 255))
    steps = [
        (channel, piece[:position] + bytes([value]) + piece[position + 1 :] if index == step else piece)
        for index, (channel, piece) in enumerate(sample.steps)
    ]
    harness = Harness(name)
    for channel, kind in sample.kinds:
        harness.open(channel, kind)
    for channel, piece in steps:
        if not harness.closed:
            harness.feed(channel, piece)
            harness.settle()


@cases
def test_answers_keep_their_order_however_the_broker_answers(name: str, sample: Sample):
    if len(sample.kinds) > 1:
        return  # order across channels is not promised
    first, last = Harness(name, reply), Harness(name, reply)
    for harness, reverse in ((first, False), (last, True)):
        for channel, kind in sample.kinds:
            harness.open(channel, kind)
        for channel, data in sample.steps:
            harness.feed(channel, data)
            harness.settle(reverse=reverse)
    assert first.bytes_out() == last.bytes_out()


def test_every_status_has_an_error_type():
    for status in Status:
        assert error_of(status).status is status
