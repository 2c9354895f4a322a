"""Byte examples, each with where it stands. `wire` is the account of real peers, `document` the protocol document."""

from __future__ import annotations

from tests.protocols.script import hexed

# --- RustLog wire 1.5: request -> response, all observed on the real server ---

PING = hexed("00 00 00 01 ff")
PONG = hexed("00 00 00 01 ff")

CREATE_DEMO = hexed("00 00 00 0b 05 00 04 64 65 6d 6f 00 00 00 01")
CREATED = hexed("00 00 00 02 05 01")
CREATE_DEMO_AGAIN = hexed(
    "00 00 00 20 fe 00 0b 00 1b 54 6f 70 69 63 20 27 64 65 6d 6f 27 20 61 6c 72 65 61 64 79 20 65 78 69 73 74 73"
)
CREATE_Z_0 = hexed("00 00 00 08 05 00 01 7a 00 00 00 00")
INVALID_COUNT = hexed(
    "00 00 00 1f fe 00 0c 00 1a 49 6e 76 61 6c 69 64 20 70 61 72 74 69 74 69 6f 6e 20 63 6f 75 6e 74 3a 20 30"
)

LIST = hexed("00 00 00 01 06")
LISTED_NONE = hexed("00 00 00 05 06 00 00 00 00")
LISTED_FOUR = hexed(
    """00 00 00 29 06 00 00 00 04 00 00 00 00 00 01 00 04 64 65 6d 6f 00 00 00 01
    00 06 6f 72 64 65 72 73 00 00 00 03 00 02 74 72 00 00 00 01"""
)

PRODUCE_THREE = hexed(
    """00 00 00 2b 01 00 04 64 65 6d 6f 00 00 00 00 00 00 00 03 00 00 00 05 68 65 6c 6c 6f
    00 00 00 04 66 72 6f 6d 00 00 00 07 72 75 73 74 6c 6f 67"""
)
PRODUCED_THREE = hexed("00 00 00 0d 01 00 00 00 00 00 00 00 00 00 00 00 03")
PRODUCE_NOTHING = hexed("00 00 00 0f 01 00 04 64 65 6d 6f 00 00 00 00 00 00 00 00")
PRODUCED_NOTHING = hexed("00 00 00 0d 01 00 00 00 00 00 00 00 00 00 00 00 00")
PRODUCE_EMPTY = hexed("00 00 00 13 01 00 04 64 65 6d 6f 00 00 00 00 00 00 00 01 00 00 00 00")
PRODUCED_EMPTY = hexed("00 00 00 0d 01 00 00 00 00 00 00 00 03 00 00 00 01")
PRODUCE_NOPE = hexed("00 00 00 14 01 00 04 6e 6f 70 65 00 00 00 00 00 00 00 01 00 00 00 01 78")
NOPE = hexed(
    """00 00 00 3f fe 00 0a 00 3a 54 6f 70 69 63 20 6f 72 20 70 61 72 74 69 74 69 6f 6e 20 64 6f 65 73 20 6e 6f 74
    20 65 78 69 73 74 3a 20 74 6f 70 69 63 3d 6e 6f 70 65 2c 20 70 61 72 74 69 74 69 6f 6e 3d 30"""
)

FETCH_0_1024 = hexed("00 00 00 19 02 00 00 00 04 64 65 6d 6f 00 00 00 00 00 00 00 00 00 00 00 00 00 00 04 00")
FETCHED_FIVE = hexed(
    """00 00 00 32 02 00 00 00 05 00 00 00 05 68 65 6c 6c 6f 00 00 00 04 66 72 6f 6d 00 00 00 07 72 75 73 74 6c 6f 67
    00 00 00 00 00 00 00 01 6b 00 00 00 00 00 00 00 05"""
)
FETCH_0_1 = FETCH_0_1024[:-4] + hexed("00 00 00 01")
FETCHED_ONE = hexed("00 00 00 16 02 00 00 00 01 00 00 00 05 68 65 6c 6c 6f 00 00 00 00 00 00 00 01")
FETCH_0_0 = FETCH_0_1024[:-4] + hexed("00 00 00 00")
FETCHED_NONE_0 = hexed("00 00 00 0d 02 00 00 00 00 00 00 00 00 00 00 00 00")
FETCH_500 = hexed("00 00 00 19 02 00 00 00 04 64 65 6d 6f 00 00 00 00 00 00 00 00 00 00 01 f4 00 00 04 00")
FETCHED_NONE_500 = hexed("00 00 00 0d 02 00 00 00 00 00 00 00 00 00 00 01 f4")
FETCH_GROUP = hexed("00 00 00 1a 02 00 01 67 00 04 64 65 6d 6f 00 00 00 00 00 00 00 00 00 00 00 00 00 00 04 00")
FETCHED_FRESH_GROUP = hexed("00 00 00 0d 02 00 00 00 00 00 00 00 00 00 00 00 00")

