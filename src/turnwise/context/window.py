"""What the model sees of an episode: the turns that the window shows, as a conversation.

Windows change what the model sees next; they never delete what was played. It refuses to know tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.config.schema import ContextSettings
from turnwise.context.answer import describe_invalid, format_instructions
from turnwise.rollout_io import EnvDescription, HistoryEntry
from turnwise.types import Message


def show_history(
    about: EnvDescription, history: Sequence[HistoryEntry], settings: ContextSettings, *, notes: str = ""
) -> list[Message]:
    """The conversation up to the current state; `notes` and the preamble stand before the first state that is shown."""
    num_hidden = len(history) - count_shown(len(history), settings)
    first = notes + write_preamble(about, settings)
    messages = [Message("system", settings.system_prompt)] if settings.system_prompt else []
    for number, entry in enumerate(history[num_hidden:], start=num_hidden):
        state = entry.state
        # Also where the window hides that turn: the line belongs to the state after it.
        if settings.tell_invalid and number > 0 and not history[number - 1].is_valid:
            said = history[number - 1].actions
            state = f"{describe_invalid(said, settings.answer, about.action_names, about.example)}\n{state}"
        messages.append(Message("user", first + state))
        if number < len(history) - 1:
            messages.append(Message("assistant", entry.llm_response))
        first = ""
    return messages


def write_preamble(description: EnvDescription, settings: ContextSettings) -> str:
    """What stands before the first state: rules, symbols, actions and the answer format."""
    if settings.instructions == "none":
        return ""
    lines, names = [description.instructions, description.legend], description.action_names or ()
    if names:
        lines.append(f"Actions: {', '.join(names)}.")
    lines.append(format_instructions(settings.answer, names, description.example))
    return "\n".join(line for line in lines if line) + "\n\n"


def count_shown(num_turns: int, settings: ContextSettings) -> int:
    """How many of the turns so far the window shows, the current one included."""
    match settings.window:
        case "full":
            return num_turns
        case "sliding":
            return min(settings.window_turns, num_turns)
        case "single_turn":
            return 1
