"""The metrics of each step come in; findings go out, where a run shows signs of collapse.

Runs collapse silently and in a known order: the spread of returns inside groups dies, then entropy, then gradients
spike and replies repeat themselves, and success goes last. Each sign is measured against the run's own start where that
is possible, must last, and is told once when it begins, once more if it turns into a collapse, and again only after it
was gone. A sign alone is a warning; it is a collapse where success (or the return, in a world without success) does not
stand. Nothing here is random and everything follows from the metrics, so a resumed run looks at its recorded metrics
again and is where it was. Refuses to know models, files and what is done about a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turnwise.config.schema import WatchSettings
from turnwise.errors import Finding
from turnwise.report.history import (
    BEHAVIOR_GAP,
    CLIPPED,
    DEAD_GROUPS,
    ENTROPY,
    GRAD_NORM,
    INVALID,
    KL,
    REFERENCE_KL,
    REPETITION,
    RETURN,
    SPREAD,
    SUCCESS,
    History,
    Standing,
)
from turnwise.types import Metrics

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
