"""The credit laboratory: every credit rule is given the same episodes, and is held against the true advantage.

In: a `CreditStudy` and, where wanted, settings of single rules. Out: one `WorldReport` per world. Rules come from the
registry with their default settings and are called as training calls them; the laboratory knows none of them by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from turnwise.config.kinds import ADVANTAGE_ESTIMATORS
from turnwise.config.load import parse_params
from turnwise.config.settings import describe_problems
from turnwise.errors import ConfigError, did_you_mean
from turnwise.infra.atomic_files import atomic_write, read_text
from turnwise.lab.mdps import (
    NUM_NODES,
    NUM_TOKENS,
    WORLDS,
    Exact,
    Floats,
    Ints,
    Plays,
    World,
    draw_policy,
    play_groups,
    solve,
    spread_over_row,
)
from turnwise.protocols import CreditRule
from turnwise.report.console import Advance
from turnwise.report.document import Document, Table, to_markdown
from turnwise.report.plots import HeatMap, HeatRow, plot_heat_map
from turnwise.types import Annotations

_SIGN_THRESHOLD = 0.1
"""In typical advantages: below it, a sign means little."""
_SURE = 3.0
"""Standard errors by which something must stand above 0 to count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """What is wrong with a rule at its own scale, in typical true advantages."""

    scale: float
    """An estimate times this is in the units of the reward."""
    bias: float
    offset: float
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    cosine: float
    """Between the gradient of one batch and the true one, averaged over the batches."""
    cosine_error: float
    """The standard error of that mean; 0 for a single batch."""
    correlation: float
    """With the true advantage, over all tokens."""
    right_sign: float
    """The share of tokens that are pushed the right way; not pushed at all counts as wrong."""
    errors: Errors | None
    """None where the estimates say nothing sure about the truth, so that they have no scale."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledTokens:
    """All sampled tokens of a study, batch after batch."""

    cells: Ints
    batches: Ints


def score(estimates: Floats, tokens: SampledTokens, exact: Exact) -> Score:
    truth = exact.advantages.ravel()[tokens.cells]
    cosines = _gradient_cosines(estimates, tokens, exact)
    matters = np.abs(truth) > _SIGN_THRESHOLD * exact.typical_advantage
    is_right = np.sign(estimates[matters]) == np.sign(truth[matters])
    return Score(
        cosine=float(cosines.mean()),
        cosine_error=float(cosines.std(ddof=1) / np.sqrt(len(cosines))) if len(cosines) > 1 else 0.0,
        correlation=_correlation(estimates, truth),
        right_sign=float(is_right.mean()) if len(is_right) else 0.0,
        errors=_split_errors(estimates, tokens.cells, exact),
    )


def _gradient_cosines(estimates: Floats, tokens: SampledTokens, exact: Exact) -> Floats:
    """[batches] how well the gradient of each batch, in the logits of the policy, points along the true one."""
    num_batches, num_logits = int(tokens.batches.max()) + 1, exact.gradient.size
    # Cells are numbered with the turns left in front, so the rest is the place in the policy's table.
    places = tokens.batches * num_logits + tokens.cells % num_logits
    pushes = np.bincount(places, estimates, minlength=num_batches * num_logits)
    pushes = pushes.reshape(num_batches, *exact.gradient.shape)
    gradients = pushes - exact.policy.token_probs * pushes.sum(axis=-1, keepdims=True)
    lengths = np.sqrt((gradients**2).sum(axis=(1, 2, 3)) * (exact.gradient**2).sum())
    along = (gradients * exact.gradient).sum(axis=(1, 2, 3))
    return np.divide(along, lengths, out=np.zeros(num_batches), where=lengths > 0)


def _correlation(estimates: Floats, truth: Floats) -> float:
    # Rounding leaves a constant with a tiny spread, which must not count as one.
    if estimates.std() <= 1e-9 * np.abs(estimates).max():
        return 0.0
    return float(np.corrcoef(estimates, truth)[0, 1])


def _split_errors(estimates: Floats, cells: Ints, exact: Exact) -> Errors | None:
    is_seen_twice = np.bincount(cells)[cells] > 1
    if not is_seen_twice.any():
        return None
    estimates = estimates[is_seen_twice]
    seen, cell_of_token = np.unique(cells[is_seen_twice], return_inverse=True)
    counts = np.bincount(cell_of_token).astype(np.float64)
    truth, places = exact.advantages.ravel()[seen], np.unique(seen // NUM_TOKENS, return_inverse=True)[1]
    means = np.bincount(cell_of_token, estimates) / counts
    variances = np.bincount(cell_of_token, (estimates - means[cell_of_token]) ** 2) / (counts - 1)

    scale = _fit_scale(means, variances, truth, counts, places)
    if scale is None:
        return None
    wrong, variances = scale * means - truth, scale**2 * variances
    offsets = _place_means(wrong, counts, places)
    # A mean of few estimates is off by chance; that share of the squares belongs to the noise.
    chance_in_offsets = variances * counts / np.bincount(places, counts)[places]
    total, unit = counts.sum(), exact.typical_advantage
    squares = {
        "bias": _beyond_chance(counts * (wrong - offsets) ** 2, variances - chance_in_offsets),
        "offset": _beyond_chance(counts * offsets**2, chance_in_offsets),
        "noise": (counts * variances).sum(),
    }
    return Errors(scale=scale, **{name: float(np.sqrt(square / total) / unit) for name, square in squares.items()})


def _beyond_chance(squares: Floats, by_chance: Floats) -> float:
    """The sum of squares without what chance alone adds to it; 0 where it does not stand out from that."""
    excess = float((squares - by_chance).sum())
    # The square of a mean that is 0 but for chance has twice the squared variance as its own variance.
    return excess if excess > _SURE * np.sqrt(2 * (by_chance**2).sum()) else 0.0


def _place_means(per_cell: Floats, counts: Floats, places: Ints) -> Floats:
    """[cells] the mean over all visits of the cell's place."""
    return (np.bincount(places, counts * per_cell) / np.bincount(places, counts))[places]


