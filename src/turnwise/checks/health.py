"""The metrics of each step come in; findings go out, where a run shows signs of collapse.

Runs collapse silently and in a known order: the spread of returns inside groups dies, then entropy, then gradients
spike and replies repeat themselves, and success goes last. Each sign is measured against the run's own start where that
is possible, must last, and is told once when it begins, once more if it turns into a collapse, and again only after it
was gone. A sign alone is a warning; it is a collapse where success (or the return, in a world without success) does not
stand. Nothing here is random and everything follows from the metrics, so a resumed run looks at its recorded metrics
again and is where it was. Refuses to know models, files and what is done about a finding.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from statistics import fmean, median
from typing import Any

from rich.console import Console

from turnwise.config.component import CREDITS
from turnwise.config.schema import TurnwiseSettings, WatchSettings
from turnwise.errors import Finding
from turnwise.report.console import print_notice
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
"""Below this, and where nobody says what a success is, the return says more."""
_STANDING_SHARE = 0.8
"""Of the way to the best outcome: what still stands."""


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


class Standing(Enum):
    WELL = auto()
    """Nearly everything succeeds."""
    HOLDING = auto()
    """What was gained is still there."""
    POOR = auto()
    """A good part of it is gone, or nothing was ever gained."""


class History:
    """All that rules may ask about a run."""

    def __init__(self, settings: WatchSettings, *, needs_groups: bool) -> None:
        self.settings = settings
        self.step = 0
        self.num_dead_steps = 0
        """Newest steps in a row without any signal."""
        self.num_unpaid_steps = 0
        """Steps so far in which every reward was zero."""
        self.was_paid = False
        """Whether any reward was ever something else."""
        self._needs_groups = needs_groups
        self._series = {name: Series(settings.window) for name in _WATCHED}

    def __getitem__(self, name: str) -> Series:
        return self._series[name]

    def add(self, step: int, metrics: Metrics) -> None:
        self.step = step
        is_dead = self._needs_groups and metrics.get(DEAD_GROUPS) == 1
        self.num_dead_steps = self.num_dead_steps + 1 if is_dead else 0
        self.num_unpaid_steps += metrics.get(REWARDED) == 0
        self.was_paid = self.was_paid or (metrics.get(REWARDED) or 0) > 0
        for name, series in self._series.items():
            # Without a signal there is next to no gradient, which says nothing about the usual size of one.
            series.add(step, None if is_dead and name == GRAD_NORM else metrics.get(name))

    @property
    def outcome(self) -> tuple[str, Series, float]:
        """What the run is for: its name, its numbers, and what counts as nothing."""
        success, returned = self[SUCCESS], self[RETURN]
        if success.best >= _SOME_SUCCESS or (success.is_measured and returned.level is None):
            return "success", success, 0.0
        return "return", returned, returned.start_level

    @property
    def standing(self) -> Standing:
        _, series, nothing = self.outcome
        if series.level is None:
            return Standing.HOLDING
        gain = series.best - nothing
        # A return always moves a little; success is counted from zero and needs no such margin.
        has_gained = gain > (series.noise if series is self[RETURN] else 0.0)
        if not has_gained or series.level < nothing + _STANDING_SHARE * gain:
            return Standing.POOR
        is_high = series is self[SUCCESS] and series.level >= _HIGH_SUCCESS
        return Standing.WELL if is_high else Standing.HOLDING

    @property
    def is_poor(self) -> bool:
        return self.standing is Standing.POOR

    def describe_outcome(self) -> str:
        name, series, _ = self.outcome
        if series.level is None:
            return f"no smoothed {name} yet"
        return f"{name} {series.level:.3g}, at its best {series.best:.3g}"


_MIN_ENTROPY_SHARE = 0.05
_FEW_INVALID, _MANY_INVALID = 0.1, 0.5
_LOST_SHARE = 0.5
"""Of the way to the best outcome: with less than this the run has lost it."""


class CollapseWatch:
    """Looks at the metrics of every step, in order."""

    def __init__(self, settings: WatchSettings, *, needs_groups: bool) -> None:
        """`needs_groups` says whether credit compares siblings, so that groups without spread teach nothing."""
        self._seen = History(settings, needs_groups=needs_groups)
        kinds = (_GROUP_KINDS if needs_groups else {}) | _KINDS
        self._courses = {
            kind: _Course(kind, rule, hold=settings.patience if is_slow else 1, patience=settings.patience)
            for kind, (rule, is_slow) in kinds.items()
        }

    def look(self, step: int, metrics: Metrics) -> list[Finding]:
        """What begins, comes back or turns into a collapse with this step."""
        self._seen.add(step, metrics)
        return [finding for course in self._courses.values() if (finding := course.follow(self._seen)) is not None]

    def return_points(self) -> set[int]:
        """The steps that a finding, now or later, can ask to go back to: `since - 1` of whatever may be found."""
        step, window = self._seen.step, self._seen.settings.window
        bests = {self._seen[name].best_step for name in (SUCCESS, RETURN)}
        courses = [course for kind, course in self._courses.items() if kind not in _NEVER_BETTER_BEFORE]
        begun = {course.since - 1 for course in courses if course.since is not None}
        return {*range(step - window, step + 1), *bests, *begun}


# --- the course of a trouble ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What a rule sees at a step."""

    message: str
    is_collapse: bool = False
    since: int | None = None
    """Where the rule itself knows when it began."""


