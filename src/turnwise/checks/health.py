"""Health checks on per-step metrics: detect collapse and report findings.

Runs collapse in a known order: the spread of returns inside groups vanishes, then entropy, then gradients spike and
replies repeat themselves, and success falls last. Each sign is compared with the run's own start where that is possible
and must last. It is reported once when it begins, once more if it becomes a collapse, and again only after it was gone.
A sign alone is a warning; it is a collapse (level `error`) if success, or the return where no success is reported, has
fallen too. Findings follow from the metrics alone, so a resumed run checks its recorded metrics again and continues.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from statistics import fmean, median

from turnwise.config.schema import TurnwiseSettings, WatchSettings
from turnwise.errors import Finding
from turnwise.hooks import Hook, LogValue, TrainStep
from turnwise.report.run_dir import RunDirectory
from turnwise.types import Metrics

SUCCESS, RETURN, INVALID = "rollout/success", "rollout/return", "rollout/invalid_actions"
SPREAD, DEAD_GROUPS, REPETITION = "rollout/in_group_std", "rollout/dead_groups", "rollout/repetition"
ENTROPY, GRAD_NORM, CLIPPED = "learn/entropy", "learn/grad_norm", "learn/clip_fraction"
REWARDED = "rollout/rewarded"
KL, REFERENCE_KL, BEHAVIOR_GAP = "learn/approx_kl", "learn/reference_kl", "learn/behavior_gap"
_WATCHED = (
    *(SUCCESS, RETURN, INVALID, SPREAD, DEAD_GROUPS, REPETITION),
    *(ENTROPY, GRAD_NORM, CLIPPED, KL, REFERENCE_KL, BEHAVIOR_GAP),
)

_HIGH_SUCCESS = 0.8
_SOME_SUCCESS = 0.01
"""Below this, and where no success is reported, the return says more."""
_HELD_FRACTION = 0.8
"""Of the way to the best outcome: above this, nothing is lost."""


class Series:
    """One metric: its start, its newest values, and the extremes of its running mean."""

    def __init__(self, window: int) -> None:
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=window)
        self._window = window
        self.newest: float | None = None
        """None where the newest step did not measure it."""
        self.median_before: float | None = None
        """Of the window before the newest value."""
        self.level: float | None = None
        """Mean of the newest window."""
        self.best, self.lowest = -math.inf, math.inf
        """Highest and lowest level so far."""
        self.best_step = 0
        """The end of the best window; 0 where that is the first one."""
        self._num_levels = 0
        self.noise = 0.0
        """How far apart the values of one window are, on average over all windows so far."""

    def add(self, step: int, value: float | None) -> None:
        self.newest = value if value is not None and math.isfinite(value) else None
        if self.newest is None:
            return
        if len(self._first) < self._window:
            self._first.append(self.newest)
        self.median_before = median(self._recent) if len(self._recent) == self._window else None
        self._recent.append(self.newest)
        if len(self._recent) == self._window:
            self.level = fmean(self._recent)
            self.lowest = min(self.lowest, self.level)
            if self.level >= self.best:
                # A first window that nothing surpasses may have fallen inside it; only its start is known as good.
                self.best, self.best_step = self.level, step if self._num_levels else 0
            self._num_levels += 1
            self.noise += (max(self._recent) - min(self._recent) - self.noise) / self._num_levels

    @property
    def is_measured(self) -> bool:
        """Whether any step had it."""
        return bool(self._first)

    @property
    def start(self) -> float | None:
        """Median of the first window, once that is over."""
        return median(self._first) if len(self._first) == self._window else None

    @property
    def start_level(self) -> float:
        return fmean(self._first) if self.is_measured else 0.0


class Outcome(Enum):
    SOLVED = auto()
    """Nearly every episode succeeds."""
    HELD = auto()
    """The gain so far is still there."""
    POOR = auto()
    """A good part of the gain is lost, or there never was one."""


class History:
    """Metrics of a run so far, as the rules read them."""

    def __init__(self, settings: WatchSettings, *, needs_groups: bool) -> None:
        self.settings = settings
        self.step = 0
        self.num_dead_steps = 0
        """Latest consecutive steps in which all groups had zero spread."""
        self.num_unrewarded_steps = 0
        """Steps so far in which every reward was zero."""
        self.was_rewarded = False
        """Whether any reward was ever something else."""
        self._needs_groups = needs_groups
        self._series = {name: Series(settings.window) for name in _WATCHED}

    def __getitem__(self, name: str) -> Series:
        return self._series[name]

    def add(self, step: int, metrics: Metrics) -> None:
        self.step = step
        is_dead = self._needs_groups and metrics.get(DEAD_GROUPS) == 1
        self.num_dead_steps = self.num_dead_steps + 1 if is_dead else 0
        self.num_unrewarded_steps += metrics.get(REWARDED) == 0
        self.was_rewarded = self.was_rewarded or (metrics.get(REWARDED) or 0) > 0
        for name, series in self._series.items():
            # Without a signal there is next to no gradient, which says nothing about the usual size of one.
            series.add(step, None if is_dead and name == GRAD_NORM else metrics.get(name))

    @property
    def outcome(self) -> tuple[str, Series, float]:
        """Success or return: its name, its series, and the value that counts as no gain."""
        success, returned = self[SUCCESS], self[RETURN]
        if success.best >= _SOME_SUCCESS or (success.is_measured and returned.level is None):
            return "success", success, 0.0
        return "return", returned, returned.start_level

    @property
    def state(self) -> Outcome:
        _, series, nothing = self.outcome
        if series.level is None:
            return Outcome.HELD
        gain = series.best - nothing
        # A return always moves a little; success is counted from zero and needs no such margin.
        has_gained = gain > (series.noise if series is self[RETURN] else 0.0)
        if not has_gained or series.level < nothing + _HELD_FRACTION * gain:
            return Outcome.POOR
        is_high = series is self[SUCCESS] and series.level >= _HIGH_SUCCESS
        return Outcome.SOLVED if is_high else Outcome.HELD

    @property
    def is_poor(self) -> bool:
        return self.state is Outcome.POOR

    def describe_outcome(self) -> str:
        name, series, _ = self.outcome
        if series.level is None:
            return f"no smoothed {name} yet"
        return f"{name} {series.level:.3g}, at its best {series.best:.3g}"


_MIN_ENTROPY_FRACTION = 0.05
_FEW_INVALID, _MANY_INVALID = 0.1, 0.5
_LOST_FRACTION = 0.5
"""Of the way to the best outcome: below this, success counts as lost."""
_LOWER_LR = "Try a lower learn.optim.lr"


class TrainingCollapsedError(Exception):
    """Training must stop; raised if `watch.stop` is 'collapse'."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


