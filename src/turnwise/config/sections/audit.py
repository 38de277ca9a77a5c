"""`audit`: whether batches are what was sampled, and what is done where they are not."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from turnwise.config.settings import Settings, WholeSettings


class AuditSettings(Settings):
    is_on: bool = True
    """Check every batch before its update, and the update after it."""
    on_breach: Literal["stop", "quarantine"] = "stop"
    """End the run with a report of the tokens that are wrong; or leave their groups out and go on. What is wrong with
    an update itself always ends it."""
    rescored_tokens: int = Field(default=512, ge=0)
    """Tokens of each batch that the learner scores once more before the update, in whole rows and at least one; 0:
    none."""
    max_gap: PositiveFloat | Literal["auto"] = "auto"
    """Largest mean distance, in nats per token, between recorded log-probs and the learner's at the same version. auto:
    1e-4 with engine.type local in float32, 0.02 with other engines, 0.2 with model.dtype bfloat16."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.is_on:
            return {}
        return self.idle("on_breach", "rescored_tokens", "max_gap", why=f"with {path}.is_on false")
