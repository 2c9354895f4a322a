"""Felix against the real process: what each generation of stock client sends, and what it has to get."""

from __future__ import annotations

import base64
import json
import signal
import struct
import time
from collections.abc import Iterator

import jwt
import pytest
import trio

from gateway.transport.quic.aioquic_private import peer_certificates
from gateway.transport.quic.limits import QuicLimits
from gateway.wire.session import Kind
from tests.integration.flymq_raw import flymq, i32, produce
from tests.integration.quic_raw import Streams, streams
from tests.integration.raw import felix_frame, s16, s32
from tests.integration.running import Served

CONFIG = """
version: 1
listeners:
  flymq:    {{protocol: flymq, bind: "127.0.0.1:0"}}
  felix:    {{protocol: [felix, fujin], bind: "127.0.0.1:0", tls: self-signed}}
  document: {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed, dialect: document}}
  closed:   {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed, create: false}}
  keeping:  {{protocol: felix, bind: "127.0.0.1:0", tls: self-signed, durable_cache: true}}
  tokens:
    protocol: felix
    bind: "127.0.0.1:0"
    tls: self-signed
    auth: {{jwt: {{key: "{secret}", algorithms: [HS256], issuer: felix-auth, audience: felix-broker}}}}
storage: {{path: "{data}"}}
"""
SECRET = "a shared secret that is long enough for HS256"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One process for the module; streams are told apart by name."""
    directory = tmp_path_factory.mktemp("felix")
    served = Served(directory, CONFIG.format(data=directory / "data", secret=SECRET))
    served.start()
    try:
        yield served
    finally:
        if served.running:
            assert served.end(signal.SIGTERM) == 0


def scope(stream: str) -> dict[str, object]:
    return {"tenant_id": "t1", "namespace": "default", "stream": stream}


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def binary(stream: str, values: list[bytes], flags: int = 1, front: bytes = b"") -> bytes:
    """A binary batch (Felix wire 2.11)."""
    payload = front + s16("t1") + s16("default") + s16(stream) + i32(len(values)) + b"".join(map(s32, values))
    return b"FLX1\0\1" + struct.pack(">H", flags) + s32(payload)


async def subscription(client: Streams, channel: int, known_as: object) -> int:
    """The stream of a subscription's events, once it has said hello."""
    assert await client.said(channel) == {"type": "subscribed", "subscription_id": known_as}
    events = await client.incoming()
    assert await client.said(events) == {"type": "event_stream_hello", "subscription_id": known_as}
    return events


async def events_of(client: Streams, channel: int, count: int) -> list[bytes]:
    """So many events, in binary frames."""
    found: list[bytes] = []
    while len(found) < count:
        flags, payload = await client.felix(channel)
        assert flags == 2
        left, position = int.from_bytes(payload[8:12], "big"), 12
        for _ in range(left):
            size = int.from_bytes(payload[position : position + 4], "big")
            found.append(payload[position + 4 : position + 4 + size])
            position += 4 + size
    return found


async def test_a_subscriber_of_the_document_reads_json(gateway: Served):
    with trio.fail_after(30):
        async with streams(gateway.ports["felix"]) as client:
            control = client.open(
                felix_frame({"type": "subscribe", **scope("plain"), "subscription_id": "s"}), end=True
            )
            events = await subscription(client, control, "s")
            client.open(binary("plain", [b"one"]), Kind.WRITE_ONLY, end=True)
            wanted = json.dumps({"type": "event", **scope("plain"), "payload": b64(b"one")}, separators=(",", ":"))
            assert await client.felix(events) == (0, wanted.encode())


