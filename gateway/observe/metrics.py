"""Every metric the gateway exports, declared once: name, kind, labels, help. The documentation's table is made from this.

Labels come from the configuration alone (listener, protocol, route, target) or from closed sets (reason, limit, phase),
never from a topic, a client or an address: the number of series must not grow with what clients do.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs

from gateway.errors import Status


class MetricType(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@attrs.frozen
class Family:
    """One metric. A counter's name is given without `_total`, which its samples carry."""

    name: str
    kind: MetricType
    labels: Sequence[str]
    help: str
    buckets: Sequence[float] = ()

    @property
    def exported(self) -> str:
        """The name of its samples (of a histogram: without `_bucket`, `_sum`, `_count`)."""
        return f"{self.name}_total" if self.kind is MetricType.COUNTER else self.name


NO_ROUTE = "__none__"
"""The route of what no route matched, and the listener of what belongs to none."""

OTHER = "__other__"
"""Takes the place of labels beyond the bound on series."""

REFUSALS = tuple(status.value for status in Status)
DROPS = ("filtered", "duplicate", "rolled_back", "expired", "trimmed", "skipped", "epoch_changed", "unreadable")
DEAD_LETTERS = ("max_deliveries", "refused", "size", "transform")
CONNECTION_REFUSALS = (
    "connections",
    "per_address",
    "handshake",
    "idle",
    "write_timeout",
    "unfinished",
    "unread",
    "unknown_protocol",
    "tls",
    "drain_deadline",
    "operator",
    "internal_error",
    # QUIC, before there is a connection; `retry` is a client that was asked to show its address first
    "handshakes",
    "handshakes_per_address",
    "connections_per_address",
    "client_certificate",
    "retry",
    "draining",
)
LOGIN_FAILURES = ("credentials", "disabled", "token", "tenant", "overload", "throttled")
LIMITS = (
    "subscriptions",
    "subscriptions_per_connection",
    "in_flight",
    "output",
    "share",
    "budget",
    "unacknowledged",
    "open_files",
)
CACHE_LIMIT = "cache"
"""A bound on the caches of all listeners together, so it belongs to none of them."""
PROXY_LIMIT = "proxy"
"""A bound on the batches that wait for a proxied upstream, whichever listener they came by."""
STATS_LIMIT = "stats"
"""Minutes of delivery latency that the store did not take; of the whole gateway, too."""
RELOADS = ("applied", "invalid", "refused", "failed")
CONSUMER_KINDS = ("subscription", "reader", "forward")

# an fsync is 0.1 to 5 ms, a request over a network 0.1 to 100 ms; beyond that only the order of magnitude matters
LATENCY_BUCKETS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)


def _counter(name: str, labels: str, text: str) -> Family:
    return Family(name, MetricType.COUNTER, tuple(labels.split()), text)


def _gauge(name: str, labels: str, text: str) -> Family:
    return Family(name, MetricType.GAUGE, tuple(labels.split()), text)


def _histogram(name: str, labels: str, text: str) -> Family:
    return Family(name, MetricType.HISTOGRAM, tuple(labels.split()), text, LATENCY_BUCKETS)


