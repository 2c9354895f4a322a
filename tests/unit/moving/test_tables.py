"""Whatever is kept in a table, a copy knows what becomes of it."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

from gateway.moving import tables

ROOMS = ("broker", "bridges", "bulk")


def written_to() -> set[str]:
    """The tables of all rows that the code writes, by the name at each place where it makes one."""
    found: set[str] = set()
    for room in ROOMS:
        for path in sorted(Path("gateway", room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                called = node.func if isinstance(node, ast.Call) else None
                if isinstance(called, ast.Name) and called.id == "Put":
                    assert isinstance(node, ast.Call)
                    table = node.args[0]
                    module = importlib.import_module(".".join(path.with_suffix("").parts))
                    found.add(eval(ast.unparse(table), vars(module)))  # names of our own modules
    return found


def test_every_table_is_known() -> None:
    written = written_to()
    assert {"group_offsets", "forwards", "accounts", "owners", "producer_appends"} <= written
    assert sorted(written - set(tables.KNOWN_TABLES)) == []
