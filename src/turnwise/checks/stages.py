"""`@check` registers a check; `Subject` is the set-up that checks examine; `run_checks` runs those of a stage.

A check is a function of a `Subject` that yields findings, or raises the error that a run would raise. `turnwise check`,
`plan`, `doctor` and the start of a run call the same checks, so the same fact has the same text everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias

from rich.console import Console

from turnwise.config.schema import TurnwiseSettings
from turnwise.config.trust import UntrustedCodeError
from turnwise.envs.base import BaseEnv
from turnwise.envs.safe_calls import close_env
from turnwise.errors import Finding, FindingStage, TurnwiseError
from turnwise.infra.untrusted import format_error
from turnwise.report.console import print_notice
from turnwise.report.run_dir import RunDirectory
from turnwise.rollout.env_specs import World, all_envs, resolve_total_steps

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from turnwise.loop.build import Words
    from turnwise.protocols import ChatTemplate

CheckFunction: TypeAlias = "Callable[[Subject], Iterable[Finding] | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A registered check."""

    find: CheckFunction
    where: str
    """What an error that it raises is about."""
    needs: tuple[str, ...]
    """Config paths that must be free of errors."""

    @property
    def name(self) -> str:
        return self.find.__name__


CHECKS: dict[FindingStage, list[Check]] = {}
"""All checks, by stage, in the order in which they run."""
_MODULES: dict[FindingStage, str] = {
    "settings": "turnwise.checks.settings",
    "setup": "turnwise.checks.setup",
    "model": "turnwise.checks.model",
}
"""The module with our checks of a stage; it is imported when the stage runs."""


def check(
    stage: FindingStage, *, where: str = "settings", needs: Sequence[str] = ()
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check. It yields findings, or raises a `TurnwiseError`, which becomes a finding about `where`.

    It is skipped if an earlier check found an error about one of `needs`.
    """

    def register(find: CheckFunction) -> CheckFunction:
        CHECKS.setdefault(stage, []).append(Check(find=find, where=where, needs=tuple(needs)))
        return find

    return register


class Subject:
    """A set-up under examination. Makes each environment, tokenizer and model folder once, and closes them at exit."""

    def __init__(self, settings: TurnwiseSettings, *, template: ChatTemplate | None = None) -> None:
        """`template` is given if it is loaded already."""
        self.settings = settings
        self._template = template
        self.findings: list[Finding] = []
        self.length_error: TurnwiseError | None = None
        """Why the length of the run is unknown."""
        self._envs: dict[tuple[str, str], BaseEnv] = {}
        self._opened = ExitStack()
        try:
            self.settings = resolve_total_steps(settings)
        except UntrustedCodeError:
            pass
        except TurnwiseError as error:
            self.length_error = error

    def __enter__(self) -> Subject:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def envs_by_path(self) -> dict[str, World]:
        """Every environment by its config path."""
        return envs_by_path(self.settings)

    def make_env(self, path: str, split: Literal["train", "eval"]) -> BaseEnv:
        """The environment at a config path, not reset."""
        if (path, split) not in self._envs:
            env = self._envs[path, split] = self.envs_by_path[path].make(split)
            self._opened.callback(close_env, env)
        return self._envs[path, split]

    @cached_property
    def local_model(self) -> str | None:
        """The folder of a pretrained model; None for the built-in model, and if it is not on this machine."""
        from turnwise.models.resolve import find_local  # noqa: PLC0415 - it loads torch

        return None if self.settings.model.path == "tiny" else find_local(self.settings.model.path)

    @cached_property
    def model_folder(self) -> str:
        """The model's folder, made, converted or fetched if necessary."""
        from turnwise.loop.policies import resolve_model  # noqa: PLC0415 - it loads torch

        return self.local_model or resolve_model(self.settings)

    @cached_property
    def model_config(self) -> PreTrainedConfig | None:
        """The model's shape; None if it is not on this machine."""
        from turnwise.models.resolve import read_shape  # noqa: PLC0415 - it loads torch

        return read_shape(self.settings)

    @cached_property
    def words(self) -> Words:
        """The tokenizer and the chat template."""
        from turnwise.loop.build import load_words  # noqa: PLC0415 - it loads torch

        return load_words(self.settings, self.model_folder)

    @property
    def template(self) -> ChatTemplate:
        return self._template or self.words.template

    def has_errors(self, path: str = "") -> bool:
        """Whether a check found an error about a config path or below it."""
        return any(
            finding.level == "error" and f"{finding.where}.".startswith(f"{path}." if path else "")
            for finding in self.findings
        )


def envs_by_path(settings: TurnwiseSettings) -> dict[str, World]:
    """Every environment of a run by its config path."""
    main, *mixed = all_envs(settings)
    return {"env": main, **{f"mix.{world.tag}.env": world for world in mixed}}


def run_checks(subject: Subject, stage: FindingStage) -> list[Finding]:
    """Run the checks of a stage; add what they find to the subject and return it."""
    before = len(subject.findings)
    if stage in _MODULES:
        import_module(_MODULES[stage])
    for each in CHECKS.get(stage, ()):
        if any(subject.has_errors(path) for path in each.needs):
            continue
        try:
            for finding in each.find(subject) or ():
                subject.findings.append(replace(finding, stage=stage))
        except UntrustedCodeError:
            # What was not imported is not judged.
            continue
        except TurnwiseError as error:
            subject.findings.append(replace(fail(each.where, str(error), kind=each.name), stage=stage))
    return subject.findings[before:]


def report_findings(found: Sequence[Finding], directory: RunDirectory, console: Console) -> None:
    """Print findings of a run and add them to its `findings.jsonl`."""
    for finding in found:
        directory.append_finding(finding)
        step = f"step {finding.step}, " if finding.stage == "training" else ""
        print_notice(console, f"{step}{finding.kind}: {finding.text}")


def ok(where: str, message: str) -> Finding:
    """A check that passed: a line of `turnwise doctor`."""
    return _finding("note", where, message)


def warn(where: str, message: str, fix: str = "", *, kind: str = "") -> Finding:
    """Something that runs and is probably not meant."""
    return _finding("warning", where, message, fix, kind)


def fail(where: str, message: str, fix: str = "", *, kind: str = "") -> Finding:
    """A reason why a run cannot start, or cannot learn."""
    return _finding("error", where, message, fix, kind)


def _finding(
    level: Literal["error", "warning", "note"], where: str, message: str, fix: str = "", kind: str = ""
) -> Finding:
    """The kind is by default the last key of a config path, or the first word of `where`."""
    kind = kind or where.partition(" ")[0].rpartition(".")[2]
    return Finding(kind=kind, level=level, where=where, message=message, fix=fix, stage="setup")


def run_check(where: str, find: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What a function finds; an exception is a finding itself, so that the other checks still run."""
    try:
        return list(find())
    except TurnwiseError as error:
        return [fail(where, str(error))]
    except Exception as error:  # noqa: BLE001 - packages and a user's code may raise anything
        return [fail(where, f"cannot be checked: {format_error(error)}")]
