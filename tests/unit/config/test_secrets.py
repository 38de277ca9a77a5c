"""Secrets are in no file of a run, and come back from the environment."""

from __future__ import annotations

import pytest
import yaml

from turnwise.config.load import dump_settings, load_settings
from turnwise.config.trust import find_secrets
from turnwise.errors import ConfigError

KEY = "rollout.workflow_args.api_key"
VARIABLE = "TURNWISE_ROLLOUT_WORKFLOW_ARGS_API_KEY"


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("api_key", True),
        ("apiKey", True),
        ("openai_api_key", True),
        ("token", True),
        ("hf_token", True),
        ("password", True),
        ("client_secret", True),
        ("api_key_env", False),
        ("eos_token", False),
        ("max_tokens", False),
        ("key", False),
        ("tokenizer", False),
    ],
)
def test_secrets_are_told_by_their_names(name: str, is_secret: bool) -> None:
    assert bool(find_secrets({"section": {name: "sk-0123456789"}})) == is_secret


def test_a_secret_is_written_as_a_variable_and_read_back_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings("frozenlake", [f"{KEY}=sk-0123456789"])
    text = dump_settings(settings)
    assert "sk-0123456789" not in text
    assert f"api_key: ${{oc.env:{VARIABLE}}}" in text
    written = yaml.safe_load(text)
    with pytest.raises(ConfigError, match=VARIABLE):
        load_settings(written)
    monkeypatch.setenv(VARIABLE, "sk-0123456789")
    assert load_settings(written) == settings


def test_what_came_from_the_environment_stays_there_whatever_the_setting_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-9876543210")
    for name in ("api_key", "bearer_of_it"):
        settings = load_settings("frozenlake", {f"rollout.workflow_args.{name}": "${oc.env:OPENAI_API_KEY}"})
        text = dump_settings(settings)
        assert "sk-9876543210" not in text
        assert f"{name}: ${{oc.env:OPENAI_API_KEY}}" in text
        assert load_settings(yaml.safe_load(text)) == settings
