"""What can be wrong with routes: names that lead nowhere, templates that do not fit, addresses claimed twice, routes that
nothing reaches, losses nobody agreed to.

Apart from `checks`: these need the compiled routing table, the others only the values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import attrs

from gateway import model
from gateway.config.document import Notebook
from gateway.config.records import suggestion
from gateway.errors import ConfigProblem
from gateway.protocols.registry import ProtocolSpec, carried
from gateway.routing.address import complaint, is_reserved
from gateway.routing.compiled import topic_of
from gateway.routing.fidelity import targets_of
from gateway.routing.glob import BoundTemplate, bind, template
from gateway.routing.match import Matcher, compile_match
from gateway.routing.patterns import ambiguous, covers, overlap
from gateway.routing.transform import compile_step

Specs = Mapping[str, ProtocolSpec]


@attrs.frozen(eq=False)
class _AddressClaim:
    """A bridge's address as one listener's clients write it (listener "": as the file has it)."""

    protocol: str
    listener: str
    template: BoundTemplate
    bridge: model.Bridge
    route: model.Route


def check_routes(config: model.Config, specs: Specs, notes: Notebook) -> None:
    if config.routes == (model.IDENTITY,):
        return
    _check_names(config.routes, notes)
    claims: list[_AddressClaim] = []
    for route in config.routes:
        _check_match(route, config, specs, notes)
        _check_steps(route, notes)
        _check_shape(route, notes)
        claims.extend(_check_templates(route, config, specs, notes))
        _check_targets(route, specs, notes)
        _check_losses(route, config, specs, notes)
    _check_claims(claims, notes)
    _check_reach(config.routes, notes)


def _check_names(routes: Sequence[model.Route], notes: Notebook) -> None:
    named: dict[str, model.Route] = {}
    forwards: dict[str, model.Forward] = {}
    for route in routes:
        first = named.setdefault(route.name, route)
        if first is not route:
            line = notes.line(f"{notes.path_of(first)}.name")
            notes.complain(route, "name", f"duplicate name {route.name!r} (first in line {line})")
        for target in route.targets:
            if isinstance(target, model.Forward) and (notes.has(target, "name") or (route.name and target.upstream)):
                other = forwards.setdefault(target.name, target)
                if other is not target:
                    problem = f"duplicate name {target.name!r} (also {notes.path_of(other)}); it keys the cursor"
                    notes.complain(target, "name", problem)


def _check_match(route: model.Route, config: model.Config, specs: Specs, notes: Notebook) -> None:
    match = route.match
    for name in match.protocol:
        if name not in specs and name not in notes.spoken:
            problem = f"unknown or not available protocol {name!r}{suggestion(name, specs)}"
            notes.complain(match, "protocol", problem)
    places = notes.listeners | notes.upstreams
    for name in match.listener:
        if name not in places:
            notes.complain(
                match, "listener", f"no listener or upstream is called {name!r}{suggestion(name, frozenset(places))}"
            )
        elif match.protocol:
            spoken = _spoken_at(name, config)
            if spoken and not spoken & set(match.protocol):
                problem = f"never reached: {name!r} does not speak {' or '.join(match.protocol)}"
                notes.complain(match, "listener", problem)


def _spoken_at(name: str, config: model.Config) -> set[str]:
    spoken: set[str] = set()
    if name in config.listeners:
        spoken.update(config.listeners[name].protocols)
    if name in config.upstreams:
        spoken.add(config.upstreams[name].protocol)
    return spoken


def _check_steps(route: model.Route, notes: Notebook) -> None:
    for step in route.transform:
        if isinstance(step, model.Rewrite) and not step.key and not step.address:
            notes.complain(step, "", "expected key or address")
        try:
            compile_step(step)
        except ConfigProblem as problem:
            notes.complain(step, "key" if isinstance(step, model.Rewrite) else "", problem.message)


def _check_shape(route: model.Route, notes: Notebook) -> None:
    if not notes.was_read(f"{notes.path_of(route)}.to"):
        return
    proxies = [target for target in route.targets if isinstance(target, model.Proxy)]
    if proxies and len(route.targets) > 1:
        notes.complain(proxies[0], "", "a proxy stands alone: the answer is the remote's, and nothing is stored")
    if proxies or any(isinstance(target, model.StoreTarget) for target in route.targets):
        return
    for target in route.targets:
        notes.complain(target, "", f"a {target.word} reads what was stored: the route needs a store target as well")


def _check_templates(
    route: model.Route, config: model.Config, specs: Specs, notes: Notebook
) -> Iterator[_AddressClaim]:
    # bind every template to the glob; yields the addresses that bridges claim
    if not notes.was_read(f"{notes.path_of(route)}.match.topic"):
        return  # nobody knows its captures
    matcher = compile_match(route.match)
    try:
        topic = topic_of(route, matcher)
    except ConfigProblem as problem:
        step = next(s for s in route.transform if isinstance(s, model.Rewrite) and s.address)
        notes.complain(step, "address", problem.message)
        return
    primary: BoundTemplate | None = None
    for target in route.targets:
        if isinstance(target, model.StoreTarget):
            bound = _bound(target, "topic", matcher, topic, notes)
            if bound is not None:
                _check_topic(target, "topic", bound, notes)
                primary = primary or bound
    for target in route.targets:
        if isinstance(target, model.Proxy):
            _bound(target, "address", matcher, topic, notes)
        elif not isinstance(target, model.StoreTarget):
            bound = _bound(target, "address", matcher, topic, notes)
            if bound is None or primary is None:
                continue
            if isinstance(target, model.Bridge):
                _check_bridge(target, bound, primary, notes)
                if not notes.was_read(f"{notes.path_of(target)}.protocol"):
                    continue
                yield from _claims(route, target, bound, matcher, topic, config, specs)
            else:
                _check_derived(target, "address", bound, primary, notes)
        if isinstance(target, model.Forward) and target.dead_letter and primary is not None:
            letters = _bound(target, "dead_letter", matcher, topic, notes)
            if letters is not None:
                _check_topic(target, "dead_letter", letters, notes)
                _check_derived(target, "dead_letter", letters, primary, notes)


def _bound(
    target: model.Target, key: str, matcher: Matcher, topic: BoundTemplate, notes: Notebook
) -> BoundTemplate | None:
    if not notes.was_read(f"{notes.path_of(target)}.{key}"):
        return None
    try:
        return bind(template(getattr(target, key)), matcher.glob, topic)
    except ConfigProblem as problem:
        notes.complain(target, key, problem.message)
        return None


def _check_topic(target: model.Target, key: str, bound: BoundTemplate, notes: Notebook) -> None:
    # whether the names it makes can be topics, by the simplest of them
    simplest = bound.expand(["x"] * len(bound.wilds))
    problem = complaint(simplest)
    if not problem and is_reserved(simplest):
        problem = "names that start with '__' are reserved"
    if problem:
        notes.complain(target, key, problem)


def _check_bridge(bridge: model.Bridge, bound: BoundTemplate, primary: BoundTemplate, notes: Notebook) -> None:
    missing = sorted(primary.used - bound.used)
    if missing:
        words = ", ".join(f"{{{number + 1}}}" for number in missing)
        problem = f"the address does not say which topic it shows: {primary.text!r} is made of {words}, which it lacks"
        notes.complain(bridge, "address", problem)
        return
    example = ambiguous(bound.symbols)
    if example is not None:
        problem = f"{example!r} can be read in two ways, so it would be two topics (put '.' or '/' between captures)"
        notes.complain(bridge, "address", problem)


def _check_derived(
    target: model.Target, key: str, bound: BoundTemplate, primary: BoundTemplate, notes: Notebook
) -> None:
    # forwards and mirrors read the stored topic: its name is all they know
    missing = sorted(bound.used - primary.used)
    if missing:
        words = ", ".join(f"{{{number + 1}}}" for number in missing)
        problem = f"it is made from the name of the stored topic, and {primary.text!r} does not carry {words}"
        notes.complain(target, key, problem)
    elif bound.used and ambiguous(primary.symbols) is not None:
        problem = f"it is made from the name of the stored topic, and {primary.text!r} can be read in two ways"
        notes.complain(target, key, problem)


def _claims(
    route: model.Route,
    bridge: model.Bridge,
    bound: BoundTemplate,
    matcher: Matcher,
    topic: BoundTemplate,
    config: model.Config,
    specs: Specs,
) -> Iterator[_AddressClaim]:
    yield _AddressClaim(bridge.protocol, "", bound, bridge, route)
    spec = specs.get(bridge.protocol)
    for listener in config.listeners.values():
        if spec is not None and bridge.protocol in listener.protocols:
            text = spec.local_address(listener.settings[bridge.protocol], bridge.address)
            if text != bridge.address:
                yield _AddressClaim(
                    bridge.protocol, listener.name, bind(template(text), matcher.glob, topic), bridge, route
                )
            else:
                yield _AddressClaim(bridge.protocol, listener.name, bound, bridge, route)


def _check_claims(claims: Sequence[_AddressClaim], notes: Notebook) -> None:
    reported: set[int] = set()
    for earlier, later in itertools.combinations(claims, 2):
        if (earlier.protocol, earlier.listener) != (later.protocol, later.listener) or earlier.bridge is later.bridge:
            continue
        example = overlap(earlier.template.symbols, later.template.symbols)
        if example is not None and id(later.bridge) not in reported:
            reported.add(id(later.bridge))
            line = notes.line(f"{notes.path_of(earlier.bridge)}.address")
            problem = f"{example!r} is claimed by a bridge of {earlier.route.name!r} (line {line}) as well"
            notes.complain(later.bridge, "address", problem)


def _check_targets(route: model.Route, specs: Specs, notes: Notebook) -> None:
    for target in route.targets:
        if isinstance(target, model.Bridge):
            if target.protocol not in specs and target.protocol not in notes.spoken:
                problem = f"unknown or not available protocol {target.protocol!r}{suggestion(target.protocol, specs)}"
                notes.complain(target, "protocol", problem)
            elif target.protocol not in notes.spoken:
                notes.complain(target, "protocol", f"no listener speaks {target.protocol}: nobody could use the bridge")
        elif isinstance(target, model.Forward | model.Mirror | model.Proxy) and target.upstream not in notes.upstreams:
            hint = suggestion(target.upstream, frozenset(notes.upstreams))
            notes.complain(target, "upstream", f"no upstream is called {target.upstream!r}{hint}")
        if isinstance(target, model.Forward) and not math.isinf(target.retry.outage) and not target.dead_letter:
            notes.complain(
                target, "retry.outage", "needs a dead_letter: what has waited for so long has to go somewhere"
            )
        if isinstance(target, model.Mirror) and target.percent == 0:
            notes.complain(target, "percent", "expected more than 0")


def _check_losses(route: model.Route, config: model.Config, specs: Specs, notes: Notebook) -> None:
    match = f"{notes.path_of(route)}.match"
    if not notes.was_read(f"{match}.protocol") or not notes.was_read(f"{match}.listener"):
        return  # nobody knows whose messages it takes
    carries = carried(specs)
    for found in targets_of(route, config, carries):
        missing = found.refused
        if missing:
            losing = [pair for pair in found.pairs if pair.losses - found.target.accept_loss]
            sources = " and ".join(dict.fromkeys(pair.source for pair in losing))
            problem = (
                f"{sources} to {losing[0].target} loses {', '.join(missing)}: accept_loss must name what may be lost"
            )
            notes.complain(found.target, "accept_loss", problem, as_written=notes.has(found.target, "accept_loss[0]"))


def _check_reach(routes: Sequence[model.Route], notes: Notebook) -> None:
    # routes behind one that takes all they could take
    good = [route for route in routes if notes.was_read(f"{notes.path_of(route)}.match")]
    matchers = [(route, compile_match(route.match)) for route in good]
    for index, (route, matcher) in enumerate(matchers):
        for earlier, wider in matchers[:index]:
            # of what an unknown key was to leave out the later one may be meant for
            certain = notes.all_known(f"{notes.path_of(earlier)}.match")
            if certain and not wider.conditional and _takes_all(wider, matcher):
                line = notes.line(notes.path_of(earlier))
                problem = f"never reached: {earlier.name!r} (line {line}) takes everything it could"
                notes.complain(route, "match", problem)
                break


def _takes_all(wide: Matcher, narrow: Matcher) -> bool:
    if wide.protocols and not (narrow.protocols and narrow.protocols <= wide.protocols):
        return False
    if wide.listeners and not (narrow.listeners and narrow.listeners <= wide.listeners):
        return False
    if wide.principal is not None and (
        narrow.principal is None or not covers(wide.principal.symbols, narrow.principal.symbols)
    ):
        return False
    return covers(wide.glob.symbols, narrow.glob.symbols)
