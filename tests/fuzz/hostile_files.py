"""Files that are damaged, deeply nested or hostile, and every command of the parser over them.

`python -m tests.fuzz.hostile_files --cases 600 --seed 1` damages a run directory 600 times and gives it to each command
that reads one; `--kinds recipes folders` does the same with config files and model folders, and `--deep` nests every
file of them deeply. It prints how often each command ended with which exit code, and every case that was not answered
in words. The commands run in this process: one that kills the interpreter kills the program.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import itertools
import json
import logging
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import yaml

from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.envs.prompts.sources import training_preferences
from turnwise.errors import TurnwiseError
from turnwise.infra.atomic_files import write_checksums
from turnwise.loop.policies import resolve_model
from turnwise.models.reward_model import tiny_reward_folder
from turnwise.report.trajectories import TrajectoryJournal, read_trajectories
from turnwise.run.api import train
from turnwise.view import server
from turnwise.view.server import ANSWERS

from ..command_lines import COMMANDS, HARMLESS, Way, serves, ways_to_read
from ..small_run import SMALL, SMALL_LAKE, SMALL_MODEL, without_plots

LEVELS = (1_000, 30_000, 200_000)
_SERVES_S, _ENDS_BY_S = 4.0, 60.0
"""When a command that serves or does not end is interrupted."""
_FASTER = {"eval": ("--episodes", "2")}
FOREIGN = """
micro_batch_size_per_gpu: 1
ppo_mini_batch_size: 2
model_path: tiny
actor_rollout_ref:
  model: {path: "${model_path}"}
trainer:
  total_training_steps: 1
es_manager:
  train: {env_groups: 1, group_size: 2, env_configs: {tags: [Bandit], n_groups: [1]}}
  val: {env_groups: 2, group_size: 1, env_configs: {tags: [Bandit], n_groups: [2]}}
