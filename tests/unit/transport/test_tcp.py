"""TCP links and the driver, over real sockets, with a toy protocol."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trustme
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.broker.lane import Lane
from gateway.protocols.registry import (
    Acknowledgement,
    Carries,
    Ordering,
    ProtocolSpec,
    Sniff,
    Transport,
)
from gateway.recorder import Recorder
from gateway.settings import Limits, Seconds, Size
from gateway.transport.driver import DriverContext
from gateway.transport.limits import PATIENCE, QUEUE, Budget
from gateway.transport.listen import Served, TcpListener, open_tcp_sockets
from gateway.transport.tls import server_context
from gateway.wire.session import SessionContext
from tests.unit.transport.toy import EchoBroker, LineSession

CARRIES = Carries(
    key=False, headers=False, partition=False, offset=False, time=False, expiry=False, ordering=Ordering.TOPIC,
    acknowledgement=Acknowledgement.NOTHING, max_value=100, min_value=0, batch_atomic=False, consumer_acknowledges=False,
)  # fmt: skip


class Refusals(Recorder):
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.limits: list[str] = []
        self.open = 0

    def refused_connection(self, listener: str, reason: str) -> None:
        self.reasons.append(reason)

    def limit_hit(self, listener: str, limit: str) -> None:
        self.limits.append(limit)

    def connections(self, listener: str, change: int) -> None:
        self.open += change


def spec(first: bytes = b"") -> ProtocolSpec:
    def sniff(data: bytes) -> Sniff:
        if data.startswith(first):
            return Sniff.YES
        return Sniff.MORE if first.startswith(data) else Sniff.NO

    return ProtocolSpec("toy", Transport.TCP, 1, CARRIES, LineSession, LineSession, sniff=sniff)


@attrs.define
class Running:
    listener: TcpListener
    broker: EchoBroker
    recorder: Refusals
    budget: Budget

    host: str = "127.0.0.1"

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(self.host, self.listener.port)


@asynccontextmanager
async def running(
    limits: Limits | None = None,
    *,
    later: bool = False,
    tls=None,
    served: int = 1,
    budget: int = 1 << 20,
    host: str = "127.0.0.1",
    hold: Callable[[], None] = lambda: None,
    release: Callable[[int], None] = lambda _by: None,
) -> AsyncIterator[Running]:
    limits = limits or Limits()
    broker, recorder, shared, lane = EchoBroker(later=later), Refusals(), Budget(budget), Lane()
    context = DriverContext("toy", limits, shared, recorder, trio.current_time, lane, hold, release)
    specs = [spec(b"")] if served == 1 else [spec(b"A"), spec(b"BB")]
    all_served = [
        Served(one, lambda _alpn: LineSession(SessionContext("toy", None, limits=limits)), broker.attach)
        for one in specs
    ]
    listener = TcpListener(context, await open_tcp_sockets(host, 0), all_served, tls)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run)
        nursery.start_soon(lane.run)
        yield Running(listener, broker, recorder, shared, host)
        nursery.cancel_scope.cancel()


async def read_until(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    pieces: list[bytes] = []
    while size > 0 and (piece := await stream.receive_some(min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    return b"".join([piece async for piece in stream])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_answers_in_one_write_what_came_in_one_read(host: str):
    async with running(host=host) as gateway, await gateway.connect() as stream:
        await stream.send_all(b"a\nb\nc\n")
        assert await read_until(stream, 6) == b"a\nb\nc\n"


async def test_frames_may_be_split_at_every_byte():
    async with running() as gateway, await gateway.connect() as stream:
        for index in range(len(b"hello\n")):
            await stream.send_all(b"hello\n"[index : index + 1])
        assert await read_until(stream, 6) == b"hello\n"


async def test_half_close_answers_what_was_sent_and_closes():
    async with running(later=True) as gateway, await gateway.connect() as stream:
        await stream.send_all(b"a\nb\n")
        await stream.send_eof()
        while gateway.broker.submitted < 2:
            await trio.lowlevel.checkpoint()
        gateway.broker.release()
        assert await read_all(stream) == b"a\nb\n"


async def test_close_sends_what_is_queued_first_even_over_unread_bytes():
    async with running() as gateway, await gateway.connect() as stream:
        await stream.send_all(b"a\nquit\n" + b"never answered\n" * 1000)
        assert (await read_all(stream)).startswith(b"a\n")


async def test_reading_stops_at_the_in_flight_bound_and_goes_on_after():
    limits = Limits(in_flight=4)
    async with running(limits, later=True) as gateway, await gateway.connect() as stream:
        await stream.send_all(b"a\n" * 4)
        while gateway.broker.submitted < 4:
            await trio.lowlevel.checkpoint()
        await stream.send_all(b"b\n")
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        assert gateway.broker.submitted == 4
        assert gateway.recorder.limits == ["in_flight"]
        gateway.broker.release()
        assert await read_until(stream, 8) == b"a\n" * 4
        while gateway.broker.submitted < 5:
            await trio.lowlevel.checkpoint()


async def test_a_held_connection_is_not_read_and_has_reached_no_limit():
    async with running(later=True) as gateway, await gateway.connect() as stream:
        await stream.send_all(b"hold\n")
        while gateway.broker.submitted < 1:
            await trio.lowlevel.checkpoint()
        await stream.send_all(b"b\n")
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        assert gateway.broker.submitted == 1
        gateway.broker.release()
        assert await read_until(stream, 5) == b"hold\n"
        while gateway.broker.submitted < 2:
            await trio.lowlevel.checkpoint()
        assert gateway.recorder.limits == []


async def test_a_peer_that_does_not_read_is_not_read_from_and_loses_nothing():
    limits = Limits(output=Size(100_000))
    async with running(limits) as gateway, await gateway.connect() as stream:
        size, count = 1_000_000, 8
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, b"big %d\n" % size * count + b"end\n")
            await wait_all_tasks_blocked(0.05)
            assert "output" in gateway.recorder.limits
            assert await read_until(stream, size * count + 4) == b"x" * (size * count) + b"end\n"


async def test_the_budget_counts_output_and_gives_it_back():
    async with running(budget=1000) as gateway, await gateway.connect() as stream:
        await stream.send_all(b"big 30000000\n")
        await wait_all_tasks_blocked(0.05)
        assert gateway.budget.used > 1000
        await read_until(stream, 30_000_000)
        await stream.send_all(b"a\n")
        assert await read_until(stream, 2) == b"a\n"
        assert gateway.budget.used == 0


@pytest.mark.parametrize(
    ("limits", "sent", "looks", "after", "reason"),
    [
        (Limits(handshake=Seconds(30)), b"", 1, 31, "handshake"),
        (Limits(idle=Seconds(60)), b"a\n", 1, 61, "idle"),
        # the first look sees what the system took for it, piece by piece
        (Limits(write_timeout=Seconds(5)), b"big 50000000\n", 2, 6, "write_timeout"),
    ],
)
async def test_time_outs(limits: Limits, sent: bytes, looks: int, after: float, reason: str, mock_clock: MockClock):
    async with running(limits) as gateway, await gateway.connect() as stream:
        if sent:
            await stream.send_all(sent)
            await stream.receive_some(2)
        for _ in range(looks):
            await wait_all_tasks_blocked(0.05)
            assert not gateway.recorder.reasons
            mock_clock.jump(after)
        await wait_all_tasks_blocked(0.05)
        assert gateway.recorder.reasons == [reason]
        assert gateway.recorder.open == 0


async def test_who_reads_less_than_it_asks_for_is_not_cut_as_long_as_it_reads(mock_clock: MockClock):
    """What waits for it only grows."""
    async with (
        running(Limits(write_timeout=Seconds(5), output=Size(1 << 30))) as gateway,
        await gateway.connect() as stream,
    ):
        for _ in range(12):
            await stream.send_all(b"big 9000000\n")
            await read_until(stream, 3_000_000)
            await wait_all_tasks_blocked(0.05)
            mock_clock.jump(1)
        assert not gateway.recorder.reasons
        # the first look sees that it had read; what the system still takes for it looks the same, and when it has taken all it can is
        # the machine's to say
        for _ in range(10):
            mock_clock.jump(6)
            await wait_all_tasks_blocked(0.05)
            if gateway.recorder.reasons:
                break
        assert gateway.recorder.reasons == ["write_timeout"]


async def test_unfinished_frames_count_against_the_budget_and_do_not_hold_it_for_ever(mock_clock: MockClock):
    async with running(budget=100_000) as gateway, await gateway.connect() as good:
        held = [await gateway.connect() for _ in range(3)]
        try:
            for stream in (good, *held):
                await stream.send_all(b"a\n")
                assert await read_until(stream, 2) == b"a\n"
            for stream in held:
                await stream.send_all(b"x" * 60_000)
            await wait_all_tasks_blocked(0.05)
            assert gateway.budget.used >= 100_000
            await held[2].send_all(b"x" * 60_000)
            await wait_all_tasks_blocked(0.05)
            assert gateway.budget.used <= 180_000, "nobody reads on within a frame"
            mock_clock.jump(11)
            await wait_all_tasks_blocked(0.05)
            assert set(gateway.recorder.reasons) == {"unfinished"}
            assert gateway.budget.used < 100_000
            await good.send_all(b"a\n")
            assert await read_until(good, 2) == b"a\n"
        finally:
            for stream in held:
                await trio.aclose_forcefully(stream)


async def test_who_goes_is_who_has_held_part_of_a_frame_for_longest_and_not_who_came_last(mock_clock: MockClock):
    async with running(budget=100_000) as gateway:
        streams = [await gateway.connect() for _ in range(4)]
        first, second, late, last = streams
        for stream in streams:
            await stream.send_all(b"a\n")
            assert await read_until(stream, 2) == b"a\n"
        gateway.budget.change(20_000)  # what an ingest holds
        for stream in (first, second):
            await stream.send_all(b"x" * 30_000)
        await wait_all_tasks_blocked(0.05)
        mock_clock.jump(6)
        gateway.budget.change(-20_000)  # wakes who waits; their time goes on
        gateway.budget.change(20_000)
        await late.send_all(b"y" * 30_000)
        await wait_all_tasks_blocked(0.05)
        mock_clock.jump(5)
        await last.send_all(b"z" * 20_000)
        await wait_all_tasks_blocked(0.05)
        assert gateway.recorder.reasons == ["unfinished"] * 2
        for stream, letter, size in ((late, b"y", 30_000), (last, b"z", 20_000)):
            await stream.send_all(b"\n")
            assert await read_until(stream, size + 1) == letter * size + b"\n"
        for stream in streams:
            await trio.aclose_forcefully(stream)


async def test_who_waits_for_a_commit_holds_no_unfinished_frame(mock_clock: MockClock):
    """It sends ahead while a stalled disk keeps it waiting: that is ours to end."""
    async with running(budget=100_000, later=True) as gateway, await gateway.connect() as stream:
        await stream.send_all(b"hold\n" + b"x" * 120_000)
        await wait_all_tasks_blocked(0.05)
        mock_clock.jump(60)
        await wait_all_tasks_blocked(0.05)
        assert gateway.recorder.reasons == []


async def test_of_those_whose_answers_fill_the_memory_who_takes_nothing_goes_and_who_reads_slowly_stays(
    mock_clock: MockClock,
):
    """The system takes megabytes for it in one piece and then, while its peer reads, nothing for long: it is asked what the
    peer has had.
    """
    async with running(Limits(write_timeout=Seconds(3600)), budget=12 << 20) as gateway:
        slow, idle = [await little_at_once(gateway.listener.port) for _ in range(2)]
        await slow.send_all(b"big 12000000\n")
        await idle.send_all(b"big 32000000\n")
        while gateway.budget.used < gateway.budget.full:
            await wait_all_tasks_blocked(0.05)
        there = trio.Event()
        gateway.budget.wait_while_full(there, there.set)
        with capture_logs() as lines:
            while not there.is_set():
                gateway.budget.relieve_readers(trio.current_time())
                # so little that the system has no reason to ask for more of it
                await read_until(slow, 400_000)
                await wait_all_tasks_blocked(0.05)
                mock_clock.jump(PATIENCE)
        assert gateway.recorder.reasons == ["unread"]
        (line,) = (line for line in lines if line["log_level"] == "warning")
        assert line["reason"] == "unread"
        assert line["unread"] > 1 << 20
        await slow.send_all(b"a\n")
        while not (await slow.receive_some(1 << 20)).endswith(b"a\n"):
            pass
        await trio.aclose_forcefully(idle)
        await trio.aclose_forcefully(slow)


async def little_at_once(port: int) -> trio.SocketStream:
    """A connection for whom the system takes no more than it must."""
    sock = trio.socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    await sock.connect(("127.0.0.1", port))
    return trio.SocketStream(sock)


async def test_who_publishes_little_finds_little_before_it_however_much_others_send():
    """Counted in bytes that would be stored before it: what one connection has under way is its share of one queue."""
    line, lines = b"pub " + b"x" * 99_995 + b"\n", 120
    over = 128_000 + len(line)  # a read, and the line it ends
    async with running(later=True, budget=64 << 20) as gateway, trio.open_nursery() as nursery:
        streams = [await gateway.connect() for _ in range(3)]
        for stream in streams:
            nursery.start_soon(stream.send_all, line * lines)
        await wait_all_tasks_blocked(0.05)
        assert QUEUE // 2 <= gateway.broker.published <= QUEUE + 3 * over
        assert set(gateway.recorder.limits) == {"share"}
        async with await gateway.connect() as quiet:
            before, requests = gateway.broker.published, gateway.broker.submitted
            await quiet.send_all(b"pub little\n")
            while gateway.broker.submitted == requests:
                await trio.lowlevel.checkpoint()
            assert gateway.broker.published == before + len(b"pub little")
            gateway.broker.release()
            assert await read_until(quiet, 7) == b"stored\n"
        with trio.fail_after(60):
            while gateway.broker.submitted < 3 * lines + 1:
                gateway.broker.release()
                await wait_all_tasks_blocked(0.001)
        gateway.broker.release()
        for stream in streams:
            assert await read_until(stream, 7 * lines) == b"stored\n" * lines
            await stream.aclose()
        assert gateway.budget.writers == 0


async def test_a_connection_is_two_lines_in_the_log_at_debug_and_says_why_it_was_cut(mock_clock: MockClock):
    with capture_logs() as lines:
        async with running(Limits(handshake=Seconds(30))) as gateway:
            async with await gateway.connect() as stream:
                await stream.send_all(b"a\n")
                await read_until(stream, 2)
            async with await gateway.connect() as stream:
                while gateway.recorder.open != 1:
                    await trio.lowlevel.checkpoint()
                await wait_all_tasks_blocked(0.05)
                mock_clock.jump(31)
                assert await read_all(stream) == b""
    assert {line["log_level"] for line in lines} == {"debug"}
    assert [(line["event"], line.get("cut")) for line in lines] == [
        ("a connection opened", None),
        ("a connection closed", ""),
        ("a connection opened", None),
        ("a connection closed", "handshake"),
    ]
    assert all(line["listener"] == "toy" and line["peer"].startswith("127.0.0.1:") for line in lines)


async def test_a_session_is_called_at_the_time_it_asks_for(mock_clock: MockClock):
    async with running() as gateway, await gateway.connect() as stream:
        await stream.send_all(b"tick\na\n")
        assert await read_until(stream, 2) == b"a\n"
        mock_clock.jump(1)
        assert await read_until(stream, 5) == b"tock\n"


async def test_connection_limits_refuse_and_are_counted():
    async with running(Limits(connections=2, per_address=1)) as gateway, await gateway.connect() as first:
        await first.send_all(b"a\n")
        await read_until(first, 2)
        async with await gateway.connect() as second:
            assert await read_all(second) == b""
        assert gateway.recorder.reasons == ["per_address"]


async def test_drain_says_goodbye_and_accepts_no_more():
    async with running() as gateway, await gateway.connect() as stream:
        await stream.send_all(b"a\n")
        await read_until(stream, 2)
        port = gateway.listener.port
        gateway.listener.drain()
        assert await read_all(stream) == b"bye\n"
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", port)


@pytest.mark.parametrize("tls", [False, True])
async def test_drain_does_not_wait_for_who_has_not_said_yet_which_protocol_it_speaks(
    tls: bool, authority: trustme.CA, tmp_path
):
    context = server_tls(authority, tmp_path) if tls else None
    async with running(served=2, tls=context) as gateway, await gateway.connect() as stream:
        while gateway.recorder.open < 1:
            await trio.lowlevel.checkpoint()
        gateway.listener.drain()
        with trio.fail_after(5):
            assert await read_all(stream) == b""
        assert gateway.recorder.reasons == []


@pytest.mark.parametrize("line", [b"crash\n", b"crash later\n"])
async def test_a_mistake_in_a_session_ends_its_connection_and_nothing_else(line: bytes):
    async with running(later=True) as gateway, await gateway.connect() as bad, await gateway.connect() as good:
        await good.send_all(b"a\n")
        await bad.send_all(line)
        while gateway.broker.submitted < 1 + (line != b"crash\n"):
            await trio.lowlevel.checkpoint()
        gateway.broker.release()
        assert await read_until(good, 2) == b"a\n"
        with contextlib.suppress(trio.BrokenResourceError):
            assert await read_all(bad) == b""
        assert gateway.recorder.reasons == ["internal_error"]


async def test_a_lost_connection_is_detached_once():
    async with running() as gateway:
        stream = await gateway.connect()
        await stream.send_all(b"a\n")
        await read_until(stream, 2)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        await stream.aclose()
        await wait_all_tasks_blocked(0.05)
        assert gateway.broker.detached == 1


@pytest.mark.parametrize("pieces", [[b"A1\n"], [b"B", b"B1\n"]])
async def test_protocols_share_a_port_by_their_first_bytes(pieces: list[bytes]):
    async with running(served=2) as gateway, await gateway.connect() as stream:
        for piece in pieces:
            await stream.send_all(piece)
            await wait_all_tasks_blocked(0.01)
        whole = b"".join(pieces)
        assert await read_until(stream, len(whole)) == whole


async def test_first_bytes_of_no_protocol_are_refused():
    async with running(served=2) as gateway, await gateway.connect() as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\n")
        assert await read_all(stream) == b""
        assert gateway.recorder.reasons == ["unknown_protocol"]


async def test_who_goes_away_before_it_says_which_protocol_it_speaks_is_not_refused():
    async with running(served=2) as gateway:
        for said in (b"", b"B"):
            async with await gateway.connect() as stream:
                while gateway.recorder.open < 1:
                    await trio.lowlevel.checkpoint()
                await stream.send_all(said)
            while gateway.recorder.open:
                await trio.lowlevel.checkpoint()
        assert gateway.recorder.reasons == []


async def test_who_says_nothing_in_time_is_cut_for_that(mock_clock: MockClock):
    limits = Limits(handshake=Seconds(30))
    async with running(limits, served=2) as gateway, await gateway.connect() as stream:
        await stream.send_all(b"B")
        await wait_all_tasks_blocked(0.05)
        mock_clock.jump(31)
        assert await read_all(stream) == b""
        assert gateway.recorder.reasons == ["handshake"]


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def server_tls(authority: trustme.CA, tmp_path, client_cert: str = ""):
    leaf = authority.issue_cert("localhost")
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    authority.cert_pem.write_to_path(ca)
    context = server_context(str(cert), str(key), str(ca) if client_cert else "", client_cert)
    return lambda: context


def client_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize("served", [1, 2])
async def test_who_does_not_finish_a_handshake_in_time_is_cut_for_that(
    served: int, authority: trustme.CA, tmp_path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
):
    """Also where the session asks for nothing first, as one without a login."""

    class Welcoming(LineSession):
        def __init__(self, context: SessionContext) -> None:
            super().__init__(context)
            self.handshaken = True

    monkeypatch.setattr(f"{__name__}.LineSession", Welcoming)
    limits = Limits(handshake=Seconds(30))
    async with running(limits, tls=server_tls(authority, tmp_path), served=served) as gateway:
        async with await gateway.connect() as stream:
            await stream.send_all(b"\x16\3\1")
            await wait_all_tasks_blocked(0.05)
            mock_clock.jump(31)
            assert await read_all(stream) == b""
        assert gateway.recorder.reasons == ["handshake"]


async def test_tls_carries_the_protocol_and_large_output(authority: trustme.CA, tmp_path):
    async with running(tls=server_tls(authority, tmp_path)) as gateway:
        raw = await gateway.connect()
        async with trio.SSLStream(raw, client_tls(authority), server_hostname="localhost") as stream:
            await stream.send_all(b"a\nbig 5000000\nb\n")
            assert await read_until(stream, 5_000_004) == b"a\n" + b"x" * 5_000_000 + b"b\n"


async def test_a_required_client_certificate_is_really_asked_for(authority: trustme.CA, tmp_path):
    async with running(tls=server_tls(authority, tmp_path, "required")) as gateway:
        raw = await gateway.connect()
        stream = trio.SSLStream(raw, client_tls(authority), server_hostname="localhost")
        await stream.do_handshake()  # with TLS 1.3 the client hears of the refusal only when it reads
        with pytest.raises(trio.BrokenResourceError):
            await read_until(stream, 1)
        await trio.aclose_forcefully(raw)
        context = client_tls(authority)
        authority.issue_cert("me@example.org").configure_cert(context)
        raw = await gateway.connect()
        async with trio.SSLStream(raw, context, server_hostname="localhost") as stream:
            await stream.send_all(b"a\n")
            assert await read_until(stream, 2) == b"a\n"


@pytest.mark.parametrize("pieces", [[b"A1\n"], [b"B", b"B1\n"]])
async def test_protocols_share_a_port_under_tls(pieces: list[bytes], authority: trustme.CA, tmp_path):
    async with running(tls=server_tls(authority, tmp_path), served=2) as gateway:
        raw = await gateway.connect()
        async with trio.SSLStream(raw, client_tls(authority), server_hostname="localhost") as stream:
            for piece in pieces:
                await stream.send_all(piece)
                await wait_all_tasks_blocked(0.01)
            whole = b"".join(pieces)
            assert await read_until(stream, len(whole)) == whole


@pytest.mark.parametrize("served", [1, 2])
async def test_garbage_instead_of_a_handshake_harms_nobody(served: int, authority: trustme.CA, tmp_path):
    async with running(tls=server_tls(authority, tmp_path), served=served) as gateway:
        async with await gateway.connect() as bad:
            await bad.send_all(b"GET / HTTP/1.1\r\n\r\n" * 10)
            await read_all(bad)
        assert gateway.recorder.reasons == ["tls"]
        raw = await gateway.connect()
        async with trio.SSLStream(raw, client_tls(authority), server_hostname="localhost") as stream:
            await stream.send_all(b"A\n")
            assert await read_until(stream, 2) == b"A\n"