def _fit_scale(means: Floats, variances: Floats, truth: Floats, counts: Floats, places: Ints) -> float | None:
    """1 / slope of the estimates on the truth, each against the mean of its place, by least squares."""
    truth = truth - _place_means(truth, counts, places)
    weight = (counts * truth**2).sum()
    if weight == 0:
        return None
    slope = (counts * truth * means).sum() / weight
    doubt = np.sqrt((counts * truth**2 * variances).sum()) / weight
    rounding = 1e-6 * np.sqrt((counts * means**2).sum() / weight)
    return float(1 / slope) if slope > _SURE * doubt + rounding else None


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
    names = ADVANTAGE_ESTIMATORS.names()
    for name in changes.keys() - set(names):
        raise ConfigError(f"'{name}' is no credit rule. {did_you_mean(name, names)} Give rule.setting=value.")
    rules: dict[str, CreditRule] = {}
    for name in names:
        estimator, settings = ADVANTAGE_ESTIMATORS.find(name), changes.get(name, {})
        if not isinstance(settings, dict):
            raise ConfigError(f"{name}: {settings!r} given; expected a setting of that rule, as {name}.setting=value.")
        try:
            rules[name] = estimator.model_validate(settings)
        except ValidationError as error:
            raise ConfigError(f"{name}.{describe_problems(error, estimator)}") from error
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


COLUMNS = {
    "cosine": "how well the gradient of one batch points along the true gradient: 1 is the same way, 0 is no help; the "
    "mean over the batches. Tables are sorted by it",
    "+/-": "the standard error of that mean",
    "correlation": "with the true advantage, over all sampled tokens",
    "sign": "share of tokens that are pushed the right way (those with a true advantage near 0 left out; not "
    "pushed at all counts as wrong)",
    "bias": "wrong on average, differently for the tokens that compete in one place: this turns the gradient, and more "
    "episodes do not help",
    "offset": "wrong on average by the same amount for all tokens of one place, as a missing baseline is: the gradient "
    "stays right on average and becomes noisier",
    "noise": "standard deviation of the estimates of one and the same token in one and the same state",
}
"""The columns of the tables, in plain words."""
_NOTHING = "-"


def to_rows(reports: Sequence[WorldReport]) -> list[dict[str, str | float | None]]:
    """One flat row per world and rule; errors are None where a rule has no scale."""
    return [
        {
            "world": report.world.name,
            "rule": rule,
            "cosine": score.cosine,
            "cosine_error": score.cosine_error,
            "correlation": score.correlation,
            "right_sign": score.right_sign,
            **{name: getattr(score.errors, name, None) for name in ("scale", "bias", "offset", "noise")},
        }
        for report in reports
        for rule, score in report.scores.items()
    ]


def to_table(report: WorldReport) -> Table:
    rows = [(rule, *_format(score)) for rule, score in report.scores.items()]
    return Table(("rule", *COLUMNS), rows, title=f"{report.world.name}: {describe_world(report)}")


def _table_page(report: WorldReport) -> str:
    named = {rule: f"*{rule}*" if rule == TRUTH else f"`{rule}`" for rule in report.scores}
    rows = [(named[rule], *_format(score)) for rule, score in report.scores.items()]
    return to_markdown(Document(tables=[Table(("rule", *COLUMNS), rows)])).strip()


def describe_world(report: WorldReport) -> str:
    turns = "1 turn" if report.world.horizon == 1 else f"at most {report.world.horizon} turns"
    return f"{report.world.about}; {turns}, expected return {report.expected_return:.2f}"


