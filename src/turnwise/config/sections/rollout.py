"""`rollout`: how many episodes are played, how long, and where."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.settings import Settings, WholeSettings


class NoIsolation(Settings):
    type: Literal["none"] = "none"
    """Environments live in the process of the run."""


class ProcessIsolation(Settings):
    type: Literal["process"]
    """Every environment lives in a process of its own: one that hangs, crashes or leaks costs one episode."""
    time_limit_s: PositiveFloat = 30.0
    """Longest call; a process that takes longer is ended and its episode fails."""
    max_memory_mb: PositiveInt | None = None
    """What an environment may take beyond its imports; null: no limit."""
    python: str | None = None
    """The program of another Python that environments run under, such as `.venv-envs/bin/python`; null: this one. It
    needs numpy, pydantic and what the environment needs."""


class RayIsolation(Settings):
    type: Literal["ray"]
    """Every environment lives in a Ray actor, on any machine of the cluster: for environments that are heavy. It needs
    cluster.type 'ray'."""
    time_limit_s: PositiveFloat = 30.0
    """Longest call; an actor that takes longer is ended and its episode fails."""
    cpus: PositiveFloat = 1.0
    """Cores that Ray sets aside for each environment, beside those of the explorer."""


class RolloutSettings(Settings):
    groups: PositiveInt = 8
    """Tasks per rollout."""
    group_size: PositiveInt = 16
    """Sibling trajectories per task."""
    max_turns: PositiveInt = 5
    """Most replies of the model in one episode."""
    max_actions: PositiveInt | None = None
    """Most environment actions in one episode; null: no limit beside max_turns."""
    workflow: str = "environment"
    """A registered workflow or 'package.module:Class'."""
    workflow_args: dict[str, str | int | float | bool | list[str] | None] = Field(default={})
    """What a workflow asks for itself, such as max_env_steps; it finds them in `self.task.workflow_args`."""
    max_concurrent: PositiveInt | None = None
    """Most episodes at the same time; null: all of a rollout."""
    episode_timeout_s: PositiveFloat | None = None
    """Longest episode; one that takes longer is ended and counts as failed. Environments of your own and of other
    packages are then called in threads: a call that hangs is left behind and counted (rollout/left_behind). Adapted
    ones (`function:`, `gymnasium:` and the like) take turns, because they share the global random generators; one that
    hangs fails the others, which name it. rollout.isolation.type=process keeps them apart. Null: no limit."""
    max_retries: int = Field(default=0, ge=0)
    """How often an episode that failed is played again, in a fresh environment."""
    temperature: PositiveFloat = 1.0
    """Of sampling while exploring; the learner scores tokens at the same temperature."""
    invalid_penalty: float = Field(default=-0.1, le=0)
    """Added to the reward of a turn whose answer has the wrong format or an action the environment does not know."""
    first_seed: int = Field(default=10_000, ge=0)
    """Task seeds count up from here, shifted by run.seed."""
    isolation: NoIsolation | ProcessIsolation | RayIsolation = Field(default=NoIsolation(), discriminator="type")

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.workflow != "environment":
            return {}
        return self.idle("workflow_args", why=f"with {path}.workflow 'environment'")
