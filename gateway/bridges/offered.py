"""What this program can do of what a configuration may ask for. The rest is refused, by name: a target that is silently
not served would be a loss that nobody sees.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config import model
from gateway.errors import ConfigError, ConfigProblem

OFFERED = (model.Store, model.Bridge, model.Forward, model.Proxy)
"""The targets of a route that are served."""


def missing(config: model.Config) -> Iterator[ConfigProblem]:
    """Everything in a configuration that this version cannot serve."""
    for number, route in enumerate(config.routes):
        for position, target in enumerate(route.targets):
            if not isinstance(target, OFFERED):
                word = type(target).__name__.lower()
                yield ConfigProblem(
                    f"this version does not serve `{word}` targets yet",
                    file=config.file,
                    path=f"routes[{number}] ({route.name}).to[{position}]",
                )


def check_offered(config: model.Config) -> None:
    """Raise ConfigError with everything that cannot be served."""
    problems = list(missing(config))
    if problems:
        raise ConfigError("the configuration asks for what this version cannot serve", problems)
