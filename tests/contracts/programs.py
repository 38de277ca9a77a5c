"""What some workflows are given to run: a tool, and a program that knows nothing but an address."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def converse(*, base_url: str, api_key: str, task: Any) -> float:
    """Three turns of one conversation, in plain code."""
    messages: list[dict[str, str]] = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"task {task.seed} turn {turn}"})
        body = json.dumps({"model": "policy", "messages": messages}).encode()
        headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        with urlopen(Request(f"{base_url}/chat/completions", body, headers)) as reply:
            messages.append(json.load(reply)["choices"][0]["message"])
    return 1.0
