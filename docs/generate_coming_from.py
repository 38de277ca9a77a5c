"""The tables of the dialects come in; `docs/coming_from.md` goes out: what becomes of every key.

The rows are those that `turnwise train` reads other projects' files by, so that the page cannot say anything else.

    python docs/generate_coming_from.py            write the page
    python docs/generate_coming_from.py --check    exit 1 if the page is stale
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from turnwise.config.dialects.known import DIALECTS
from turnwise.config.dialects.table import Kind, Row
from turnwise.config.load import translate_file

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "coming_from.md"
FILES = DOCS.parent / "tests" / "documents" / "files"
KINDS: tuple[Kind, ...] = ("mapped", "no meaning", "refused")
DOCUMENTS = {
    "Multi-turn PPO with RAGEN's environments": ("multi_turn", "environment_groups"),
    "Multi-turn PPO trainer": ("essential", "environment"),
    "Multi-turn PPO with environment rewards": (
        "ragen_compatible",
        "environment_only",
        "environment_and_critic",
        "traditional",
    ),
    "AgentTrainer": ("agent_trainer",),
    "General multi-step RFT": ("step_wise_alfworld",),
}
"""Documents and the layouts that they show, which the tests train."""


def write_page() -> str:
    """The whole page as Markdown."""
    head = (DOCS / "coming_from.in.md").read_text(encoding="utf-8")
    sections = [head.rstrip(), "", "## How much is understood", "", *_counts(), ""]
    for dialect in DIALECTS:
        sections += [f"## Every key of {dialect.name}", "", *_table(dialect.own), ""]
    return "\n".join(sections).rstrip() + "\n"


def _counts() -> Iterator[str]:
    yield "| keys of | mapped | without meaning here | refused |"
    yield "|---|---|---|---|"
    for dialect in DIALECTS:
        yield _count_row(f"{dialect.name}", Counter(row.kind for row in dialect.own))
    yield from ("", "| document and its layouts | mapped | without meaning here | refused |", "|---|---|---|---|")
    for title, layouts in DOCUMENTS.items():
        kinds = Counter(kind for layout in layouts for kind in _kinds_of(layout))
        links = ", ".join(f"[{layout}](../tests/documents/files/{layout}.yaml)" for layout in layouts)
        yield _count_row(f"{title}: {links}", kinds)


def _count_row(title: str, kinds: Counter[Kind]) -> str:
    return f"| {title} | " + " | ".join(str(kinds[kind]) for kind in KINDS) + " |"


def _kinds_of(layout: str) -> list[Kind]:
    translation = translate_file(FILES / f"{layout}.yaml")
    if translation is None:
        raise ValueError(f"{layout}.yaml is a file of no dialect")
    return [line.kind for line in translation.lines]


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| key | here | note |"
    yield "|---|---|---|"
    for row in rows:
        here = f"`{row.to}`" if row.kind == "mapped" and row.to else row.kind
        yield f"| `{row.key}` | {here} | {_cell(row.note)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/coming_from.md from the tables of the dialects.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    options = parser.parse_args()
    page = write_page()
    if not options.check:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    sys.stderr.write(f"{PAGE} is stale; run: python docs/generate_coming_from.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