COMMIT_2 = hexed("00 00 00 16 03 00 01 67 00 04 64 65 6d 6f 00 00 00 00 00 00 00 00 00 00 00 02")
COMMITTED = hexed("00 00 00 02 03 01")
OFFSET_FETCH = hexed("00 00 00 0e 04 00 01 67 00 04 64 65 6d 6f 00 00 00 00")
OFFSET_NONE = hexed("00 00 00 02 04 00")
OFFSET_2 = hexed("00 00 00 0a 04 01 00 00 00 00 00 00 00 02")

DESCRIBE_DEMO = hexed("00 00 00 07 07 00 04 64 65 6d 6f")
DESCRIBED_DEMO = hexed("00 00 00 1b 07 00 04 64 65 6d 6f 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00")
DESCRIBE_NOPE = hexed("00 00 00 07 07 00 04 6e 6f 70 65")
DESCRIBED_NOPE = hexed(
    """00 00 00 31 fe 00 0d 00 2c 44 65 73 63 72 69 62 65 54 6f 70 69 63 20 66 61 69 6c 65 64 3a 20 54 6f 70 69 63
    20 27 6e 6f 70 65 27 20 6e 6f 74 20 66 6f 75 6e 64"""
)
DESCRIBE_PARTITION = hexed("00 00 00 0b 08 00 04 64 65 6d 6f 00 00 00 00")
DESCRIBED_PARTITION = hexed("00 00 00 13 08 00 04 64 65 6d 6f 00 00 00 00 00 00 00 00 00 00 00 00")

UNKNOWN_TYPE = hexed("00 00 00 01 0a")
UNKNOWN_TYPE_SAID = hexed(
    """00 00 00 2b fe 00 02 00 26 44 65 63 6f 64 65 20 65 72 72 6f 72 3a 20 75 6e 6b 6e 6f 77 6e 20 72 65 71 75 65 73 74
    20 74 79 70 65 3a 20 31 30"""
)
TRUNCATED = hexed("00 00 00 01 01")
TRUNCATED_SAID = hexed(
    """00 00 00 35 fe 00 02 00 30 44 65 63 6f 64 65 20 65 72 72 6f 72 3a 20 64 65 63 6f 64 65 20 65 72 72 6f 72 3a 20
    6d 69 73 73 69 6e 67 20 74 6f 70 69 63 20 6c 65 6e 67 74 68"""
)
ZERO = hexed("00 00 00 00")
ZERO_SAID = hexed(
    """00 00 00 35 fe 00 01 00 30 46 72 61 6d 65 20 65 72 72 6f 72 3a 20 69 6e 76 61 6c 69 64 20 70 72 6f 74 6f 63 6f 6c
    3a 20 7a 65 72 6f 2d 6c 65 6e 67 74 68 20 66 72 61 6d 65"""
)
OVERSIZE = hexed("00 a0 00 01")
OVERSIZE_SAID = hexed(
    """00 00 00 41 fe 00 01 00 3c 46 72 61 6d 65 20 65 72 72 6f 72 3a 20 66 72 61 6d 65 20 74 6f 6f 20 6c 61 72 67 65 3a
    20 31 30 34 38 35 37 36 31 20 62 79 74 65 73 20 28 6d 61 78 3a 20 31 30 34 38 35 37 36 30 29"""
)

# --- RustLog wire 2.1: full frames of the document's JSON, compact form ---

