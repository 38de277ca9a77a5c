"""`context`: how the model is talked to, and how its replies are read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

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
    max_tokens: PositiveInt = 2048
    """Longest segment, reply included; an episode that would outgrow it is truncated."""
    max_response_tokens: PositiveInt = 64
    """Longest reply in one turn."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.window == "sliding":
            return {}
        return self.idle("window_turns", why=f"with {path}.window '{self.window}'")
