"""A saved evaluation of a run comes in, and a task of it; its plays go out as episodes that the page can show.

An evaluation has its episodes beside it. The one that a run makes at its end has them among the run's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnwise.errors import RunError, did_you_mean
from turnwise.report.evaluation import RESULT, TRAJECTORIES, find_evals
from turnwise.report.run_dir import step_name
from turnwise.view.episode import describe_episode
from turnwise.view.kept_episodes import EpisodeFile, read_episode
from turnwise.view.run_files import RunFiles, read_json
from turnwise.view.token_texts import TokenTexts

_MAX_PLAYS = 16
"""Of one task: more are not told apart by eye."""


def describe_plays(run: RunFiles, name: str, task: str, texts: TokenTexts) -> dict[str, Any]:
    """`name` is the folder of the evaluation, or nothing for the newest; `task` is `tag/split/seed`."""
    folder = _find(run, name)
    file = _episodes_of(run, folder)
    plays = []
    for _, line in file.lines():
        # Most lines are of other tasks; reading them would take longest.
        if len(plays) < _MAX_PLAYS and task.rsplit("/", 1)[-1].encode() in line:
            record = read_episode(line)
            if record is not None and _task_of(record) == task:
                plays.append(describe_episode(run, record, step=file.step, is_eval=True, texts=texts))
    if not plays:
        raise RunError(
            f"the episodes of '{task}' in {folder} were not kept: there is none in {file.path}. `turnwise eval "
            f"{run.path}` keeps all."
        )
    return {"eval": folder.name, "plays": plays}


def _find(run: RunFiles, name: str) -> Path:
    folders = {folder.name: folder for folder in find_evals(run.directory.evals)}
    if not folders:
        raise RunError(f"run {run.path} has no saved evaluation. Make one: turnwise eval {run.path}")
    if name and name not in folders:
        raise RunError(f"run {run.path} has no evaluation '{name}'. {did_you_mean(name, folders)}")
    return folders[name] if name else list(folders.values())[-1]


def _episodes_of(run: RunFiles, folder: Path) -> EpisodeFile:
    step = (read_json(folder / RESULT) or {}).get("step")
    step = step if isinstance(step, int) else 0
    if (folder / TRAJECTORIES).is_file():
        return EpisodeFile(step, True, folder / TRAJECTORIES)
    return EpisodeFile(step, True, run.directory.trajectories / "eval" / f"{step_name(step)}.jsonl")


def _task_of(record: dict[str, Any]) -> str:
    task = record.get("task")
    return "/".join(str(task.get(key)) for key in ("tag", "split", "seed")) if isinstance(task, dict) else ""
