"""The vLLM servers that all tests of a process share: started once, and ended with it.

They are there where an interpreter with vLLM is: `TURNWISE_VLLM_PYTHON`, or `.venv-vllm` in the repository, which
`make test-vllm` makes.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from turnwise.deps import EngineSite
from turnwise.engine.vllm import VllmEngine
from turnwise.protocols import ChatTemplate

from .setting import make_model, model_path, settings_with

_BESIDE = Path(__file__).resolve().parents[2] / ".venv-vllm" / "bin" / "python"
PYTHON = os.environ.get("TURNWISE_VLLM_PYTHON") or (str(_BESIDE) if _BESIDE.exists() else "")
NEEDS_VLLM = (
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(
        not PYTHON, reason="needs vLLM in an environment of its own: `make test-vllm`, or set TURNWISE_VLLM_PYTHON"
    ),
)
KEY = "a key of these tests"


def start_servers(template: ChatTemplate, *choices: str, run_path: Path | None = None) -> VllmEngine:
    """An engine with servers of its own; whoever starts it closes it."""
    os.environ["VLLM_API_KEY"] = KEY
    started = ("engine.type=vllm", "engine.start=true", f"engine.python={PYTHON}", "engine.start_timeout_s=3600")
    settings: Any = settings_with(*started, *choices)
    site = EngineSite(model_path=model_path(), dtype="float32", template=template, run_path=run_path)
    return VllmEngine.open(settings.engine, site)


@cache
def shared_servers(template: ChatTemplate) -> VllmEngine:
    return start_servers(template, "engine.servers=2", run_path=Path(tempfile.mkdtemp(prefix="turnwise-vllm-")))


def open_client(template: ChatTemplate, *, policy_version: int = 0, choices: tuple[str, ...] = ()) -> VllmEngine:
    """A fresh engine over the shared servers, which have the weights of the model again."""
    servers = shared_servers(template)
    asyncio.run(servers._pool.settle())
    urls = ",".join(server.client.url for server in servers._pool.up)
    settings: Any = settings_with("engine.type=vllm", f"engine.urls=[{urls}]", *choices)
    site = EngineSite(model_path=model_path(), dtype="float32", template=template, policy_version=policy_version)
    engine = VllmEngine.open(settings.engine, site)
    asyncio.run(engine.update_weights(make_model().state_dict(), policy_version))
    return engine
