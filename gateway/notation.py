"""How durations, sizes, back-off ranges and places are written in `routes.yaml`, and `${NAME}`.

Pure functions from text to value. What is wrong is raised as ConfigProblem without a place; whoever knows the place adds
it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from gateway.errors import ConfigProblem
from gateway.settings import Backoff, Seconds, Size

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)", re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB|TiB)?", re.ASCII)
_BYTES = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

LARGEST_SIZE = 1 << 62
"""Sizes end up in signed 64-bit columns; nothing larger can be meant."""
LARGEST_PORT = 65_535


def duration(text: str) -> Seconds:
    """`5ms`, `1.5s`, `7d`, `none`."""
    if text == "none":
        return Seconds(math.inf)
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigProblem(f"not a duration: {text!r} (write it like 250us, 5ms, 2s, 10m, 1h, 7d or none)")
    return Seconds(float(found[1]) * _SECONDS[found[2]])


def size(text: str) -> Size:
    """`64KiB`, `16MiB`, `10GiB`, `4096`."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ConfigProblem(f"not a size: {text!r} (write it like 4096, 64KiB, 16MiB or 10GiB)")
    value = int(found[1]) * _BYTES[found[2]]
    if value > LARGEST_SIZE:
        raise ConfigProblem(f"too large: {text!r}")
    return Size(value)


def backoff(text: str) -> Backoff:
    """`100ms..30s`."""
    first, dots, longest = text.partition("..")
    if not dots:
        raise ConfigProblem(f"not a back-off range: {text!r} (write it like 100ms..30s)")
    value = Backoff(duration(first.strip()), duration(longest.strip()))
    if not 0 < value.first <= value.longest or math.isinf(value.longest):
        raise ConfigProblem(f"a back-off range goes from a delay to a longer one: {text!r}")
    return value


def endpoint(text: str) -> tuple[str, int]:
    """`127.0.0.1:9092`, `[::1]:9092`, `localhost:0` -> (host, port)."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigProblem(f"not an address: {text!r} (an IPv6 address goes in brackets: '[::1]:9092')")
    if not colon or not host or any(c.isspace() or c in "[]/" for c in host):
        raise ConfigProblem(f"not an address: {text!r} (write it as host:port)")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigProblem(f"not an address: {text!r} (a part of the name is empty, or too long)") from None
    if not port.isascii() or not port.isdigit() or int(port) > LARGEST_PORT:
        raise ConfigProblem(f"not a port: {port!r} in {text!r} (0 to 65535)")
    return host, int(port)


def place(text: str) -> tuple[str, int]:
    """An endpoint, or the path of a Unix socket with port 0: `/run/gateway/fujin.sock`, `./fujin.sock`."""
    return (text, 0) if is_path(text) else endpoint(text)


def is_path(host: str) -> bool:
    return host.startswith(("/", "./", "../"))


def is_everywhere(host: str) -> bool:
    """Whether it stands for all addresses of a machine: nobody can be sent there."""
    return host in {"0.0.0.0", "::", "[::]"}  # noqa: S104 - recognised, not bound


def show_endpoint(host: str, port: int) -> str:
    """(host, port) -> `[::1]:9092`, as the file says it."""
    if is_path(host):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def show_duration(value: Seconds) -> str:
    """`40ms`, `10m`, `none`, in the largest unit that leaves a whole number."""
    if math.isinf(value):
        return "none"
    for unit, seconds in reversed(_SECONDS.items()):
        count = value / seconds
        if count >= 1 and math.isclose(count, round(count)):
            return f"{round(count)}{unit}"
    return f"{value:g}s"


def show_size(value: Size) -> str:
    """`64KiB`, `16MiB`."""
    unit, count = max(
        ((unit, value // size) for unit, size in _BYTES.items() if unit and value % size == 0),
        key=lambda one: -one[1],
    )
    return f"{count}{unit}"


def show_backoff(value: Backoff) -> str:
    """`100ms..30s`."""
    return f"{show_duration(value.first)}..{show_duration(value.longest)}"


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """Fill in `${NAME}` (must be set) and `${NAME:-default}` (may be empty or unset). `$${` is a literal `${`.

    What was filled in is not looked at again, so a value may contain anything.
    """

    def fill(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        if not found[0].endswith("}"):
            raise ConfigProblem("'${' without '}' (write '$${' for a literal '${')")
        name, has_default, default = found[1].partition(":-")
        if not _NAME.fullmatch(name):
            raise ConfigProblem(f"not a variable: {found[0]!r} (write ${{NAME}} or ${{NAME:-default}})")
        if has_default:
            return environ.get(name) or default
        if name not in environ:
            raise ConfigProblem(f"environment variable {name} is not set (${{{name}:-default}} may be unset)")
        return environ[name]

    return _VARIABLE.sub(fill, text)
