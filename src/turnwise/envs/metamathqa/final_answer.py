r"""The final answer inside a longer text: `\boxed{5}`, `The answer is: 5`, `#### 5`, or the text itself.

In comes a reply or the solution in a file; out comes the part that is to be compared. It refuses to guess: without a
mark the whole text is the answer, and a number somewhere in the reasoning is none.
"""

from __future__ import annotations

import re

MAX_ANSWER_LENGTH = 200
"""Longer texts are no answers; whoever compares need not fear them."""

_MARK = re.compile(r"(?:the\s+)?(?:final\s+)?answer\s+is\s*:?|####", re.IGNORECASE)
_BOX = r"\boxed{"


def find_final_answer(text: str) -> str | None:
    """What is marked as the answer, the last one of several; None where nothing is marked."""
    marks = list(_MARK.finditer(text))
    tail = text[marks[-1].end() :] if marks else text
    boxed = _last_boxed(tail)
    if boxed is not None:
        return boxed
    if not marks:
        return None
    line = tail.strip().split("\n", 1)[0]
    return _without_stop(line)


def final_answer(text: str) -> str:
    """The marked answer, or the whole text; empty where it is too long to be one."""
    found = find_final_answer(text)
    answer = _without_stop(text) if found is None else found
    return answer if len(answer) <= MAX_ANSWER_LENGTH else ""


def _without_stop(text: str) -> str:
    text = text.strip()
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text


def _last_boxed(text: str) -> str | None:
    """The content of the last box whose braces close."""
    begin = text.rfind(_BOX)
    if begin < 0:
        return None
    depth = 1
    for at in range(begin + len(_BOX), len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + len(_BOX) : at].strip()
    return None
