"""`turnwise doctor`: every check of a recipe, the environments and the model in one report.

An error in one place does not hide another: what cannot be loaded or played is left out, and the rest is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from turnwise.checks.episodes import NUM_EPISODES, check_expert_probe, check_policy_probe, probe
from turnwise.checks.model import check_scorer, check_template, describe_model, describe_models
from turnwise.checks.plan import Plan, check_machine, check_memory, check_packages, check_time, fits, make_plan
from turnwise.checks.setup import check_environment, check_setup
from turnwise.checks.stages import Subject, fail, ok, run_check, run_checks
from turnwise.config.load import PartialSettings, load_partial_settings, load_settings
from turnwise.config.schema import ImitationSettings, TurnwiseSettings
from turnwise.errors import Finding
from turnwise.infra.threads import run_async
from turnwise.report.console import Advance
from turnwise.report.document import Document, Table
from turnwise.rollout.env_specs import World

Phase = Callable[[str], AbstractContextManager[Advance]]
"""Shows what is being done."""
_STATUS = {"note": "ok", "warning": "warning", "error": "problem"}
"""The word for a level in the report, the worst last, where it is seen."""
_STYLES = {"note": "green", "warning": "bold yellow", "error": "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    recipe: str
    findings: tuple[Finding, ...]
    numbers: Mapping[str, Any]
    """The probe and the plan, for programs."""

    @property
    def ok(self) -> bool:
        return not self.having("error")

    def having(self, level: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == level]

    def to_dict(self) -> dict[str, Any]:
        rows = [{"check": label(each), "status": _STATUS[each.level], "message": each.text} for each in self.findings]
        return {"recipe": self.recipe, "ok": self.ok, "findings": rows, **self.numbers}

    def to_document(self) -> Document:
        """One line per finding, and what to do next."""
        rows = [
            (Text(status, style=_STYLES[level]), label(each), each.text)
            for level, status in _STATUS.items()
            for each in self.having(level)
        ]
        counts = ((len(self.having("error")), "problem"), (len(self.having("warning")), "warning"))
        counted = ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts)
        ready = f" Ready: turnwise train {self.recipe}" if self.ok else ""
        return Document(
            tables=[Table(("status", "check", "message"), rows)], notes=[f"{counted}.{ready}"], data=self.to_dict()
        )


def label(finding: Finding) -> str:
    """What a line of the report is about."""
    return "settings" if finding.stage == "settings" else finding.where


def run_doctor(recipe: str, overrides: Sequence[str], phase: Phase) -> DoctorReport:
    """Check everything that a run of this recipe needs."""
    with phase("checking packages and the machine"):
        findings = [*run_check("packages", check_packages), *run_check("machine", check_machine)]
        findings += run_check("models", describe_models)
    with phase("checking the settings"):
        mended = load_partial_settings(recipe, overrides)
        findings += [fail("settings", message) for message in mended.problems]
    if mended.settings is None:
        return DoctorReport(recipe=recipe, findings=tuple(findings), numbers={})
    with Subject(mended.settings) as subject:
        doctor = _Doctor(subject, mended)
        with phase("checking the set-up"):
            findings += doctor.check_settings()
        with phase("checking the environments"):
            findings += doctor.check_environments()
        with phase("checking the models"):
            findings += doctor.check_models()
        with phase(f"playing {NUM_EPISODES} episodes with the model") as advance:
            findings += doctor.check_probe(advance)
    return DoctorReport(recipe=recipe, findings=tuple(findings), numbers=doctor.numbers)


class _Doctor:
    """One set-up, and what is known of it so far."""

    def __init__(self, subject: Subject, mended: PartialSettings) -> None:
        self._subject = subject
        self._settings = subject.settings
        self._mended = mended
        self._plan: Plan | None = None
        self._can_probe = False
        self.numbers: dict[str, Any] = {}

    def check_settings(self) -> list[Finding]:
        """Contradictions, warnings, files of data and the workflow."""
        left_out, subject = self._mended.left_out, self._subject
        check_setup(subject)
        # What follows from a setting that was left out is no error of its own.
        subject.findings[:] = [
            each for each in subject.findings if not any(path and path in each.text for path in left_out)
        ]
        found = [each for each in subject.findings if label(each) == "settings"]
        if not self._mended.problems and not any(each.level == "error" for each in found):
            found.insert(0, ok("settings", f"recipe '{self._settings.recipe}' is valid"))
        found += self._about("data")
        if self._has_workflow():
            return [*found, ok("workflow", f"'{self._settings.rollout.workflow}' can be used with its arguments")]
        return [*found, *self._about("workflow")]

    def check_environments(self) -> list[Finding]:
        """One that cannot be made is reported as such; the others are checked."""
        found: list[Finding] = []
        for path, world in self._subject.envs_by_path.items():
            found += self._about(path) or run_check(path, lambda path=path, world=world: check_environment(path, world))
        return found

    def check_models(self) -> list[Finding]:
        """The model, the reward scorer, the chat template, and the memory of all of them."""
        subject, broken = self._subject, self._about("model")
        found = broken or run_check("model", lambda: describe_model(subject))
        found += self._about("reward model")
        if self._has_scorer():
            found += run_check("judge", lambda: check_scorer(self._settings))
        if broken:
            return found
        if self._settings.model.path == "tiny" and not self._playable_envs():
            found.append(ok("template", "not tested: the built-in model is made from an environment's texts"))
        else:
            found += run_check("template", self._check_template)
        return found + run_check("memory", self._check_memory)

    def _check_template(self) -> list[Finding]:
        # The model is made from what can be played.
        with Subject(self._playable()) as subject:
            lines = check_template(subject)
            self._can_probe = True
            self._model_folder = subject.model_folder
            return [*lines, *run_checks(subject, "model")]

    def _check_memory(self) -> list[Finding]:
        self._plan = make_plan(self._settings)
        self.numbers["plan"] = self._plan.to_dict()
        self._can_probe = self._can_probe and fits(self._plan.memory)
        return check_memory(self._plan.memory, self._plan.peak)

    def check_probe(self, advance: Advance) -> list[Finding]:
        """What the model does in the environments that can be played."""
        envs = self._playable_envs()
        if not envs or not self._can_probe:
            missing = "the model" if envs else "the environment"
            return [ok("episodes", f"not played: see the problem with {missing}")]
        return run_check("episodes", lambda: self._probe(envs, advance))

    def _probe(self, envs: dict[str, World], advance: Advance) -> list[Finding]:
        has_scorer = self._has_scorer()
        playable = self._playable()
        probed = run_async(probe(playable, self._model_folder, list(envs.values()), advance, is_judged=has_scorer))
        self.numbers["probe"] = {tag: stats.to_dict() for tag, stats in probed.policy.items()}
        found = check_expert_probe(envs["env"], probed.oracle) if probed.oracle is not None else []
        for path, world in envs.items():
            found += check_policy_probe(
                path,
                world,
                probed.policy[world.tag],
                playable,
                is_taught_first=isinstance(playable.warm_start, ImitationSettings),
                is_beginner=playable.model.path == "tiny",
                has_rewards=has_scorer or not world.is_judged,
            )
        return found + (check_time(self._plan, probed.policy[envs["env"].tag]) if self._plan is not None else [])

    def _playable_envs(self) -> dict[str, World]:
        """Empty without the main environment: the built-in model and the tasks come from it."""
        envs = {path: world for path, world in self._subject.envs_by_path.items() if not self._about(path)}
        return envs if "env" in envs else {}

    def _playable(self) -> TurnwiseSettings:
        """The settings without what is broken: such environments are left out, the workflow is the built-in one."""
        raw = self._settings.model_dump()
        for path, world in self._subject.envs_by_path.items():
            if path != "env" and self._about(path):
                del raw["mix"][world.tag]
        if not self._has_workflow():
            raw["rollout"] |= {"workflow": "environment", "workflow_args": {}}
        if self._about("data"):
            raw["warm_start"], raw["learn"]["ptx"] = {"type": "none"}, {"type": "none"}
        return load_settings(raw)

    def _about(self, where: str) -> list[Finding]:
        return [each for each in self._subject.findings if each.level == "error" and each.where == where]

    def _has_workflow(self) -> bool:
        return not self._about("workflow") and not self._subject.has_errors("rollout.workflow")

    def _has_scorer(self) -> bool:
        return not self._about("reward model") and not self._subject.has_errors("reward.judge")
