"""docs/coming_from.md: every setting it names is taken as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from turnwise.config.load import load_settings

PAGE = Path(__file__).parents[3] / "docs" / "coming_from.md"


def settings_of_the_page() -> list[str]:
    rows = [line.split(" | ", 1)[1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return sorted({code for row in rows for code in re.findall(r"`([a-z_.]+=[^`]+)`", row)})


def test_the_page_has_settings() -> None:
    assert len(settings_of_the_page()) > 60


@pytest.mark.parametrize("given", settings_of_the_page())
def test_a_setting_of_the_page_is_taken(given: str) -> None:
    load_settings("frozenlake", [given])
