"""The same files with the protocols that there really are: accepted as they stand, and their addresses understood."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from gateway.config.load import load, parse
from gateway.config.schema import json_schema
from gateway.protocols.registry import served
from gateway.routing.table import compile_table

HERE = Path(__file__).parent
FILES = [HERE / "five.yaml", HERE / "reference.yaml", Path("routes.yaml")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_good_files_are_accepted(path: Path) -> None:
    config = load(path, {"LEGACY_KEY": "k"})
    assert {name for each in config.listeners.values() for name in each.protocols} == set(served())
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())


def test_an_order_has_an_address_in_every_protocol() -> None:
    routing = compile_table(load(HERE / "five.yaml", {}))
    addresses = {name: routing.address_of(name, name, "orders.eu") for name in served()}
    assert addresses == dict.fromkeys(served(), "orders.eu") | {"felix": "acme/shop/orders-eu"}
    for name, address in addresses.items():
        assert address is not None
        assert routing.reader(name, name, address) == "orders.eu"


@pytest.mark.parametrize(
    ("scope", "address"), [("t1/default", "acme/shop/orders-eu"), ("acme/shop", "orders-eu"), ("acme/sho", "acme/shop/orders-eu")]
)  # fmt: skip
def test_a_bridge_in_the_default_scope_of_a_listener_goes_by_its_short_name(scope: str, address: str) -> None:
    text = (HERE / "five.yaml").read_text().replace("tls: self-signed}", f"tls: self-signed, scope: {scope}}}", 1)
    routing = compile_table(parse(text, "r.yaml", {}))
    assert routing.address_of("felix", "felix", "orders.eu") == address
    assert routing.reader("felix", "felix", address) == "orders.eu"
