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


def test_everything_but_mirrors_is_served():
    targets = model.Bridge("felix", "a/b/{topic}"), model.Forward("far", "x", "x"), model.Proxy("far", "x")
    check_offered(config(*targets, ingest=(model.Ingest("a", "b"),)))


def test_what_is_not_served_is_refused():
    with pytest.raises(ConfigError) as refused:
        check_offered(config(model.Mirror("far", "{topic}")))
    assert [str(problem) for problem in refused.value.exceptions] == [
        "routes[0] (r).to[1]: this version does not serve `mirror` targets yet",
    ]
