"""A run comes in; one HTML file goes out that shows it to a colleague: the same page, with its answers inside.

The file asks nobody and loads nothing. Its data is JSON that no browser executes, and only the scripts that were put in
here, named by their hashes, may run.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from turnwise.errors import RunError
from turnwise.view.episode_index import EpisodeFilter, Order
from turnwise.view.server import ANSWERS, CHARTS, SCRIPTS, STYLES, RunCollection, ViewedRun, read_asset

_MAX_BYTES = 24_000_000
"""What can still be sent to a colleague: further episodes are left out."""
_MAX_ROWS = 1_000_000
"""Of the list of episodes that is chosen from: what fits into memory."""


def write_report(shelf: RunCollection, name: str, *, num_episodes: int) -> str:
    """The whole file; episodes are whole groups, spread over the run."""
    run = shelf.get(name)
    run.episodes.update()
    title = html.escape(f"{name} · turnwise report")
    styles = "\n".join(read_asset(style) for style in STYLES)
    scripts = [read_asset(CHARTS), _join_scripts()]
    hashes = " ".join(map(_hash, scripts))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src {_hash(styles)}; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{title}</title>\n',
            f'<link rel="icon" href="data:,">\n<style>{styles}</style>\n</head>\n<body>\n<div id="app"></div>\n',
            f'<script type="application/json" id="embedded">{_harmless(_collect(shelf, run, num_episodes))}</script>\n',
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def _collect(shelf: RunCollection, run: ViewedRun, num_episodes: int) -> dict[str, Any]:
    """Every answer that the page will ask for, by its question."""
    about = {"run": run.name}
    runs = [told for told in ANSWERS["runs"](shelf, {})["runs"] if told["name"] == run.name]
    names = ",".join(sorted({name for row in run.files.metrics for name in row} | {"eval/success", "eval/return"}))
    answers: dict[str, Any] = {
        _key("runs", {}): {"runs": runs},
        _key("metrics", about): ANSWERS["metrics"](shelf, {**about, "names": names}),
        _key("status", about): ANSWERS["status"](shelf, about),
    }
    # In one go: pages of a run that goes on would shift under whoever turns them.
    listed = run.episodes.find(EpisodeFilter(), Order(limit=_MAX_ROWS))["episodes"]
    chosen: list[dict[str, Any]] = []
    size = 0
    for row in _spread(listed, num_episodes):
        added = dict(_answers_about(shelf, run, row))
        size += len(json.dumps(added))
        if size > _MAX_BYTES:
            break
        chosen.append(row)
        answers |= added
    _keep_siblings(answers, {row["id"] for row in chosen})
    answers[_key("episodes", about)] = {
        "episodes": chosen,
        "total": len(chosen),
        "is_total_known": True,
        "facets": run.episodes.facets(),
        "num_files_left": 0,
    }
    return answers


def _answers_about(shelf: RunCollection, run: ViewedRun, row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    words = {"run": run.name, "step": str(row["step"]), "id": row["id"]}
    asked = {**words, "is_eval": "1"} if row["is_eval"] else words
    told = ANSWERS["episode"](shelf, asked)
    yield _key("episode", asked), told
    if told["tokens"] is not None and told["tokens"]["source"] == "learning record":
        try:
            yield _key("credit", words), ANSWERS["credit"](shelf, words)
        except RunError:
            return


def _spread(rows: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Whole groups, evenly over the list, its first and last among them."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["step"], row["id"].rsplit("/", 1)[0]), []).append(row)
    if not groups or number == 0:
        return []
    listed = list(groups.values())
    wanted = max(1, number * len(listed) // len(rows)) if len(rows) > number else len(listed)
    places = sorted({round(place * (len(listed) - 1) / max(1, wanted - 1)) for place in range(wanted)})
    return [row for place in places for row in listed[place]]


def _keep_siblings(answers: dict[str, Any], chosen: set[str]) -> None:
    for told in answers.values():
        if isinstance(told.get("siblings"), list):
            told["siblings"] = [sibling for sibling in told["siblings"] if sibling["id"] in chosen]


def _key(name: str, words: dict[str, str]) -> str:
    """As the page puts a question together."""
    return json.dumps([name, sorted(map(list, words.items()))], separators=(",", ":"), ensure_ascii=False)


def _join_scripts() -> str:
    """All modules as one script; their names differ, and each needs only those before it."""
    texts = [re.sub(r"^import .*\n|^export ", "", read_asset(name), flags=re.MULTILINE) for name in SCRIPTS]
    return '(() => {\n"use strict";\n' + "\n".join(texts) + "})();\n"


def _harmless(data: object) -> str:
    """JSON in which nothing can end the element that it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