def _format(score: Score) -> list[str]:
    """In the order of `COLUMNS`."""
    errors = score.errors
    parts = [_NOTHING] * 3 if errors is None else [f"{part:.2f}" for part in (errors.bias, errors.offset, errors.noise)]
    shown = [f"{score.cosine:.3f}", f"{score.cosine_error:.3f}", f"{score.correlation:.2f}", f"{score.right_sign:.0%}"]
    return [*shown, *parts]


_BEGIN = "<!-- measured: begin. `turnwise lab credit` rewrites everything down to the next mark. -->"
_END = "<!-- measured: end -->"
_TITLE = "# Credit rules against the truth\n"
_PICTURED = "key_door"
"""Of several worlds: here one late reward is to be shared out among many turns."""


def write_page(reports: Sequence[WorldReport], study: CreditStudy, overrides: Sequence[str], folder: Path) -> Path:
    """`credit_lab.md` and `credit_lab.png` in a folder; returns the page."""
    page, picture = folder / "credit_lab.md", folder / "credit_lab.png"
    text = _place(_describe(reports, study, _command(study, overrides, folder), picture.name), page)
    pictured = next((report for report in reports if report.world.name == _PICTURED), reports[0])
    plot_heat_map(_draw_episode(pictured), picture)
    atomic_write(page, text)
    return page


def check_page(folder: Path) -> None:
    """Refuse, before anything is computed, to write over a page that the laboratory has not made."""
    _place("", folder / "credit_lab.md")


def _place(measured: str, page: Path) -> str:
    """The text of the page with `measured` between the marks."""
    block = f"{_BEGIN}\n\n{measured}\n\n{_END}\n"
    if not page.exists():
        return f"{_TITLE}\n{block}"
    before, begin, rest = read_text(page).partition(_BEGIN)
    _, end, after = rest.partition(f"{_END}\n")
    if not begin or not end:
        raise ConfigError(
            f"--out: {page} exists and has no marks around what was measured. Remove it or choose another folder."
        )
    return before + block + after


def _describe(reports: Sequence[WorldReport], study: CreditStudy, command: str, picture: str) -> str:
    critic = (
        "with the exact values"
        if not study.noise
        else f"with a fixed random error in every state, {study.noise:g} times the typical true advantage in size"
    )
    played = (
        f"Every rule is given the same {study.batches} batches of {study.episodes} episodes in groups of "
        f"{study.group_size}, seed {study.seed}; a reply is two tokens, which together spell an action. The true "
        f"advantage of every token is computed exactly. Rules with a critic are given one {critic}."
    )
    columns = "\n".join(f"- *{name}*: {text}." for name, text in COLUMNS.items())
    units = (
        "Bias, offset and noise are measured after the rule's own scale is taken out, in units of the typical true "
        "advantage: 1 is an error as large as what is to be estimated. Their squares add up. Bias and offset are 0 "
        "where they do not stand out from the noise; a dash stands where a rule tells so little that it has no scale. "
        f"The row *{TRUTH}* shows what the luck of sampling leaves to the best of rules."
    )
    parts = [f"Made with:\n\n```\n{command}\n```", played, columns, units]
    for report in reports:
        parts.append(f"## {report.world.name}\n\n{_sentence(describe_world(report))}\n\n{_table_page(report)}")
    parts.append(f"![One episode as each rule sees it]({picture})")
    return "\n\n".join(parts)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _command(study: CreditStudy, overrides: Sequence[str], folder: Path) -> str:
    """What to type to make this page again."""
    words = ["turnwise lab credit"]
    for field in fields(study):
        value = getattr(study, field.name)
        if value != field.default:
            words.append(f"--{field.name.replace('_', '-')} {value}")
    return " ".join([*words, *overrides, f"--out {folder}"])


def _draw_episode(report: WorldReport) -> HeatMap:
    example = report.example
    names = [TRUTH, *(name for name in report.scores if name != TRUTH)]
    return HeatMap(
        title=f"Who deserves the credit? One episode in {report.world.name}",
        subtitle=f"return {example.episode_return:g}; each rule in its fitted scale, best gradient first",
        turns=tuple(f"{state}\n{action}" for state, action in example.turns),
        tokens_per_turn=NUM_TOKENS,
        tokens=tuple(map(str, example.tokens)),
        rows=tuple(_heat_row(report, name) for name in names),
        note_title="gradient\ncosine",
    )


def _heat_row(report: WorldReport, name: str) -> HeatRow:
    score = report.scores[name]
    estimates = report.example.estimates[name]
    values = np.full_like(estimates, np.nan) if score.errors is None else score.errors.scale * estimates
    return HeatRow(name=name, values=values, note=f"{score.cosine:.2f}")
