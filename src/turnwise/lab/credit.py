"""The credit laboratory: every credit rule is given the same episodes, and is held against the true advantage.

In: a `CreditStudy` and, where wanted, settings of single rules. Out: one `WorldReport` per world. Rules come from the
registry with their default settings and are called as training calls them; the laboratory knows none of them by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from pydantic import ValidationError

from turnwise.config.component import CREDITS
from turnwise.config.load import parse_params
from turnwise.config.settings import describe_problems
from turnwise.errors import ConfigError, did_you_mean
from turnwise.lab.exact import Exact, solve
from turnwise.lab.play import Plays, play_groups, spread_over_row
from turnwise.lab.policy import NUM_NODES, NUM_TOKENS, draw_policy
from turnwise.lab.score import SampledTokens, Score, score
from turnwise.lab.worlds import WORLDS, Floats, World
from turnwise.protocols import CreditRule
from turnwise.report.console import Advance
from turnwise.types import Annotations

TRUTH = "true advantage"
"""The row of the truth itself: what is left below 1 in its cosine is the luck of sampling, which no rule can mend."""
CRITICS = ("noisy", "exact")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditStudy:
    """What is played. Mistakes are told in the words of the command line."""

    world: str | None = None
    """A world's name; None: all worlds."""
    critic: str = "noisy"
    """`exact` gives rules the true values; `noisy` adds an error to each, the same whenever the state is seen."""
    critic_noise: float | None = None
    """The size of that error in typical true advantages; None: 1. Goes with a noisy critic alone."""
    episodes: int = 48
    """Per batch."""
    group_size: int = 8
    batches: int = 100
    """Independent batches; what a rule takes over a batch, such as a spread, it takes over one of them."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.world is not None and self.world not in WORLDS:
            raise ConfigError(f"--world: there is no world named '{self.world}'. {did_you_mean(self.world, WORLDS)}")
        if self.critic not in CRITICS:
            raise ConfigError(f"--critic: '{self.critic}' given; expected one of {', '.join(CRITICS)}.")
        if self.critic_noise is not None and self.critic != "noisy":
            raise ConfigError("--critic-noise goes with --critic noisy; an exact critic has none.")
        if self.critic_noise is not None and not 0 <= self.critic_noise < np.inf:
            raise ConfigError(f"--critic-noise: {self.critic_noise} given; expected at least 0 and finite.")
        limits = {"--episodes": (self.episodes, 1), "--group-size": (self.group_size, 2)}
        limits |= {"--batches": (self.batches, 1), "--seed": (self.seed, 0)}
        for option, (given, lowest) in limits.items():
            if given < lowest:
                raise ConfigError(f"{option}: {given} given; expected at least {lowest}.")
        if self.episodes % self.group_size:
            raise ConfigError(
                f"--episodes: {self.episodes} given; expected whole groups, a multiple of --group-size "
                f"{self.group_size}."
            )

    @property
    def noise(self) -> float:
        """The size of the critic's error, in typical true advantages."""
        if self.critic == "exact":
            return 0.0
        return 1.0 if self.critic_noise is None else self.critic_noise

    @property
    def worlds(self) -> tuple[World, ...]:
        return tuple(WORLDS.values()) if self.world is None else (WORLDS[self.world],)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeView:
    """One episode as every rule sees it: per turn where it was and what it did, per rule a number for each token."""

    turns: tuple[tuple[str, str], ...]
    """State and action."""
    tokens: tuple[int, ...]
    episode_return: float
    estimates: Mapping[str, Floats]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorldReport:
    world: World
    expected_return: float
    """Of the policy that played, exact."""
    scores: Mapping[str, Score]
    """By rule, best gradient first; the truth itself is one of them."""
    example: EpisodeView


def make_rules(overrides: Sequence[str] = ()) -> dict[str, CreditRule]:
    """Every registered rule; `gae.lam=0.9` changes a setting of one of them."""
    changes = parse_params(overrides)
    for name in changes.keys() - CREDITS.keys():
        raise ConfigError(f"'{name}' is no credit rule. {did_you_mean(name, CREDITS)} Give rule.setting=value.")
    rules: dict[str, CreditRule] = {}
    for name in CREDITS:
        target, settings = cast(Any, CREDITS.get_target(name)), changes.get(name, {})
        if not isinstance(settings, dict):
            raise ConfigError(f"{name}: {settings!r} given; expected a setting of that rule, as {name}.setting=value.")
        try:
            rules[name] = target(target.Params.model_validate(settings))
        except ValidationError as error:
            raise ConfigError(f"{name}.{describe_problems(error, target.Params)}") from error
    return rules


