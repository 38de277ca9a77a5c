"""What a recipe will do, in plain words, before it runs: episodes, tokens, updates, memory, settings without effect."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from turnwise.config.checks import find_no_effect
from turnwise.config.schema import KlLoss, ModelCritic, OracleWarmStart, TinySettings, TurnwiseSettings

_BYTES_PER_PARAMETER = 4


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
    num_models: int
    """Models held in memory: actor, engine's copy, critic, reference."""
    parameters: int | None
    """Of one model; None where the model's folder is not known before loading."""
    memory_bytes: int | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def make_plan(settings: TurnwiseSettings) -> Plan:
    rollout, learn = settings.rollout, settings.learn
    episodes = rollout.groups * rollout.group_size
    num_models = 2 + isinstance(learn.critic, ModelCritic) + isinstance(learn.kl, KlLoss)
    parameters = count_parameters(settings.model.tiny) if settings.model.path == "tiny" else None
    trained = 1 + isinstance(learn.critic, ModelCritic)
    # Each model once, and for each trained one its gradients and Adam's two moments.
    memory = parameters * _BYTES_PER_PARAMETER * (num_models + 3 * trained) if parameters else None
    return Plan(
        recipe=settings.recipe,
        steps=learn.steps,
        episodes_per_step=episodes,
        episodes=episodes * learn.steps,
        max_turns=rollout.max_turns,
        max_sampled_tokens_per_step=episodes * rollout.max_turns * settings.context.max_response_tokens,
        optimizer_steps=learn.steps * learn.epochs * learn.minibatches,
        demonstrations=settings.warm_start.episodes if isinstance(settings.warm_start, OracleWarmStart) else 0,
        eval_episodes=settings.eval.episodes,
        num_models=num_models,
        parameters=parameters,
        memory_bytes=memory,
        notes=tuple(find_no_effect(settings)),
    )


def count_parameters(tiny: TinySettings) -> int:
    """Of the built-in model, whose vocabulary is at most `vocab_size`."""
    layer = 4 * tiny.hidden_size**2 + 3 * tiny.hidden_size * tiny.intermediate_size + 2 * tiny.hidden_size
    return tiny.vocab_size * tiny.hidden_size + tiny.num_layers * layer + tiny.hidden_size


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
    if plan.parameters and plan.memory_bytes:
        lines.append(
            f"{plan.num_models} copies of a model of up to {plan.parameters / 1e6:.2f} M parameters: about "
            f"{plan.memory_bytes / 1e6:,.0f} MB for weights, gradients and optimizer, activations not counted."
        )
    else:
        lines.append(f"{plan.num_models} copies of the model are held in memory.")
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])
