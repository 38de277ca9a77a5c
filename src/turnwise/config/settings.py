"""The base of every settings class: strict, frozen, unknown keys refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen section of the configuration. Field docs are the strings under the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def idle_settings(self) -> dict[str, str]:
        """Settings that were changed and do nothing in this combination, each with the reason: `path is set`."""
        return {}

    def changed(self, *names: str) -> list[str]:
        """Those that differ from their defaults: a default that was written down was not chosen."""
        fields = type(self).model_fields
        return [name for name in names if getattr(self, name) != fields[name].get_default(call_default_factory=True)]