async def test_who_follows_the_tail_can_go_on_behind_it(gateway: Served):
    """The newest client: live events tell their offsets, and a later `start` takes them (Felix wire 1.2)."""
    auth = felix_frame({"type": "auth", "tenant_id": "t1", "token": "x", "client_flags": 63})
    with trio.fail_after(30):
        async with streams(gateway.ports["felix"]) as client:

            async def subscribed(**start: object) -> int:
                control = client.open(auth + felix_frame({"type": "subscribe", **scope("tail"), **start}), end=True)
                assert (await client.said(control))["type"] == "auth_ok"
                assert (await client.said(control))["type"] == "subscribed"
                events = await client.incoming()
                await client.said(events)
                return events

            tail = await subscribed()
            client.open(auth + binary("tail", [b"a", b"b"]), Kind.WRITE_ONLY, end=True)
            flags, payload = await client.felix(tail)
            _, offset, count = struct.unpack_from(">QQI", payload)
            assert (flags, offset, count, payload[20:]) == (0x22, 0, 2, s32(b"a") + s32(b"b"))
            client.open(auth + binary("tail", [b"c"]), Kind.WRITE_ONLY, end=True)
            assert struct.unpack_from(">QI", (await client.felix(tail))[1], 8) == (2, 1)
            again = await subscribed(start={"offset": offset + count})
            flags, payload = await client.felix(again)
            assert (flags, payload[8:]) == (0x22, struct.pack(">QI", 2, 1) + s32(b"c"))


async def test_the_client_of_the_documents_day(gateway: Served):
    port = gateway.ports["felix"]
    with trio.fail_after(30):
        async with streams(port) as client:
            control = client.open(felix_frame({"type": "subscribe", **scope("g0"), "subscription_id": 5}), end=True)
            events = await subscription(client, control, 5)
            assert await client.rest(control) == b""
            publish = {"type": "publish", **scope("g0"), "payload": b64(b"one")}
            first = client.open(felix_frame({**publish, "request_id": 1, "ack": "per_message"}))
            assert await client.felix(first) == (0, b'{"type":"publish_ok","request_id":1}')
            client.send(first, felix_frame({**publish, "payload": b64(b"two"), "ack": "none"}))
            batch = {"type": "publish_batch", **scope("g0"), "payloads": [b64(b"three"), ""]}
            broken = json.dumps({**batch, "request_id": 2, "ack": "per_batch"}, separators=(",", ":"))
            broken = broken.replace('],"request_id"', ']","request_id"')  # as the shipped clients write it
            client.send(first, b"FLX1\0\1\0\0" + s32(broken.encode()))
            assert await client.felix(first) == (0, b'{"type":"publish_ok","request_id":2}')
            client.send(first, binary("g0", [b"five", b"six"]))
            client.send(first, felix_frame({**publish, "payload": b64(b"seven")}), end=True)
            assert json.loads((await client.felix(first))[1]) == {"type": "ok"}  # acknowledged by default, no id
            assert await client.rest(first) == b""
            assert await events_of(client, events, 7) == [b"one", b"two", b"three", b"", b"five", b"six", b"seven"]
            one_way = client.open(binary("g0", [b"eight"]), Kind.WRITE_ONLY, end=True)
            assert await events_of(client, events, 1) == [b"eight"]
            assert one_way not in client.broken


