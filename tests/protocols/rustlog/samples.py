"""Legal client bytes for the conformance suite (RustLog wire 1.5, 2.1, 2.2)."""

from tests.conformance.sample import Sample
from tests.protocols.script import hexed

PING = hexed("00 00 00 01 ff")
CREATE = hexed("00 00 00 0b 05 00 04 64 65 6d 6f 00 00 00 01")
LIST = hexed("00 00 00 01 06")
DESCRIBE = hexed("00 00 00 07 07 00 04 64 65 6d 6f")
DESCRIBE_PARTITION = hexed("00 00 00 0b 08 00 04 64 65 6d 6f 00 00 00 00")
METRICS = hexed("00 00 00 01 09")
PRODUCE = hexed(
    "00 00 00 2b 01 00 04 64 65 6d 6f 00 00 00 00 00 00 00 03 00 00 00 05 68 65 6c 6c 6f"
    "00 00 00 04 66 72 6f 6d 00 00 00 07 72 75 73 74 6c 6f 67"
)
FETCH = hexed("00 00 00 19 02 00 00 00 04 64 65 6d 6f 00 00 00 00 00 00 00 00 00 00 00 00 00 00 04 00")
FETCH_GROUP = hexed("00 00 00 1a 02 00 01 67 00 04 64 65 6d 6f 00 00 00 00 00 00 00 00 00 00 00 00 00 00 04 00")
COMMIT = hexed("00 00 00 16 03 00 01 67 00 04 64 65 6d 6f 00 00 00 00 00 00 00 00 00 00 00 02")
READ_OFFSET = hexed("00 00 00 0e 04 00 01 67 00 04 64 65 6d 6f 00 00 00 00")


def json(text: str) -> bytes:
    """A frame of one of the JSON dialects."""
    payload = text.encode()
    return len(payload).to_bytes(4, "big") + payload


SEED = [
    json('{"Produce":{"topic":"demo","partition":0,"records":[[104,105],[]]}}'),
    json('{"Fetch":{"topic":"demo","partition":0,"offset":0,"max_bytes":1024,"group_id":null}}'),
    json('{"Fetch":{"topic":"demo","partition":0,"offset":0,"max_bytes":1024,"group_id":"g"}}'),
    json('{"OffsetCommit":{"topic":"demo","partition":0,"group_id":"g","offset":2}}'),
    json('{"OffsetFetch":{"topic":"demo","partition":0,"group_id":"g"}}'),
]
TYPED = [
    json('{"type":"Produce","topic":"logs","partition":0,"records":["SGVsbG8gV29ybGQ="]}'),
    json('{"type":"Fetch","group_id":null,"topic":"logs","partition":0,"offset":0,"max_bytes":1024}'),
    json('{"type":"ListTopics"}'),
    json('{"type":"CreateTopic","topic":"logs","partition_count":2}'),
]

SAMPLES = [
    Sample("binary", tuple((0, frame) for frame in (PING, CREATE, PRODUCE, FETCH, FETCH_GROUP, COMMIT, READ_OFFSET))),
    Sample("topics", ((0, LIST + DESCRIBE + DESCRIBE_PARTITION + METRICS),)),
    Sample("pipelined", ((0, PRODUCE * 3 + FETCH + PRODUCE + FETCH_GROUP + PING),)),
    Sample("seed-json", ((0, b"".join(SEED)),)),
    Sample("typed-json", ((0, b"".join(TYPED)),)),
    Sample("mixed", ((0, PRODUCE + SEED[0] + PING + TYPED[2]),)),
]
