"""`gateway help`: the documentation in the terminal."""

from __future__ import annotations

import difflib
import shutil
import sys

import click
from click.shell_completion import CompletionItem

from gateway.cli.options import examples

WIDEST = 120
"""Longer lines are hard to read, however wide the terminal is."""


def _topics(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from gateway import docs

    return [CompletionItem(page) for page in docs.pages() if page.startswith(begun)]


@click.command(epilog=examples("gateway help", "gateway help routing", "gateway help flymq | grep -i schema"))
@click.argument("topic", required=False, shell_complete=_topics)
@click.option("--no-pager", is_flag=True, help="Print it all at once, on a terminal too.")
@click.pass_context
def command(context: click.Context, topic: str | None, no_pager: bool) -> None:
    """Show a page of the documentation; without TOPIC, which pages there are.

    The pages are part of the program, so they are about this version of it. `gateway help COMMAND` is
    `gateway COMMAND --help`, unless a page has that name.
    """
    from gateway import docs
    from gateway.docs.terminal import rendered

    page = topic or docs.INDEX
    if page not in docs.pages():
        _show_command(context, page)
        return
    terminal = sys.stdout.isatty()
    columns, rows = shutil.get_terminal_size()
    shown = rendered(docs.text(page), min(columns, WIDEST), colour=terminal)
    if terminal and not no_pager and shown.count("\n") >= rows:
        click.echo_via_pager(shown)
    else:
        click.echo(shown)


def _show_command(context: click.Context, name: str) -> None:
    # the help of a command; an error that says which page or command was probably meant, if there is none
    from gateway import docs

    group = context.find_root().command
    assert isinstance(group, click.Group)
    commands = group.list_commands(context)
    found = group.get_command(context, name) if name in commands else None
    if found is None:
        close = difflib.get_close_matches(name, [*docs.pages(), *commands], n=1)
        hint = f"Did you mean '{close[0]}'?" if close else "`gateway help` lists the pages."
        raise click.UsageError(f"There is no page '{name}'. {hint}", context)
    with click.Context(found, info_name=name, parent=context.find_root()) as below:
        click.echo(found.get_help(below))