_Rule = Callable[[History], _Trouble | None]


class _Course:
    """One kind of trouble over the steps: since when it is there and what was said of it."""

    def __init__(self, kind: str, rule: _Rule, *, hold: int, patience: int) -> None:
        self._kind = kind
        self._rule = rule
        self._hold = hold
        self._patience = patience
        self.since: int | None = None
        self._num_held = 0
        self._num_clear = 0
        self._is_told = False
        self._is_told_as_collapse = False

    def follow(self, seen: History) -> Finding | None:
        trouble = self._rule(seen)
        if trouble is None:
            self._clear()
            return None
        self._num_clear = 0
        self._num_held += 1
        if self.since is None:
            self.since = seen.step
        is_news = not self._is_told or (trouble.is_collapse and not self._is_told_as_collapse)
        if self._num_held < self._hold or not is_news:
            return None
        self._is_told, self._is_told_as_collapse = True, trouble.is_collapse
        since = self.since if trouble.since is None else trouble.since
        return Finding(
            step=seen.step,
            kind=self._kind,
            since=since,
            is_collapse=trouble.is_collapse,
            message=trouble.message,
        )

    def _clear(self) -> None:
        self._num_held = 0
        self._num_clear += 1
        # What was told is over only after a while; what was not told must be unbroken.
        if not self._is_told or self._num_clear >= self._patience:
            self.since, self._is_told, self._is_told_as_collapse = None, False, False


# --- the rules: what is seen comes in, a trouble or nothing goes out ------------------------------------------------


def _find_dead_signal(seen: History) -> _Trouble | None:
    if seen.num_dead_steps == 0 or seen.standing is Standing.WELL:
        return None
    # A signal that was never there cannot collapse: the first success may still come.
    was_alive = seen[DEAD_GROUPS].lowest < 1
    return _Trouble(
        f"all siblings of every group earn the same for {seen.num_dead_steps} steps ({seen.describe_outcome()}), so "
        "group-relative advantages are zero and nothing is learnt. Try easier or harder tasks (env), a larger "
        "rollout.group_size, a higher rollout.temperature, or credit with a critic (credit.type).",
        is_collapse=was_alive and seen.is_poor,
    )


def _find_no_rewards(seen: History) -> _Trouble | None:
    if seen.was_paid or seen.num_unpaid_steps == 0:
        return None
    return _Trouble(
        f"every reward of the first {seen.num_unpaid_steps} steps was zero: no episode has earned anything, so there "
        "is nothing to learn from but penalties. Try easier tasks (env), a warm start (warm_start.type=oracle), "
        "longer episodes (rollout.max_turns), or a judge that fills in (reward.judge.beside_env=fill)."
    )


