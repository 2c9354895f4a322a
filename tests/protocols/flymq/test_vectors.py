"""Every hex example of the FlyMQ document and of the wire notes, raw bytes against the codec.

The document's PRODUCE frame announces 0x13 bytes for a payload of 23 (0x17): as printed it is refused. Its timestamp
bytes are 1706615843840, not the 1705123456000 beside them (FlyMQ wire 1).
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.envelope import BatchMeta, Columns, Origin, Run
from gateway.errors import TargetRefused
from gateway.protocols.flymq.wire import codec_fetch
from gateway.protocols.flymq.wire.codec import (
    CLUSTER,
    REPLIES,
    REQUESTS,
    read_group,
    read_produce_with_schema,
    read_replay,
    read_reset,
    read_schema,
)
from gateway.protocols.flymq.wire.codec_produce import Collector
from gateway.protocols.flymq.wire.dialect import Speech, filter_suffix, read_error, read_login, read_mode
from gateway.protocols.flymq.wire.frames import Op
from gateway.protocols.flymq.wire.layout import BYTES, NAMES, STR, Layout
from gateway.protocols.flymq.wire.mapping import refusal
from gateway.requests import Publish, Published
from gateway.settings import Dialect
from tests.protocols.flymq.made import error, fr, server
from tests.protocols.script import hexed


@pytest.mark.parametrize(
    ("field", "value", "raw"),
    [
        pytest.param(STR, "hello", "00 05 68 65 6C 6C 6F", id="string"),
        pytest.param(BYTES, b"\xde\xad\xbe\xef", "00 00 00 04 DE AD BE EF", id="bytes"),
        pytest.param(NAMES, ["a", "bc"], "00 00 00 02 00 01 61 00 02 62 63", id="array"),
    ],
)
def test_encoding_examples(field: Any, value: object, raw: str) -> None:
    """FlyMQ document, Encoding Examples."""
    assert Layout(field).encode(value) == hexed(raw)
    assert Layout(field).decode(hexed(raw)) == (value,)


PRODUCE_PAYLOAD = "0004 74657374 00000000 00000005 68656c6c6f ffffffff"
REQUEST_VECTORS = [
    (Op.PRODUCE, ("test", b"", b"hello", -1), PRODUCE_PAYLOAD),
    (Op.FETCH, ("test", 1, 42, 500), "0004 74657374 00000001 000000000000002a 000001f4"),
    (Op.COMMIT, ("test", "g1", 0, 43), "0004 74657374 0002 6731 00000000 000000000000002b"),
    (Op.GET_OFFSET, ("test", "g1", 0), "0004 74657374 0002 6731 00000000"),
    (Op.GET_LAG, ("test", "g1", 0), "0004 74657374 0002 6731 00000000"),
    (Op.RESET_OFFSET, ("test", "g1", 0, "latest"), "0004 74657374 0002 6731 00000000 06 6c6174657374"),
    (Op.DESCRIBE_GROUP, ("test", "g1"), "0004 74657374 0002 6731"),
    (Op.DELETE_GROUP, ("test", "g1"), "0004 74657374 0002 6731"),
    (Op.PRODUCE_DELAYED, ("test", b"hi", 1500), "0004 74657374 00000002 6869 00000000000005dc"),
    (Op.PRODUCE_WITH_TTL, ("test", b"hi", 60000), "0004 74657374 00000002 6869 000000000000ea60"),
    (Op.PRODUCE_WITH_SCHEMA, ("test", "orders", b"{}"), "0004 74657374 0006 6f7264657273 00000002 7b7d"),
    (Op.TXN_PRODUCE, ("txn-1", "test", b"hi"), "0005 74786e2d31 0004 74657374 00000002 6869"),
    (Op.REGISTER_SCHEMA, ("orders", "json", b"{}"), "0006 6f7264657273 04 6a736f6e 00000002 7b7d"),
    (Op.GET_SCHEMA, ("orders", 0), "0006 6f7264657273 00000000"),
    (Op.VALIDATE_SCHEMA, ("orders", b"{}"), "0006 6f7264657273 00000002 7b7d"),
    (Op.FETCH_DLQ, ("test", 10), "0004 74657374 0000000a"),
    (Op.REPLAY_DLQ, ("test", "m-1"), "0004 74657374 0003 6d2d31"),
    (Op.AUTH, ("admin", "secret"), "0005 61646d696e 0006 736563726574"),
    (Op.CLUSTER_JOIN, ("h:9093",), "0006 683a39303933"),
]


@pytest.mark.parametrize(("op", "values", "raw"), REQUEST_VECTORS, ids=lambda value: getattr(value, "name", None))
def test_requests_of_shipped_clients(op: Op, values: tuple[object, ...], raw: str) -> None:
    """FlyMQ wire 2.4, request payloads."""
    assert REQUESTS[op].decode(hexed(raw)) == values
    assert REQUESTS[op].encode(*values) == hexed(raw)


def test_requests_that_a_table_cannot_read() -> None:
    """FlyMQ wire 2.4: SUBSCRIBE, FETCH of newer clients, RESET_OFFSET with an offset, PRODUCE_WITH_SCHEMA in both orders."""
    subscribe = hexed("0004 74657374 0002 6731 00000000 08 6561726c69657374")
    speech = Speech(Dialect.AUTO)
    assert read_mode(subscribe[14:], speech) == "earliest"
    assert speech.stock
    assert filter_suffix(hexed("0000")) == ""
    reset = "0004 74657374 0002 6731 00000000 06 6f6666736574 0000000000000007"
    assert read_reset(hexed(reset)) == ("test", "g1", 0, "offset", 7)
    assert read_produce_with_schema(hexed("0004 74657374 00000002 7b7d 0006 6f7264657273")) == ("test", "orders", b"{}")
    assert read_produce_with_schema(hexed("0004 74657374 0006 6f7264657273 00000002 7b7d")) == ("test", "orders", b"{}")
    assert read_replay(hexed("0004 74657374 0003 6d2d31")) == ("test", "m-1")
    assert read_group(hexed("0004 74657374 0002 6731")) == ("test", "g1")


def test_produce_of_the_document() -> None:
    """FlyMQ document, PRODUCE, with the length corrected to 0x17."""
    script = server(Dialect.DOCUMENT).feed(hexed("AF 01 01 01 00 00 00 17" + PRODUCE_PAYLOAD))
    asked = script.expect(Publish)
    assert asked.batch.address == "test"
    assert asked.batch.partition is None
    assert asked.batch.columns.values() == [b"hello"]
    assert asked.batch.columns.keys is None
    script.complete(asked, Published("test", 0x0000018D5A3B2C00, 0, 42)).sends(
        hexed(
            """AF 01 01 01 00 00 00 22
               00 04 74 65 73 74 00 00 00 00 00 00 00 00 00 00 00 2A 00 00 01 8D 5A 3B 2C 00 FF FF FF FF 00 00 00 05"""
        )
    ).quiet()
    assert 0x0000018D5A3B2C00 == 1706615843840


def test_produce_of_the_document_as_printed_is_refused() -> None:
    """FlyMQ document, PRODUCE: 0x13 cuts the partition off, and what is left over is no frame: the connection ends."""
    from gateway.wire.session import Close

    script = server(Dialect.DOCUMENT).feed(hexed("AF 01 01 01 00 00 00 13" + PRODUCE_PAYLOAD))
    script.sends(error("buffer too small")).output(Close)
    script.quiet()


FRAMES = [
    (
        Op.PRODUCE,
        ("test", 0, 0, 0x1A1ED4E5AB6, -1, 5),
        "AF 01 01 01 00000022 0004 74657374 00000000 0000000000000000 000001a1ed4e5ab6 ffffffff 00000005",
    ),
    (Op.SUBSCRIBE, (0,), "AF 01 05 01 00000008 0000000000000000"),
    (
        Op.GET_LAG,
        (0, 0, 1, 1),
        "AF 01 64 01 00000020 0000000000000000 0000000000000000 0000000000000001 0000000000000001",
    ),
    (
        Op.LIST_GROUPS,
        ([("t4", "g", 0, [(1, 7), (0, 5)]), ("nope", "g", 0, [(0, 7)])],),
        """AF 01 62 01 00000048 00000002 0002 7434 0001 67 00000000 00000002 00000001 0000000000000007 00000000
           0000000000000005 0004 6e6f7065 0001 67 00000000 00000001 00000000 0000000000000007""",
    ),
    (Op.REGISTER_SCHEMA, ("orders", "json", 1), "AF 01 10 01 00000011 0006 6f7264657273 04 6a736f6e 00000001"),
    (
        Op.VALIDATE_SCHEMA,
        (False, ["type mismatch at id: expected string, got integer"]),
        "AF 01 13 01 00000038 00 00000001 0031" + b"type mismatch at id: expected string, got integer".hex(),
    ),
    (
        Op.TXN_BEGIN,
        ("txn-1794982967676379415", True),
        "AF 01 40 01 0000001a 0017 74786e2d31373934393832393637363736333739343135 01",
    ),
    (
        Op.USER_GET,
        ("alice", ["producer"], ["write"], True, 0x6AFD440E, 0x6AFD440E),
        """AF 01 77 01 00000031 0005 616c696365 00000001 0008 70726f6475636572 00000001 0005 7772697465 01
           000000006afd440e 000000006afd440e""",
    ),
    (
        Op.ACL_GET,
        ("t", True, False, False, ["alice"], ["consumer"]),
        "AF 01 79 01 0000001f 0001 74 01 00 00 00000001 0005 616c696365 00000001 0008 636f6e73756d6572",
    ),
    (
        Op.ACL_LIST,
        ([("t", True, False, ["alice"], ["consumer"]), ("pub", True, True, [], [])], False),
        """AF 01 7b 01 00000032 00000002 0001 74 01 00 00000001 0005 616c696365 00000001 0008 636f6e73756d6572
           0003 707562 01 01 00000000 00000000 00""",
    ),
    (
        Op.FETCH_DLQ,
        ([("m-1", b"boom", "err!", 2)],),
        "AF 01 20 01 0000001b 00000001 0003 6d2d31 00000004 626f6f6d 0004 65727221 00000002",
    ),
]


@pytest.mark.parametrize(("op", "values", "raw"), FRAMES, ids=lambda value: getattr(value, "name", None))
def test_answers_of_the_shipped_server(op: Op, values: tuple[object, ...], raw: str) -> None:
    """FlyMQ wire 2.4, whole answer frames."""
    frame = hexed(raw)
    assert fr(op, REPLIES[op].encode(*values)) == frame
    assert REPLIES[op].decode(frame[8:]) == values


def test_fetch_of_the_shipped_server() -> None:
    """FlyMQ wire 2.4, FETCH 1 and FETCH 0."""
    one = hexed("00000001 0000000000000001 0000000000000000 00000008 757365722d313233 00000002 6b76")
    assert codec_fetch.decode(one, 0) == ([(0, b"user-123", b"kv")], 1)
    run = Run("t", 0, 0, Columns.of([b"kv"], [b"user-123"]), [0], ((0, 0, BatchMeta(b"", Origin("a", "b"))),))
    assert codec_fetch.encode([run], 1, server=True) == one
    none = hexed("00000000 0000000000000032")
    assert codec_fetch.decode(none, 50) == ([], 50)
    for order in (True, False):  # without records both orders are the same bytes
        assert codec_fetch.encode((), 50, server=order) == none


def test_get_schema_of_the_shipped_server() -> None:
    """FlyMQ wire 2.4, GET_SCHEMA."""
    raw = "0005 70622d7631 0002 7062 00000001 08 70726f746f627566 00000006 73796e746178 08 6261636b77617264"
    assert read_schema(hexed(raw)) == ("pb", 1, "protobuf", b"syntax", "backward")


def test_logins_of_the_shipped_server() -> None:
    """FlyMQ wire 2.4, AUTH ok and bad; 2.3, success for everybody and failure for everybody."""
    speech = Speech(Dialect.STOCK)
    good = hexed("AF 01 71 01 00000014 01 0005 61646d696e 00000001 05 61646d696e 0000")
    assert speech.logged_in("admin", ["admin"]) == good
    assert read_login(good[8:]) == (True, "admin", ["admin"], "")
    bad = hexed("AF 01 71 01 00000025 00 0000 00000000 001c" + b"invalid username or password".hex())
    assert speech.not_logged_in("invalid username or password") == bad
    assert read_login(bad[8:]) == (False, "", [], "invalid username or password")
    assert read_login(b"\x01" + bytes(10))[0] is True
    assert read_login(bytes(11))[0] is False


def test_a_shipped_client_reads_the_refusal_of_auto() -> None:
    """FlyMQ wire 2.3: `bool, str error, str, u32 0` parsed as `bool, str user, str8[] roles, str error`."""
    payload = Speech(Dialect.AUTO).not_logged_in("invalid username or password")[8:]
    assert payload[0] == 0
    size = int.from_bytes(payload[1:3], "big")
    assert payload[3 : 3 + size] == b"invalid username or password"
    assert payload[3 + size : 7 + size] == bytes(4), "no roles"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        pytest.param("AF 01 ff 00 00000015" + b"topic not found: nope".hex(), "topic not found: nope", id="text"),
        pytest.param(
            "AF 01 ff 01 0000001a 00 0017" + b"authentication required".hex(), "authentication required", id="document"
        ),
        pytest.param(
            "AF 01 ff 01 0000001d 00000001 0017" + b"authentication required".hex(),
            "authentication required",
            id="coded",
        ),
    ],
)
def test_errors(raw: str, text: str) -> None:
    """FlyMQ wire 2.4, ERROR in three shapes: written by the dialect that has each, read without being told which."""
    frame = hexed(raw)
    assert read_error(frame[8:]) == text
    document, stock, newer = Speech(Dialect.DOCUMENT), Speech(Dialect.STOCK), Speech(Dialect.AUTO)
    newer.sign(newer=True)
    assert frame in {speech.error(text) for speech in (document, stock, newer)}
    assert isinstance(refusal(text), TargetRefused)


def test_cluster_metadata_of_the_shipped_server() -> None:
    """FlyMQ wire 2.4, CLUSTER_METADATA."""
    raw = hexed(
        """000a 7374616e64616c6f6e65 00000001 0004 74657374 00000001 00000000 0005 6e6f646531 000f
           3132372e302e302e313a3139313932 0000000000000001 0006 6f6e6c696e65 00000001 0005 6e6f646531 00000001
           0005 6e6f646531"""
    )
    partition = (0, "node1", "127.0.0.1:19192", 1, "online", ["node1"], ["node1"])
    values = ("standalone", [("test", [partition])])
    assert CLUSTER.decode(raw) == values
    assert CLUSTER.encode(*values) == raw


def test_a_key_of_no_bytes_is_no_key() -> None:
    """FlyMQ document, PRODUCE: key length 0 means no key, which the answer calls -1."""
    run, end = Collector().collect(fr(1, hexed(PRODUCE_PAYLOAD)), 0)
    assert run is not None
    assert end == 31
    assert run.key_sizes() is None