async def test_the_clients_that_log_in_first(gateway: Served):
    port = gateway.ports["felix"]
    with trio.fail_after(30):
        async with streams(port) as client:  # v0.1.1: no flags, the server numbers the subscriptions
            auth = felix_frame({"type": "auth", "tenant_id": "t1", "token": "x"})
            control = client.open(auth + felix_frame({"type": "subscribe", **scope("g1")}), end=True)
            assert await client.said(control) == {"type": "ok"}
            answer = await client.said(control)
            number = answer["subscription_id"]
            assert type(number) is int
            events = await client.incoming()
            assert await client.said(events) == {"type": "event_stream_hello", "subscription_id": number}
            first = client.open(auth + binary("g1", [b"a", b""]))
            assert await client.said(first) == {"type": "ok"}
            assert await client.felix(events) == (2, struct.pack(">QI", number, 2) + s32(b"a") + s32(b""))
        async with streams(port) as client:  # the newest: negotiated flags, acked binary batches, replay
            auth = felix_frame({"type": "auth", "tenant_id": "t1", "token": "x", "client_flags": 63})
            first = client.open(auth)
            told = await client.said(first)
            assert told["type"] == "auth_ok"
            flags = told["server_flags"]
            assert isinstance(flags, int)
            assert flags & 0x29 == 0x29
            client.send(first, binary("g1", [b"b"], 9, struct.pack(">QB", 7, 1)))
            assert await client.felix(first) == (16, b"\0" + struct.pack(">QH", 7, 0))
            client.send(first, b"FLX1\0\1" + struct.pack(">H", 9) + s32(struct.pack(">QB", 8, 2) + b"\0"))
            flags, payload = await client.felix(first)
            assert (flags, payload[:9]) == (16, b"\1" + struct.pack(">Q", 8))
            client.send(first, b"FLX1\0\1\1\0" + s32(b"{}"))
            assert (await client.said(first))["message"] == "unsupported frame flags"
            per_message = {"type": "publish_batch", **scope("g1"), "payloads": [b64(b"c")], "ack": "per_message"}
            client.send(first, felix_frame({**per_message, "request_id": 9}))
            assert await client.said(first) == {"type": "publish_ok", "request_id": 9}
            for start, offset in (("earliest", 0), ({"offset": 2}, 2)):
                control = client.open(
                    auth + felix_frame({"type": "subscribe", **scope("g1"), "start": start}), end=True
                )
                assert (await client.said(control))["type"] == "auth_ok"
                number = (await client.said(control))["subscription_id"]
                events = await client.incoming()
                await client.said(events)
                values = [b"a", b"", b"b", b"c"][offset:]
                while values:
                    shown, payload = await client.felix(events)
                    assert (shown, payload[:16]) == (0x22, struct.pack(">QQ", number, offset))
                    count, position = int.from_bytes(payload[16:20], "big"), 20
                    for value in values[:count]:
                        assert payload[position : position + 4 + len(value)] == s32(value)
                        position += 4 + len(value)
                    values, offset = values[count:], offset + count
            control = client.open(auth + felix_frame({"type": "subscribe", **scope("g1"), "start": {"offset": 99}}))
            await client.said(control)
            wanted = {"type": "subscribe_cursor_error", "reason": "in_future", "requested": 99, "available": 4}
            assert await client.said(control) == wanted


@pytest.mark.parametrize("flag", [0x0001, 0x0002, 0x0004, 0x0008, 0x0010, 0x0020])
async def test_each_flag_that_a_login_is_told_is_really_there(gateway: Served, flag: int):
    """Alone, as far as it means anything alone: 0x0008 and 0x0010 are a batch's and its answer's, 0x0020 is an event's."""
    together = {0x0008: 0x0019, 0x0010: 0x0019, 0x0020: 0x0022}.get(flag, flag)
    auth = felix_frame({"type": "auth", "tenant_id": "t1", "token": "x", "client_flags": together})
    stream = f"flag{flag:02x}"
    with trio.fail_after(30):
        async with streams(gateway.ports["felix"]) as client:
            control = client.open(auth + felix_frame({"type": "subscribe", **scope(stream)}), end=True)
            told = await client.said(control)
            assert told == {"type": "auth_ok", "server_flags": together}
            number = (await client.said(control))["subscription_id"]
            assert isinstance(number, int)
            events = await client.incoming()
            await client.said(events)
            publishing = client.open(auth)
            assert (await client.said(publishing))["server_flags"] == together
            if together & 0x0008:
                client.send(publishing, binary(stream, [b"x"], 0x0009, struct.pack(">QB", 7, 2)))
                assert await client.felix(publishing) == (0x0010, b"\0" + struct.pack(">QH", 7, 0))
            elif together & 0x0001:
                client.send(publishing, binary(stream, [b"x"]))
            else:
                publish = {"type": "publish", **scope(stream), "payload": b64(b"x"), "request_id": 1}
                client.send(publishing, felix_frame(publish))
                assert await client.said(publishing) == {"type": "publish_ok", "request_id": 1}
            shown, payload = await client.felix(events)
            one = struct.pack(">I", 1) + s32(b"x")
            match together:
                case 0x0002:
                    assert (shown, payload) == (0x0002, struct.pack(">Q", number) + one)
                case 0x0004:
                    assert (shown, payload) == (0x0004, one)
                case 0x0022:
                    assert (shown, payload) == (0x0022, struct.pack(">QQ", number, 0) + one)
                case _:
                    assert shown == 0
                    assert json.loads(payload)["payload"] == b64(b"x")