class HealthMonitor(Hook):
    """Checks the metrics of every step of a run, in order."""

    def __init__(
        self,
        settings: WatchSettings,
        *,
        needs_groups: bool,
        report: Callable[[Sequence[Finding]], None] = lambda _: None,
    ) -> None:
        """Args:
        settings: section `watch`.
        needs_groups: whether the estimator compares rollouts of a group, so that zero spread means no signal.
        report: called with the findings of every step.
        """
        self._history = History(settings, needs_groups=needs_groups)
        self._should_stop = settings.stop == "collapse"
        self._report = report
        self._found: Sequence[Finding] = ()
        self._signs = [
            _Sign(rule, hold=1 if rule.is_immediate else settings.patience, patience=settings.patience)
            for rule in RULES
            if needs_groups or not rule.needs_groups
        ]

    @classmethod
    def of_run(
        cls, settings: TurnwiseSettings, directory: RunDirectory, report: Callable[[Sequence[Finding]], None]
    ) -> HealthMonitor:
        """The monitor of a run, after the steps that the run has recorded."""
        monitor = cls(settings.watch, needs_groups=settings.credit.needs_groups, report=report)
        for row in directory.read_metrics():
            monitor.check_step(int(row["step"]), row)
        return monitor

    def check_step(self, step: int, metrics: Metrics) -> list[Finding]:
        """Return what begins, comes back or becomes a collapse with this step."""
        self._history.add(step, metrics)
        return [finding for sign in self._signs if (finding := sign.update(self._history)) is not None]

    async def compute_metrics(self, step: TrainStep, metrics: Metrics) -> Mapping[str, LogValue]:
        self._found = self.check_step(step.step, metrics)
        self._report(self._found)
        return {"watch/findings": float(len(self._found))}

    async def on_step(self, step: TrainStep, metrics: Mapping[str, LogValue]) -> None:
        """Raise TrainingCollapsedError if a finding of this step is a collapse and `watch.stop` asks for it."""
        collapses = [finding for finding in self._found if finding.level == "error"]
        if self._should_stop and collapses:
            # Of several, the one that began first: checkpoints before it are good in every respect.
            raise TrainingCollapsedError(min(collapses, key=lambda finding: finding.since))

    def return_points(self) -> set[int]:
        """Steps that a finding, now or later, can return to: `since - 1` of anything that may be found."""
        step, window = self._history.step, self._history.settings.window
        bests = {self._history[name].best_step for name in (SUCCESS, RETURN)}
        begun = {sign.since - 1 for sign in self._signs if sign.rule.can_return and sign.since is not None}
        return {*range(step - window, step + 1), *bests, *begun}


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What a rule finds at a step."""

    message: str
    fix: str
    is_collapse: bool = False
    since: int | None = None
    """Set if the rule itself knows when it began."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of trouble."""

    kind: str
    metric: str
    find: Callable[[History], _Trouble | None]
    is_immediate: bool = False
    """An event, or a smoothed value: reported at once. Others must last for `watch.patience` steps."""
    needs_groups: bool = False
    can_return: bool = True
    """False: there from the start, so no earlier checkpoint is better."""


