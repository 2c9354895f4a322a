"""The `gateway` command: a sub-command is a sibling module that defines `command`, and nothing else is edited for it.

Which modules are commands, and what they do in a line, is read from their source: `gateway --help` imports none of them,
so it answers at once however heavy a command is.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import os
import pkgutil
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import click

import gateway
import gateway.cli
from gateway.errors import GatewayError

EXIT_GOOD = 0
EXIT_FINDINGS = 1
EXIT_FAILED = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
"""What a shell reports of a program that SIGINT or SIGPIPE ended."""

COMPLETION = "_GATEWAY_COMPLETE"
"""Set by the shell's completion script (`_GATEWAY_COMPLETE=bash_source gateway` prints one)."""

EXAMPLES = """\
Examples:

\b
  gateway serve --config routes.yaml
  gateway check routes.yaml
  gateway pub blipmq://127.0.0.1:5555/orders --api-key dev-key --data hello
  gateway sub rustlog://127.0.0.1:9192/orders --from earliest --count 1

Every command explains itself: gateway COMMAND --help. Exit codes: 0 good, 1 findings, 2 could not do it.
"""


@functools.cache
def _commands() -> Mapping[str, tuple[str, str]]:
    # every command: its name, the module that defines it, and its first sentence
    found: dict[str, tuple[str, str]] = {}
    for module in pkgutil.iter_modules(gateway.cli.__path__):
        name = f"gateway.cli.{module.name}"
        summary = _summary(name)
        if summary is not None:
            found[module.name.replace("_", "-")] = name, summary
    return found


@functools.cache
def _module_of(command: str) -> str | None:
    # The module that defines a command; None if there is no such command. Looks at that module alone.
    name = command.replace("-", "_")
    if "_" in command or not name.isidentifier() or importlib.util.find_spec(f"gateway.cli.{name}") is None:
        return None
    return f"gateway.cli.{name}" if _summary(f"gateway.cli.{name}") is not None else None


def _summary(module: str) -> str | None:
    # the first sentence about the `command` that a module defines; None if it defines none
    spec = importlib.util.find_spec(module)
    loader: Any = spec.loader if spec is not None else None
    tree = ast.parse(loader.get_source(module) or "")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "command":
            text = ast.get_docstring(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and "command" in _targets(node):
            text = None
        else:
            continue
        paragraph = " ".join((text or ast.get_docstring(tree) or "").split("\n\n")[0].split())
        return paragraph.split(". ")[0].rstrip(".")
    return None


def _targets(node: ast.Assign | ast.AnnAssign) -> Sequence[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


class CommandGroup(click.Group):
    """Finds commands by module and imports only the one that is run."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(_commands())

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = _module_of(cmd_name)
        if name is None:
            return None
        command: click.Command = importlib.import_module(name).command
        command.name = cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if not name.startswith("-") and _module_of(name) is None:
            import difflib

            close = difflib.get_close_matches(name, _commands(), n=1)
            hint = f" Did you mean '{close[0]}'?" if close else " See gateway --help."
            raise click.UsageError(f"There is no command '{name}'.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _commands()[name][1]) for name in sorted(_commands())])


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXAMPLES,
)
@click.version_option(gateway.__version__, prog_name="gateway", message="%(prog)s %(version)s")
def cli() -> None:
    """A gateway that speaks BlipMQ, FlyMQ, RustLog, Felix and Fujin, and keeps one log behind them all."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. An expected failure is one clear line on standard error."""
    if COMPLETION in os.environ:
        cli.main(prog_name="gateway", complete_var=COMPLETION)
    try:
        with cli.make_context("gateway", list(sys.argv[1:] if args is None else args)) as context:
            result = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.Abort:
        return EXIT_INTERRUPTED
    except click.UsageError as error:
        error.show()
        return EXIT_FAILED
    except (BaseExceptionGroup, GatewayError, OSError, KeyboardInterrupt, click.ClickException) as error:
        return _failed(error, sys.stderr)
    return result if isinstance(result, int) else EXIT_GOOD


def _failed(error: BaseException, out: IO[str]) -> int:
    # the exit code of a failure that was foreseen, after its lines; anything else is raised on, with its traceback
    leaves = list(_leaves(error))
    if any(isinstance(leaf, BrokenPipeError) for leaf in leaves) and _stdout_is_gone():
        return EXIT_PIPE
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return EXIT_INTERRUPTED
    if not all(isinstance(leaf, GatewayError | OSError | click.ClickException) for leaf in leaves):
        raise error
    for line in dict.fromkeys(_line(leaf) for leaf in leaves):
        out.write(f"gateway: {line}\n")
    return EXIT_FAILED


def _leaves(error: BaseException) -> Iterator[BaseException]:
    # what really failed: nurseries and configurations report in groups
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _leaves(member)
    else:
        yield error


def _line(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


def _stdout_is_gone() -> bool:
    # whether the reader of our output went away (`| head`): not an error of ours, and nothing may be written any more
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in watch.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True
