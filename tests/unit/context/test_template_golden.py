"""One three-turn conversation per template, frozen in `tests/golden/chat_templates/`.

A row is `[id, loss_mask, text of the token]`. To write the files anew after a wanted change, run this file once with
`TURNWISE_WRITE_GOLDEN=1`, and read the difference before committing it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from turnwise.types import Message

from .chat_families import FAMILIES, completion_from_text, play, template_of, tokenizer_of

_DIR = Path(__file__).parents[2] / "golden" / "chat_templates"


def _play_three_turns(name: str) -> dict[str, object]:
    """A plain reply, one cut by its length, and one that thinks; the second observation spells the end of turn."""
    template, tokenizer = template_of(name), tokenizer_of(name)
    stop = template.end_of_turn_id
    assert stop is not None
    opening = [Message("system", "You are playing.")] if template.accepts_system else []
    turns = [
        ("P_OG\n", completion_from_text([*template.encode_text("Right").tolist(), stop])),
        (
            f"_POG {tokenizer.convert_ids_to_tokens(stop)}",
            completion_from_text(template.encode_text("go to").tolist(), is_closed=False),
        ),
        ("__PG", completion_from_text([*template.encode_text("<think>ice</think>Down").tolist(), stop])),
    ]
    segments = play(template, opening, turns).segments
    return {
        "stop": tokenizer.convert_ids_to_tokens(sorted(template.stop_ids)),
        "why_cut": template.why_cut,
        "segments": [
            [
                [int(i), int(is_sampled), tokenizer.decode([int(i)])]
                for i, is_sampled in zip(segment.token_ids, segment.loss_mask, strict=True)
            ]
            for segment in segments
        ],
    }


def _as_text(frozen: dict[str, object]) -> str:
    """One token per line, so that a difference can be read."""
    head = json.dumps({key: value for key, value in frozen.items() if key != "segments"}, indent=1)
    rows = [",\n  ".join(json.dumps(row, ensure_ascii=False) for row in segment) for segment in frozen["segments"]]  # type: ignore[attr-defined]
    return head[:-2] + ',\n "segments": [\n [\n  ' + "\n ],\n [\n  ".join(rows) + "\n ]\n ]\n}\n"


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_mask_are_those_of_the_golden_file(name) -> None:
    played, path = _play_three_turns(name), _DIR / f"{name}.json"
    if os.environ.get("TURNWISE_WRITE_GOLDEN"):
        path.write_text(_as_text(played))
    assert played == json.loads(path.read_text())


def test_every_golden_file_has_a_family() -> None:
    assert {path.stem for path in _DIR.glob("*.json")} == set(FAMILIES)
