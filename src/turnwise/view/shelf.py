"""Folders come in; the runs in them go out, each under a name of its own, also those that begin later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from turnwise.errors import RunError, did_you_mean
from turnwise.view.episode_index import EpisodeIndex
from turnwise.view.other_credit import StepCredit, compute_credit
from turnwise.view.policy_question import Voice
from turnwise.view.run_files import RunFiles, setting
from turnwise.view.token_texts import TokenTexts

_KEPT_CREDITS = 4
"""Updates whose credit under every rule stays in memory."""


class ViewedRun:
    """A run on the shelf: its files, its episodes, its tokens as text."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.files = RunFiles(path)
        self.episodes = EpisodeIndex(self.files.directory.trajectories)
        self._texts: TokenTexts | None = None
        self._credits: dict[tuple[int, int], StepCredit] = {}
        self._lock = Lock()
        self._indexing: Thread | None = None

    @property
    def texts(self) -> TokenTexts:
        """Looked for again while there is no tokenizer: a run may not have written it yet."""
        if self._texts is None or not self._texts.is_known:
            self._texts = TokenTexts.open(self.files)
        return self._texts

    def refresh_episodes(self) -> None:
        """Bring the index up to date, beside whoever asks."""
        with self._lock:
            if self._indexing is not None and self._indexing.is_alive():
                return
            self._indexing = Thread(target=self.episodes.update, name=f"index of {self.name}", daemon=True)
            self._indexing.start()
        # A small run is indexed before its first page is asked for.
        self._indexing.join(timeout=0.15)

    def credit(self, step: int) -> StepCredit:
        """A step's tokens under every rule."""
        tokens = self.files.tokens(step)
        key = (step, id(tokens))
        with self._lock:
            if key not in self._credits:
                self._credits[key] = compute_credit(tokens, str(setting(self.files.settings, "credit.type", "")))
            while len(self._credits) > _KEPT_CREDITS:
                self._credits.pop(next(iter(self._credits)))
            return self._credits[key]

    def describe(self) -> dict[str, Any]:
        """One row of the table of runs."""
        files, summary = self.files, self.files.summary or {}
        rows = files.metrics
        learnt = [row for row in rows if row.get("step")]
        # Where the first evaluation said nothing, a later one is not what was before.
        before = next((row for row in rows if row.get("step") == 0), {})
        return {
            "name": self.name,
            "path": str(files.path),
            "recipe": files.settings.get("recipe"),
            "env": setting(files.settings, "env.type"),
            "seed": setting(files.settings, "run.seed"),
            "credit": setting(files.settings, "credit.type"),
            "model": setting(files.settings, "model.path"),
            "created": files.manifest.get("created"),
            "state": str(files.state),
            "step": rows[-1].get("step", 0) if rows else 0,
            "steps": setting(files.settings, "learn.steps"),
            "wall_s": summary.get("wall_s") or (rows[-1].get("time_s") if rows else None),
            "tokens_sampled": summary.get("tokens_sampled"),
            "success_before": summary.get("success_before", before.get("eval/success")),
            "success_before_interval": summary.get("success_before_interval"),
            "success_after": summary.get("success_after", _last(learnt, "eval/success")),
            "success_after_interval": summary.get("success_after_interval"),
            "success_now": _last(rows, "rollout/success"),
            "return_before": summary.get("return_before", before.get("eval/return")),
            "return_after": summary.get("return_after", _last(learnt, "eval/return")),
            "return_now": _last(rows, "rollout/return"),
            "baselines": summary.get("baselines") or {},
            "num_findings": len(files.findings),
            "stopped": summary.get("stopped"),
            "metric_names": sorted({name for row in (*rows[:3], *rows[-20:]) for name in row} - {"step"}),
        }


class Shelf:
    """The runs that are looked at. A folder of runs may get more while the page is open."""

    def __init__(self, places: Sequence[Path], *, voice: Voice | None = None) -> None:
        """`voice` answers what a checkpoint would say; without it nobody does."""
        self.voice = voice
        self._places = [place.resolve() for place in places]
        self._runs: dict[str, ViewedRun] = {}
        self._lock = Lock()
        for place in self._places:
            if not _find_runs(place):
                raise RunError(
                    f"{place} is no run and has none in it: expected a folder that `turnwise train` made, or a folder "
                    "of such folders."
                )

    def runs(self) -> list[ViewedRun]:
        """All of them, newest first; one that was removed is gone."""
        with self._lock:
            found = [path for place in self._places for path in _find_runs(place)]
            known = {run.files.path: run for run in self._runs.values()}
            runs: dict[str, ViewedRun] = {}
            for path in dict.fromkeys(found):
                name = path.name if path.name not in runs else str(path)
                runs[name] = known.get(path) or ViewedRun(name, path)
                # Another run that has come or gone may have taken the name, or left it.
                runs[name].name = name
            self._runs = runs
            return sorted(runs.values(), key=lambda run: str(run.files.manifest.get("created")), reverse=True)

    def get(self, name: str) -> ViewedRun:
        if name not in self._runs:
            self.runs()
        if name not in self._runs:
            raise RunError(f"there is no run '{name}' here. {did_you_mean(name, self._runs)}")
        return self._runs[name]


def _find_runs(place: Path) -> list[Path]:
    """The place itself, or the runs that lie in it."""
    if (place / "config.yaml").is_file():
        return [place]
    return sorted(found.parent for found in place.glob("*/config.yaml"))


def _last(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((row[name] for row in reversed(rows) if row.get(name) is not None), None)