def _find_solved(seen: History) -> _Trouble | None:
    if seen.num_dead_steps == 0 or seen.standing is not Standing.WELL:
        return None
    return _Trouble(
        f"the tasks are solved ({seen.describe_outcome()}): all siblings of every group earn the same, so there is "
        "nothing left to learn from them. End the run here, or give it harder tasks (env)."
    )


def _find_low_spread(seen: History) -> _Trouble | None:
    spread, share = seen[SPREAD], seen.settings.min_spread_share
    if spread.newest is None or not spread.start or spread.newest >= share * spread.start:
        return None
    if seen.standing is Standing.WELL or seen.num_dead_steps >= seen.settings.patience:  # told as a dead signal
        return None
    return _Trouble(
        f"the spread of returns inside groups is {spread.newest:.3g}, below {share:.0%} of the {spread.start:.3g} it "
        f"began with ({seen.describe_outcome()}). It falls before success does. Try a lower learn.optim.lr, a higher "
        "learn.entropy_coef or rollout.temperature, or tasks that are neither always nor never solved (env).",
        is_collapse=seen.is_poor,
    )


def _find_low_entropy(seen: History) -> _Trouble | None:
    entropy = seen[ENTROPY]
    if entropy.newest is None or not entropy.start or entropy.newest >= _MIN_ENTROPY_SHARE * entropy.start:
        return None
    if seen.standing is Standing.WELL:
        return None
    return _Trouble(
        f"entropy is {entropy.newest:.3g}, below {_MIN_ENTROPY_SHARE:.0%} of the {entropy.start:.3g} it began with, "
        f"and the tasks are not solved ({seen.describe_outcome()}): the policy has stopped exploring. Try a higher "
        "learn.entropy_coef, a lower learn.optim.lr, or a higher learn.loss.clip_high.",
        is_collapse=seen.is_poor,
    )


def _find_gradient_spike(seen: History) -> _Trouble | None:
    norm, ratio = seen[GRAD_NORM], seen.settings.max_grad_ratio
    if norm.newest is None or not norm.median_before or norm.newest <= ratio * norm.median_before:
        return None
    return _Trouble(
        f"the gradient norm is {norm.newest:.3g}, {norm.newest / norm.median_before:.0f} times its running median of "
        f"{norm.median_before:.3g}. Spikes often come before a collapse that is not undone. Try a lower "
        "learn.optim.lr or learn.optim.grad_clip, or more learn.optim.warmup_steps."
    )


def _find_repetition(seen: History) -> _Trouble | None:
    repetition, limit = seen[REPETITION].newest, seen.settings.max_repetition
    if repetition is None or repetition <= limit:
        return None
    return _Trouble(
        f"{repetition:.0%} of the 3-grams inside replies repeat earlier ones, more than watch.max_repetition = "
        f"{limit:.0%} ({seen.describe_outcome()}): the text is running in circles. Try a lower learn.optim.lr, a "
        "penalty on the distance to the reference (learn.kl.type=loss), or a shorter context.max_response_tokens.",
        is_collapse=seen.is_poor,
    )


def _find_clipping(seen: History) -> _Trouble | None:
    clipped, limit = seen[CLIPPED].newest, seen.settings.max_clip_fraction
    if clipped is None or clipped <= limit:
        return None
    return _Trouble(
        f"the loss clips {clipped:.0%} of the tokens, more than watch.max_clip_fraction = {limit:.0%}: most of each "
        "update is thrown away. Try a lower learn.optim.lr, or fewer learn.epochs or learn.minibatches."
    )


def _find_large_kl(seen: History) -> _Trouble | None:
    kl, limit = seen[KL].newest, seen.settings.max_kl
    if kl is None or kl <= limit:
        return None
    return _Trouble(
        f"one update moves the policy by {kl:.3g} nats per token, more than watch.max_kl = {limit:g}: what was sampled "
        "says little about the policy that is trained. Try a lower learn.optim.lr, or fewer learn.epochs or "
        "learn.minibatches."
    )


