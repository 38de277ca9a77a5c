"""The order of an examination: what each look needs, and what is left out where an earlier one failed.

In: a recipe and overrides. Out: one report with everything that was found. A mistake in one place does not hide one in
another: what cannot be understood or played is left out, and the rest is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnwise.checks.episodes import NUM_EPISODES, Probed, judge_oracle, judge_policy, probe
from turnwise.checks.model import examine_judge, examine_model, examine_names, examine_template
from turnwise.checks.plan import Plan, examine_machine, examine_memory, examine_packages, examine_time, fits, make_plan
from turnwise.checks.settings import find_no_effect
from turnwise.checks.setup import Refusal, examine_world, find_refusals, worlds_by_path
from turnwise.checks.stages import Examination, Finding, Status, fine, guarded, problem, warning
from turnwise.config.load import Mended, load_settings, load_what_can_be
from turnwise.config.schema import LessonSettings, TurnwiseSettings
from turnwise.errors import TurnwiseError
from turnwise.infra.threads import run_async
from turnwise.loop.policies import resolve_model
from turnwise.models.load import warn_of_slow_bfloat16
from turnwise.report.console import Advance
from turnwise.rollout.env_specs import World, settle_length

Phase = Callable[[str], AbstractContextManager[Advance]]
"""Tells a person what is being done."""


def examine(recipe: str, overrides: Sequence[str], phase: Phase) -> Examination:
    """Look at everything that a run of this recipe needs."""
    with phase("looking at packages and the machine"):
        findings = [*guarded("packages", examine_packages), *guarded("machine", examine_machine)]
        findings += guarded("models", examine_names)
    with phase("looking at the settings"):
        mended = load_what_can_be(recipe, overrides)
        findings += [problem("settings", message) for message in mended.problems]
        if mended.settings is None:
            return Examination(recipe=recipe, findings=tuple(findings), numbers={})
        patient = _Patient(mended, mended.settings)
        findings += patient.settings_findings()
    with phase("playing the environments"):
        findings += patient.world_findings()
    with phase("looking at the models"):
        findings += patient.model_findings()
    with phase(f"playing {NUM_EPISODES} episodes with the model") as advance:
        findings += patient.probe_findings(advance)
    return Examination(recipe=recipe, findings=tuple(findings), numbers=patient.numbers)


class _Patient:
    """One setup, and what is known of it so far."""

    def __init__(self, mended: Mended, settings: TurnwiseSettings) -> None:
        self._settings = settings
        # What cannot be settled is among the refusals.
        with suppress(TurnwiseError):
            self._settings = settle_length(settings)
        self._refusals = [r for r in find_refusals(settings) if not _follows_from(r, mended.left_out)]
        self._is_clean = not mended.problems
        self._model_path: str | None = None
        self._plan: Plan | None = None
        self.numbers: dict[str, Any] = {}

    # --- what is written ---------------------------------------------------------------------------------------------

    def settings_findings(self) -> list[Finding]:
        """Contradictions, notes, the workflow and the files of data."""
        settings = self._settings
        found = [problem("settings", refusal.message) for refusal in self._about("settings")]
        if not found and self._is_clean:
            found = [
                fine("settings", f"recipe '{settings.recipe}' is understood, and nothing in it contradicts the rest")
            ]
        found += [warning("settings", note) for note in find_no_effect(settings)]
        found += [problem("data", refusal.message) for refusal in self._about("data")]
        workflow = [problem("workflow", refusal.message) for refusal in self._about("workflow")]
        if not workflow and not self._is_workflow_lost():
            workflow = [fine("workflow", f"'{settings.rollout.workflow}' can be used with its arguments")]
        return found + workflow

    def world_findings(self) -> list[Finding]:
        """An environment that cannot be made is told so; the others are held to their contract."""
        findings: list[Finding] = []
        for path, world in worlds_by_path(self._settings):
            if refused := self._about(path):
                findings += [problem(path, refusal.message) for refusal in refused]
            else:
                findings += guarded(path, lambda path=path, world=world: examine_world(path, world))
        return findings

    # --- models ------------------------------------------------------------------------------------------------------

    def model_findings(self) -> list[Finding]:
        """The model, who judges, the chat template, and what all of it takes in memory."""
        settings = self._settings
        refused = [problem("model", refusal.message) for refusal in self._about("model")]
        findings = refused or guarded("model", lambda: examine_model(settings))
        judge = [problem("reward model", refusal.message) for refusal in self._about("reward model")]
        if slow := warn_of_slow_bfloat16(settings.model):
            findings.append(warning("precision", slow))
        findings += judge or ([] if self._is_judge_lost() else guarded("judge", lambda: examine_judge(settings)))
        if not refused:
            findings += guarded("template", self._examine_template) + guarded("memory", self._examine_memory)
        return findings

    def _examine_template(self) -> list[Finding]:
        if self._playable_worlds() or self._settings.model.path != "tiny":
            self._model_path = resolve_model(self._playable())
            return examine_template(self._settings, self._model_path)
        return [
            fine("template", "not tested: the built-in model is made from an environment's texts, and there is none")
        ]

    def _examine_memory(self) -> list[Finding]:
        self._plan = make_plan(self._settings)
        self.numbers["plan"] = self._plan.to_dict()
        if not fits(self._plan.memory):
            self._model_path = None
        return examine_memory(self._plan.memory, self._plan.peak)

    # --- the probe ---------------------------------------------------------------------------------------------------

    def probe_findings(self, advance: Advance) -> list[Finding]:
        """What the model does where it can be played."""
        worlds, model = self._playable_worlds(), self._model_path
        if not worlds or model is None:
            missing = "the model" if worlds else "the environment"
            return [fine("episodes", f"not played: see the problem with {missing}")]
        return guarded("episodes", lambda: self._probe(model, worlds, advance))

    def _probe(self, model: str, worlds: dict[str, World], advance: Advance) -> list[Finding]:
        has_judge = not self._is_judge_lost() and not self._about("reward model")
        playable = self._playable()
        probed = run_async(probe(playable, model, list(worlds.values()), advance, is_judged=has_judge))
        self._keep_numbers(probed)
        is_taught = isinstance(playable.warm_start, LessonSettings)
        findings = judge_oracle(worlds["env"], probed.oracle) if probed.oracle and "env" in worlds else []
        for path, world in worlds.items():
            has_rewards = has_judge or not world.is_judged
            findings += judge_policy(
                path,
                world,
                probed.policy[world.tag],
                is_taught_first=is_taught,
                is_beginner=playable.model.path == "tiny",
                has_rewards=has_rewards,
            )
        if self._plan is not None and "env" in worlds:
            findings += examine_time(self._plan, probed.policy[worlds["env"].tag])
        return findings

    def _keep_numbers(self, probed: Probed) -> None:
        self.numbers["probe"] = {tag: counted.to_dict() for tag, counted in probed.policy.items()}

    def _playable_worlds(self) -> dict[str, World]:
        """Without the main environment there is nothing to play: the built-in model and the tasks come from it."""
        worlds = {path: world for path, world in worlds_by_path(self._settings) if not self._about(path)}
        return worlds if "env" in worlds else {}

    def _playable(self) -> TurnwiseSettings:
        """The settings without what is broken: its environments are left out, its workflow is the built-in one."""
        raw = self._settings.model_dump()
        for path, world in worlds_by_path(self._settings):
            if path != "env" and self._about(path):
                del raw["mix"][world.tag]
        if self._about("workflow") or self._is_workflow_lost():
            raw["rollout"] |= {"workflow": "environment", "workflow_args": {}}
        if self._about("data"):
            raw["warm_start"], raw["learn"]["ptx"] = {"type": "none"}, {"type": "none"}
        return load_settings(raw)

    # --- what is known -----------------------------------------------------------------------------------------------

    def _about(self, what: str) -> list[Refusal]:
        return [refusal for refusal in self._refusals if refusal.about == what]

    def _is_workflow_lost(self) -> bool:
        return any(refusal.message.startswith("rollout.workflow") for refusal in self._about("settings"))

    def _is_judge_lost(self) -> bool:
        return any("reward.judge" in refusal.message for refusal in self._about("settings"))


def _follows_from(refusal: Refusal, left_out: Sequence[str]) -> bool:
    """Whether it speaks of what was left out for a mistake of its own."""
    return any(path and path in refusal.message for path in left_out)


_STYLES = {Status.OK: "green", Status.WARNING: "bold yellow", Status.PROBLEM: "bold red"}


def show_examination(console: Console, examination: Examination) -> None:
    """One line per finding, problems last where they are seen, and what to do next."""
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for status in Status:
        for finding in examination.having(status):
            lines.add_row(Text(status, style=_STYLES[status]), Text(finding.check), Text(finding.message))
    console.print(lines)
    console.print(_last_words(examination), markup=False, highlight=False, soft_wrap=True)


def _last_words(examination: Examination) -> str:
    problems, warnings = len(examination.having(Status.PROBLEM)), len(examination.having(Status.WARNING))
    counted = f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}."
    return counted if problems else f"{counted} Ready: turnwise train {examination.recipe}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
