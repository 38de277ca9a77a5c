"""The blocks of the documents that describe what must work here, read where they lie; none where they do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
COPIES = Path(__file__).parent / "files"
needs_documents = pytest.mark.skipif(not SEEDS.is_dir(), reason="the documents (../shared/seeds) are not here")


def read_blocks(language: str) -> dict[str, str]:
    """Every block of a language, by its document and its number in it."""
    blocks: dict[str, str] = {}
    for page in sorted(SEEDS.glob("*.txt")):
        found = re.findall(
            rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        blocks |= {f"{page.stem[:3]}-{number}": block for number, block in enumerate(found)}
    return blocks