agent_proxy: {max_turn: 1}
"""
_TEXT = {".json", ".jsonl", ".yaml", ".jinja", ".index", ".lock"}


# --- damages ---------------------------------------------------------------------------------------------------------

Damage = Callable[[bytes, random.Random], bytes]

WHOLE: dict[str, bytes] = {
    "empty": b"",
    "list": b"[]",
    "null": b"null",
    "number": b"3",
    "text": b'"text"',
    "list of lists": b"[[1, 2], [3]]",
    "list of mappings": b'[{"step": 1}]\n[{"step": 2}]\n',
    "binary": bytes(range(256)) * 4,
    "not UTF-8": b'{"a": "\xff\xfe"}\n',
    "half a character": b'{"step": 1, "recipe": "\\ud800"}\n',
    "no number": b'{"step": NaN}\n{"step": 1e999}\n',
    "numbers that are none": b'{"step": 1, "time_s": 1e999, "time/env_s": NaN, "learn/entropy": -Infinity}\n',
    "mappings for numbers": b'{"step": 1, "time_s": {"a": 1}, "time/env_s": {"a": 1}, "learn/entropy": {"a": 1}}\n',
    "lists for mappings": b'{"step": 1, "failures": [1], "baselines": 3, "findings": {"a": 1}, "turns": [0.5]}\n',
    "lists for numbers": b'{"target": "a", "recipe": "b", "seed": 1, "worlds": {}, "tasks": [{"difficulty": null, '
    b'"task": {"tag": "a", "seed": 1, "split": "eval"}, "plays": [{"is_success": [], "episode_return": [1], '
    b'"turns": [1], "sampled_tokens": 1, "read_tokens": 1, "stop_reason": "terminated"}]}]}',
    "a path outside": b'{"weight_map": {"a": "../../../etc/passwd"}, "transformers_weights": "/etc/passwd"}\n',
    "huge number": b'{"step": ' + b"9" * 5000 + b"}\n",
    "page": b"<!doctype html><html><body>404</body></html>\n",
}
"""What stands in place of the whole file."""
DEEP: dict[str, Callable[[int], str]] = {
    "JSON lists": lambda levels: "[" * levels + "]" * levels,
    "JSON lists without an end": lambda levels: "[" * levels,
    "JSON mappings": lambda levels: '{"step":' * levels + "1" + "}" * levels,
    "JSON under a key": lambda levels: '{"step": 1, "env": ' + "[" * levels + "]" * levels + "}\n",
    "YAML lists": lambda levels: "- " * levels + "1\n",
    "YAML keys": lambda levels: "? " * levels + "1\n",
    "YAML under a key": lambda levels: "env: " + "{a: " * levels + "1" + "}" * levels + "\n",
}
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, math.nan, math.inf, -(10**30), "", "text", "\ud800", "../../../etc/passwd", "\x00", "nan",
    [], [1], ["a"], [[]], {}, {"a": 1}, {"step": 1},
)  # fmt: skip
"""What stands in place of one value, or of one key where it is a text."""


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(max(len(data), 1))]


def flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def put_in(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(list(WHOLE.values())) + data[place:]


def double(data: bytes, rng: random.Random) -> bytes:
    return data + data


def replace_value(data: bytes, rng: random.Random) -> bytes:
    """One value of a JSON or YAML file becomes another one, is left out, or is under another name."""
    lines = data.splitlines()
    with contextlib.suppress(ValueError):
        number = rng.randrange(max(len(lines), 1))
        return b"\n".join([*lines[:number], _replaced(json.loads(lines[number]), rng), *lines[number + 1 :], b""])
    with contextlib.suppress(ValueError):
        return _replaced(json.loads(data), rng)
    with contextlib.suppress(yaml.YAMLError, UnicodeDecodeError):
        found = yaml.safe_load(data.decode())
        if isinstance(found, dict):
            # JSON is YAML, but for numbers that are none.
            return _replaced(found, rng).replace(b"NaN", b".nan").replace(b"Infinity", b".inf")
    return flip(data, rng)


def _replaced(value: Any, rng: random.Random) -> bytes:
    places = [(holder, key) for holder in _holders(value) for key in _keys(holder)]
    if not places:
        return json.dumps(rng.choice(VALUES)).encode()
    holder, key = rng.choice(places)
    match rng.randrange(6 if isinstance(holder, dict) else 4):
        case 4:
            del holder[key]
        case 5:
            holder[str(rng.choice(VALUES))] = holder.pop(key)
        case _:
            holder[key] = rng.choice(VALUES)
    return json.dumps(value, default=str).encode()


def _keys(holder: Any) -> Iterable[Any]:
    return list(holder) if isinstance(holder, dict) else range(len(holder))


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


BYTES: dict[str, Damage] = {"cut": cut, "flip": flip, "put in": put_in, "double": double}
PLACES: tuple[str, ...] = ("missing", "a folder", "a link to itself")
"""What is there instead of a file."""


@dataclass(frozen=True, slots=True)
class Wound:
    """A file of a target, and what has become of it; `is_signed`: its checksums say that this is how it was written."""

    file: str
    damage: str
    seed: int = 0
    levels: int = 0
    is_signed: bool = False

    def do(self, root: Path) -> None:
        path = root / self.file if root.is_dir() else root
        data = path.read_bytes()
        if self.damage in PLACES:
            path.unlink()
            if self.damage == "a folder":
                path.mkdir()
            elif self.damage == "a link to itself":
                path.symlink_to(path)
        else:
            path.write_bytes(self._content(data))
        folder = path.parent.parent if path.parent.name == "policy" else path.parent
        if self.is_signed and (folder / "checksums.json").is_file() and path.name != "checksums.json":
            with contextlib.suppress(OSError):
                write_checksums(folder)

    def _content(self, data: bytes) -> bytes:
        rng = random.Random(self.seed)
        if self.damage in DEEP:
            return DEEP[self.damage](self.levels).encode()
        if self.damage in WHOLE:
            return WHOLE[self.damage]
        return BYTES[self.damage](data, rng) if self.damage in BYTES else replace_value(data, rng)

    def __str__(self) -> str:
        levels = f" {self.levels}" if self.levels else ""
        return f"{self.file}: {self.damage}{levels} (seed {self.seed}{', signed' if self.is_signed else ''})"


def draw_wound(files: Sequence[str], rng: random.Random) -> Wound:
    """A damage of a file. Of files with records, often of one value, which is noticed later."""
    # The few files at the top are drawn as often as the many in folders.
    tops = sorted({file.split("/")[0] for file in files})
    top = rng.choice(tops)
    file = rng.choice([file for file in files if file.split("/")[0] == top])
    if Path(file).suffix in _TEXT and rng.random() < 0.5:
        damage = "value"
    else:
        damage = rng.choice([*WHOLE, *DEEP, *BYTES, *PLACES])
    levels = rng.choice(LEVELS) if damage in DEEP else 0
    return Wound(file, damage, rng.randrange(10**6), levels, is_signed=rng.random() < 0.7)


# --- targets ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A sound file or folder that is damaged, and what a command is given to read it."""

    kind: str
    name: str
    root: Path
    word: Callable[[Path], Path] = lambda root: root

    @property
    def files(self) -> list[str]:
        if self.root.is_file():
            return [self.root.name]
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())