async def test_a_stock_client_has_twenty_connections(gateway: Served):
    async with trio.open_nursery() as nursery:
        ready, answered = trio.Event(), []

        async def one(number: int) -> None:
            async with streams(gateway.ports["felix"]) as client:
                publish = {"type": "publish", **scope("pool"), "payload": b64(b"%d" % number), "request_id": number}
                for _ in range(2):
                    assert (await client.said(client.open(felix_frame(publish))))["request_id"] == number
                answered.append(number)
                if len(answered) == 20:
                    ready.set()
                await ready.wait()

        with trio.fail_after(30):
            for number in range(20):
                nursery.start_soon(one, number)
            await ready.wait()


def asked(kind: str, key: str, **more: object) -> bytes:
    return felix_frame({"type": kind, "tenant_id": "t1", "namespace": "default", "cache": "c", "key": key, **more})


async def test_the_cache_lasts_as_long_as_asked(gateway: Served):
    head = {"type": "cache_value", "tenant_id": "t1", "namespace": "default", "cache": "c"}
    with trio.fail_after(60):
        async with streams(gateway.ports["felix"]) as client:
            first = client.open()
            for number, (key, ttl) in enumerate((("kept", None), ("short", 150), ("never", 0), ("", None)), 1):
                client.send(first, asked("cache_put", key, value=b64(b"v"), ttl_ms=ttl, request_id=number))
                assert await client.felix(first) == (0, b'{"type":"cache_ok","request_id":%d}' % number)
            client.send(first, asked("cache_get", "never", request_id=5) + asked("cache_get", "none", request_id=6))
            assert await client.said(first) == {**head, "key": "never", "value": None, "request_id": 5}
            assert await client.said(first) == {**head, "key": "none", "value": None, "request_id": 6}
            client.send(first, asked("cache_put", "x", value=b64(b"v"), request_id="s"))
            assert await client.said(first) == {"type": "ok", "request_id": "s"}
            client.send(first, asked("cache_put", "x", value=b64(b"v")))
            assert await client.said(first) == {"type": "ok"}
            value: object = ""
            while value is not None:
                client.send(first, asked("cache_get", "short", request_id=7))
                value = (await client.said(first))["value"]
            client.send(first, asked("cache_get", "kept"))
            assert await client.said(first) == {**head, "key": "kept", "value": b64(b"v")}


async def test_wrong_frames_end_their_stream_and_nothing_else(gateway: Served):
    def shape(payload: bytes, flags: int = 0) -> bytes:
        return b"FLX1\0\1" + struct.pack(">H", flags) + s32(payload)

    good = felix_frame({"type": "publish", **scope("bad"), "payload": "", "request_id": 1, "ack": "per_message"})
    wrong = [
        b"FLX2\0\1\0\0\0\0\0\0",
        b"FLX1\0\2\0\0\0\0\0\0",
        b"FLX1\0\1\0\0\1\0\0\1",
        shape(b""),
        shape(b"{"),
        shape(b'{"type":"nothing"}'),
        shape(b'{"type":"publish","tenant_id":1}'),
        shape(b'\xff\xfe{"type":"publish"}'),
        shape(json.dumps({"type": "publish", **scope("bad"), "payload": "a-_="}).encode()),
        shape(json.dumps({"type": "publish", **scope("bad"), "payload": "", "request_id": -1}).encode()),
        shape(b"\0\2t1", 1),
        shape(s16("t1") + s16("d") + s16("s") + b"\xff\xff\xff\xff", 1),
        shape(b"\0\1\xff" + s16("d") + s16("s") + bytes(4), 1),
    ]
    with trio.fail_after(30):
        async with streams(gateway.ports["felix"]) as client:
            other = client.open(good)
            await client.said(other)
            for frame in wrong:
                channel = client.open(good + frame)
                assert await client.felix(channel) == (0, b'{"type":"publish_ok","request_id":1}'), frame
                assert (await client.said(channel))["type"] == "error", frame
                assert await client.rest(channel) == b"", frame
            client.send(other, good)
            assert (await client.said(other))["type"] == "publish_ok"
        async with streams(gateway.ports["document"]) as client:
            channel = client.open(b"FLX2\0\1\0\0\0\0\0\0")
            await client.until(lambda: client.gone)
            assert channel
        async with streams(gateway.ports["closed"]) as client:
            channel = client.open(felix_frame({"type": "subscribe", **scope("unheard")}))
            text = "stream not found: tenant=t1 namespace=default stream=unheard"
            assert await client.said(channel) == {"type": "error", "message": text}
            channel = client.open(good.replace(b'"bad"', b'"ba2"'))
            text = "stream not found: tenant=t1 namespace=default stream=ba2"
            assert await client.said(channel) == {"type": "publish_error", "request_id": 1, "message": text}


