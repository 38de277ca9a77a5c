"""What a recipe will do, in plain words, before it runs: episodes, tokens, updates, memory, settings without effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from turnwise.app.misfits import find_misfits
from turnwise.app.plan_peak import plan_peak
from turnwise.config.checks import find_no_effect
from turnwise.config.load import Change
from turnwise.config.schema import LessonSettings, TurnwiseSettings
from turnwise.config.schema_learn import ModelJudgeSettings
from turnwise.loop.build import samples_in_place
from turnwise.models.load import warn_of_slow_bfloat16
from turnwise.models.memory import (
    MemoryReport,
    ModelMemory,
    Peak,
    bytes_per_rank,
    describe_peak,
    report_memory,
    size_words,
)
from turnwise.models.resolve import note_on, read_shape
from turnwise.rollout.env_specs import count_held_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Derived sizes; token counts are upper bounds."""

    recipe: str
    steps: int
    episodes_per_step: int
    episodes: int
    max_turns: int
    max_sampled_tokens_per_step: int
    optimizer_steps: int
    demonstrations: int
    warm_start: str
    """Its type: where the demonstrations come from."""
    eval_episodes: int
    memory: MemoryReport
    """Of a built-in model at the largest vocabulary it may get."""
    pretrained: tuple[Change, ...]
    """What the recipe's section `pretrained` changed."""
    peak: Peak | None
    """The most memory of one process at one time, and what it consists of; None where the model is not on this machine,
    and where other processes learn."""
    ranks: int
    """Processes that learn together."""
    rank_bytes: int | None
    """What each of several ranks holds of the learner's models between its passes; None with one, and where unknown."""
    notes: tuple[str, ...]
    """Settings without effect, and settings that do not fit the model."""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def make_plan(settings: TurnwiseSettings, pretrained: Sequence[Change] = ()) -> Plan:
    """`pretrained` is what a loaded recipe tells of its section."""
    rollout, learn = settings.rollout, settings.learn
    episodes = rollout.groups * rollout.group_size
    memory, is_parallel = plan_memory(settings), learn.parallel.type != "none"
    return Plan(
        recipe=settings.recipe,
        steps=learn.steps,
        episodes_per_step=episodes,
        episodes=episodes * learn.steps,
        max_turns=rollout.max_turns,
        max_sampled_tokens_per_step=episodes * rollout.max_turns * settings.context.max_response_tokens,
        optimizer_steps=learn.steps * learn.epochs * learn.minibatches,
        demonstrations=settings.warm_start.episodes if isinstance(settings.warm_start, LessonSettings) else 0,
        warm_start=settings.warm_start.type,
        eval_episodes=sum(count_held_out(settings).values()),
        memory=memory,
        peak=None if is_parallel else plan_peak(settings, read_shape(settings), memory),
        ranks=learn.parallel.ranks,
        rank_bytes=bytes_per_rank(memory, learn) if is_parallel else None,
        pretrained=tuple(pretrained),
        notes=(
            *find_no_effect(settings),
            *filter(None, _notes_on_model(settings)),
            *(misfit.message for misfit in find_misfits(settings)),
        ),
    )


def _notes_on_model(settings: TurnwiseSettings) -> tuple[str, ...]:
    return note_on(settings.model.path), warn_of_slow_bfloat16(settings.model)


def plan_memory(settings: TurnwiseSettings) -> MemoryReport:
    """What the run's models will take, from their shapes alone."""
    return report_memory(
        read_shape(settings),
        settings.model,
        settings.learn,
        judge_path=judge_path(settings),
        is_shared=samples_in_place(settings),
    )


def judge_path(settings: TurnwiseSettings) -> str | None:
    """The reward model that is loaded, if one is."""
    judge = settings.reward.judge
    return judge.path if isinstance(judge, ModelJudgeSettings) else None


def describe_plan(plan: Plan) -> str:
    lines = [
        f"{plan.recipe}: {plan.steps} steps of {plan.episodes_per_step} episodes ({plan.episodes:,} in all).",
        f"An episode has at most {plan.max_turns} turns.",
        f"A step samples at most {plan.max_sampled_tokens_per_step:,} tokens.",
        f"The whole run makes {plan.optimizer_steps:,} optimizer steps.",
        f"Before and after, {plan.eval_episodes} held-out episodes are played.",
    ]
    if plan.demonstrations:
        lines.insert(1, f"It starts from {plan.demonstrations} demonstrations by the {plan.warm_start}.")
    if plan.pretrained:
        lines.append("Because model.path is not 'tiny', the recipe's section 'pretrained' sets:")
        lines += [f"  {change}" for change in plan.pretrained]
    lines += _describe_memory(plan.memory)
    if plan.rank_bytes is not None:
        held = size_words(plan.rank_bytes)
        lines.append(f"  {plan.ranks} ranks learn together; each holds {held} of these, and what a pass needs.")
    lines += describe_peak(plan.peak) if plan.peak is not None else []
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _describe_memory(memory: MemoryReport) -> list[str]:
    return [
        "Its models, with weights, gradients and optimizer:",
        *(f"  {_describe_model(row)}" for row in memory.models),
        f"  in all {size_words(memory.loaded_bytes)}; what is not loaded would take {size_words(memory.saved_bytes)}.",
    ]


def _describe_model(row: ModelMemory) -> str:
    count = "unknown" if row.parameters is None else f"{row.parameters / 1e6:,.2f} M"
    state = "loaded" if row.is_loaded else "not loaded"
    size = size_words(row.total_bytes)
    return f"{row.name:12}  {state:10}  {count:>9} parameters  {size:>12}  {row.reason}"
