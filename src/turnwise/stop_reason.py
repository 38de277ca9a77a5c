"""Why a reply, and why an episode, ended: one word for every cause."""

from __future__ import annotations

from enum import StrEnum


class FinishReason(StrEnum):
    STOP = "stop"
    """A stop token was sampled; it is the last token of the completion."""
    LENGTH = "length"


class StopReason(StrEnum):
    """Why an episode ended, in the order in which the causes are checked (see `rollout/limits.py`)."""

    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    WORKFLOW_ERROR = "workflow_error"
    TIMEOUT = "timeout"
    TERMINATED = "terminated"
    ENV_TRUNCATED = "env_truncated"
    MAX_ACTIONS = "max_actions"
    MAX_TURNS = "max_turns"
    CONTEXT_OVERFLOW = "context_overflow"

    @property
    def is_error(self) -> bool:
        return self in _ERRORS

    @property
    def is_truncated(self) -> bool:
        """A budget ended the episode, so its last state still has a value."""
        return not self.is_error and self is not StopReason.TERMINATED


_ERRORS = frozenset((StopReason.ENV_ERROR, StopReason.ENGINE_ERROR, StopReason.WORKFLOW_ERROR, StopReason.TIMEOUT))