async def test_a_slow_subscriber_loses_nothing_and_delays_nobody(gateway: Served):
    values = [b"%06d" % number + bytes(16_000) for number in range(1500)]  # 24 MB, more than any window
    with trio.fail_after(60):
        async with streams(gateway.ports["felix"]) as slow, streams(gateway.ports["felix"]) as quick:
            auth = felix_frame({"type": "auth", "tenant_id": "t1", "token": "x"})
            feeds = []
            for client in (slow, quick):
                control = client.open(auth + felix_frame({"type": "subscribe", **scope("slow")}), end=True)
                await client.said(control)
                await client.said(control)
                feeds.append(await client.incoming())
                await client.said(feeds[-1])
            slow.link.pause()
            first = quick.open()
            for start in range(0, len(values), 250):
                batch = binary("slow", values[start : start + 250], 9, struct.pack(">QB", start, 1))
                quick.send(first, batch)
                assert (await quick.felix(first))[1][:1] == b"\0"

            assert await events_of(quick, feeds[1], len(values)) == values
            slow.link.resume()
            assert await events_of(slow, feeds[0], len(values)) == values
            quick.link.stop_sending(feeds[1], 0)  # unsubscribes
            quick.link.flush()
            quick.send(first, binary("slow", [b"after"], 9, struct.pack(">QB", 1, 1)))
            await quick.felix(first)
            assert (await slow.felix(feeds[0]))[1].endswith(s32(b"after"))
            await quick.until(lambda: feeds[1] in quick.broken or feeds[1] in quick.ended)


async def test_streams_that_are_not_read_delay_no_other_of_their_connection(gateway: Served):
    """Twenty subscriptions that grant no more credit; a twenty-first, a publisher and a cache share their connection."""
    values = [b"%06d" % number + bytes(16_000) for number in range(100)]
    auth = felix_frame({"type": "auth", "tenant_id": "t1", "token": "x"})
    with trio.fail_after(60):
        async with streams(gateway.ports["felix"], limits=QuicLimits(stream_window=20_000)) as client:
            feeds = []
            for _ in range(21):
                control = client.open(auth + felix_frame({"type": "subscribe", **scope("jam")}), end=True)
                await client.said(control)
                await client.said(control)
                feeds.append(await client.incoming())
                await client.said(feeds[-1])
            *slow, quick = feeds
            for channel in slow:
                client.link.pause(channel)
            publisher = client.open()
            for number, value in enumerate(values):
                client.send(publisher, binary("jam", [value], 9, struct.pack(">QB", number, 1)))
                assert (await client.felix(publisher))[1][:9] == b"\0" + struct.pack(">Q", number)
            assert await events_of(client, quick, len(values)) == values
            cache = client.open(asked("cache_get", "none", request_id=1))
            assert (await client.said(cache))["request_id"] == 1
            for channel in slow:  # and none of them has missed anything
                client.link.resume(channel)
                assert await events_of(client, channel, len(values)) == values


async def test_eight_mebibytes_from_flymq(gateway: Served):
    value = bytes(range(256)) * (8 << 12)
    with trio.fail_after(30):
        async with streams(gateway.ports["felix"]) as reader, flymq(gateway.ports["flymq"]) as writer:
            control = reader.open(felix_frame({"type": "subscribe", **scope("large"), "subscription_id": 1}))
            events = await subscription(reader, control, 1)
            began = trio.current_time()
            await writer.ask(1, produce("large", value))
            assert await events_of(reader, events, 1) == [value]
            print("8 MiB", trio.current_time() - began)


