"""For tests of environments: their speed is measured briefly, and no speed is too low."""

from __future__ import annotations

import pytest

from turnwise.envs import check

from ...clock import HANG_S


@pytest.fixture(autouse=True)
def _any_speed_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SPEED_STEPS", 50)
    monkeypatch.setattr(check, "MAX_CALL_S", HANG_S)