class _Sign:
    """One kind of trouble over the steps: since when it is there and what was reported of it."""

    def __init__(self, rule: Rule, *, hold: int, patience: int) -> None:
        self.rule = rule
        self._hold = hold
        self._patience = patience
        self.since: int | None = None
        self._num_held = 0
        self._num_clear = 0
        self._reported: _Trouble | None = None

    def update(self, seen: History) -> Finding | None:
        trouble = self.rule.find(seen)
        if trouble is None:
            self._clear()
            return None
        self._num_clear = 0
        self._num_held += 1
        if self.since is None:
            self.since = seen.step
        is_new = self._reported is None or (trouble.is_collapse and not self._reported.is_collapse)
        if self._num_held < self._hold or not is_new:
            return None
        self._reported = trouble
        return Finding(
            kind=self.rule.kind,
            level="error" if trouble.is_collapse else "warning",
            where=self.rule.metric,
            message=trouble.message,
            fix=trouble.fix,
            stage="training",
            step=seen.step,
            since=self.since if trouble.since is None else trouble.since,
        )

    def _clear(self) -> None:
        self._num_held = 0
        self._num_clear += 1
        # What was reported is over only after a while; what was not reported must be unbroken.
        if self._reported is None or self._num_clear >= self._patience:
            self.since, self._reported = None, None


# --- rules -----------------------------------------------------------------------------------------------------------


def _find_dead_signal(seen: History) -> _Trouble | None:
    if seen.num_dead_steps == 0 or seen.state is Outcome.SOLVED:
        return None
    # A signal that was never there cannot collapse: the first success may still come.
    was_alive = seen[DEAD_GROUPS].lowest < 1
    return _Trouble(
        f"all rollouts of every group have had the same return for {seen.num_dead_steps} steps "
        f"({seen.describe_outcome()}), so group-relative advantages are zero and nothing is learned.",
        "Try easier or harder tasks (env), a larger rollout.group_size, a higher rollout.temperature, or an estimator "
        "with a critic (credit.type).",
        is_collapse=was_alive and seen.is_poor,
    )