RECEIVED_MESSAGES = _counter(
    "gateway_route_received_messages", "route listener", "Messages that came through the door."
)
RECEIVED_BYTES = _counter("gateway_route_received_bytes", "route listener", "Bytes of the values received.")
STORED_MESSAGES = _counter("gateway_route_stored_messages", "route", "Messages that were given an offset.")
STORED_BYTES = _counter("gateway_route_stored_bytes", "route", "Bytes of the values stored.")
DELIVERED_MESSAGES = _counter("gateway_route_delivered_messages", "route target", "Messages handed to readers.")
DELIVERED_BYTES = _counter("gateway_route_delivered_bytes", "route target", "Bytes of the values handed to readers.")
ACKNOWLEDGED_MESSAGES = _counter(
    "gateway_route_acknowledged_messages", "route target", "Messages whose reader confirmed them."
)
ACKNOWLEDGED_BYTES = _counter("gateway_route_acknowledged_bytes", "route target", "Bytes of the values confirmed.")
REFUSED_MESSAGES = _counter("gateway_refused_messages", "route reason", "Messages that were not taken.")
DROPPED_MESSAGES = _counter(
    "gateway_dropped_messages", "route reason", "Messages that were taken and will not be delivered, and why."
)
DEAD_LETTERED_MESSAGES = _counter(
    "gateway_dead_lettered_messages", "route reason", "Messages moved to a dead-letter topic."
)
PUBLISH_LATENCY = _histogram(
    "gateway_publish_latency_seconds", "route", "Time from the receipt of a batch to its reply."
)
FETCH_LATENCY = _histogram(
    "gateway_fetch_latency_seconds",
    "listener",
    "Time from a read by offset to its answer, without waiting for messages.",
)
UNACCOUNTED = _gauge(
    "gateway_route_unaccounted_messages",
    "route",
    "Messages received that are neither stored, refused, dropped nor in flight. Anything but 0 is an alarm.",
)
CONSUMER_UNACCOUNTED = _gauge(
    "gateway_consumer_unaccounted_messages",
    "kind",
    "Messages that durable consumers of this kind passed without settling them. Anything but 0 is an alarm.",
)
CONSUMER_BACKLOG = _gauge(
    "gateway_consumer_backlog_messages", "kind", "Messages that durable consumers of this kind have not settled yet."
)
CONNECTIONS = _gauge("gateway_connections", "listener protocol", "Open connections.")
CONNECTIONS_OPENED = _counter("gateway_connections_opened", "listener protocol", "Connections ever accepted.")
CONNECTIONS_REFUSED = _counter(
    "gateway_refused_connections", "listener reason", "Connections turned away or cut by a limit."
)
FAILED_LOGINS = _counter(
    "gateway_failed_logins",
    "listener reason",
    "Logins refused: wrong name, password or key, a disabled account, a bad token, another tenant's, too many at once, too many "
    "failures before.",
)
LIMIT_HITS = _counter("gateway_limit_hits", "listener limit", "How often a bound was reached.")
BUDGET_USED = _gauge(
    "gateway_budget_used_bytes",
    "",
    "Memory held by parsed requests, pending commits, unsent replies, and by what ingests have not stored yet.",
)
BUDGET_LIMIT = _gauge("gateway_budget_limit_bytes", "", "What that memory may grow to (`memory.budget`).")
STORE_WRITABLE = _gauge("gateway_store_writable", "", "1 while the store takes writes, 0 while it is read-only.")
STORE_COMMITS = _counter("gateway_store_commits", "durability", "Commits written, synced to disk or not.")
STORE_COMMIT_RECORDS = _counter("gateway_store_committed_records", "", "Records written by commits.")
STORE_COMMIT_BYTES = _counter("gateway_store_committed_bytes", "", "Bytes of the chunks written by commits.")
STORE_COMMIT_SECONDS = _histogram("gateway_store_commit_seconds", "durability", "How long a commit takes.")
UPKEEP_STEPS = _counter(
    "gateway_store_upkeep_steps", "outcome", "Steps of retention and of merging small chunks, by what they did."
)
UPKEEP_CHUNKS = _counter("gateway_store_upkeep_chunks", "outcome", "Chunks that such steps removed or merged.")
UPKEEP_BYTES = _counter("gateway_store_upkeep_bytes", "outcome", "Bytes of those chunks.")
STORE_DAMAGED_READS = _counter(
    "gateway_store_damaged_reads", "", "Reads refused because what is stored fails its checksum or is not there."
)
STORE_DAMAGED_RANGES = _gauge(
    "gateway_store_damaged_ranges",
    "",
    "Damaged ranges that readers have met since the start. Anything but 0 is an alarm.",
)
STORE_LOST = _gauge(
    "gateway_store_lost_ranges",
    "",
    "Damage that the start has found: stretches of the small tables that are gone, tables of topics, ends of partitions.",
)
STORE_SIZE = _gauge("gateway_store_size_bytes", "file", "Size of the store on disk.")
STORE_FREE = _gauge("gateway_store_free_bytes", "", "Free space where the store is.")
STORE_TOPICS = _gauge("gateway_store_topics", "", "Topics there are.")
UPSTREAM_CONNECTED = _gauge("gateway_upstream_connected", "upstream", "1 while a connection to the upstream is up.")
UPSTREAM_LOGIN_REFUSED = _gauge(
    "gateway_upstream_login_refused",
    "upstream",
    "1 while the upstream does not accept our credentials: everything waits.",
)
INGEST_STATE = _gauge(
    "gateway_ingest_state",
    "upstream source state",
    "1 for the state an ingest is in: waiting for its upstream or its targets, running, refused by the upstream.",
)
INGEST_MESSAGES = _counter(
    "gateway_ingest_messages", "upstream source", "Messages pulled from an upstream that are committed here."
)
INGEST_ERRORS = _counter(
    "gateway_ingest_errors",
    "upstream source reason",
    "What went wrong between an upstream and the log, and was tried again.",
)
PROXY_IN_FLIGHT = _gauge(
    "gateway_proxy_in_flight_messages", "upstream", "Messages whose publisher waits for the upstream's own answer."
)
MIRRORED_MESSAGES = _counter(
    "gateway_mirror_messages",
    "route target outcome",
    "Messages of a mirror's share: taken by its target, refused, lost (no answer), dropped (no room).",
)
MIRROR_COMPARED = _counter(
    "gateway_mirror_compared_messages",
    "route target kind outcome",
    "Mirrored messages whose acknowledgement or payload was the same as here, different, or unknown.",
)
MIRROR_LATENCY = _histogram(
    "gateway_mirror_latency_seconds",
    "route target",
    "Time from when messages are visible here to the acknowledgement of a mirror's target.",
)
FORWARD_BACKLOG = _gauge("gateway_forward_backlog_messages", "forward", "Messages a forward has not delivered yet.")
OWNED_SLOTS = _gauge(
    "gateway_owned_slots",
    "",
    "Of the 32 shares of what one gateway does at a time (forwards, ingests, delayed messages, subscriptions), those of this "
    "one; 0 with a log in a file.",
)
OWNERSHIP_CHANGES = _counter("gateway_ownership_changes", "", "How often such shares came or went.")
PASSED_REQUESTS = _counter(
    "gateway_passed_requests",
    "request",
    "Requests of clients of this gateway that were passed on to the one that has the subscription; `use` is one of its own.",
)
PASSED_WAITING = _gauge(
    "gateway_passed_waiting",
    "",
    "Requests about subscriptions that wait for the gateway that has them: it cannot be reached, or nobody has them yet.",
)
LINKS = _gauge(
    "gateway_links", "side", "Connections with other gateways of one log, of those that ask and those that answer."
)
LINK_FAILURES = _counter(
    "gateway_link_failures", "reason", "Connections between gateways that were not made, or have ended."
)
GROUP_LAG = _gauge(
    "gateway_group_lag_messages",
    "group",
    "Messages that a group of `metrics.groups` has not committed, on all topics it reads; with the log on Kafka at most so many.",
)
CONFIG_RELOADS = _counter(
    "gateway_config_reloads",
    "outcome",
    "Reloads of the configuration: applied, invalid (the file has problems), refused (it needs a restart), failed.",
)
CONFIG_RELOADED = _gauge(
    "gateway_config_last_reload_success",
    "",
    "1 while what is served is what the file said when it was last read, 0 after a reload that failed.",
)
LOOP_LAG = _histogram(
    "gateway_loop_lag_seconds",
    "",
    "How late the event loop came round to a timer: for so long whatever came in had to wait for somebody else's work.",
)
COLLECTIONS = _histogram(
    "gateway_collection_seconds",
    "kind",
    "How long Python's collector of cycles held everything: young (what is new), full (what outlived that), thorough (all).",
)
COLLECTION_KINDS = ("young", "full", "thorough")
PHASE = _gauge("gateway_phase", "phase", "1 for the phase the gateway is in.")
BUILD_INFO = _gauge("gateway_build_info", "version python", "Always 1; the labels say what is running.")
SERIES_OVERFLOW = _counter(
    "gateway_metrics_overflow", "family", "Updates that went to `__other__` because a family has too many series."
)

FAMILIES: Sequence[Family] = tuple(value for value in list(globals().values()) if isinstance(value, Family))
"""Every family, in the order of declaration."""

GAUGES = {family.name: family for family in FAMILIES if family.kind is MetricType.GAUGE}
"""The gauges that `Recorder.gauge` may set."""


def table() -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
        lines.append(f"| `{family.exported}` | {family.kind.value} | {labels} | {family.help} |")
    return "\n".join(lines)
