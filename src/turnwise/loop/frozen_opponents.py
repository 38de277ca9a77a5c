"""The frozen policies that a run meets in its games: `rollout.workflow: league`.

In: folders of models, this run's own directory, and that of another run. Out: for every task one of them, drawn by the
run's seed, the rollout and the task, each loaded once with an engine of its own. What was saved at step 0, k, 2k, … and
before the step that is played is met, so it is certain who is there: also after a kill, and in a replay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from turnwise.config.load import load_settings
from turnwise.config.schema import ContextSettings, TurnwiseSettings
from turnwise.context.template import HFChatTemplate
from turnwise.context.tokenizer import load_tokenizer
from turnwise.deps import EngineSite
from turnwise.engine.local import LocalEngine
from turnwise.errors import ConfigError, SyncError, TurnwiseError
from turnwise.infra.atomic_files import verify_checksums
from turnwise.infra.seeds import make_rng
from turnwise.infra.wait_tracking import waiting
from turnwise.report.run_dir import RunDirectory, settings_file_of
from turnwise.rollout.env_specs import find_workflow
from turnwise.rollout.self_play import LeagueArgs
from turnwise.rollout.workflow import FrozenOpponent, OpponentSampler
from turnwise.types import Task

_POLL_S = 0.2
_WHERE = "rollout.workflow_args"


def load_frozen_policy(
    name: str, model: str, settings: TurnwiseSettings, context: ContextSettings | None
) -> FrozenOpponent:
    """A model with an engine of its own in this process, which shares nothing with the policy that learns."""
    template = HFChatTemplate(load_tokenizer(model, settings.context))
    site = EngineSite(model_path=model, dtype=settings.model.dtype, template=template)
    chosen = settings.engine if settings.engine.type == "local" else LocalEngine.Params()
    engine = LocalEngine.open(chosen, site)
    return FrozenOpponent(
        name=name,
        engine=engine,
        template=template,
        context=context,
        temperature=settings.rollout.temperature,
    )


def open_opponents(settings: TurnwiseSettings, run_path: Path | None) -> OpponentSampler | None:
    """Those of a run; None where its workflow meets nobody."""
    return RunOpponentPool(settings, run_path) if find_workflow(settings).meets_rivals else None


class RunOpponentPool:
    """The `OpponentSampler` of one run."""

    def __init__(self, settings: TurnwiseSettings, run_path: Path | None) -> None:
        self._settings = settings
        self._args = LeagueArgs.read(settings.rollout.workflow_args)
        self._given = [_find_policy(path) for path in self._args.opponents]
        if self._args.past_selves and run_path is None:
            raise ConfigError(f"{_WHERE}.past_selves: a run without a directory has no past.")
        self._own = None if run_path is None else RunDirectory(run_path)
        self._other: TurnwiseSettings | None = None
        """The settings of the other run, when they are known."""
        self._loaded: dict[Path, FrozenOpponent] = {}

    async def draw(self, tasks: Sequence[Task], rollout: int) -> list[FrozenOpponent | None]:
        members = [*self._given, *self._past_selves(rollout)]
        if self._args.rival_run is not None:
            members.append(await self._rival_of(Path(self._args.rival_run).expanduser(), rollout))
        # Of a long run most checkpoints are met no more.
        self._loaded = {folder: rival for folder, rival in self._loaded.items() if folder in members}
        return [self._draw_one(members, task, rollout) for task in tasks]

    def _draw_one(self, members: Sequence[Path], task: Task, rollout: int) -> FrozenOpponent | None:
        dice = make_rng("league", self._settings.run.seed, rollout, task.id)
        return None if dice.random() < self._args.self_share else self._load(dice.choice(members))

    def _past_selves(self, rollout: int) -> list[Path]:
        """The newest that were saved before the step that is played."""
        if not self._args.past_selves or self._own is None:
            return []
        every = self._settings.report.checkpoint_every
        steps = range(0, rollout, every)[-self._args.past_selves :]
        return [self._own.step_checkpoint(step) / "policy" for step in steps]

    async def _rival_of(self, run: Path, rollout: int) -> Path:
        """What the other run saved at the same step; both then go on in step, whichever is faster."""
        other = self._other = self._other or await self._read_other(run)
        step = min(rollout - 1, other.learn.steps)
        folder = RunDirectory(run).step_checkpoint(step - step % other.report.checkpoint_every)
        await self._wait_for(folder)
        return folder / "policy"

    async def _read_other(self, run: Path) -> TurnwiseSettings:
        config = RunDirectory(run).config
        await self._wait_for(config)
        other = load_settings(str(config))
        if other.rollout.workflow != self._settings.rollout.workflow or not other.report.checkpoint_every:
            raise ConfigError(
                f"{_WHERE}.rival_run: {run} is a run of rollout.workflow '{other.rollout.workflow}' with "
                f"report.checkpoint_every {other.report.checkpoint_every}; expected a league that saves on its way: it "
                "saves its policy before the first step too."
            )
        return other

    async def _wait_for(self, path: Path) -> None:
        limit_s = self._args.wait_s
        until_s = time.monotonic() + limit_s
        with waiting("the league", f"{path} of the other run", limit_s):
            while not path.exists():
                if time.monotonic() > until_s:
                    raise SyncError(
                        f"{_WHERE}.rival_run: {path} has not come within wait_s = {limit_s:g}. Is the other run under "
                        "way? Both can be resumed."
                    )
                await asyncio.sleep(_POLL_S)

    def _load(self, folder: Path) -> FrozenOpponent:
        if folder not in self._loaded:
            try:
                self._loaded[folder] = self._open(folder)
            except (TurnwiseError, OSError) as error:
                raise SyncError(f"{_WHERE}: the policy in {folder} cannot play. {error}") from error
        return self._loaded[folder]

    def _open(self, folder: Path) -> FrozenOpponent:
        if damage := verify_checksums(folder.parent, under="policy/"):
            raise SyncError(f"It is damaged ({damage}).")
        name, config = self._name_of(folder), settings_file_of(folder)
        if config is None:
            return load_frozen_policy(name, str(folder), self._settings, None)
        is_own = self._own is not None and config == self._own.config.resolve()
        settings = self._settings if is_own else load_settings(str(config))
        # The tokenizer of a checkpoint has its run's chat template already, and the file of it may be gone.
        saved = settings.model_copy(update={"context": settings.context.model_copy(update={"template": None})})
        return load_frozen_policy(name, str(folder), saved, None if is_own else saved.context)

    def _name_of(self, folder: Path) -> str:
        """For whoever reads what was met: `step-000010` of this run, `earlier/step-000010` of another."""
        checkpoint, checkpoints = folder.parent, folder.parent.parent
        if folder.name != "policy" or checkpoints.name != "checkpoints":
            return folder.name
        is_own = self._own is not None and checkpoints == self._own.checkpoints
        return checkpoint.name if is_own else f"{checkpoints.parent.name}/{checkpoint.name}"


def _find_policy(path: str) -> Path:
    """The model folder that a path means: itself, a checkpoint's, or that of a run's newest checkpoint."""
    folder = Path(path).expanduser().absolute()
    where = f"{_WHERE}.opponents: {path}"
    if (folder / "config.yaml").is_file():
        run = RunDirectory(folder)
        newest = run.latest_checkpoint()
        if newest is None or not run.summary.exists():
            raise ConfigError(
                f"{where} is a run that is not finished, so its policy still changes. Name one of its checkpoints, or "
                "meet it as rival_run."
            )
        return newest / "policy"
    for model in (folder, folder / "policy"):
        if (model / "config.json").is_file():
            return model
    raise ConfigError(f"{where} holds no model; expected a model folder, a checkpoint, or a finished run.")