def _find_no_rewards(seen: History) -> _Trouble | None:
    if seen.was_rewarded or seen.num_unrewarded_steps == 0:
        return None
    return _Trouble(
        f"every reward of the first {seen.num_unrewarded_steps} steps was zero, so there is nothing to learn from but "
        "penalties.",
        "Try easier tasks (env), a warm start (warm_start.type=oracle), longer episodes (rollout.max_turns), or a "
        "reward scorer as a fallback (reward.judge.beside_env=fill).",
    )


def _find_solved(seen: History) -> _Trouble | None:
    if seen.num_dead_steps == 0 or seen.state is not Outcome.SOLVED:
        return None
    return _Trouble(
        f"the tasks are solved ({seen.describe_outcome()}): all rollouts of every group have the same return, so there "
        "is nothing left to learn from them.",
        "End the run here, or use harder tasks (env).",
    )


def _find_low_spread(seen: History) -> _Trouble | None:
    spread, fraction = seen[SPREAD], seen.settings.min_spread_share
    if spread.newest is None or not spread.start or spread.newest >= fraction * spread.start:
        return None
    if seen.state is Outcome.SOLVED or seen.num_dead_steps >= seen.settings.patience:  # reported as a dead signal
        return None
    return _Trouble(
        f"the standard deviation of returns within groups is {spread.newest:.3g}, below {fraction:.0%} of its "
        f"{spread.start:.3g} at the start ({seen.describe_outcome()}). It falls before success does.",
        f"{_LOWER_LR}, a higher learn.entropy_coef or rollout.temperature, or tasks that are neither always nor never "
        "solved (env).",
        is_collapse=seen.is_poor,
    )


def _find_low_entropy(seen: History) -> _Trouble | None:
    entropy = seen[ENTROPY]
    if entropy.newest is None or not entropy.start or entropy.newest >= _MIN_ENTROPY_FRACTION * entropy.start:
        return None
    if seen.state is Outcome.SOLVED:
        return None
    return _Trouble(
        f"entropy is {entropy.newest:.3g}, below {_MIN_ENTROPY_FRACTION:.0%} of its {entropy.start:.3g} at the start, "
        f"and the tasks are not solved ({seen.describe_outcome()}): the policy has stopped exploring.",
        "Try a higher learn.entropy_coef, a lower learn.optim.lr, or a higher learn.loss.clip_high.",
        is_collapse=seen.is_poor,
    )


def _find_gradient_spike(seen: History) -> _Trouble | None:
    norm, ratio = seen[GRAD_NORM], seen.settings.max_grad_ratio
    if norm.newest is None or not norm.median_before or norm.newest <= ratio * norm.median_before:
        return None
    return _Trouble(
        f"the gradient norm is {norm.newest:.3g}, {norm.newest / norm.median_before:.0f} times its running median of "
        f"{norm.median_before:.3g}. Spikes often precede a collapse.",
        f"{_LOWER_LR} or learn.optim.grad_clip, or more learn.optim.warmup_steps.",
    )


def _find_repetition(seen: History) -> _Trouble | None:
    repetition, limit = seen[REPETITION].newest, seen.settings.max_repetition
    if repetition is None or repetition <= limit:
        return None
    return _Trouble(
        f"{repetition:.0%} of the 3-grams within replies repeat earlier ones, more than watch.max_repetition = "
        f"{limit:.0%} ({seen.describe_outcome()}).",
        f"{_LOWER_LR}, a KL penalty (learn.kl.type=loss), or a smaller context.max_response_tokens.",
        is_collapse=seen.is_poor,
    )


