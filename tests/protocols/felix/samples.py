"""Legal client bytes for the conformance suite (Felix document; wire 2.9, 2.11, 3.1)."""

from gateway.wire.session import Kind
from tests.conformance.sample import Sample


def frame(payload: bytes | str, flags: int = 0) -> bytes:
    """A frame around a payload."""
    data = payload.encode() if isinstance(payload, str) else payload
    return b"FLX1" + (1).to_bytes(2, "big") + flags.to_bytes(2, "big") + len(data).to_bytes(4, "big") + data


SCOPE = '"tenant_id":"t1","namespace":"default",'
STREAM = SCOPE + '"stream":"demo",'
PUBLISH = frame('{"type":"publish",' + STREAM + '"payload":"aGVsbG8=","request_id":1,"ack":"per_message"}')
UNACKED = frame('{"type":"publish",' + STREAM + '"payload":"aGVsbG8=","ack":"none"}')
BATCH = frame('{"type":"publish_batch",' + STREAM + '"payloads":["YQ==","Yg=="],"request_id":2,"ack":"per_batch"}')
BROKEN_BATCH = frame(
    '{"type":"publish_batch",' + STREAM + '"payloads":["YQ==","Yg=="]","request_id":3,"ack":"per_batch"}'
)
BINARY = bytes.fromhex("464c5831000100010000002100027431000764656661756c74000464656d6f0000000200000001610000000162")
PUT = frame(
    '{"type":"cache_put",' + SCOPE + '"cache":"primary","key":"k","value":"Y2FjaGVk","request_id":4,"ttl_ms":1000}'
)
GET = frame('{"type":"cache_get",' + SCOPE + '"cache":"primary","key":"k","request_id":5}')
SUBSCRIBE = frame('{"type":"subscribe",' + STREAM + '"subscription_id":1}')
AUTH = frame('{"type":"auth","tenant_id":"t1","token":"demo-token","client_flags":25}')

SAMPLES = [
    Sample("publish", ((0, PUBLISH), (0, BATCH), (0, UNACKED + BINARY + PUBLISH))),
    Sample("repaired", ((0, BROKEN_BATCH + PUBLISH),)),
    Sample("cache", ((0, PUT + GET + PUT + GET),)),
    Sample("subscribe", ((0, SUBSCRIBE),)),
    Sample("negotiated", ((0, AUTH), (0, PUBLISH + BINARY))),
    Sample("ingress", ((2, BINARY + UNACKED),), ((2, Kind.READ_ONLY),)),
    Sample("streams", ((0, PUBLISH), (4, GET), (8, SUBSCRIBE)), ((0, Kind.DUPLEX), (4, Kind.DUPLEX), (8, Kind.DUPLEX))),
]
