"""Tokens from vLLM: one or many servers in processes of their own, with vLLM's own environment.

`client.py` speaks to one server, `process.py` starts and stops one, `pool.py` knows which are up and who goes where,
`transfer.py` brings weights to them, `engine.py` is the Engine, and `plug_in/` is what vLLM itself imports.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from turnwise.config.kinds import Device, EndpointSettings
from turnwise.config.settings import Settings, WholeSettings


class LocalEngineParams(Settings):
    max_rows: PositiveInt = 512
    """Most sequences in one forward pass."""
    device: Device = "auto"
    """Where the model samples: auto (a GPU where there is one), cpu, cuda, cuda:1, or another name that torch knows."""


class ScriptedEngineParams(Settings):
    replies: list[str] = Field(default=["<answer>1</answer>"], min_length=1)
    """What it says, one of them by the dice of each request: for tests, and for a look at a loop without a model."""


class VllmEngineParams(Settings):
    urls: list[str] = Field(default=[])
    """Servers that are running already, such as [http://127.0.0.1:8000]; their key comes from VLLM_API_KEY."""
    start: bool = False
    """Start servers on this machine, and stop them with the run; their logs are in the run directory."""
    servers: PositiveInt = 1
    """How many are started."""
    python: str | None = None
    """The interpreter of vLLM's own environment. Null: TURNWISE_VLLM_PYTHON, `.venv-vllm` here, or this interpreter."""
    args: dict[str, bool | int | float | str] = Field(default={})
    """Arguments of vLLM's server, such as {tensor_parallel_size: 2}; true stands for a flag without a value."""
    devices: list[str] = Field(default=[])
    """CUDA_VISIBLE_DEVICES of each started server, one entry for each; none: all see every GPU."""
    transfer: Literal["shared_memory", "nccl"] = "shared_memory"
    """How weights reach the servers: through memory of this machine, or vLLM's own way between GPUs."""
    in_flight: Literal["wait", "keep", "abort"] = "wait"
    """What becomes of running requests when weights change: they end first; go on with the new ones, so that a reply
    has tokens of both; or are broken off and asked again."""
    start_timeout_s: PositiveFloat = 600.0
    """Longest wait until a server answers."""
    request_timeout_s: PositiveFloat = 600.0
    """Longest wait for a reply, and for running requests to end before weights change."""

    @field_validator("transfer", mode="before")
    @classmethod
    def _refuse_pickle(cls, given: object) -> object:
        if given == "ipc":
            raise ValueError(
                "must be 'shared_memory' or 'nccl', got 'ipc'. With 'ipc' vLLM's servers unpickle what any user of "
                "this machine sends them, which runs code. Use 'shared_memory': it works where servers run on the "
                "learner's machine, on one GPU too."
            )
        return given

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.start:
            return {}
        return self.idle(
            "servers", "python", "args", "devices", why=f"without {path}.start: they are of started servers"
        )


class OpenAiEngineParams(EndpointSettings):
    tells_tokens: ClassVar[bool] = False