async def test_tokens(gateway: Served):
    def token(**changed: object) -> str:
        claims = {"iss": "felix-auth", "aud": "felix-broker", "sub": "ann", "tid": "t1", "exp": int(time.time()) + 600}
        claims["perms"] = ["stream.publish:stream:t1/default/*", "cache.read:cache:t1/default/*"]  # type: ignore[assignment]
        return jwt.encode({**claims, **changed}, SECRET, "HS256")

    def auth(word: str, tenant: str = "t1") -> bytes:
        return felix_frame({"type": "auth", "tenant_id": tenant, "token": word})

    publish = {"type": "publish", **scope("guarded"), "payload": "", "request_id": 1, "ack": "per_message"}
    with trio.fail_after(30):
        async with streams(gateway.ports["tokens"]) as client:
            channel = client.open(felix_frame(publish))
            assert await client.said(channel) == {"type": "error", "message": "auth required"}
            assert await client.rest(channel) == b""
            for word, tenant in (
                ("nonsense", "t1"),
                (token(), "t2"),
                (token(exp=1), "t1"),
                (token(aud="x"), "t1"),
                (token(iss="x"), "t1"),
                (jwt.encode({"tid": "t1"}, "another secret, also long enough to use", "HS256"), "t1"),
            ):
                channel = client.open(auth(word, tenant))
                assert await client.said(channel) == {"type": "error", "message": "auth failed"}
                assert await client.rest(channel) == b""
            channel = client.open(auth(token()) + felix_frame(publish))
            assert await client.said(channel) == {"type": "ok"}
            assert await client.said(channel) == {"type": "publish_ok", "request_id": 1}
            client.send(channel, felix_frame({**publish, "namespace": "other", "request_id": 2}))
            assert await client.said(channel) == {"type": "publish_error", "request_id": 2, "message": "forbidden"}
            client.send(channel, felix_frame({"type": "subscribe", **scope("guarded")}))
            assert (await client.said(channel))["message"] == "forbidden"
            client.send(channel, felix_frame({**publish, "tenant_id": "t2"}))
            assert (await client.said(channel))["message"] == "tenant mismatch"
            channel = client.open(auth(token()) + auth(token()))
            await client.said(channel)
            assert (await client.said(channel))["message"] == "auth already established"


async def test_what_a_kill_leaves(gateway: Served):
    """Last in the module: the process is another one afterwards, and its ports too."""
    with trio.fail_after(40):
        async with streams(gateway.ports["keeping"]) as client:
            channel = client.open(asked("cache_put", "durable", value=b64(b"v"), request_id=1))
            assert (await client.said(channel))["type"] == "cache_ok"
            shown = peer_certificates(client.link.core)[0]
        async with streams(gateway.ports["felix"]) as client:
            channel = client.open(asked("cache_put", "volatile", value=b64(b"v"), request_id=1))
            assert (await client.said(channel))["type"] == "cache_ok"
            publish = {"type": "publish", **scope("kept"), "payload": b64(b"v"), "request_id": 1, "ack": "per_message"}
            channel = client.open(felix_frame(publish))
            assert (await client.said(channel))["type"] == "publish_ok"
        await trio.to_thread.run_sync(gateway.end, signal.SIGKILL)
        await trio.to_thread.run_sync(gateway.start)
        async with streams(gateway.ports["felix"]) as client:
            assert peer_certificates(client.link.core)[0] == shown
            channel = client.open(asked("cache_get", "durable") + asked("cache_get", "volatile"))
            assert (await client.said(channel))["value"] == b64(b"v")
            assert (await client.said(channel))["value"] is None
            control = client.open(felix_frame({"type": "subscribe", **scope("kept"), "start": "earliest"}))
            assert (await client.said(control))["type"] == "subscribed"
            events = await client.incoming()
            await client.said(events)
            assert (await client.said(events))["payload"] == b64(b"v")
