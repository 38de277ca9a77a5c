"""The settings of playing: worlds, conversations, rollouts, rewards. The strings under the fields are the reference."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.settings import Settings


class EnvSettings(Settings):
    """Which world, and its own settings beside `type` (see `turnwise envs`)."""

    type: str
    """A registered name, 'package.module:Class', or another package's world such as 'gymnasium:FrozenLake-v1'."""
    train: dict[str, str | int | float | bool | None] = Field(default={})
    """Settings that differ while training; evaluation uses the ones outside."""


class AnswerFormat(Settings):
    type: Literal["answer", "think_answer", "plain"] = "answer"
    """`<answer>…</answer>`; the same after `<think>…</think>`; or the whole reply as the action."""
    separator: str = Field(default="||", min_length=1)
    """Stands between the actions of one answer."""
    max_actions_per_turn: PositiveInt = 1
    """Further actions of an answer are cut."""
    is_strict: bool = False
    """Refuse an answer with text before or after the tags; otherwise such text is ignored."""
    forced_prefix: str = ""
    """Text put at the start of each reply for the model, never trained."""


class ContextSettings(Settings):
    window: Literal["full", "sliding", "single_turn"] = "full"
    """What the model sees: all turns, the last `window_turns`, or the current state only."""
    window_turns: PositiveInt = 4
    """Turns kept by the sliding window."""
    system_prompt: str = ""
    """First message of every conversation; empty: none."""
    instructions: Literal["full", "none"] = "full"
    """Whether the first message explains rules, symbols, actions and the answer format."""
    answer: AnswerFormat = AnswerFormat()
    """How a reply says what to do."""
    max_tokens: PositiveInt = 2048
    """Longest segment, reply included; an episode that would outgrow it is truncated."""
    max_response_tokens: PositiveInt = 64
    """Longest reply in one turn."""


class EngineSettings(Settings):
    type: str = "local"
    """A registered engine or 'package.module:Class'."""
    max_rows: PositiveInt = 512
    """Most sequences in one forward pass."""


class TaskSettings(Settings):
    num_tasks: PositiveInt | None = None
    """How many training tasks there are, for each environment; null: new ones for ever."""
    selector: Literal["sequential", "random", "difficulty"] = "sequential"
    """Which of them come next: in order, shuffled anew in each epoch, or those whose success is likely to be near
    `target_success`."""
    target_success: float = Field(default=0.5, ge=0, le=1)
    """Of the selector `difficulty`: the share of successes that teaches most."""


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
    temperature: PositiveFloat = 1.0
    """Of sampling while exploring; the learner scores tokens at the same temperature."""
    invalid_penalty: float = Field(default=-0.1, le=0)
    """Added to the reward of a turn whose answer has the wrong format or an action the environment does not know."""
    first_seed: int = Field(default=10_000, ge=0)
    """Task seeds count up from here, shifted by run.seed."""
    isolation: NoIsolation | ProcessIsolation = Field(default=NoIsolation(), discriminator="type")


NormaliseMethod = Literal["identity", "mean", "mean_std", "asym_clip"]
NormaliseGrouping = Literal["state", "inductive", "batch"]


class NormalisationSettings(Settings):
    method: NormaliseMethod = "identity"
    """What is done to an episode's sum of rewards: nothing; minus the mean; also divided by the spread; also clipped
    to -1 and 3."""
    grouping: NormaliseGrouping = "state"
    """Whose mean and spread: the siblings' of the same task, the same environment's, or the whole batch's."""


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


class FunctionJudgeSettings(Settings):
    type: Literal["function"]
    """Your own function (prompt, response) -> number scores each reply."""
    target: str
    """Where the function is: 'package.module:function'."""
    success_above: float = 0.0
    """An episode whose score is above this counts as a success."""


class ModelJudgeSettings(Settings):
    type: Literal["model"]
    """A reward model, a sequence classifier with one label, scores each conversation."""
    path: str | None = None
    """A Hugging Face folder or hub name, or 'tiny' for the built-in small model, trained on first use."""
    batch_rows: PositiveInt = 64
    """Conversations in one forward pass: memory against speed, never the result."""
    max_tokens: PositiveInt = 1024
    """Longest conversation it reads, or the model's own limit; of a longer one the beginning is cut."""
    success_above: float = 0.0
    """An episode whose score is above this counts as a success."""


class RewardSettings(Settings):
    judge: NoJudge | FunctionJudgeSettings | ModelJudgeSettings = Field(default=NoJudge(), discriminator="type")
    """Who gives the rewards, where the environment gives none."""
    normalisation: NormalisationSettings = NormalisationSettings()
    """Rewards on one scale, before credit; raw rewards stay as they are."""
    filter: NoFilter | TopKFilter | TopPFilter | ThresholdFilter = Field(default=NoFilter(), discriminator="type")
    """Which groups are learnt from."""


class MixedEnv(Settings):
    """A further environment whose groups play in the same rollout and are learnt from in the same batch."""

    groups: PositiveInt = 4
    """Its tasks per rollout, beside rollout.groups."""
    max_turns: PositiveInt = 1
    """Most replies of the model in one of its episodes."""
    max_actions: PositiveInt | None = None
    """Most environment actions in one of its episodes."""
    env: EnvSettings
    """Which world, with its own settings."""
    context: ContextSettings = ContextSettings()
    """How the model is talked to there."""


class MixSettings(Settings):
    """Environments beside `env`, each under a tag of its own: `mix: {questions: {groups: 4, env: {…}}}`."""

    def by_tag(self) -> dict[str, MixedEnv]:
        return {tag: getattr(self, tag) for tag in type(self).model_fields}
