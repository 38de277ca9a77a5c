"""Exception classes, all derived from `TurnwiseError`, and `Finding`.

A user's mistake is a `TurnwiseError` with a message that says what was given, what was expected and what to do; the
command line prints it without a traceback. Inside a rollout a failure becomes data on the Trajectory; in learning or
weight sync it stops the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any, Literal, TypeAlias

FindingStage: TypeAlias = Literal["settings", "setup", "model", "episodes", "training", "batch"]
"""When a finding is made: from settings alone, by making parts of the run, by playing, while training, on a batch."""


class TurnwiseError(Exception):
    """Base of every failure that turnwise itself raises."""


class ConfigError(TurnwiseError):
    """The settings are wrong; the message names the config path."""


class TaskError(TurnwiseError):
    """A task cannot be made or is exhausted."""


class EnvError(TurnwiseError):
    """An environment broke its contract or failed while playing."""


class ContextOverflow(TurnwiseError):  # noqa: N818 - the glossary's name
    """The conversation no longer fits into the model's context."""


class EngineError(TurnwiseError):
    """An engine could not serve a request."""


class ModelError(TurnwiseError):
    """A model folder or tokenizer cannot be used."""


class WorkflowError(TurnwiseError):
    """A workflow or an agent broke its contract or failed while playing."""


class MessageError(WorkflowError, ValueError):
    """A message or a tool that a program gave is not one."""


class RewardError(TurnwiseError):
    """A reward is missing, not a number, or not finite."""


class StoreError(TurnwiseError):
    """Stored experience cannot be read or written."""


class LearnError(TurnwiseError):
    """An update cannot be made or went wrong."""


class AuditError(LearnError):
    """A batch is not what was sampled, or an update is not what its settings say; `check` names what found it."""

    def __init__(self, message: str, *, check: str) -> None:
        super().__init__(message)
        self.check = check


class SyncError(TurnwiseError):
    """Weights did not reach the engine."""


class ClusterError(TurnwiseError):
    """A cluster cannot be reached, has no room, or a part of the run there does not start."""


class WorkerLostError(ClusterError):
    """A part of the run that was on another process or machine is gone; a checkpoint goes on without it."""


class ServeError(TurnwiseError):
    """A request over HTTP cannot be served; its client is told `status`, `param` and `code` beside the text."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def kind(self) -> str:
        """Its type in the words of OpenAI's APIs."""
        return "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"


class RunError(TurnwiseError):
    """A run directory cannot be read or written."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The sentence that helps after a wrong name: the closest match, or everything there is."""
    names = sorted(set(known))
    close = get_close_matches(given, names, n=1, cutoff=0.5)
    if close:
        return f"Did you mean '{close[0]}'?"
    return f"Known: {', '.join(names)}." if names else "None are known."


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement about a set-up or a run: the only type for check, plan, doctor, start, health and audit."""

    kind: str
    """Stable word to grep for, such as `cut_replies`."""
    level: Literal["error", "warning", "note"]
    where: str
    """Config path, record or metric."""
    message: str
    """What was found, with its numbers."""
    fix: str = ""
    """What to change."""
    stage: FindingStage = "settings"
    step: int = 0
    """Of the run; 0 before its first step."""
    since: int = 0
    """First step of the trouble; checkpoints before it are unaffected. 0: from `step` on."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Values behind the message, for programs."""

    @property
    def text(self) -> str:
        """The message and what to change, behind the config path unless the message names it."""
        is_path = self.level != "note" and re.fullmatch(r"\w+(\.\w+)+", self.where) is not None
        path = f"{self.where}: " if is_path and self.where not in self.message else ""
        return f"{path}{self.message} {self.fix}".strip()
