"""An OpenAI-compatible endpoint as its settings name it: the key, connections, and whether it has the model.

In: the settings of an endpoint. Out: clients of the `openai` package, the name of the model to ask, and what an
endpoint says against a request as a sentence. It refuses to know what is asked.
"""

from __future__ import annotations

import os
from typing import Any

from turnwise.config.kinds import EndpointSettings
from turnwise.config.settings import require_package
from turnwise.engine.openai_words import explain
from turnwise.errors import ConfigError, TurnwiseError, did_you_mean

_NO_KEY = "none"
"""What is sent where there is no key: many local servers want none, and the client wants something."""
_LOOK_S = 10.0
"""Longest wait for the list of models."""


class Endpoint:
    """`where` is the section that names it, for messages."""

    def __init__(self, settings: EndpointSettings, *, where: str) -> None:
        self.settings = settings
        self.where = where
        self.openai: Any = require_package("openai", extra="openai", asked_by=f"{where}.url")
        self._key = os.environ.get(settings.api_key_env, "").strip()

    def connect(self) -> Any:
        """A client for coroutines, which sends again what an endpoint was too busy for."""
        return self.openai.AsyncOpenAI(
            base_url=self.settings.url,
            api_key=self._key or _NO_KEY,
            timeout=self.settings.timeout_s,
            max_retries=self.settings.max_retries,
        )

    def explain(self, error: Exception) -> TurnwiseError:
        return explain(error, self.openai, self.settings, where=self.where, has_key=bool(self._key))

    def find_model(self) -> str:
        """The model to ask; raises ConfigError where nobody is there, the key is refused, or there is no such model.

        So a user's mistake is told once before anything is played, and not by every episode.
        """
        offered, given, url = self._list_models(), self.settings.model, self.settings.url
        if given is None and len(offered) == 1:
            return offered[0]
        if given is None:
            told = f"it has {', '.join(offered)}" if offered else "it does not say what it has"
            raise ConfigError(f"{self.where}.model: nothing given, and at {url} {told}. Name one.")
        if offered and given not in offered:
            raise ConfigError(f"{self.where}.model: there is no '{given}' at {url}. {did_you_mean(given, offered)}")
        return given

    def _list_models(self) -> list[str]:
        """Their names; none where an endpoint does not tell, as not all do."""
        wait_s, key = min(self.settings.timeout_s, _LOOK_S), self._key or _NO_KEY
        refused = (self.openai.AuthenticationError, self.openai.PermissionDeniedError)
        with self.openai.OpenAI(base_url=self.settings.url, api_key=key, timeout=wait_s, max_retries=1) as client:
            try:
                # As it came: the client's own page of models trusts that it is one.
                answer = client.get("/models", cast_to=object)
            except (self.openai.APIConnectionError, *refused) as error:
                raise ConfigError(str(self.explain(error))) from error
            except (self.openai.OpenAIError, ValueError):
                return []
        listed = answer.get("data") if isinstance(answer, dict) else None
        names = [model.get("id") for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
        return [name for name in names if isinstance(name, str)]
