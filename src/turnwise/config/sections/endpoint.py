"""Where an OpenAI-compatible endpoint is, and how it is asked: for `engine` and for `warm_start`."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from turnwise.config.settings import Settings

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EndpointSettings(Settings):
    url: str
    """Its base URL, such as `https://api.openai.com/v1` or `http://127.0.0.1:8000/v1`."""
    model: str | None = Field(default=None, min_length=1)
    """Which of its models; null: the only one that it has."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; the key itself is never written down. Unset: none is sent."""
    max_concurrent: PositiveInt = 16
    """Most requests at the same time; further ones wait."""
    timeout_s: PositiveFloat = 120.0
    """Longest time for one reply, all attempts together."""
    max_retries: NonNegativeInt = 4
    """How often a request is sent again when the endpoint is busy, fails or cannot be reached; each waits longer."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, given: str) -> str:
        try:
            parts = urlsplit(given)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address, parts = False, urlsplit("")
        if not is_address:
            raise ValueError(f"'{given}' given; expected a base URL such as http://127.0.0.1:8000/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            # It may hold a key, so it is not repeated here.
            raise ValueError("a URL with more than an address and a path given; a key belongs into the environment")
        if parts.path.rstrip("/").endswith("/chat/completions"):
            raise ValueError(f"'{given}' given; expected what stands before /chat/completions")
        return given.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _check_variable(cls, given: str) -> str:
        if not _VARIABLE.fullmatch(given):
            # It may be the key itself, so it is not repeated here.
            raise ValueError(
                "no name of an environment variable given; expected one such as OPENAI_API_KEY, which holds the key"
            )
        return given