def _find_behavior_gap(seen: History) -> _Trouble | None:
    gap, limit = seen[BEHAVIOR_GAP].newest, seen.settings.max_behavior_gap
    if gap is None or gap <= limit:
        return None
    return _Trouble(
        f"engine and learner differ by {gap:.3g} nats per token about what was sampled, more than "
        f"watch.max_behavior_gap = {limit:g}: what is learnt from is not what the learner would have said. Try "
        "model.dtype=float32, learn.correction.type=truncated, or fresher weights (sync.max_staleness, sync.interval)."
    )


def _find_large_reference_kl(seen: History) -> _Trouble | None:
    kl, limit = seen[REFERENCE_KL].newest, seen.settings.max_reference_kl
    if kl is None or kl <= limit:
        return None
    return _Trouble(
        f"the policy is {kl:.3g} nats per token away from its reference, more than watch.max_reference_kl = {limit:g}. "
        "Try a higher learn.kl.coef or a lower learn.optim.lr."
    )


def _find_success_lost(seen: History) -> _Trouble | None:
    name, series, nothing = seen.outcome
    if series.level is None:
        return None
    drop = series.best - series.level
    is_below = series.level < nothing + _LOST_SHARE * (series.best - nothing)
    if not is_below or drop <= series.noise:
        return None
    when = f"at step {series.best_step}" if series.best_step else "at the start"
    return _Trouble(
        f"the smoothed {name} has fallen to {series.level:.3g} from {series.best:.3g} {when}. "
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
        "policy has lost the answer format. Try a lower learn.optim.lr, a stronger rollout.invalid_penalty, or "
        "learn.kl.type=loss.",
        is_collapse=True,
        since=max(1, seen.step - window + 1),
    )


_NEVER_BETTER_BEFORE = ("no_rewards",)
"""What is there from the start gives no reason to go back."""
_SLOW, _AT_ONCE = True, False
"""A sign of single steps must last for `patience` of them; one that is smoothed already, or is an event, need not."""
_GROUP_KINDS: dict[str, tuple[_Rule, bool]] = {
    "solved": (_find_solved, _SLOW),
    "dead_signal": (_find_dead_signal, _SLOW),
}
_KINDS: dict[str, tuple[_Rule, bool]] = {
    "no_rewards": (_find_no_rewards, _SLOW),
    "low_spread": (_find_low_spread, _SLOW),
    "low_entropy": (_find_low_entropy, _SLOW),
    "gradient_spike": (_find_gradient_spike, _AT_ONCE),
    "repetition": (_find_repetition, _SLOW),
    "clipping": (_find_clipping, _SLOW),
    "large_kl": (_find_large_kl, _SLOW),
    "behavior_gap": (_find_behavior_gap, _SLOW),
    "large_reference_kl": (_find_large_reference_kl, _SLOW),
    "success_lost": (_find_success_lost, _AT_ONCE),
    "invalid_answers": (_find_invalid_answers, _AT_ONCE),
}


class CollapsedError(Exception):
    """Training must not go on; raised where `watch.stop` is 'collapse'."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class Watcher:
    """Looks at every step of one run. A resumed run's recorded steps are looked at again first."""

    def __init__(self, settings: TurnwiseSettings, directory: RunDirectory, console: Console) -> None:
        credit: Any = settings.credit
        rule: Any = CREDITS.get_target(credit.type)
        self.watch = CollapseWatch(settings.watch, needs_groups=rule.needs_groups)
        self._should_stop = settings.watch.stop == "collapse"
        self._directory = directory
        self._console = console
        for row in directory.read_metrics():
            self.watch.look(int(row["step"]), row)

    def look(self, step: int, metrics: Metrics) -> list[Finding]:
        """Tell what is found: on the console and in the run directory."""
        found = self.watch.look(step, metrics)
        for finding in found:
            self._directory.append_finding(finding)
            print_notice(self._console, f"step {step}, {finding.kind}: {finding.message}")
        return found

    def check(self, found: list[Finding]) -> None:
        """Raise where one of them is a collapse and the run is to stop for it."""
        collapses = [finding for finding in found if finding.is_collapse]
        if self._should_stop and collapses:
            # Of several, the one that began first: what was saved before it is sound in every respect.
            raise CollapsedError(min(collapses, key=lambda finding: finding.since))
