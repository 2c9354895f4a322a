"""Who may import whom. The architecture is these few lines; an import that breaks them fails here, with its place.

All imports count, those inside functions too, except for the libraries a module may load lazily.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from pathlib import Path

import attrs
import pytest

from gateway.protocols.registry import served

ROOT = Path("gateway")
MODULES = sorted(ROOT.rglob("*.py"))

VALUES = (
    "gateway.errors",
    "gateway.envelope",
    "gateway.requests",
    "gateway.settings",
    "gateway.recorder",
)
"""Plain values that everybody may use."""

PURE = ("trio", "aioquic", "socket", "time", "logging", "structlog", "asyncio", "threading", "selectors", "ssl")
"""What code that takes bytes and time as arguments has no business with."""


@attrs.frozen
class Rule:
    """What the modules under `where` may import of the project, and must not import at all."""

    where: str
    may: tuple[str, ...]
    never: tuple[str, ...] = ()


RULES = [
    Rule("gateway/errors.py", (), PURE),
    Rule("gateway/envelope.py", ("gateway.errors",), PURE),
    Rule("gateway/requests.py", ("gateway.errors", "gateway.envelope"), PURE),
    Rule("gateway/settings.py", ("gateway.errors",), PURE),
    Rule("gateway/recorder.py", ("gateway.errors", "gateway.requests"), PURE),
    Rule("gateway/files.py", (), ("trio", "aioquic")),
    Rule("gateway/slices.py", (), ("aioquic", "socket", "time", "logging", "structlog")),
    Rule("gateway/docs/web.py", ("gateway.docs",), ("aioquic",)),
    Rule("gateway/docs", ("gateway.docs",), PURE),
    Rule("gateway/notation.py", ("gateway.errors", "gateway.settings"), PURE),
    Rule("gateway/model.py", ("gateway.settings", "gateway.wire", "gateway.store.interface"), PURE),
    Rule("gateway/schemas", ("gateway.errors", "gateway.schemas"), PURE),
    Rule("gateway/arrow", (*VALUES, "gateway.arrow", "gateway.store"), ("trio", "aioquic", "structlog")),
    Rule("gateway/librdkafka/codes.py", (), PURE),
    Rule("gateway/librdkafka", ("gateway.librdkafka",), ("aioquic", "structlog", "logging", "socket")),
    Rule("gateway/wire", (*VALUES, "gateway.wire"), PURE),
    Rule("gateway/bench/figures.py", (), PURE),
    Rule("gateway/bench/plot.py", ("gateway.bench.figures",), PURE),
    Rule("gateway/bench", ("gateway.bench",), ("aioquic",)),
    Rule("gateway/protocols/registry.py", (*VALUES, "gateway.wire", "gateway.protocols"), PURE),
    Rule(
        "gateway/protocols/kafka/client",  # the broker's own library does the I/O, in threads
        (
            *VALUES,
            "gateway.wire",
            "gateway.notation",
            "gateway.librdkafka",
            "gateway.protocols.registry",
            "gateway.protocols.kafka",
        ),
        ("aioquic", "structlog", "logging", "socket"),
    ),
    Rule(
        "gateway/protocols/kafka/wire",
        (*VALUES, "gateway.wire", "gateway.librdkafka.codes", "gateway.protocols.registry", "gateway.protocols.kafka"),
        PURE,
    ),
    Rule("gateway/protocols/*", (*VALUES, "gateway.wire", "gateway.protocols.registry", "{self}"), PURE),
    Rule("gateway/store/reader.py", (*VALUES, "gateway.store", "gateway.files"), ("trio", "aioquic", "structlog")),
    Rule(
        "gateway/store/kafka",
        (*VALUES, "gateway.store", "gateway.librdkafka"),
        ("aioquic", "structlog", "logging"),
    ),
    Rule("gateway/store", (*VALUES, "gateway.store", "gateway.files"), ("aioquic", "structlog", "logging")),
    Rule(
        "gateway/routing",
        (
            *VALUES,
            "gateway.routing",
            "gateway.protocols.registry",
            "gateway.model",
            "gateway.notation",
            "gateway.store.interface",  # the settings of a topic are the store's own value
        ),
        PURE,
    ),
    Rule(
        "gateway/broker",
        (
            *VALUES,
            "gateway.broker",
            "gateway.schemas",
            "gateway.slices",
            "gateway.store",
            "gateway.routing",
            "gateway.model",
        ),
        ("aioquic", "structlog", "logging", "socket"),
    ),
    Rule(
        "gateway/transport",
        (
            *VALUES,
            "gateway.transport",
            "gateway.wire",
            "gateway.files",
            "gateway.protocols.registry",
            "gateway.model",
        ),
    ),
    Rule(
        "gateway/bridges",
        (
            *VALUES,
            "gateway.bridges",
            "gateway.broker",
            "gateway.protocols.registry",
            "gateway.transport",
            "gateway.wire",
            "gateway.store",
            "gateway.routing",
            "gateway.model",
        ),
    ),
    Rule(
        "gateway/link/codec.py",
        (*VALUES, "gateway.link", "gateway.broker.consume.shared"),
        PURE,
    ),
    Rule(
        "gateway/link",
        (
            *VALUES,
            "gateway.link",
            "gateway.broker",
            "gateway.store.interface",
            "gateway.model",
            "gateway.files",
            "gateway.notation",
        ),
        ("aioquic", "structlog", "logging"),
    ),
    Rule("gateway/observe", (*VALUES, "gateway.observe", "gateway.slices", "gateway.store.interface"), ("aioquic",)),
    Rule(
        "gateway/pipeline",
        (
            *VALUES,
            "gateway.pipeline",
            "gateway.files",
            "gateway.store",
            "gateway.bulk.wire",
            "gateway.arrow",
            "gateway.schemas",
            "gateway.routing.expression",
        ),
        ("trio", "aioquic", "structlog", "hypercorn"),
    ),
    Rule("gateway/bulk/wire.py", VALUES, PURE),
    Rule("gateway/admin/access.py", ("gateway.errors", "gateway.model"), PURE),
    Rule(
        "gateway/admin",
        (
            *VALUES,
            "gateway.slices",
            "gateway",
            "gateway.admin",
            "gateway.bulk",
            "gateway.broker",
            "gateway.bridges",
            "gateway.config",
            "gateway.model",
            "gateway.observe",
            "gateway.protocols.registry",
            "gateway.reload",
            "gateway.routing",
            "gateway.store",
            "gateway.wire",
        ),
        ("aioquic", "socket", "hypercorn"),
    ),
    Rule(
        "gateway/bulk",
        (*VALUES, "gateway.bulk", "gateway.broker", "gateway.store", "gateway.routing", "gateway.arrow"),
        ("aioquic", "socket", "hypercorn"),
    ),
    Rule(
        "gateway/moving",
        (*VALUES, "gateway.moving", "gateway.store", "gateway.broker", "gateway.bridges", "gateway.bulk"),
        ("aioquic", "socket", "hypercorn"),
    ),
    Rule(
        "gateway/console",
        ("gateway", "gateway.admin", "gateway.bulk.wire", "gateway.console", "gateway.errors"),
        ("aioquic", "socket", "hypercorn", "structlog"),
    ),
    Rule(
        "gateway/config",
        (
            *VALUES,
            "gateway.config",
            "gateway.model",
            "gateway.notation",
            "gateway.wire",
            "gateway.routing",
            "gateway.protocols.registry",
            "gateway.store.interface",
        ),
        ("trio", "aioquic"),
    ),
    Rule(
        "gateway/reload.py",
        (*VALUES, "gateway.config", "gateway.files", "gateway.model", "gateway.observe.prometheus", "gateway.routing"),
        ("aioquic",),
    ),
]


def test_the_rules_look_where_there_is_code() -> None:
    assert len(MODULES) > 20
    assert {imported for module in MODULES for imported, _ in imports(module)} >= {"gateway.errors", "attrs"}


@functools.cache  # half of the rules ask for those of all modules
def imports(module: Path) -> tuple[tuple[str, int], ...]:
    """Every import of a module, absolute, with its line; not those for type checkers alone."""
    return imports_in(ast.parse(module.read_text()), module)


def imports_in(tree: ast.Module, module: Path) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            skipped.update(id(child) for child in ast.walk(node))
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports are absolute"
            found.append((node.module or "", node.lineno))
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return tuple(found)


def rule_of(module: Path) -> tuple[Rule, str] | None:
    """The first rule for a module, and what `{self}` means in it: the package right under a `*`."""
    text = module.as_posix()
    for rule in RULES:
        if rule.where.endswith("/*"):
            folder = rule.where[:-2]
            rest = module.relative_to(folder) if text.startswith(folder + "/") else None
            if rest is not None and len(rest.parts) > 1:
                return rule, f"{folder.replace('/', '.')}.{rest.parts[0]}"
        elif text == rule.where or text.startswith(rule.where + "/"):
            return rule, ""
    return None


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def violations(module: Path) -> list[str]:
    """What a module imports against its rule."""
    found = rule_of(module)
    if found is None:
        return []
    rule, own = found
    may = tuple(package.format(self=own) for package in rule.may)
    wrong = []
    for name, line in imports(module):
        # `from gateway.protocols import registry` shows as the package too: what counts is what was taken from it
        parents = {package.rsplit(".", 1)[0] for package in may} | {"gateway"}
        if within(name, ("gateway",)) and not within(name, may) and name not in parents:
            wrong.append(f"{module}:{line} imports {name}")
        if within(name, rule.never):
            wrong.append(f"{module}:{line} imports {name}, which has no business there")
    return wrong


def test_a_module_imports_what_its_room_may() -> None:
    assert [breach for module in MODULES for breach in violations(module)] == []


ALLOWED_ANYWHERE_WITHOUT_RULE = {
    "gateway/__init__.py",
    "gateway/__main__.py",
    "gateway/app.py",
    "gateway/supervisor.py",
    "gateway/cli",
    "gateway/protocols/__init__.py",
}
"""The composition root and the commands import everything."""


def test_no_two_rooms_know_each_other() -> None:
    """Not over several others either: what is needed on both sides has a room of its own below them."""
    knows: dict[str, set[str]] = {}
    for module in MODULES:
        room = module.with_suffix("").parts[1]
        for name, _line in imports(module):
            other = name.split(".")[1] if name.startswith("gateway.") else room
            if other != room and ((ROOT / other).is_dir() or (ROOT / f"{other}.py").exists()):
                knows.setdefault(room, set()).add(other)
    order = graphlib.TopologicalSorter(knows)
    order.prepare()  # raises CycleError, with the cycle


def test_every_room_has_a_rule() -> None:
    without = {
        module.as_posix() if len(module.parts) <= 2 else "/".join(module.parts[:2])
        for module in MODULES
        if rule_of(module) is None and module.as_posix() not in ALLOWED_ANYWHERE_WITHOUT_RULE
    }
    assert without <= ALLOWED_ANYWHERE_WITHOUT_RULE


def test_aioquic_stays_in_its_quarantine() -> None:
    outside = [
        f"{module}:{line}"
        for module in MODULES
        for name, line in imports(module)
        if within(name, ("aioquic",)) and "gateway/transport/quic" not in module.as_posix()
    ]
    assert outside == []


def test_no_core_module_names_a_protocol() -> None:
    """The broker, the router and the store know envelopes and topics; a sixth protocol edits none of them."""
    names = set(served())  # one that is only dialled may be a store's engine, too
    # docstrings may give examples; a value that a decision is made on is one word
    found = [
        f"{module}:{node.lineno}: {node.value}"
        for module in MODULES
        if module.parts[1] in {"broker", "routing", "store", "transport"}
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert found == []


def test_a_forbidden_import_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gateway/protocols/toy"
    folder.mkdir(parents=True)
    (folder / "codec.py").write_text(
        "import trio\nfrom gateway.protocols.other import SPEC\nfrom gateway.protocols.toy import x\n"
    )
    monkeypatch.chdir(tmp_path)
    assert violations(Path("gateway/protocols/toy/codec.py")) == [
        "gateway/protocols/toy/codec.py:1 imports trio, which has no business there",
        "gateway/protocols/toy/codec.py:2 imports gateway.protocols.other",
        "gateway/protocols/toy/codec.py:2 imports gateway.protocols.other.SPEC",
    ]
