"""A reply becomes actions: parsing, describing and writing the answer format.

In comes the decoded copy of a reply and the format it should have; out come the actions, whether the format was kept,
and the thought. It never sees tokens, so nothing that is parsed, cut or dropped here changes what is trained, and it
does not know which actions an environment understands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.config.schema import AnswerFormat, ContextSettings
from turnwise.rollout_io import EnvDescription, HistoryEntry
from turnwise.types import Message

_THINK, _END_THINK = "<think>", "</think>"
_ANSWER, _END_ANSWER = "<answer>", "</answer>"
_MAX_LISTED = 6
"""Actions that are shown one by one in the form in which they are to be written."""
_MAX_QUOTED = 80
"""How much is said again of what was not understood."""


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What a reply says. Example: `<think>ice</think><answer>Right || Down</answer>` has two actions, thought `ice`."""

    actions: tuple[str, ...]
    is_well_formed: bool
    thought: str


def parse_answer(text: str, fmt: AnswerFormat) -> ParsedAnswer:
    """Read a reply, the forced prefix included; every text gives an answer, if need be one without actions.

    Lenient unless `is_strict`: text before and after the tags is ignored and the first match counts, so that a policy
    is paid for the answer it gives while it is still learning the format. Linear in the text: tags are searched,
    never matched by backtracking.
    """
    if fmt.type == "plain":
        action = text.removeprefix(fmt.forced_prefix).strip()
        return ParsedAnswer((action,) if action else (), bool(action), "")
    if fmt.type == "answer":
        body, thought = _between(text, _ANSWER, _END_ANSWER, start=0), ""
    else:
        thought, body = _find_thought_and_answer(text)
    if body is None or (fmt.is_strict and not _is_bare(text, body, fmt)):
        return ParsedAnswer((), False, thought)
    items = (item.strip() for item in body.split(fmt.separator))
    actions = tuple(item for item in items if item)[: fmt.max_actions_per_turn]
    return ParsedAnswer(actions, bool(actions), thought)


def _is_bare(text: str, body: str, fmt: AnswerFormat) -> bool:
    """Whether nothing stands around the tags."""
    first_tag = _THINK if fmt.type == "think_answer" else _ANSWER
    return text.startswith(first_tag) and text.endswith(f"{_ANSWER}{body}{_END_ANSWER}")


def _between(text: str, opening: str, closing: str, *, start: int) -> str | None:
    begin = text.find(opening, start)
    end = text.find(closing, begin) if begin >= 0 else -1
    return text[begin + len(opening) : end] if end >= 0 else None


def _find_thought_and_answer(text: str) -> tuple[str, str | None]:
    """The thought from the first `<think>` to the first `</think>` that only whitespace parts from an answer.

    A model may speak of the tags inside its thought, so a `</think>` with something else behind it does not end it.
    """
    begin = text.find(_THINK)
    if begin < 0:
        return "", None
    begin += len(_THINK)
    end = text.find(_END_THINK, begin)
    first_end = end
    last_closing = text.rfind(_END_ANSWER)
    while end >= 0:
        answer = _skip_whitespace(text, end + len(_END_THINK))
        if text.startswith(_ANSWER, answer) and last_closing > answer:
            return text[begin:end].strip(), _between(text, _ANSWER, _END_ANSWER, start=answer)
        end = text.find(_END_THINK, max(answer, end + 1))
    return (text[begin:first_end] if first_end >= 0 else text[begin:]).strip(), None


def _skip_whitespace(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def render_answer(actions: Sequence[str], fmt: AnswerFormat, thought: str = "") -> str:
    """The canonical reply with these actions, for demonstrations. It starts with the forced prefix."""
    reply = _write_answer(actions, fmt, thought)
    # A prefix that opens the reply's own first tag, with or without whitespace, stands for that tag.
    stem = fmt.forced_prefix.rstrip()
    return fmt.forced_prefix + reply.removeprefix(stem)


def _write_answer(actions: Sequence[str], fmt: AnswerFormat, thought: str) -> str:
    if fmt.type == "plain":
        return " ".join(actions)
    body = f"{_ANSWER}{f' {fmt.separator} '.join(actions)}{_END_ANSWER}"
    return body if fmt.type == "answer" else f"{_THINK}{thought}{_END_THINK}{body}"


def format_instructions(fmt: AnswerFormat, action_names: Sequence[str] = (), example: str = "") -> str:
    """One sentence that tells a model how to answer; `example` is an action where there is no list of them.

    A few actions are all shown as they are to be written: small models copy what they see, and would answer "action".
    """
    names = list(action_names)
    shown = names or [example or "action"]
    if fmt.max_actions_per_turn > 1 and fmt.type != "plain":
        pair = _write_answer((names * 2)[:2] or ["action 1", "action 2"], fmt, "your thoughts")
        return (
            f"Answer with 1 to {fmt.max_actions_per_turn} actions, separated by '{fmt.separator}', in exactly this "
            f"form: {pair}"
        )
    if fmt.type == "plain":
        return "Answer with one action and nothing else."
    if fmt.type == "answer" and 1 < len(names) <= _MAX_LISTED:
        forms = ", ".join(_write_answer([name], fmt, "") for name in names)
        return f"Answer with one action, in exactly one of these forms: {forms}"
    return f"Answer with one action, in exactly this form: {_write_answer(shown[:1], fmt, 'your thoughts')}"


def describe_invalid(
    actions: Sequence[str], fmt: AnswerFormat, action_names: Sequence[str] | None, example: str = ""
) -> str:
    """One line about a reply that was not understood: what is no action, or that there was none, and how to answer."""
    trouble = f"'{actions[-1][:_MAX_QUOTED]}' is no action here." if actions else "Your last reply was not understood."
    return f"{trouble} {format_instructions(fmt, action_names or (), example)}"


def build_messages(
    about: EnvDescription, history: Sequence[HistoryEntry], settings: ContextSettings, *, notes: str = ""
) -> list[Message]:
    """The conversation up to the current state; `notes` and the preamble stand before the first state that is shown."""
    num_hidden = len(history) - num_visible_turns(len(history), settings)
    first = notes + build_instructions(about, settings)
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


def build_instructions(description: EnvDescription, settings: ContextSettings) -> str:
    """What stands before the first state: rules, symbols, actions and the answer format."""
    if settings.instructions == "none":
        return ""
    lines, names = [description.instructions, description.legend], description.action_names or ()
    if names:
        lines.append(f"Actions: {', '.join(names)}.")
    lines.append(format_instructions(settings.answer, names, description.example))
    return "\n".join(line for line in lines if line) + "\n\n"


def num_visible_turns(num_turns: int, settings: ContextSettings) -> int:
    """How many of the turns so far the window shows, the current one included."""
    match settings.window:
        case "full":
            return num_turns
        case "sliding":
            return min(settings.window_turns, num_turns)
        case "single_turn":
            return 1
