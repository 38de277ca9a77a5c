"""Shared by the scripts that generate pages: write the page, or check whether it is stale."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def main(page: Path, write: Callable[[], str], script: str) -> int:
    """The script's command line; the exit code is 1 where `--check` finds another text than would be written."""
    parser = argparse.ArgumentParser(description=f"Write docs/{page.name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    text = write()
    if not parser.parse_args().check:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.is_file() and page.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{page} is stale; run: python docs/{Path(script).name}\n")
    return 1
