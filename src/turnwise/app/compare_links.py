"""Two evaluations and a task come in; the place where `turnwise view` shows both plays side by side goes out.

It is a fragment and no address: the page has a random token and a free port, and neither belongs into a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from turnwise.report.eval_results import SavedEval
from turnwise.report.run_dir import RunDirectory


@dataclass(frozen=True, slots=True)
class PlaceOfEval:
    """An evaluation as the page of its run knows it."""

    run: Path
    name: str
    """Of the run, on the page."""
    eval: str


def find_pages(first: SavedEval, second: SavedEval) -> tuple[PlaceOfEval, PlaceOfEval] | None:
    """None where one of them is of no run: the page shows runs. Of several seeds the first is shown."""
    # The page names a run after where it really lies: neither `.` nor a symbolic link is a name.
    folders = [saved.folder.resolve() for saved in (first, second)]
    one, other = (folder.parent.parent for folder in folders)
    for run, folder in zip((one, other), folders, strict=True):
        if folder.parent != RunDirectory(run).evals or not RunDirectory(run).config.is_file():
            return None
    # Of two runs with one name the page calls the second by its path.
    name = str(other) if one != other and one.name == other.name else other.name
    return PlaceOfEval(one, one.name, folders[0].name), PlaceOfEval(other, name, folders[1].name)


def link_to(pages: tuple[PlaceOfEval, PlaceOfEval] | None, task: str) -> str:
    """Nothing where there is no page of both."""
    if pages is None:
        return ""
    one, other = pages
    words = {"task": task, "first": one.name, "first_eval": one.eval, "second": other.name, "second_eval": other.eval}
    return f"#/task?{urlencode(words, quote_via=quote)}"
