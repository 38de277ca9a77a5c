"""`model`: which model is trained, and how it is held."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from turnwise.config.settings import Settings, WholeSettings


class TinySettings(Settings):
    """The default model: a small Llama-style network with a tokenizer made from the environment's own text."""

    hidden_size: PositiveInt = 128
    """Width of the network."""
    num_layers: PositiveInt = 2
    """Transformer layers."""
    num_heads: PositiveInt = 4
    """Attention heads; must divide hidden_size."""
    intermediate_size: PositiveInt = 384
    """Width inside the feed-forward layers."""
    vocab_size: int = Field(default=512, ge=300)
    """Upper bound; 256 byte symbols and the special tokens are always in."""
    cut: Literal["space", "words"] = "space"
    """What a token never crosses: white space alone, so that a cell such as Pb2 may be one token; or also the ends of
    words, signs and single digits, so that a name is spelled alike wherever it stands and can be copied."""
    max_positions: PositiveInt = 2048
    """Longest sequence the network can read."""

    @model_validator(mode="after")
    def _check_heads(self) -> TinySettings:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads = {self.num_heads} does not divide hidden_size = {self.hidden_size}")
        return self


class NoLora(Settings):
    type: Literal["none"] = "none"
    """All weights are trained."""


class Lora(Settings):
    type: Literal["lora"]
    """Train low-rank matrices beside the frozen weights, of the actor and of a critic that is a model."""
    rank: PositiveInt = 8
    """Inner width of the matrices."""
    alpha: PositiveFloat = 16.0
    """Their product is scaled by alpha / rank."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Names of the linear layers that are adapted, such as [q_proj, v_proj]; all: every one but the output layer."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _check_target_modules(cls, given: object) -> object:
        is_list = isinstance(given, list) and bool(given) and all(isinstance(name, str) and name for name in given)
        if given != "all-linear" and not is_list:
            raise ValueError(f"{given!r} given; expected 'all-linear' or a list of names, such as [q_proj, v_proj]")
        return given


class ModelSettings(Settings):
    path: str = "tiny"
    """'tiny' for the built-in small model, 'smollm2', a Hugging Face folder, a GGUF file, or a hub name."""
    tiny: TinySettings = TinySettings()
    """Sizes of the built-in model."""
    lora: NoLora | Lora = Field(default=NoLora(), discriminator="type")
    dtype: Literal["float32", "bfloat16"] = "float32"
    """With bfloat16 the learner computes in it and keeps what it trains in float32; engine, reference and the frozen
    weights beside adapters are held in it."""
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    """Keep only the inputs of each layer for the backward pass and compute the rest again: less memory, more time.
    auto: for a micro-batch whose activations would take more than 450 MB, on a GPU a quarter of its memory."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return {} if self.path == "tiny" else self.idle("tiny", why=f"when {path}.path is not 'tiny'")
