"""`reward`: who gives rewards, and which groups are learnt from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.registry import gives_no_rewards
from turnwise.config.settings import Settings, WholeSettings

NormaliseMethod = Literal["identity", "mean", "mean_std", "asym_clip"]


NormaliseGrouping = Literal["state", "inductive", "batch"]


class NormalisationSettings(Settings):
    method: NormaliseMethod = "identity"
    """What is done to an episode's sum of rewards: nothing; minus the mean; also divided by the spread; also clipped
    to -1 and 3."""
    grouping: NormaliseGrouping = "state"
    """Whose mean and spread: the siblings' of the same task, the same environment's, or the whole batch's."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return self.idle("grouping", why=f"with {path}.method 'identity'") if self.method == "identity" else {}


FilterScore = Literal["reward_std", "reward_mean", "length"]


class NoFilter(Settings):
    type: Literal["none"] = "none"
    """Every group is learnt from."""


class _GroupFilter(Settings):
    by: FilterScore = "reward_std"
    """What a group is judged by: the spread or the mean of its episodes' raw rewards, or their mean number of turns."""
    max_rounds: PositiveInt = 4
    """Rollouts per update, at most, until `rollout.groups` groups have passed; 1: a filtered batch stays small."""


class TopKFilter(_GroupFilter):
    type: Literal["top_k"]
    """Learn from the best share of the groups of each rollout."""
    share: float = Field(default=0.25, gt=0, le=1)
    """How many of them: a quarter is StarPO-S."""
    order: Literal["largest", "smallest"] = "largest"
    """Whether large or small scores are best."""


class TopPFilter(_GroupFilter):
    type: Literal["top_p"]
    """Learn from the groups with the largest scores that together hold `share` of the sum of scores."""
    share: float = Field(default=0.9, gt=0, le=1)
    """Of the sum of all scores; groups with a score of 0 never pass."""


class ThresholdFilter(_GroupFilter):
    type: Literal["threshold"]
    """Learn from groups whose score lies between two bounds."""
    above: float | None = 0.0
    """Scores must be larger; null: no bound."""
    below: float | None = None
    """Scores must be smaller; null: no bound."""


class NoJudge(Settings):
    type: Literal["none"] = "none"
    """The environment's own rewards count."""


BesideEnv = Literal["add", "fill", "leave"]


class _JudgeSettings(Settings):
    weight: PositiveFloat = 1.0
    """What a score is multiplied with before it is learnt from."""
    beside_env: BesideEnv = "add"
    """In an environment with rewards of its own: add the score to them; fill in for an episode in which they are all
    zero; or leave it alone. Not given, it is 'leave' in a run that also has an environment without rewards (`mix`)."""
    success_above: float = 0.0
    """In an environment without rewards of its own, an episode whose score is above this counts as a success."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if any(gives_no_rewards(env.type) for env in run.envs()):
            return {}
        return self.idle("success_above", why="in environments that say themselves what a success is")


class FunctionJudgeSettings(_JudgeSettings):
    type: Literal["function"]
    """Your own function (prompt, response) -> number scores each reply."""
    target: str
    """Where the function is: 'package.module:function'."""


class ModelJudgeSettings(_JudgeSettings):
    type: Literal["model"]
    """A reward model, a sequence classifier with one label, scores each conversation."""
    path: str | None = None
    """A Hugging Face folder or hub name, or 'tiny' for the built-in small model, trained on first use."""
    batch_rows: PositiveInt = 64
    """Conversations in one forward pass: memory against speed, never the result."""
    max_tokens: PositiveInt = 1024
    """Longest conversation it reads, or the model's own limit; of a longer one the beginning is cut."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        idle = super().idle_settings(path, run)
        own_prompts = getattr(run.env, "path", None)
        if self.path == "tiny" and (own_prompts or not gives_no_rewards(run.env.type)):
            where = "the prompts of env.path mean" if own_prompts else f"'{run.env.type}' mean"
            idle["path"] = f"'tiny' has learnt from the built-in prompts alone: its scores for {where} nothing"
        return idle


class RewardSettings(Settings):
    judge: NoJudge | FunctionJudgeSettings | ModelJudgeSettings = Field(default=NoJudge(), discriminator="type")
    """Who gives rewards where the environment gives none, or beside those of the environment."""
    shaping: str | None = None
    """Your own function 'package.module:function' of a played turn: it returns the reward that is learnt from in place
    of the raw one. Only in training."""
    normalisation: NormalisationSettings = NormalisationSettings()
    """Rewards on one scale, before credit; raw rewards stay as they are."""
    filter: NoFilter | TopKFilter | TopPFilter | ThresholdFilter = Field(default=NoFilter(), discriminator="type")
    """Which groups are learnt from."""
