"""Files of prompts: a JSON list, JSON lines, plain text with one prompt per line, or Parquet.

In come a file and the names of its fields; out come rows. A row that is no prompt is one error that names the file, the
line and the setting to change. It refuses to guess: nothing is skipped but blank lines.
"""

from __future__ import annotations

import random
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from turnwise.config.settings import require_package
from turnwise.envs.rows import Row, RowFile, RowFormat, read_rows
from turnwise.errors import TaskError
from turnwise.infra.seeds import fingerprint, make_rng
from turnwise.types import Message


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt, and an answer to imitate where one is given."""

    prompt: str
    response: str | None = None
    content: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)
    """The whole row, for a reward function; empty where it was a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """All prompts of one source, each in exactly one split, in the order of the source."""

    source: str
    train: tuple[PromptRow, ...]
    eval: tuple[PromptRow, ...]
    num_duplicates: int

    @property
    def has_responses(self) -> bool:
        return all(row.response is not None for row in (*self.train, *self.eval))

    def describe(self) -> str:
        counts = f"{self.source}: {len(self.train)} prompts for training and {len(self.eval)} for evaluation"
        return f"{counts}; {self.num_duplicates} duplicates dropped." if self.num_duplicates else f"{counts}."


def split_rows(rows: Sequence[PromptRow], *, eval_share: float, source: str) -> PromptSet:
    """Every prompt goes where its own hash says, whatever stands beside it; the first of equal prompts stays."""
    unique = list({row.prompt: row for row in reversed(rows)}.values())[::-1]
    if len(unique) < 2:
        raise TaskError(
            f"{source} holds {len(unique)} different prompts; expected at least 2, one for training and one for "
            "evaluation. Add prompts."
        )
    places = {row.prompt: _place(row.prompt) for row in unique}
    # A share may give all prompts of a small file to one split; the prompt nearest to the border then changes sides.
    lowest, highest = min(places.values()), max(places.values())
    border = min(max(eval_share, lowest), highest)
    in_eval = {prompt for prompt, place in places.items() if place < border or place == lowest}
    return PromptSet(
        source=source,
        train=tuple(row for row in unique if row.prompt not in in_eval),
        eval=tuple(row for row in unique if row.prompt in in_eval),
        num_duplicates=len(rows) - len(unique),
    )


def hold_out(rows: Sequence[PromptRow], held_out: Sequence[PromptRow], *, source: str) -> PromptSet:
    """Two sources; a prompt that is in both is held out."""
    for_eval = {row.prompt: row for row in reversed(held_out)}
    for_train = {row.prompt: row for row in reversed(rows) if row.prompt not in for_eval}
    if not for_train:
        raise TaskError(
            f"{source} holds no prompt that env.eval_path does not hold too; expected at least 1. Add prompts."
        )
    return PromptSet(
        source=source,
        train=tuple(for_train.values())[::-1],
        eval=tuple(for_eval.values())[::-1],
        num_duplicates=len(rows) + len(held_out) - len(for_train) - len(for_eval),
    )


def _place(prompt: str) -> float:
    """A number from 0 to 1 that depends on the prompt alone, in every process."""
    return fingerprint(prompt) / 2**64


@dataclass(frozen=True, slots=True)
class Fields:
    """Under which keys a row keeps its texts."""

    prompt: str
    response: str
    section: str = "env"
    """Where these keys and the path are set, for messages."""

    @property
    def format(self) -> RowFormat:
        return RowFormat(
            setting=f"{self.section}.path",
            file="a JSON, JSONL, CSV or TXT file (.gz is fine) or a Parquet file with prompts",
            row=f"a text, or an object with a text under '{self.prompt}'",
            has_text_lines=True,
        )


def load_prompts(path: str, *, fields: Fields, eval_share: float) -> PromptSet:
    """The prompts of a file; the same file in the same state is read once per process."""
    return _load_once(RowFile.find(path, fields.format), fields, eval_share)


