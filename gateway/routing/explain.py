"""The way a message would take, found by the code that routes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from gateway import model
from gateway.envelope import Columns, Headers
from gateway.errors import NotRouted
from gateway.notation import show_backoff, show_duration, show_endpoint, show_size
from gateway.protocols.registry import Carries
from gateway.routing.compiled import CompiledRoute, ResolvedRoute
from gateway.routing.fidelity import targets_of
from gateway.routing.table import RoutingTable
from gateway.settings import Seconds, Size
from gateway.store.interface import Durability, TopicConfig


@attrs.frozen
class Question:
    protocol: str
    listener: str
    address: str
    key: bytes | None = None
    headers: Headers = ()
    principal: str = ""
    value: bytes | None = None
    """Where the message has a value, the transform is applied to it."""


@attrs.frozen
class Step:
    """Something that happens to the message: what it is, where it leads, what is to know about it."""

    kind: str
    where: str
    notes: tuple[str, ...] = ()


@attrs.frozen
class Explanation:
    """The answer. `topic` is where it is stored first, and read."""

    question: Question
    route: str
    topic: str
    read_topic: str
    """What a reader of the same address reads; empty if nothing."""
    steps: tuple[Step, ...]


def explain(
    table: RoutingTable, config: model.Config, carries: Mapping[str, Carries], question: Question
) -> Explanation:
    """Route a message in thought. NotRouted when no route takes it, InvalidRequest when its topic cannot be."""
    plan = table.writer(question.protocol, question.listener, question.address, question.principal)
    columns = Columns.of(
        [question.value or b""],
        [question.key] if question.key is not None else None,
        [question.headers] if question.headers else None,
    )
    parts, refused = plan.split(columns)
    if refused:
        takers = ", ".join(repr(route.name) for route in plan.candidates)
        raise NotRouted(f"{takers} would take {question.address!r}, but not with this key and these headers")
    route, _ = parts[0]
    steps = [*_transform(route), *_transformed(route, columns, question)]
    steps += [*_stores(table, route), *_targets(table, config, route, carries, question)]
    return Explanation(question, route.name, route.topic, _read(table, question), tuple(steps))


def _read(table: RoutingTable, question: Question) -> str:
    try:
        return table.reader(question.protocol, question.listener, question.address)
    except NotRouted:
        return ""


def _transform(route: ResolvedRoute) -> Sequence[Step]:
    steps = []
    addresses = iter(route.compiled.rewritten(route.captures))
    for step in route.compiled.route.transform:
        match step:
            case model.SetHeader():
                steps.append(Step("set_header", _pairs(step.headers)))
            case model.RemoveHeader():
                steps.append(Step("remove_header", ", ".join(step.names)))
            case model.RenameHeader():
                steps.append(Step("rename_header", _pairs(step.names)))
            case model.Rewrite():
                changes = {"key": step.key, "address": next(addresses) if step.address else ""}
                steps.append(Step("rewrite", _pairs({name: text for name, text in changes.items() if text})))
            case model.Filter():
                steps.append(Step("filter", step.expression, ("what it is not true for is not stored",)))
            case model.Project():
                steps.append(Step("project", _pairs(step.fields)))
    return steps


def _transformed(route: ResolvedRoute, columns: Columns, question: Question) -> Sequence[Step]:
    if question.value is None or route.transform is None:
        return ()
    after, kept, errors = route.transform.apply(columns)
    if errors:
        return [Step("fails", errors[0].message, ("it goes to the dead letters",))]
    if not kept:
        return [Step("filtered", "this message is not stored")]
    headers = [f"header {name}: {_shown(value)}" for name, value in after.headers_of(0)]
    key = after.key(0)
    return [Step("becomes", _shown(after.value(0)), (f"key: {_shown(key) if key is not None else '(none)'}", *headers))]


def _shown(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def _stores(table: RoutingTable, route: ResolvedRoute) -> Sequence[Step]:
    return [Step("store", topic, _settings(table.topic_config(topic))) for topic in route.topics]


def _settings(config: TopicConfig) -> tuple[str, ...]:
    notes = [f"{config.partitions} partition{'s' if config.partitions != 1 else ''}"]
    interval = f" {show_duration(Seconds(config.interval))}" if config.durability is Durability.INTERVAL else ""
    notes.append(f"durability {config.durability.value}{interval}")
    if config.retention_seconds is not None:
        notes.append(f"kept {show_duration(Seconds(config.retention_seconds))}")
    if config.retention_bytes is not None:
        notes.append(f"kept up to {show_size(Size(config.retention_bytes))}")
    if config.schema:
        notes.append(f"schema {config.schema}")
    return tuple(notes)


def _targets(
    table: RoutingTable,
    config: model.Config,
    route: ResolvedRoute,
    carries: Mapping[str, Carries],
    question: Question,
) -> Sequence[Step]:
    steps = [
        Step("read", f"{protocol}: {address}", (f"on listener {listener!r}",))
        for protocol, listener, address in _readers(table, config, route)
    ]
    for rule in (*route.compiled.forwards, *route.compiled.mirrors):
        address = rule.remote_address(route.topic)
        upstream = config.upstreams[rule.target.upstream]
        where = _remote(upstream, address or "")
        if isinstance(rule.target, model.Forward):
            letters = rule.dead_letter(route.topic)
            ending = f"then to {letters}" if letters else "then it waits"
            retry = rule.target.retry
            attempts = f"{retry.max} attempts, {show_backoff(retry.backoff)} apart, {ending}"
            unlimited = math.isinf(retry.outage)
            waits = "without limit" if unlimited else f"for {show_duration(retry.outage)}, {ending}"
            notes = (f"cursor {rule.target.name}", attempts, f"waits {waits}, while the upstream is away")
            steps.append(
                Step("forward", where, (*notes, *_losses(route.compiled, config, carries, question, rule.target)))
            )
        else:
            steps.append(Step("mirror", where, (f"{rule.target.percent:g} % of the messages",)))
    if route.proxy is not None:
        where = _remote(config.upstreams[route.proxy.upstream], route.proxy.address)
        within = show_duration(Seconds(route.proxy.timeout))
        steps.append(Step("proxy", where, (f"the answer is the remote's, within {within}",)))
    for bound, bridge in route.compiled.bridges:
        losses = _losses(route.compiled, config, carries, question, bridge)
        if losses:
            steps.append(Step("bridge", f"{bridge.protocol}: {bound.expand(route.captures)}", losses))
    return steps


def _remote(upstream: model.Upstream, address: str) -> str:
    places = ", ".join(show_endpoint(host, port) for host, port in upstream.addresses)
    return f"{upstream.protocol}: {address} at {upstream.name} ({places})"


def _readers(table: RoutingTable, config: model.Config, route: ResolvedRoute) -> Sequence[tuple[str, str, str]]:
    found = []
    for listener in config.listeners.values():
        for protocol in listener.protocols:
            address = table.address_of(protocol, listener.name, route.topic) if route.topics else None
            if address is not None:
                found.append((protocol, listener.name, address))
    return found


def _losses(
    route: CompiledRoute,
    config: model.Config,
    carries: Mapping[str, Carries],
    question: Question,
    target: model.Bridge | model.Forward,
) -> tuple[str, ...]:
    # what a target costs a message of this protocol
    for found in targets_of(route.route, config, carries):
        if found.target is target:
            for pair in found.pairs:
                if pair.source == question.protocol:
                    notes = [
                        f"{f.name} {f.fate.value}{f': {f.note}' if f.note else ''}" for f in pair.fields if f.costs
                    ]
                    return (*notes, pair.promise)
    return ()


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in values.items())
