"""What the site does with its list of pages, and with a page before it is shown.

A folder in the list stands for all its pages, under their own titles. Files of the repository are named where pages
link to them: pages are read in the repository too, where such a link leads to the file, and the site has pages alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_FILE = r"(?:src|tests|examples|benchmarks|recipes)/[^)#\s]+|[A-Z]+\.md"
_OUTSIDE = re.compile(rf"\[([^\]]+)\]\(((?:\.\./)+(?:{_FILE}))[^)]*\)")


def on_config(config: Any) -> Any:
    config["nav"] = open_folders(config["nav"], Path(config["docs_dir"]))
    return config


def open_folders(nav: list[Any], docs: Path) -> list[Any]:
    """The list of pages with every folder replaced by what is in it."""
    return [{title: _open(inner, docs) for title, inner in entry.items()} for entry in nav]


def _open(inner: Any, docs: Path) -> Any:
    if isinstance(inner, list):
        return open_folders(inner, docs)
    if not inner.endswith("/"):
        return inner
    pages = sorted((docs / inner).glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
    return [{_title(page): str(page.relative_to(docs))} for page in pages]


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _OUTSIDE.sub(r"\1", markdown)
