"""A page of the documentation for a terminal: as wide as that, with the marks of Markdown turned into what they mean."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

import attrs
from markdown_it.token import Token
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement, TableRowElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from gateway.docs import page_of

THEME = Theme({"markdown.code": "cyan", "markdown.code_block": "cyan", "markdown.h1": "bold", "markdown.h2": "bold"})
"""Rich puts code on a black ground and underlines headings, which on a light terminal is more noise than help."""
NARROWEST = 30
GAP = 2  # a space of ours and one of the box
READABLE = 24
"""A column of text that is narrower is a column of single words."""


class LeftHeading(Heading):
    """A heading where the eye begins to read."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class Copyable(CodeBlock):
    """Code as it stands, for copying: a line that is longer than the terminal is left to it, not broken."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [f"    {line}".rstrip() for line in str(self.text).rstrip().split("\n")]
        yield Text("\n".join(lines), style=self.style_name, no_wrap=True, overflow="ignore")


class Rows(TableElement):
    """A table in which no word is broken; what is too wide for that is shown row by row.

    The longest words are the names of keys and metrics: broken in two they are found neither by the eye nor by a search.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = _cells(self.header.row if self.header is not None else None)
        rows = [_cells(row) for row in (self.body.rows if self.body is not None else ())]
        columns = [_Column.of(cells) for cells in zip(head, *rows, strict=True)]
        spare = options.max_width - sum(column.least + GAP for column in columns)
        if spare >= 0:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
            for cell, width in zip(head, _shared(columns, spare), strict=True):
                table.add_column(cell, width=width, header_style="bold")
            for row in rows:
                table.add_row(*row)
            yield table
            return
        for row in rows:
            yield Text("")
            yield row[0]
            for name, cell in zip(head[1:], row[1:], strict=True):
                if cell.plain:
                    yield Padding(Text.assemble((f"{name.plain}: ", "dim"), cell), (0, 0, 0, 2))


def _cells(row: TableRowElement | None) -> Sequence[Text]:
    return [cell.content for cell in row.cells] if row is not None else []


@attrs.frozen
class _Column:
    """How wide a column has to be at least, and would be best."""

    least: int
    best: int

    @classmethod
    def of(cls, cells: Sequence[Text]) -> Self:
        longest_word = max(cell_len(word) for cell in cells for word in [*cell.plain.split(), ""])
        best = max(cell_len(cell.plain) for cell in cells)
        return cls(max(longest_word, min(best, READABLE)), best)


def _shared(columns: Sequence[_Column], spare: int) -> Sequence[int]:
    # the widths: those that want little get it, the others share what is left
    widths = {}
    waiting = sorted(range(len(columns)), key=lambda index: columns[index].best - columns[index].least)
    for done, index in enumerate(waiting):
        more = min(columns[index].best - columns[index].least, spare // (len(columns) - done))
        widths[index] = columns[index].least + more
        spare -= more
    return [widths[index] for index in range(len(columns))]


class Page(Markdown):
    """A page with elements of ours where Rich's say too much or too little."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": LeftHeading,
        "fence": Copyable,
        "code_block": Copyable,
        "table_open": Rows,
    }


def rendered(markdown: str, width: int, *, colour: bool) -> str:
    page = Page(markdown)
    for token in page.parsed:
        if token.children:
            token.children = list(_without_links(token.children))
    console = Console(
        file=io.StringIO(), width=max(width, NARROWEST), theme=THEME, force_terminal=colour, no_color=not colour or None
    )
    with console.capture() as shown:
        console.print(page, crop=False)
    return "\n".join(line.rstrip() for line in shown.get().split("\n"))


def _without_links(tokens: Sequence[Token]) -> Iterator[Token]:
    # a link is its text; where the text is not the name of the page that it leads to, that name follows
    target = said = ""
    for token in tokens:
        if token.type == "link_open":
            target, said = str(token.attrs["href"]), ""
            continue
        if token.type == "link_close":
            page = page_of(target)
            if page != said.lower().replace(" ", "-"):
                yield Token("text", "", 0, content=f" ({page or target})")
            continue
        said += token.content
        yield token