def write_targets(place: Path) -> list[Target]:
    """Runs of all kinds of files, a model folder, config files, and config files that lead to other files."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        without_plots(patch)
        runs = [
            _write_run(place / "runs" / "store"),
            _write_parts(place / "runs" / "parts"),
            _write_memory(place / "runs" / "memory"),
        ]
    model = place / "model"
    shutil.copytree(resolve_model(load_settings("bandit", SMALL_MODEL)), model)
    judge = tiny_reward_folder(place / "models", pairs=training_preferences(), seed=1)
    prompts = [{"prompt": f"What is {n} + 1?", "response": str(n + 1)} for n in range(8)]
    (place / "prompts.json").write_text(json.dumps(prompts))
    (place / "foreign.yaml").write_text(FOREIGN)
    settings = _nested([*SMALL_LAKE, "learn.steps=1", "env.type=frozen_lake", "warm_start.type=oracle"])
    (place / "config.yaml").write_text(yaml.safe_dump(settings))
    (place / "config.json").write_text(json.dumps(settings))
    return [
        *(Target("runs", run.name, run) for run in runs),
        Target("folders", "model", model),
        Target("recipes", "yaml", place / "config.yaml"),
        Target("recipes", "json", place / "config.json"),
        Target("recipes", "foreign", place / "foreign.yaml"),
        Target("recipes", "its model", model, lambda root: _recipe_of(root, model={"path": str(root)})),
        Target("recipes", "its reward model", Path(judge), _judged_by),
        Target("recipes", "its prompts", place / "prompts.json", _prompted_by),
    ]


def _judged_by(root: Path) -> Path:
    return _recipe_of(root, reward={"judge": {"type": "model", "path": str(root)}})


def _prompted_by(root: Path) -> Path:
    return _recipe_of(
        root, env={"type": "prompts", "path": str(root)}, reward={"judge": {"type": "model", "path": "tiny"}}
    )


def _recipe_of(root: Path, **settings: Any) -> Path:
    file = root.with_name("recipe.yaml")
    file.write_text(yaml.safe_dump(_nested([*SMALL, "learn.steps=1"]) | {"env": {"type": "bandit"}} | settings))
    return file


def _nested(words: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        path, _, value = word.partition("=")
        *outer, last = path.split(".")
        holder = found
        for name in outer:
            holder = holder.setdefault(name, {})
        holder[last] = yaml.safe_load(value)
    return found


def _write_run(path: Path) -> Path:
    """Steps, checkpoints, evaluations, tokens and a store; one step is left for whoever goes on with it."""
    words = ["report.checkpoint_every=1", "report.tokens=all", "eval.every=1", "learn.critic.type=model"]
    words += ["buffer.type=sqlite", "sync.method=checkpoint", "report.tensorboard=true"]
    train("frozenlake", [*SMALL_LAKE, *words], run_dir=path)
    _leave_a_step(path)
    (path / "waiting.json").write_text(
        json.dumps([{"who": "trainer", "for": "a batch", "since": 1.0, "deadline_s": None, "pid": 1}])
    )
    (path / "resumes.jsonl").write_text('{"step": 1, "at": "2026-01-01T00:00:00+0000"}\n')
    (trajectory, *_) = read_trajectories(path / "trajectories" / "step-000001.jsonl")
    TrajectoryJournal(path / "unfinished", 2).append(trajectory)
    return path


def _write_parts(path: Path) -> Path:
    """What explorer, trainer and evaluation leave that are processes of their own."""
    words = [*SMALL_LAKE, "learn.steps=2", "buffer.type=sqlite", "sync.method=checkpoint", "report.checkpoint_every=1"]
    for mode in ("explore", "train", "eval"):
        train("frozenlake", [*words, f"run.mode={mode}"], run_dir=path)
    _leave_a_step(path)
    return path


def _write_memory(path: Path) -> Path:
    """A buffer in the checkpoints, adapters and a loop that plays while it learns."""
    words = ["loop.type=pipelined", "model.lora.type=lora", "report.checkpoint_every=1"]
    train("frozenlake", [*SMALL_LAKE, *words], run_dir=path)
    _leave_a_step(path)
    return path


def _leave_a_step(path: Path) -> None:
    config = path / "config.yaml"
    config.write_text(re.sub(r"(?m)^(learn:\n(?:  .*\n)*?  steps: )\d+", r"\g<1>3", config.read_text()))


# --- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One command over one target with one wound, or over a sound one."""

    way: Way
    target: Target
    wound: Wound | None

    def __str__(self) -> str:
        return f"{' '.join(self.way.before)} [{self.target.kind}/{self.target.name}] {self.wound or 'sound'}"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command has ended: its exit code, or None where it raised; and what it has written."""

    code: int | None
    text: str

    @property
    def fault(self) -> str | None:
        """What is wrong with that; None where it was answered in words."""
        # Where a file of these tests asks in place of a page, an error seems to be of its code.
        if self.code is None or re.search(r"Traceback \(most recent call last\)|your code failed", self.text):
            return "a traceback"
        if self.code not in (0, 1, 2, 130):
            return f"exit code {self.code}"
        return None if self.code == 0 or self.text.strip() else "no words"


def list_ways(targets: Sequence[Target], kinds: Sequence[str] | None = None) -> list[tuple[Way, Target]]:
    """Every argument of every command through which it reads a target of these kinds."""
    episodes = {target.name: _episode_of(target.root) for target in targets if target.kind == "runs"}
    model = next(target.root for target in targets if target.kind == "folders")
    pairs = []
    for command in COMMANDS:
        for target in targets:
            sound = {"SIDE": str(target.root), "EPISODE": episodes.get(target.name, "1:1"), "ENV": "frozen_lake"}
            sound |= {"TARGET": str(model)}
            for way in ways_to_read(command, HARMLESS | sound):
                if target.kind in way.kinds and (kinds is None or target.kind in kinds):
                    beside = (str(model),) if command == "eval" and "--recipe" in way.before else ()
                    faster = Way(command, way.before, way.kinds, (*way.after, *beside, *_FASTER.get(command, ())))
                    pairs.append((faster, target))
    return pairs


@functools.cache
def _episode_of(run: Path) -> str:
    (trajectory, *_) = read_trajectories(run / "trajectories" / "step-000001.jsonl")
    return str(trajectory.id)


def run_case(case: Case, place: Path) -> Ended:
    """The target is copied to `place`, which must not be there yet, damaged, and given to the command."""
    place.mkdir(parents=True)
    copy = place / case.target.root.name
    (shutil.copytree if case.target.root.is_dir() else shutil.copy)(case.target.root, copy)
    word = case.target.word(copy)
    if case.wound is not None:
        case.wound.do(copy)
    text = _Output(lambda: serves(case.way.command))
    wait_s = _SERVES_S if serves(case.way.command) else _ENDS_BY_S
    interrupt = Timer(wait_s, os.kill, (os.getpid(), signal.SIGINT))
    with contextlib.chdir(place), pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        patch.setattr("sys.stdin", io.StringIO())
        patch.setattr("sys.stdout", text)
        patch.setattr("sys.stderr", text)
        patch.setattr("threading.excepthook", lambda args: traceback.print_exception(args.exc_value, file=text))
        _ask_pages(patch)
        interrupt.start()
        try:
            return Ended(main(case.way.words(word, made=str(place / "made"))), text.getvalue())
        except SystemExit as error:
            return Ended(error.code if isinstance(error.code, int) else 2, text.getvalue())
        except BaseException:  # noqa: BLE001 - also an interrupt that no command has told of
            return Ended(None, text.getvalue() + traceback.format_exc())
        finally:
            interrupt.cancel()
            shutil.rmtree(place, ignore_errors=True)


class _Output(io.StringIO):
    """What a command writes; one that serves is interrupted once it says how that is done."""

    def __init__(self, is_interrupted: Callable[[], bool]) -> None:
        super().__init__()
        self._is_interrupted = is_interrupted

    def write(self, text: str, /) -> int:
        if "Ctrl-C ends it." in text and self._is_interrupted():
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def _ask_pages(patch: pytest.MonkeyPatch) -> None:
    """In place of serving its page, `view` is asked everything that a page can ask."""
    shelves = []
    make_app = server.make_app

    def keep(shelf: Any, **given: Any) -> Any:
        shelves.append(shelf)
        return make_app(shelf, **given)

    def ask(_server: server.ViewServer) -> None:
        for name in ANSWERS:
            if name == "policy":
                # Asked in a process of its own, which takes seconds to start.
                continue
            for words in _questions(shelves[-1]):
                server._answer(shelves[-1], name, words)

    patch.setattr(server, "make_app", keep)
    patch.setattr(server.ViewServer, "run", ask)


def _questions(shelf: Any) -> Iterator[dict[str, str]]:
    for run in shelf.runs():
        named = {"run": run.name, "names": "rollout/return,eval/success"}
        for step in ("1", "2"):
            yield {**named, "step": step, "id": "1", "eval": "step-000002", "task": "frozen_lake/eval/1"}
        with contextlib.suppress(TurnwiseError):
            for row in ANSWERS["episodes"](shelf, named)["episodes"][:2]:
                yield named | {"step": str(row["step"]), "id": str(row["id"]), "is_eval": str(int(row["is_eval"]))}


# --- the program -----------------------------------------------------------------------------------------------------


def draw_cases(
    pairs: Sequence[tuple[Way, Target]], number: int, rng: random.Random, wound: Callable[..., Wound] = draw_wound
) -> list[Case]:
    """As many for each pair as fit, in turn; the same seed draws the same cases."""
    return [
        Case(way, target, wound(target.files, rng)) for way, target in itertools.islice(itertools.cycle(pairs), number)
    ]


def list_deep(pairs: Sequence[tuple[Way, Target]], levels: Sequence[int] = LEVELS) -> Iterator[Case]:
    """Every text file of every target, nested deeply in every way."""
    for way, target in pairs:
        for file in target.files:
            if (target.root / file if target.root.is_dir() else target.root).suffix in _TEXT:
                for damage, level in itertools.product(DEEP, levels):
                    yield Case(way, target, Wound(file, damage, levels=level, is_signed=True))


def run_all(cases: Iterable[Case], place: Path, on_fault: Callable[[Case, Ended], None]) -> dict[str, Counter[str]]:
    """How commands have ended, by command; cases that were not answered in words are told as they come."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for number, case in enumerate(cases):
        ended = run_case(case, place / f"case-{number}")
        counts[case.way.command][ended.fault or f"exit {ended.code}"] += 1
        if ended.fault:
            on_fault(case, ended)
    return counts


