"""Says which plug-ins the contracts were held to, where the user has named modules of their own."""

from __future__ import annotations

import os
from typing import Any

from .entries import plug_ins


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if os.environ.get("TURNWISE_PLUG_INS"):
        terminalreporter.section("plug-ins that were tested")
        for path, names in plug_ins().items():
            terminalreporter.write_line(f"{path}: {', '.join(names)}")