def load_two_files(path: str, eval_path: str, fields: Fields) -> PromptSet:
    """The prompts of one file for training and those of another for evaluation."""
    held_out = replace(fields.format, setting=f"{fields.section}.eval_path")
    return _load_two_once(RowFile.find(path, fields.format), RowFile.find(eval_path, held_out), fields)


def read_prompts(path: str, fields: Fields) -> list[PromptRow]:
    """All rows of a file, duplicates included."""
    return _read(RowFile.find(path, fields.format), fields)


@lru_cache(maxsize=8)
def _load_two_once(file: RowFile, eval_file: RowFile, fields: Fields) -> PromptSet:
    return hold_out(_read(file, fields), _read(eval_file, fields), source=str(file.path))


@lru_cache(maxsize=8)
def _load_once(file: RowFile, fields: Fields, eval_share: float) -> PromptSet:
    return split_rows(_read(file, fields), eval_share=eval_share, source=str(file.path))


def _read(file: RowFile, fields: Fields) -> list[PromptRow]:
    return as_prompts(read_rows(file), fields, str(file.path), file.format.setting)


def as_prompts(rows: Iterable[Row], fields: Fields, source: str, setting: str) -> list[PromptRow]:
    """Rows of any source; `setting` names it in messages."""
    prompts = [_as_row(row.content, row.place, fields) for row in rows]
    if not prompts:
        raise TaskError(f"{source} holds no prompts; expected at least 2. Check {setting}.")
    return prompts


def _as_row(row: object, place: str, fields: Fields) -> PromptRow:
    if isinstance(row, str):
        return PromptRow(_checked_prompt(row, place, fields))
    if not isinstance(row, dict):
        raise TaskError(
            f"{place}: found {_name_of(row)}; expected a text, or an object with a text under '{fields.prompt}' "
            f"({fields.section}.prompt_field)."
        )
    if fields.prompt not in row:
        raise TaskError(
            f"{place}: found an object with {_keys_of(row)}; expected a text under '{fields.prompt}'. Set "
            f"{fields.section}.prompt_field to the key that holds the prompt."
        )
    prompt, response = row[fields.prompt], row.get(fields.response)
    if not isinstance(prompt, str):
        raise TaskError(
            f"{place}: found {_name_of(prompt)} under '{fields.prompt}'; expected a text. "
            f"Set {fields.section}.prompt_field to the key that holds the prompt."
        )
    if response is not None and not isinstance(response, str):
        raise TaskError(
            f"{place}: found {_name_of(response)} under '{fields.response}'; expected a text, or nothing. Set "
            f"{fields.section}.response_field to the key that holds the response, or to one that is not there."
        )
    return PromptRow(_checked_prompt(prompt, place, fields), (response or "").strip() or None, row)


def _checked_prompt(text: str, place: str, fields: Fields) -> str:
    if not text.strip():
        raise TaskError(
            f"{place}: found a blank prompt; expected a text. "
            f"Take the row out, or set {fields.section}.prompt_field to another key."
        )
    return text.strip()


def _keys_of(row: dict[str, object]) -> str:
    return f"the keys {', '.join(map(repr, list(row)[:8]))}" if row else "no keys"


def _name_of(value: object) -> str:
    """In JSON's words, as it stands in the file."""
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null", bool: "true or false"}
    return names.get(type(value), f"the number {reprlib.repr(value)}")


HUB = "hf:"
_SAVED = ("dataset_dict.json", "dataset_info.json")
"""What `save_to_disk` leaves; any other folder holds files for `load_dataset`."""


def is_dataset(path: str) -> bool:
    """Whether the package reads it; all other paths are files, which need no package."""
    return path.startswith(HUB) or Path(path).expanduser().is_dir()


def read_dataset(path: str, *, subset: str | None, split: str, setting: str) -> Iterator[Row]:
    """All rows of a split in their order."""
    datasets: Any = require_package("datasets", extra="datasets", asked_by=f"{setting}: '{path}'")
    try:
        loaded = _load(datasets, path, subset, split)
    except Exception as error:  # the package and what it reads raise whatever they like
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