def program(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.hostile_files")
    parser.add_argument("--cases", type=int, default=600, metavar="N", help="how many, over all commands in turn")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the damages")
    parser.add_argument(
        "--kinds", nargs="+", default=["runs"], choices=("runs", "folders", "recipes"), help="of targets"
    )
    parser.add_argument("--commands", nargs="+", choices=tuple(COMMANDS), help="these alone (default: all)")
    parser.add_argument("--deep", action="store_true", help="nest every file deeply; --cases is of them, drawn")
    parser.add_argument("--brief", action="store_true", help="of each fault the last line alone")
    options = parser.parse_args(words)
    logging.basicConfig(level=logging.ERROR)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        os.environ["TURNWISE_CACHE"] = str(Path(name, "models"))
        targets = write_targets(Path(name, "sound"))
        pairs = [
            (way, target)
            for way, target in list_ways(targets, options.kinds)
            if options.commands is None or way.command in options.commands
        ]
        sound = [Case(way, target, None) for way, target in pairs]
        if options.deep:
            every = list(list_deep(pairs))
            cases = rng.sample(every, min(options.cases, len(every)))
        else:
            cases = draw_cases(pairs, options.cases, rng)
        faults: list[Case] = []

        def tell(case: Case, ended: Ended) -> None:
            faults.append(case)
            lines = ended.text.strip().splitlines()
            _say(f"--- {case}", *(lines[-1:] if options.brief else lines[-40:]))

        for title, some in (("sound", sound), ("damaged", cases)):
            counts = run_all(some, Path(name, title), tell)
            for command, counted in counts.items():
                _say(f"{title:8} {command:14} " + "  ".join(f"{what} x {n}" for what, n in sorted(counted.items())))
            _say(f"{title}: {sum(map(Counter.total, counts.values()))} cases, {len(faults)} not answered in words")
    return 1 if faults else 0


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(program())
