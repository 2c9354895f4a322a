"""What Kafka calls a topic: the prefix and its name, with `_xHH` for each byte that no name of Kafka's may have; and what a log
on Kafka is called.
"""

from __future__ import annotations

import re

from gateway.errors import InvalidRequest

KAFKA_URL = "kafka://"
LONGEST = 249
_FORBIDDEN = re.compile(rb"[^A-Za-z0-9._-]|_(?=x[0-9A-F]{2})")
_ESCAPED = re.compile(rb"_x([0-9A-F]{2})")


def kafka_name(prefix: str, topic: str) -> str:
    """Raises InvalidRequest where Kafka has no name for it."""
    name = prefix + _FORBIDDEN.sub(lambda found: b"_x%02X" % found[0][0], topic.encode()).decode()
    if len(name) > LONGEST:
        raise InvalidRequest(f"on Kafka a topic's name has at most {LONGEST} bytes, and this would have {len(name)}")
    return name


def topic_name(prefix: str, name: str) -> str | None:
    """The topic that a topic of Kafka's is, or None if it is none of ours."""
    if not name.startswith(prefix):
        return None
    rest = name[len(prefix) :].encode()
    try:
        topic = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), rest).decode()
        return topic if topic and kafka_name(prefix, topic) == name else None
    except (UnicodeDecodeError, InvalidRequest):
        return None


def log_address(text: str) -> tuple[list[str], str]:
    """The brokers and the prefix of `kafka://host:port,host:port/prefix`. Raises InvalidRequest."""
    brokers, _slash, prefix = text.removeprefix(KAFKA_URL).partition("/")
    pairs = [one.rpartition(":") for one in brokers.split(",")]
    if not text.startswith(KAFKA_URL) or not all(host and port.isdecimal() for host, _colon, port in pairs):
        raise InvalidRequest(f"{text!r}: brokers are host:port, with commas between them")
    return brokers.split(","), prefix or "gw."