def _limit(kind: str, metric: str, limit_of: Callable[[WatchSettings], float], message: str, fix: str) -> Rule:
    """A rule that compares the newest value with a limit; `message` formats both."""

    def find(seen: History) -> _Trouble | None:
        value, limit = seen[metric].newest, limit_of(seen.settings)
        if value is None or value <= limit:
            return None
        return _Trouble(message.format(value=value, limit=limit), fix)

    return Rule(kind, metric, find)


def _find_success_lost(seen: History) -> _Trouble | None:
    name, series, nothing = seen.outcome
    if series.level is None:
        return None
    drop = series.best - series.level
    is_below = series.level < nothing + _LOST_FRACTION * (series.best - nothing)
    if not is_below or drop <= series.noise:
        return None
    when = f"at step {series.best_step}" if series.best_step else "at the start"
    return _Trouble(
        f"the smoothed {name} has fallen to {series.level:.3g} from {series.best:.3g} {when}.",
        "Go back to a checkpoint before it, with a lower learn.optim.lr or learn.kl.type=loss.",
        is_collapse=True,
        since=series.best_step + 1,
    )


def _find_invalid_answers(seen: History) -> _Trouble | None:
    invalid, window = seen[INVALID], seen.settings.window
    if invalid.level is None or invalid.lowest >= _FEW_INVALID or invalid.level <= _MANY_INVALID:
        return None
    return _Trouble(
        f"{invalid.level:.0%} of the answers of the last {window} steps are invalid; it was {invalid.lowest:.0%}: the "
        "policy has lost the answer format.",
        f"{_LOWER_LR}, a stronger rollout.invalid_penalty, or learn.kl.type=loss.",
        is_collapse=True,
        since=max(1, seen.step - window + 1),
    )


RULES = (
    Rule("solved", DEAD_GROUPS, _find_solved, needs_groups=True),
    Rule("dead_signal", DEAD_GROUPS, _find_dead_signal, needs_groups=True),
    Rule("no_rewards", REWARDED, _find_no_rewards, can_return=False),
    Rule("low_spread", SPREAD, _find_low_spread),
    Rule("low_entropy", ENTROPY, _find_low_entropy),
    Rule("gradient_spike", GRAD_NORM, _find_gradient_spike, is_immediate=True),
    Rule("repetition", REPETITION, _find_repetition),
    _limit(
        "clipping",
        CLIPPED,
        lambda watch: watch.max_clip_fraction,
        "the loss clips {value:.0%} of the tokens, more than watch.max_clip_fraction = {limit:.0%}, so most of each "
        "update is lost.",
        f"{_LOWER_LR}, or fewer learn.epochs or learn.minibatches.",
    ),
    _limit(
        "large_kl",
        KL,
        lambda watch: watch.max_kl,
        "one update moves the policy by {value:.3g} nats per token, more than watch.max_kl = {limit:g}: the samples "
        "say little about the policy that is trained.",
        f"{_LOWER_LR}, or fewer learn.epochs or learn.minibatches.",
    ),
    _limit(
        "behavior_gap",
        BEHAVIOR_GAP,
        lambda watch: watch.max_behavior_gap,
        "log-probs of engine and learner differ by {value:.3g} nats per token, more than watch.max_behavior_gap = "
        "{limit:g}: training is off-policy.",
        "Try model.dtype=float32, learn.correction.type=truncated, or fresher weights (sync.max_staleness, "
        "sync.interval).",
    ),
    _limit(
        "large_reference_kl",
        REFERENCE_KL,
        lambda watch: watch.max_reference_kl,
        "the KL to the reference model is {value:.3g} nats per token, more than watch.max_reference_kl = {limit:g}.",
        "Try a higher learn.kl.coef or a lower learn.optim.lr.",
    ),
    Rule("success_lost", SUCCESS, _find_success_lost, is_immediate=True),
    Rule("invalid_answers", INVALID, _find_invalid_answers, is_immediate=True),
)
