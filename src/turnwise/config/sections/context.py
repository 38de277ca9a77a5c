"""`context`: how the model is talked to, and how its replies are read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from turnwise.config.settings import Settings, WholeSettings


class AnswerFormat(Settings):
    type: Literal["answer", "think_answer", "plain"] = "answer"
    """`<answer>…</answer>`; the same after `<think>…</think>`; or the whole reply as the action."""
    separator: str = Field(default="||", min_length=1)
    """Stands between the actions of one answer."""
    max_actions_per_turn: PositiveInt = 1
    """Further actions of an answer are cut."""
    is_strict: bool = False
    """Refuse an answer with text before or after the tags; otherwise such text is ignored."""
    forced_prefix: str = ""
    """Text put at the start of each reply for the model, never trained."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.type != "plain":
            return {}
        return self.idle("separator", "max_actions_per_turn", "is_strict", why=f"with {path}.type 'plain'")


_OF_EVERY_TEMPLATE = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")
"""Variables that the conversation itself fills in."""


class ContextSettings(Settings):
    window: Literal["full", "sliding", "single_turn"] = "full"
    """What the model sees: all turns, the last `window_turns`, or the current state only."""
    window_turns: PositiveInt = 4
    """Turns kept by the sliding window."""
    system_prompt: str = ""
    """First message of every conversation; empty: none."""
    instructions: Literal["full", "none"] = "full"
    """Whether the first message explains rules, symbols, actions and the answer format."""
    answer: AnswerFormat = AnswerFormat()
    """How a reply says what to do."""
    tell_invalid: bool = False
    """Whether a turn that was not understood is told: the next state begins with a line about it."""
    max_tokens: PositiveInt = 2048
    """Longest segment, reply included; an episode that would outgrow it is truncated."""
    max_response_tokens: PositiveInt = 64
    """Longest reply in one turn."""
    template: str | None = None
    """A file with a Jinja chat template to use instead of the model's own; null: the model's own."""
    template_kwargs: dict[str, bool | int | float | str] = Field(default={})
    """Values for variables of the chat template, such as `{enable_thinking: false}`; saved with every checkpoint."""

    @field_validator("template_kwargs")
    @classmethod
    def _check_names(cls, given: dict[str, object]) -> dict[str, object]:
        for name in given:
            if not name.isidentifier() or name in _OF_EVERY_TEMPLATE:
                why = "is filled in by the conversation" if name in _OF_EVERY_TEMPLATE else "is no name of a variable"
                raise ValueError(f"'{name}' {why}; expected a variable of the chat template, such as enable_thinking")
        return given

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        idle: dict[str, str] = {}
        if self.window != "sliding":
            idle |= self.idle("window_turns", why=f"with {path}.window '{self.window}'")
        if path != "context":
            idle |= self.idle("template", "template_kwargs", why="here: all environments share one; set it in context")
        return idle
