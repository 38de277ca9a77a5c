"""What a recipe will do, in plain words, before it runs: episodes, tokens, updates, memory, settings without effect."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from turnwise.config.checks import find_no_effect
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.sections.reward import ModelJudgeSettings
from turnwise.config.sections.warm_start import OracleWarmStart
from turnwise.learn.memory import MemoryReport, ModelMemory, read_config, report_memory, size_words
from turnwise.learn.tiny_model import tiny_config
from turnwise.rollout.worlds import count_held_out


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
    eval_episodes: int
    memory: MemoryReport
    """Of a built-in model at the largest vocabulary it may get."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def make_plan(settings: TurnwiseSettings) -> Plan:
    rollout, learn = settings.rollout, settings.learn
    episodes = rollout.groups * rollout.group_size
    return Plan(
        recipe=settings.recipe,
        steps=learn.steps,
        episodes_per_step=episodes,
        episodes=episodes * learn.steps,
        max_turns=rollout.max_turns,
        max_sampled_tokens_per_step=episodes * rollout.max_turns * settings.context.max_response_tokens,
        optimizer_steps=learn.steps * learn.epochs * learn.minibatches,
        demonstrations=settings.warm_start.episodes if isinstance(settings.warm_start, OracleWarmStart) else 0,
        eval_episodes=sum(count_held_out(settings).values()),
        memory=plan_memory(settings),
        notes=tuple(find_no_effect(settings)),
    )


def plan_memory(settings: TurnwiseSettings) -> MemoryReport:
    """What the run's models will take, from their shapes alone."""
    model = settings.model
    is_tiny = model.path == "tiny"
    config = tiny_config(model.tiny, vocab_size=model.tiny.vocab_size) if is_tiny else read_config(model.path)
    return report_memory(config, model, settings.learn, judge_path=judge_path(settings))


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
        lines.insert(1, f"It starts from {plan.demonstrations} demonstrations by the oracle.")
    lines += _describe_memory(plan.memory)
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _describe_memory(memory: MemoryReport) -> list[str]:
    return [
        "Its models, with weights, gradients and optimizer; activations are not counted:",
        *(f"  {_describe_model(row)}" for row in memory.models),
        f"  in all {size_words(memory.loaded_bytes)}; what is not loaded would take {size_words(memory.saved_bytes)}.",
    ]


def _describe_model(row: ModelMemory) -> str:
    count = "unknown" if row.parameters is None else f"{row.parameters / 1e6:,.2f} M"
    state = "loaded" if row.is_loaded else "not loaded"
    size = size_words(row.total_bytes)
    return f"{row.name:12}  {state:10}  {count:>9} parameters  {size:>12}  {row.reason}"