def run_study(study: CreditStudy, rules: Mapping[str, CreditRule], advance: Advance) -> list[WorldReport]:
    """One report per world; `advance` hears of every batch."""
    num_total = len(study.worlds) * study.batches
    num_done = itertools.count(1)
    return [study_world(world, study, rules, lambda: advance(next(num_done), num_total)) for world in study.worlds]


def study_world(
    world: World, study: CreditStudy, rules: Mapping[str, CreditRule], advance: Callable[[], None] = lambda: None
) -> WorldReport:
    """Play, let every rule speak, and score them; `advance` is called after every batch."""
    policy = draw_policy(world, np.random.default_rng([study.seed, 0]))
    starts = [world.starts[group % len(world.starts)] for group in range(study.episodes // study.group_size)]
    weights = np.bincount(starts, minlength=len(world.states)) / len(starts)
    exact = solve(world, policy, weights)
    critic = _make_critic(exact, study.noise, np.random.default_rng([study.seed, 1]))
    rng = np.random.default_rng([study.seed, 2])
    batches: list[Plays] = []
    estimates: dict[str, list[Floats]] = {name: [] for name in rules}
    for rollout in range(study.batches):
        plays = play_groups(world, policy, starts, group_size=study.group_size, rollout=rollout, rng=rng)
        batches.append(plays)
        annotations = _annotate(plays, critic)
        for name, rule in rules.items():
            samples = rule(plays.experiences, annotations)
            estimates[name] += [s.advantages[s.experience.segment.loss_mask].astype(np.float64) for s in samples]
        advance()
    cells = [cells for plays in batches for cells in plays.cells]
    estimates = {TRUTH: [exact.advantages.ravel()[c] for c in cells], **estimates}
    tokens = SampledTokens(
        cells=np.concatenate(cells),
        batches=np.repeat(np.arange(study.batches), [sum(map(len, plays.cells)) for plays in batches]),
    )
    scores = {name: score(np.concatenate(of_rule), tokens, exact) for name, of_rule in estimates.items()}
    return WorldReport(
        world=world,
        expected_return=float(weights @ exact.values[world.horizon, :, 0]),
        scores=dict(sorted(scores.items(), key=lambda item: -item[1].cosine)),
        example=_view_telling_episode(world, batches[0], estimates),
    )


def _make_critic(exact: Exact, noise: float, rng: np.random.Generator) -> Floats:
    """[places] what the critic says before each token."""
    values = exact.values[..., :NUM_NODES]
    return (values + noise * exact.typical_advantage * rng.normal(size=values.shape)).ravel()


def _annotate(plays: Plays, critic: Floats) -> Annotations:
    """What the learner would say: the critic's value before every sampled token."""
    rows = zip(plays.experiences, plays.cells, strict=True)
    return Annotations(values=tuple(spread_over_row(row, critic[cells // NUM_TOKENS]) for row, cells in rows))


def _view_telling_episode(world: World, plays: Plays, estimates: Mapping[str, Sequence[Floats]]) -> EpisodeView:
    """Of the episodes that earned most, the one with the largest true advantages: most was won and lost on its way."""
    keys = [(e.turn_rewards.sum(), np.abs(estimates[TRUTH][i]).sum()) for i, e in enumerate(plays.experiences)]
    chosen = max(range(len(keys)), key=keys.__getitem__)
    experience = plays.experiences[chosen]
    tokens = experience.segment.token_ids[experience.segment.loss_mask].reshape(-1, NUM_TOKENS)
    actions = tokens @ (NUM_TOKENS, 1)
    states = experience.turn_states.astype(np.int64)
    return EpisodeView(
        turns=tuple((world.states[s], world.actions[a]) for s, a in zip(states, actions, strict=True)),
        tokens=tuple(int(token) for token in tokens.ravel()),
        episode_return=float(experience.turn_rewards.sum()),
        estimates={name: of_rule[chosen] for name, of_rule in estimates.items()},
    )
