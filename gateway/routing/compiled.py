"""One route, compiled: its templates bound to its glob, readable both ways.

From an address to topics goes publishing and reading; from a topic back to addresses go listings, bridges and forwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from gateway import model
from gateway.routing.glob import BoundTemplate, bind, template, whole
from gateway.routing.match import Matcher, compile_match
from gateway.routing.patterns import Symbols
from gateway.routing.transform import Transform, compile_transform


@attrs.frozen
class ResolvedProxy:
    """Where a proxied message goes: the remote's own answer is the reply."""

    upstream: str
    address: str
    timeout: float


@attrs.frozen(eq=False)
class ResolvedRoute:
    """A route as it is for one address. `topics` is where messages are appended, the primary first; a route to a proxy
    has none.
    """

    name: str
    topics: tuple[str, ...]
    transform: Transform | None
    proxy: ResolvedProxy | None
    captures: Mapping[int, str]
    compiled: CompiledRoute = attrs.field(repr=False)

    @property
    def topic(self) -> str:
        """The primary topic; empty for a route to a proxy."""
        return self.topics[0] if self.topics else ""


@attrs.frozen(eq=False)
class RemoteRule:
    """A forward or a mirror: which topics it reads, and what they are called on the other side."""

    route: str
    target: model.Forward | model.Mirror
    _primary: BoundTemplate
    _address: BoundTemplate
    _dead_letter: BoundTemplate | None = None

    @property
    def meaning(self) -> tuple[object, ...]:
        """What it does: two rules that have the same here do the same to every topic."""
        return self.route, self.target, self._primary, self._address, self._dead_letter

    def remote_address(self, topic: str) -> str | None:
        """The address of a topic on the other side; None for a topic that is not the route's."""
        captures = self._primary.invert(topic)
        return self._address.expand(captures) if captures is not None else None

    def dead_letter(self, topic: str) -> str:
        """Where what cannot be delivered of a topic goes; empty if it has to wait instead."""
        captures = self._primary.invert(topic) if self._dead_letter is not None else None
        return self._dead_letter.expand(captures) if self._dead_letter is not None and captures is not None else ""


@attrs.frozen(eq=False)
class CompiledRoute:
    route: model.Route
    matcher: Matcher
    topic: BoundTemplate
    """What `{topic}` means: the address, or what a `rewrite` makes of it."""
    stores: tuple[tuple[BoundTemplate, model.StoreTarget], ...]
    bridges: tuple[tuple[BoundTemplate, model.Bridge], ...]
    forwards: tuple[RemoteRule, ...]
    mirrors: tuple[RemoteRule, ...]
    proxy: tuple[BoundTemplate, model.Proxy] | None
    transform: Transform | None

    @property
    def name(self) -> str:
        return self.route.name

    @property
    def primary(self) -> BoundTemplate | None:
        return self.stores[0][0] if self.stores else None

    def resolve(self, captures: Mapping[int, str], *, only_primary: bool = False) -> ResolvedRoute:
        """The route for an address with these captures. A bridge's address may not carry what a second store needs, so
        what is written to a bridge goes to the primary alone.
        """
        stores = self.stores[:1] if only_primary else self.stores
        proxy = None
        if self.proxy is not None and not only_primary:
            address, target = self.proxy
            proxy = ResolvedProxy(target.upstream, address.expand(captures), target.timeout)
        # several stores may make the same name of an address: the message is there once
        topics = tuple(dict.fromkeys(topic.expand(captures) for topic, _ in stores))
        return ResolvedRoute(self.name, topics, self.transform, proxy, captures, self)

    def rewritten(self, captures: Mapping[int, str]) -> Sequence[str]:
        """What each `rewrite` of the address makes of it, in their order."""
        return [bound.expand(captures) for bound in _rewrites(self.route, self.matcher)]

    def address_of(self, topic: str) -> str | None:
        """An address whose primary topic this is; None if there is none, or the topic does not say which."""
        primary = self.primary
        captures = primary.invert(topic) if primary is not None else None
        pattern = self.matcher.glob
        # what a wildcard took that the topic does not carry could have been anything
        if captures is None or len(captures) < len(pattern.wilds):
            return None
        return whole(pattern).expand(captures)


def compile_route(route: model.Route) -> CompiledRoute:
    """Compile; ConfigProblem for the first thing in it that does not compile (`check` finds them all, each in its place)."""
    matcher = compile_match(route.match)
    pattern = matcher.glob
    topic = topic_of(route, matcher)

    def bound(text: str) -> BoundTemplate:
        return bind(template(text), pattern, topic)

    stores = tuple((bound(t.topic), t) for t in route.targets if isinstance(t, model.StoreTarget))
    proxies = [(bound(t.address), t) for t in route.targets if isinstance(t, model.Proxy)]

    def rules(kind: type[model.Forward | model.Mirror]) -> Sequence[RemoteRule]:
        return [
            RemoteRule(
                route.name,
                target,
                stores[0][0],
                bound(target.address),
                bound(target.dead_letter) if isinstance(target, model.Forward) and target.dead_letter else None,
            )
            for target in route.targets
            if isinstance(target, kind) and stores
        ]

    return CompiledRoute(
        route=route,
        matcher=matcher,
        topic=topic,
        stores=stores,
        bridges=tuple((bound(t.address), t) for t in route.targets if isinstance(t, model.Bridge)),
        forwards=tuple(rules(model.Forward)),
        mirrors=tuple(rules(model.Mirror)),
        proxy=proxies[0] if proxies else None,
        transform=compile_transform(route.transform),
    )


def topic_of(route: model.Route, matcher: Matcher) -> BoundTemplate:
    """What `{topic}` means in a route's targets: the address, after every `rewrite` of it."""
    # the last `rewrite` counts: each of them takes what the one before it made
    return next(reversed(_rewrites(route, matcher)), whole(matcher.glob))


def _rewrites(route: model.Route, matcher: Matcher) -> Sequence[BoundTemplate]:
    found: list[BoundTemplate] = []
    for step in route.transform:
        if isinstance(step, model.Rewrite) and step.address:
            before = found[-1] if found else whole(matcher.glob)
            found.append(bind(template(step.address), matcher.glob, before))
    return found


@attrs.frozen(eq=False)
class IngestRule:
    """Which remote addresses are pulled in, and the address each one has here."""

    ingest: model.Ingest
    _matcher: Matcher
    _into: BoundTemplate

    def address(self, remote: str) -> str | None:
        """The address here of a remote one; None if it is not wanted."""
        captures = self._matcher.glob.match(remote)
        return self._into.expand(captures) if captures is not None else None

    @property
    def symbols(self) -> Symbols:
        """The remote addresses it takes, as a pattern."""
        return self._matcher.glob.symbols

    def remote(self, address: str) -> str | None:
        """The remote address that has this one here; None if there is none, or the one here does not say which."""
        captures = self._into.invert(address)
        pattern = self._matcher.glob
        if captures is None or len(captures) < len(pattern.wilds):
            return None
        # read backwards a name may fit several ways: only the one that leads here again is meant
        remote = whole(pattern).expand(captures)
        return remote if self.address(remote) == address else None

    @property
    def exact(self) -> str | None:
        """The one remote address it names, if it has no wildcard: for brokers that cannot list theirs."""
        return None if self._matcher.glob.wilds else self.ingest.source


def compile_ingest(ingest: model.Ingest) -> IngestRule:
    """Compile; ConfigProblem for a template that does not fit the glob."""
    matcher = compile_match(model.Match(topic=ingest.source))
    return IngestRule(ingest, matcher, bind(template(ingest.into), matcher.glob))
