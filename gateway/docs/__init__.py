"""The pages of the documentation, which are part of the package: what is read here always belongs to this version."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

INDEX = "index"


def pages() -> Sequence[str]:
    return sorted(path.name.removesuffix(".md") for path in files(__name__).iterdir() if path.name.endswith(".md"))


def text(page: str) -> str:
    """A page as Markdown; KeyError if there is none of that name."""
    if page not in pages():
        raise KeyError(page)
    return files(__name__).joinpath(f"{page}.md").read_text(encoding="utf-8")


def images() -> Sequence[str]:
    """The names of the pictures in the pages, and of the figures that plots are made of."""
    return sorted(
        path.name
        for path in files(__name__).joinpath("images").iterdir()
        if path.name.endswith((".png", ".svg", ".json"))
    )


def image(name: str) -> bytes:
    """A picture; KeyError if there is none of that name."""
    if name not in images():
        raise KeyError(name)
    return files(__name__).joinpath("images", name).read_bytes()


def page_of(link: str) -> str:
    """The page that a link from another page leads to; empty if it leads elsewhere."""
    name, _, _ = link.partition("#")
    page = name.removesuffix(".md")
    return page if page != name and "/" not in page else ""
