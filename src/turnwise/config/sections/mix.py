"""`mix`: further worlds in the same rollout."""

from __future__ import annotations

from pydantic import PositiveInt

from turnwise.config.sections.context import ContextSettings
from turnwise.config.sections.env import EnvSettings
from turnwise.config.settings import Settings


class MixedEnv(Settings):
    """A further environment whose groups play in the same rollout and are learnt from in the same batch."""

    groups: PositiveInt = 4
    """Its tasks per rollout, beside rollout.groups."""
    max_turns: PositiveInt = 1
    """Most replies of the model in one of its episodes."""
    max_actions: PositiveInt | None = None
    """Most environment actions in one of its episodes."""
    env: EnvSettings
    """Which world, with its own settings."""
    context: ContextSettings = ContextSettings()
    """How the model is talked to there."""


class MixSettings(Settings):
    """Environments beside `env`, each under a tag of its own: `mix: {questions: {groups: 4, env: {…}}}`."""

    def by_tag(self) -> dict[str, MixedEnv]:
        return {tag: getattr(self, tag) for tag in type(self).model_fields}