J_PRODUCE = hexed(
    """00 00 00 43 7b 22 50 72 6f 64 75 63 65 22 3a 7b 22 74 6f 70 69 63 22 3a 22 64 65 6d 6f 22 2c 22 70 61 72 74 69 74 69 6f 6e
    22 3a 30 2c 22 72 65 63 6f 72 64 73 22 3a 5b 5b 31 30 34 2c 31 30 35 5d 2c 5b 5d 5d 7d 7d"""
)
J_PRODUCED = hexed("00 00 00 1d 7b 22 50 72 6f 64 75 63 65 22 3a 7b 22 6f 66 66 73 65 74 73 22 3a 5b 30 2c 31 5d 7d 7d")
J_FETCH = hexed(
    """00 00 00 54 7b 22 46 65 74 63 68 22 3a 7b 22 74 6f 70 69 63 22 3a 22 64 65 6d 6f 22 2c 22 70 61 72 74 69 74 69 6f 6e 22 3a
    30 2c 22 6f 66 66 73 65 74 22 3a 30 2c 22 6d 61 78 5f 62 79 74 65 73 22 3a 31 30 32 34 2c 22 67 72 6f 75 70 5f 69 64 22 3a
    6e 75 6c 6c 7d 7d"""
)
J_FETCHED = hexed(
    """00 00 00 62 7b 22 46 65 74 63 68 22 3a 7b 22 72 65 63 6f 72 64 73 22 3a 5b 7b 22 6f 66 66 73 65 74 22 3a 30 2c 22 70 61 79
    6c 6f 61 64 22 3a 5b 31 30 34 2c 31 30 35 5d 7d 2c 7b 22 6f 66 66 73 65 74 22 3a 31 2c 22 70 61 79 6c 6f 61 64 22 3a 5b 5d
    7d 5d 2c 22 6e 65 78 74 5f 6f 66 66 73 65 74 22 3a 32 7d 7d"""
)
J_COMMIT = hexed(
    """00 00 00 49 7b 22 4f 66 66 73 65 74 43 6f 6d 6d 69 74 22 3a 7b 22 74 6f 70 69 63 22 3a 22 64 65 6d 6f 22 2c 22 70 61 72 74
    69 74 69 6f 6e 22 3a 30 2c 22 67 72 6f 75 70 5f 69 64 22 3a 22 67 22 2c 22 6f 66 66 73 65 74 22 3a 32 7d 7d"""
)
J_COMMITTED = hexed(
    "00 00 00 21 7b 22 4f 66 66 73 65 74 43 6f 6d 6d 69 74 22 3a 7b 22 73 75 63 63 65 73 73 22 3a 74 72 75 65 7d 7d"
)
J_OFFSET_FETCH = hexed(
    """00 00 00 3d 7b 22 4f 66 66 73 65 74 46 65 74 63 68 22 3a 7b 22 74 6f 70 69 63 22 3a 22 64 65 6d 6f 22 2c 22 70 61 72 74 69
    74 69 6f 6e 22 3a 30 2c 22 67 72 6f 75 70 5f 69 64 22 3a 22 67 22 7d 7d"""
)
J_OFFSET_2 = hexed("00 00 00 1c 7b 22 4f 66 66 73 65 74 46 65 74 63 68 22 3a 7b 22 6f 66 66 73 65 74 22 3a 32 7d 7d")
J_OFFSET_NONE = hexed(
    "00 00 00 1f 7b 22 4f 66 66 73 65 74 46 65 74 63 68 22 3a 7b 22 6f 66 66 73 65 74 22 3a 6e 75 6c 6c 7d 7d"
)
J_NOPE = hexed(
    """00 00 00 44 7b 22 45 72 72 6f 72 22 3a 7b 22 6d 65 73 73 61 67 65 22 3a 22 70 61 72 74 69 74 69 6f 6e 20 6e 6f 74 20 66 6f
    75 6e 64 3a 20 74 6f 70 69 63 3d 6e 6f 70 65 2c 20 70 61 72 74 69 74 69 6f 6e 3d 30 22 7d 7d"""
)

# --- document, examples of requests and responses (payloads, white space and comments of the text left out) ---

D_PRODUCE = b'{"Produce":{"topic":"orders","partition":0,"records":[[98,121,116,101,115],[109,111,114,101]]}}'
D_FETCH_GROUP = (
    b'{"Fetch":{"topic":"orders","partition":0,"offset":1000,"max_bytes":1048576,"group_id":"order-processor"}}'
)
D_COMMIT = b'{"OffsetCommit":{"topic":"orders","partition":0,"group_id":"order-processor","offset":1500}}'
D_OFFSET_FETCH = b'{"OffsetFetch":{"topic":"orders","partition":0,"group_id":"order-processor"}}'
D_PRODUCED = b'{"Produce":{"offsets":[1000,1001,1002]}}'
D_FETCHED = (
    b'{"Fetch":{"records":[{"offset":1000,"payload":[98,121,116,101,115]},'
    b'{"offset":1001,"payload":[109,111,114,101]}],"next_offset":1002}}'
)
D_NOT_FOUND = b'{"Error":{"message":"partition not found: topic=orders, partition=99"}}'
D_NONEXISTENT = b'{"Error":{"message":"partition not found: topic=nonexistent, partition=0"}}'

# --- RustLog wire 2.2: the only example of the "type" JSON ---

T_PRODUCE = b'{"type":"Produce","topic":"logs","partition":0,"records":["SGVsbG8gV29ybGQ="]}'
