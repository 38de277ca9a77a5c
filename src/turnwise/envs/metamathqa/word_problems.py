"""Word problems without a file: somebody has things, events change how many, and a number is asked for.

In come a generator of random numbers and limits; out come problems with whole positive numbers all the way. A forward
problem asks for the end; a backward problem tells the end and asks for a number on the way, called x, which is unique.
It refuses to know seeds, splits and grading.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Operation = Literal["add", "subtract", "multiply", "divide"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo")
THINGS = ("apples", "books", "coins", "eggs", "keys", "pens", "shells", "stamps")
# Every number has a word behind it: with a full stop it would be another token, to be learnt again.
SENTENCES: dict[Operation, tuple[str, ...]] = {
    "add": ("{who} finds {n} more.", "{other} gives {who} {n} more.", "{who} buys {n} more."),
    "subtract": ("{who} loses {n} of them.", "{who} gives {n} to {other}.", "{who} sells {n} of them."),
    "multiply": ("{who} works until there are {n} times as many.", "Overnight they become {n} times as many."),
    "divide": (
        "{who} sorts them into {n} equal bags and keeps one bag.",
        "{who} shares them fairly among {n} people and takes one share.",
    ),
}


@dataclass(frozen=True, slots=True)
class Story:
    """The numbers alone. Example: start 5, `(("add", 3), ("divide", 4))`, end 2."""

    start: int
    events: tuple[tuple[Operation, int], ...]
    end: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """All that a forward problem tells, in order."""
        return self.start, *(number for _, number in self.events)


def draw_story(
    rng: random.Random, *, operations: Sequence[Operation], num_events: int, max_number: int
) -> Story | None:
    """No number, on the way or told, is below 1 or above `max_number`; None where chance led into a dead end."""
    start = amount = rng.randint(1, max_number)
    events: list[tuple[Operation, int]] = []
    for _ in range(num_events):
        fitting: dict[Operation, Sequence[int]] = {each: _fits(each, amount, max_number) for each in operations}
        choices: list[Operation] = [each for each, numbers in fitting.items() if numbers]
        if not choices:
            return None
        operation = rng.choice(choices)
        number = rng.choice(fitting[operation])
        amount = apply(operation, amount, number)
        events.append((operation, number))
    return Story(start, tuple(events), amount)


def apply(operation: Operation, amount: int, number: int) -> int:
    match operation:
        case "add":
            return amount + number
        case "subtract":
            return amount - number
        case "multiply":
            return amount * number
        case "divide":
            return amount // number


def _fits(operation: Operation, amount: int, max_number: int) -> Sequence[int]:
    """The numbers an event may have; times one and parts of one are no events."""
    match operation:
        case "add":
            return range(1, max_number - amount + 1)
        case "subtract":
            return range(1, amount)
        case "multiply":
            return range(2, max_number // amount + 1)
        case "divide":
            return [number for number in range(2, amount + 1) if amount % number == 0]


def tell(story: Story, rng: random.Random, *, is_backward: bool) -> tuple[str, str]:
    """Question and answer, with names, things and sentences drawn anew."""
    who, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    hidden = rng.randrange(len(story.numbers)) if is_backward else None
    start, *told = ["x" if place == hidden else str(number) for place, number in enumerate(story.numbers)]
    sentences = [f"{who} has {start} {things}."]
    for (operation, _), number in zip(story.events, told, strict=True):
        sentences.append(rng.choice(SENTENCES[operation]).format(who=who, other=other, n=number))
    if hidden is None:
        sentences.append(f"How many {things} does {who} have now?")
        return " ".join(sentences), str(story.end)
    sentences.append(f"Now {who} has {story.end} {things}. What was x?")
    return " ".join(sentences), str(story.numbers[hidden])
