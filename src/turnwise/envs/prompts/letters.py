"""The built-in prompts: requests for a short letter, with letters of mixed quality and preferences between them.

In come a share and seeds; out come prompts with reference responses, and pairs of a better and a worse letter. A good
letter is polite, speaks to the right person about the right thing, does what was asked and ends with a greeting. The
reference responses have many flaws, so imitating them leaves much to gain. It refuses to score: a reward model learns
that from the pairs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TypeVar

from turnwise.envs.prompts.rows import PromptRow, PromptSet, split_rows
from turnwise.infra.seeds import make_rng
from turnwise.types import Message

T = TypeVar("T")

NAMES = ("Mara", "Jon", "Ada", "Felix", "Nora", "Otto", "Rosa", "Emil")
THINGS = ("lamp", "map", "bread", "ticket", "book", "tea", "key", "coat")
GREETING = "Warm wishes."
EVAL_SHARE = 0.1
"""Share of the prompts that is held out, unless a user wants another."""


@dataclass(frozen=True, slots=True)
class _Errand:
    """What a letter is for: the request, and how it is put politely and rudely."""

    request: str
    polite: str
    rude: str


ERRANDS = (
    _Errand("Ask {name} for the {thing} today.", "may I have the {thing} please?", "give me the {thing} now!"),
    _Errand("Thank {name} for the {thing} today.", "thank you for the {thing} again.", "I hate the {thing} anyway!"),
    _Errand("Offer {name} the {thing} today.", "would you like the {thing} too?", "take the {thing} or leave!"),
    _Errand("Remind {name} of the {thing} today.", "please remember the {thing} soon.", "you lost the {thing} again!"),
)
"""A thing always has a word behind it: with a full stop it would be another token, to be learnt again."""

FLAW_RATES = {"rude": 0.6, "no_greeting": 0.6, "other_name": 0.25, "other_thing": 0.25, "other_errand": 0.15}
"""How often each flaw is in a reference response; each comes and goes on its own."""


@dataclass(frozen=True, slots=True)
class LetterTask:
    """One request: which errand, to whom, about what."""

    errand: _Errand
    name: str
    thing: str

    @property
    def prompt(self) -> str:
        return self.errand.request.format(name=self.name, thing=self.thing)


def _shuffled_tasks() -> tuple[LetterTask, ...]:
    """Every combination, in an order that puts different errands into one rollout."""
    tasks = [LetterTask(*parts) for parts in product(ERRANDS, NAMES, THINGS)]
    make_rng("letters", 0).shuffle(tasks)
    return tuple(tasks)


TASKS = _shuffled_tasks()


def write_letter(task: LetterTask, flaws: frozenset[str], rng: random.Random) -> str:
    """The answer to a request with exactly these flaws; without any it is the one good letter."""
    name = _other(task.name, NAMES, rng) if "other_name" in flaws else task.name
    thing = _other(task.thing, THINGS, rng) if "other_thing" in flaws else task.thing
    errand = _other(task.errand, ERRANDS, rng) if "other_errand" in flaws else task.errand
    opening, body = ("Hey", errand.rude) if "rude" in flaws else ("Dear", errand.polite)
    greeting = "" if "no_greeting" in flaws else f" {GREETING}"
    return f"{opening} {name}, {body.format(thing=thing)}{greeting}"


def _other(right: T, choices: tuple[T, ...], rng: random.Random) -> T:
    return rng.choice([choice for choice in choices if choice != right])


@lru_cache(maxsize=8)
def letter_prompts(eval_share: float) -> PromptSet:
    """All requests with a reference response each; the same in every process."""
    rows = [PromptRow(task.prompt, _reference(task)) for task in TASKS]
    return split_rows(rows, eval_share=eval_share, source="the built-in prompts")


def _reference(task: LetterTask) -> str:
    rng = make_rng("reference", task.prompt)
    flaws = frozenset(flaw for flaw, rate in FLAW_RATES.items() if rng.random() < rate)
    return write_letter(task, flaws, rng)


_EXTRA_WEIGHTS = (1, 1, 2, 2, 1)
"""Per flaw, how often it makes the difference in a pair: more often where prompt and letter must be compared."""

Preference = tuple[tuple[Message, ...], tuple[Message, ...]]
"""Two conversations with the same prompt: the better one first."""


def draw_preferences(prompts: PromptSet, *, split: str, num_pairs: int, seed: int) -> list[Preference]:
    """Pairs of letters where the worse one has the flaws of the better one and one more: nobody could disagree."""
    rows = prompts.train if split == "train" else prompts.eval
    by_prompt = {task.prompt: task for task in TASKS}
    tasks = [by_prompt[row.prompt] for row in rows]
    rng = make_rng(f"preferences/{split}", seed)
    return [_draw_pair(rng.choice(tasks), rng) for _ in range(num_pairs)]


def _draw_pair(task: LetterTask, rng: random.Random) -> Preference:
    (extra,) = rng.choices(list(FLAW_RATES), weights=_EXTRA_WEIGHTS)
    others = [flaw for flaw in FLAW_RATES if flaw != extra]
    better = frozenset(rng.sample(others, rng.randint(0, len(others))))
    letters = [write_letter(task, flaws, rng) for flaws in (better, better | {extra})]
    chosen, rejected = ((Message("user", task.prompt), Message("assistant", letter)) for letter in letters)
    return chosen, rejected


def training_preferences() -> list[Preference]:
    """What the built-in reward model learns from: letters to requests that are never held out by default."""
    return draw_preferences(letter_prompts(EVAL_SHARE), split="train", num_pairs=4000, seed=0)
