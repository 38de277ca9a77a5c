"""A question of the page comes in, as words; plain data for JSON goes out.

The server hands these answers out one by one, and a report has them inside: the page cannot tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from turnwise.errors import RunError
from turnwise.view.episode import describe_episode
from turnwise.view.episode_index import EpisodeFilter, Order, whole_number
from turnwise.view.evaluated import describe_plays
from turnwise.view.other_credit import describe_credit
from turnwise.view.policy_question import ask_policy, find_policies
from turnwise.view.shelf import Shelf, ViewedRun
from turnwise.view.status import describe_status, with_last_evaluation

Words = Mapping[str, str]


def runs(shelf: Shelf, words: Words) -> dict[str, Any]:
    """The table of runs."""
    return {"runs": [run.describe() for run in shelf.runs()]}


def changes(shelf: Shelf, words: Words) -> dict[str, Any]:
    """A short text per run that differs whenever something has been written: what to look at again."""
    return {"runs": {run.name: _fingerprint(run) for run in shelf.runs()}}


def metrics(shelf: Shelf, words: Words) -> dict[str, Any]:
    """The columns that are asked for, as `names=a,b`, over the steps of a run; and its findings."""
    run = _run(shelf, words)
    names = [name for name in words.get("names", "").split(",") if name]
    rows = with_last_evaluation(run.files.metrics, run.files.summary)
    return {
        "steps": [row.get("step") for row in rows],
        "time_s": [row.get("time_s") for row in rows],
        "columns": {name: [row.get(name) for row in rows] for name in names},
        "findings": run.files.findings,
    }


def status(shelf: Shelf, words: Words) -> dict[str, Any]:
    """How a run stands. Before its first checkpoint, failures are those of the episodes that were kept."""
    run = _run(shelf, words)
    found = describe_status(run.files)
    if not found["failures"]:
        run.refresh_episodes()
        found["failures"] = run.episodes.failures()
    return found


def episodes(shelf: Shelf, words: Words) -> dict[str, Any]:
    """A page of episodes."""
    run = _run(shelf, words)
    run.refresh_episodes()
    found = run.episodes.find(EpisodeFilter.parse(words), Order.parse(words))
    return {**found, "facets": run.episodes.facets(), "num_files_left": run.episodes.num_files_left}


def episode(shelf: Shelf, words: Words) -> dict[str, Any]:
    """One episode with its tokens."""
    return _episode(_run(shelf, words), words)


def credit(shelf: Shelf, words: Words) -> dict[str, Any]:
    """The advantages of an episode under every credit rule."""
    run, step, name = _run(shelf, words), _step(words), words.get("id", "")
    found = describe_credit(run.credit(step), run.files.tokens(step), name)
    if found is None:
        raise RunError(f"step {step} has no trajectory '{name}' in its learning record.")
    return found


def evaluated(shelf: Shelf, words: Words) -> dict[str, Any]:
    """The plays of a task in a saved evaluation of a run."""
    run = _run(shelf, words)
    return describe_plays(run.files, words.get("eval", ""), words.get("task", ""), run.texts)


def checkpoints(shelf: Shelf, words: Words) -> dict[str, Any]:
    """Whom one can ask what they would say, beside the policy that said it."""
    return {"checkpoints": [policy.describe() for policy in find_policies(_run(shelf, words).files)]}


def policy(shelf: Shelf, words: Words) -> dict[str, Any]:
    """What a checkpoint would say at a place of an episode: asked live, and answered in its own time."""
    run = _run(shelf, words)
    return ask_policy(shelf.voice, run.files, _episode(run, words), run.texts, words)


ANSWERS: dict[str, Callable[[Shelf, Words], dict[str, Any]]] = {
    "runs": runs,
    "changes": changes,
    "metrics": metrics,
    "status": status,
    "episodes": episodes,
    "episode": episode,
    "credit": credit,
    "evaluated": evaluated,
    "checkpoints": checkpoints,
    "policy": policy,
}


def _run(shelf: Shelf, words: Words) -> ViewedRun:
    return shelf.get(words.get("run", ""))


def _episode(run: ViewedRun, words: Words) -> dict[str, Any]:
    step, name, is_eval = _step(words), words.get("id", ""), words.get("is_eval") == "1"
    record = run.episodes.read(step, name, is_eval=is_eval)
    return describe_episode(run.files, record, step=step, is_eval=is_eval, texts=run.texts, name=name)


def _step(words: Words) -> int:
    try:
        return whole_number(words.get("step", ""))
    except ValueError as error:
        raise RunError(f"step: '{words.get('step', '')}' given; expected a number.") from error


def _fingerprint(run: ViewedRun) -> str:
    directory = run.files.directory
    places = (directory.metrics, directory.findings, directory.summary, directory.trajectories, directory.path)
    times = [place.stat().st_mtime_ns if place.exists() else 0 for place in places]
    return f"{run.files.state}-{len(run.files.metrics)}-{sum(times)}"
