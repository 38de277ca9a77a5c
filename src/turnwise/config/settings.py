"""The base of every settings class: strict, frozen, unknown keys refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from turnwise.config.schema import TurnwiseSettings

WholeSettings: TypeAlias = "TurnwiseSettings"
"""All settings of a run, for those who speak of another section than their own."""


class Settings(BaseModel):
    """A frozen section of the configuration. Field docs are the strings under the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        """Settings that were changed and do nothing in this combination, each with the rest of the sentence about it.

        `path` is where these settings stand, `run` are all of the run: `idle("window_turns", "with context.window
        'full'")` becomes the note `context.window_turns has no effect with context.window 'full'.`
        """
        return {}

    def idle(self, *names: str, why: str) -> dict[str, str]:
        """Those of them that were changed, for `idle_settings`."""
        return dict.fromkeys(self.changed(*names), f"has no effect {why}")

    def changed(self, *names: str) -> list[str]:
        """Those that differ from their defaults: a default that was written down was not chosen."""
        return [name for name in names if self._is_changed(name)]

    def _is_changed(self, name: str) -> bool:
        value, field = getattr(self, name), type(self).model_fields[name]
        if isinstance(value, Settings) and field.is_required():
            # A section in which a class is chosen is made for the choice, and has no default as a whole.
            return bool(value.changed(*type(value).model_fields))
        return value != field.get_default(call_default_factory=True)
