"""What is not served is refused, with its place."""

from __future__ import annotations

import pytest

from gateway.bridges.offered import check_offered
from gateway.config import model
from gateway.errors import ConfigError


def config(*targets: model.Target, ingest: tuple[model.Ingest, ...] = ()) -> model.Config:
    upstream = model.Upstream("far", "blipmq", (("127.0.0.1", 1),), ingest=ingest)
    route = model.Route("r", model.Match(), (model.Store("{topic}"), *targets))
    return model.Config(listeners={}, routes=(route,), upstreams={"far": upstream})


def test_stores_bridges_and_forwards_are_served():
    check_offered(config(model.Bridge("felix", "a/b/{topic}"), model.Forward("far", "x", "x")))


def test_everything_else_is_refused_at_once():
    with pytest.raises(ConfigError) as refused:
        check_offered(config(model.Mirror("far", "{topic}"), ingest=(model.Ingest("a", "b"),)))
    assert [str(problem) for problem in refused.value.exceptions] == [
        "routes[0] (r).to[1]: this version does not serve `mirror` targets yet",
        "upstreams.far.ingest: this version does not serve `ingest` yet",
    ]
