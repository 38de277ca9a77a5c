"""Sources of prompts: files, datasets of the Hugging Face hub, and the built-in letters."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from turnwise.config.settings import require_package
from turnwise.envs.rows import (
    Row,
    RowFile,
    RowFormat,
    Splits,
    describe_json,
    describe_keys,
    hold_out_rows,
    keys_held_out,
    load_rows,
)
from turnwise.errors import TaskError
from turnwise.infra.seeds import hash64, make_rng
from turnwise.types import Message


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt, with a reference response if the source has one."""

    prompt: str
    response: str | None = None
    content: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)
    """The complete row, for a reward function; empty if the row was a text."""


@dataclass(frozen=True, slots=True)
class PromptSet(Splits[PromptRow]):
    """All prompts of one source, in the order of the source."""

    source: str
    num_duplicates: int

    @property
    def has_responses(self) -> bool:
        return all(row.response is not None for row in (*self.train, *self.eval))

    def describe(self) -> str:
        counts = f"{self.source}: {len(self.train)} prompts for training and {len(self.eval)} for evaluation"
        return f"{counts}; {self.num_duplicates} duplicates dropped." if self.num_duplicates else f"{counts}."


def split_prompts(rows: Sequence[PromptRow], *, eval_share: float, source: str) -> PromptSet:
    """Split by a hash of each prompt; of equal prompts the first is kept."""
    unique = _drop_duplicates(rows)
    if len(unique) < 2:
        raise TaskError(
            f"{source} holds {len(unique)} different prompts; expected at least 2, one for training and one for "
            "evaluation. Add prompts."
        )
    in_eval = keys_held_out({row.prompt: hash64(row.prompt) / 2**64 for row in unique}, eval_share)
    train = tuple(row for row in unique if row.prompt not in in_eval)
    held_out = tuple(row for row in unique if row.prompt in in_eval)
    return PromptSet(train, held_out, source, len(rows) - len(unique))


def hold_out_prompts(rows: Sequence[PromptRow], held_out: Sequence[PromptRow], *, source: str) -> PromptSet:
    """Take each split from a source of its own; a prompt in both is for evaluation."""
    splits = hold_out_rows(
        _drop_duplicates(rows), _drop_duplicates(held_out), lambda row: row.prompt, source=source, items="prompts"
    )
    num_kept = len(splits.train) + len(splits.eval)
    return PromptSet(splits.train, splits.eval, source, len(rows) + len(held_out) - num_kept)


def _drop_duplicates(rows: Sequence[PromptRow]) -> list[PromptRow]:
    return list({row.prompt: row for row in reversed(rows)}.values())[::-1]


@dataclass(frozen=True, slots=True)
class PromptParser:
    """Reads the prompt and the optional response of a row, which is a text or an object."""

    prompt: str
    response: str
    section: str = "env"
    """Config section of these keys, for messages."""

    def format(self, setting: str = "path") -> RowFormat:
        """Format of the file that a setting of the section names."""
        return RowFormat(
            setting=f"{self.section}.{setting}",
            items="prompts",
            file="a JSON, JSONL, CSV or TXT file (.gz is fine) or a Parquet file with prompts",
            row=f"a text, or an object with a text under '{self.prompt}'",
            has_text_lines=True,
        )

    def __call__(self, row: Row) -> PromptRow:
        prompt_fix = f"Set {self.section}.prompt_field to the key that holds the prompt."
        content = row.content
        if isinstance(content, str):
            return PromptRow(self._check_prompt(content, row))
        if not isinstance(content, dict):
            raise row.error(describe_json(content), self.format().row, prompt_fix)
        if self.prompt not in content:
            raise row.error(describe_keys(content), f"a text under '{self.prompt}'", prompt_fix)
        prompt, response = content[self.prompt], content.get(self.response)
        if not isinstance(prompt, str):
            raise row.error(f"{describe_json(prompt)} under '{self.prompt}'", "a text", prompt_fix)
        if response is not None and not isinstance(response, str):
            fix = (
                f"Set {self.section}.response_field to the key that holds the response, or to one that does not exist."
            )
            raise row.error(f"{describe_json(response)} under '{self.response}'", "a text or null", fix)
        return PromptRow(self._check_prompt(prompt, row), (response or "").strip() or None, content)

    def _check_prompt(self, text: str, row: Row) -> str:
        if not text.strip():
            fix = f"Remove the row, or set {self.section}.prompt_field to another key."
            raise row.error("a blank prompt", "a text", fix)
        return text.strip()


def load_prompts(path: str, eval_path: str | None, *, parser: PromptParser, eval_share: float) -> PromptSet:
    """Load the prompts of one file, divided by a hash of each, or of a file for each split."""
    file = RowFile.find(path, parser.format())
    eval_file = RowFile.find(eval_path, parser.format("eval_path")) if eval_path is not None else None
    return _load_once(file, eval_file, parser, eval_share)


@lru_cache(maxsize=8)
def _load_once(file: RowFile, eval_file: RowFile | None, parser: PromptParser, eval_share: float) -> PromptSet:
    rows, source = load_rows(file, parser), str(file.path)
    if eval_file is None:
        return split_prompts(rows, eval_share=eval_share, source=source)
    return hold_out_prompts(rows, load_rows(eval_file, parser), source=source)


HUB = "hf:"
_SAVED = ("dataset_dict.json", "dataset_info.json")
"""What `save_to_disk` leaves; any other folder holds files for `load_dataset`."""


def is_dataset(path: str) -> bool:
    """Return whether `path` is read by the package `datasets`; all other paths are files and need no package."""
    return path.startswith(HUB) or Path(path).expanduser().is_dir()


def read_dataset(path: str, *, subset: str | None, split: str, setting: str) -> Iterator[Row]:
    """Yield all rows of a split in order."""
    datasets: Any = require_package("datasets", extra="datasets", asked_by=f"{setting}: '{path}'")
    try:
        loaded = _load(datasets, path, subset, split)
    except Exception as error:  # `datasets` and its loaders raise any exception
        raise TaskError(
            f"{setting}: '{path}' cannot be loaded with the split '{split}' and the subset {subset!r}: "
            f"{type(error).__name__}: {error}. Check the name, env.subset, env.train_split and env.eval_split."
        ) from error
    return (Row(f"{path}, split {split}, row {number}", content) for number, content in enumerate(loaded, start=1))


def _load(datasets: Any, path: str, subset: str | None, split: str) -> Any:
    if path.startswith(HUB):
        return datasets.load_dataset(path.removeprefix(HUB), subset, split=split)
    folder = Path(path).expanduser()
    if not any((folder / name).exists() for name in _SAVED):
        return datasets.load_dataset(str(folder), subset, split=split)
    loaded = datasets.load_from_disk(str(folder))
    return loaded[split] if isinstance(loaded, dict) else loaded


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
    return split_prompts(rows, eval_share=eval_share, source="the built-in prompts")


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
