"""An episode comes in; everything that can be shown of it goes out as plain data: turns, tokens, siblings.

An episode that was learnt from but not written down as text is put together from its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.errors import RunError
from turnwise.report.token_log_reader import StepTokens
from turnwise.view.run_files import RunFiles
from turnwise.view.token_texts import TokenTexts
from turnwise.view.tokens import describe_learnt, describe_played


def describe_episode(
    run: RunFiles, record: Mapping[str, Any] | None, *, step: int, is_eval: bool, texts: TokenTexts, name: str = ""
) -> dict[str, Any]:
    """`record` is the episode as it was written down; where it is None, `name` is looked for in the learning record."""
    learnt = None if is_eval else _open_step(run, step)
    trajectory = str(record["id"]) if record is not None else name
    tokens = describe_learnt(learnt, run.arrays(step), trajectory, texts) if learnt is not None else None
    if record is None and tokens is None:
        raise RunError(f"step {step} has no episode '{name}', neither as text nor in its learning record.")
    if tokens is None and record is not None:
        tokens = describe_played(record, texts)
    told = _tell_record(record) if record is not None else _tell_tokens(trajectory, tokens or {})
    return {
        **told,
        "step": step,
        "is_eval": is_eval,
        "return": sum(turn["reward"] or 0.0 for turn in told["turns"]),
        "worlds": run.worlds(),
        "tokens": tokens,
        "siblings": _siblings(learnt, trajectory) if learnt is not None else [],
    }


def _open_step(run: RunFiles, step: int) -> StepTokens | None:
    try:
        return run.tokens(step)
    except RunError:
        return None


def _tell_record(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in record.items() if key != "segments"}, "is_text_kept": True}


def _tell_tokens(trajectory: str, tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Turns as far as tokens tell them: what was given before a reply, the reply, its reward."""
    turns: list[dict[str, Any]] = []
    given: list[str] = []
    for place, turn in enumerate(tokens["turn"]):
        text = tokens["text"][place]
        if turn < 0:
            given.append(text)
            continue
        if not turns or turns[-1]["index"] != turn:
            turns.append(
                {
                    "index": turn,
                    "observation": "".join(given),
                    "response_text": "",
                    "actions": [],
                    "reward": tokens["raw_reward"][place],
                    "penalty": 0.0,
                    "shaping": None,
                    "judged": None,
                    "policy_version": tokens["policy_version"][place],
                    "is_valid": True,
                    "is_effective": True,
                    "metrics": {},
                    "info": {},
                }
            )
            given = []
        turns[-1]["response_text"] += text
    tag, split, seed = trajectory.split("/", 1)[1].rsplit("/", 1)[0].rsplit("/", 2)
    return {
        "id": trajectory,
        "task": {"tag": tag, "seed": seed, "split": split},
        "stop_reason": None,
        "is_success": None,
        "final_observation": "",
        "failure": "",
        "turns": turns,
        "is_text_kept": False,
    }


def _siblings(learnt: StepTokens, trajectory: str) -> list[dict[str, Any]]:
    """The other plays of the same task in this update, with what each earned."""
    group = trajectory.rsplit("/", 1)[0]
    rows_of = learnt.batch.trajectory_of_row
    turn_ends = learnt.rows.num_turns.cumsum()
    siblings = []
    for number, known in enumerate(learnt.rows.trajectory_ids):
        if known.group != group:
            continue
        rows = (rows_of == number).nonzero()[0]
        turns = [place for row in rows for place in range(turn_ends[row] - learnt.rows.num_turns[row], turn_ends[row])]
        raw = learnt.turns.raw_rewards[turns]
        siblings.append({"id": str(known), "turns": len(set(turns)), "return": float(raw.sum())})
    return siblings
