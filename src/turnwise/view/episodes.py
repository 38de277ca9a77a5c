"""An episode comes in; everything that can be shown of it goes out as plain data: turns, tokens, siblings.

An episode that was learnt from but not written down as text is put together from its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from turnwise.errors import RunError, did_you_mean
from turnwise.infra.array_codec import decode_text
from turnwise.infra.parsing import parse_finite_json
from turnwise.report.evaluation import RESULT, TRAJECTORIES, find_evals
from turnwise.report.run_dir import step_name
from turnwise.report.token_log_reader import RecordedToken, StepTokens
from turnwise.view.run_files import RunFiles, read_json, setting

COLUMNS = RecordedToken._fields[2:]
"""Everything about a token but its step and its trajectory, which all of them share."""


def trained_token_columns(
    tokens: StepTokens, arrays: Mapping[str, NDArray[Any]], trajectory: str, texts: TokenTexts
) -> dict[str, Any] | None:
    """The tokens of a trajectory in an update, `arrays` being all of them; None where they are not on record."""
    where = tokens_of(tokens, trajectory)
    if where is None:
        return None
    return {
        "source": "learning record",
        "has_values": tokens.has_values,
        "has_reference": tokens.has_reference,
        "has_trace": tokens.trace is not None,
        "text": texts.of_all(arrays["token_id"][where].tolist()),
        "has_texts": texts.is_known,
        **{name: plain(arrays[name][where]) for name in COLUMNS},
    }


def sampled_token_columns(record: Mapping[str, Any], texts: TokenTexts) -> dict[str, Any] | None:
    """The tokens of an episode that nothing was learnt from, or not on record: ids, mask and log-probs."""
    try:
        segments = decode_text(record["segments"])
    except (RunError, KeyError, TypeError, ValueError):
        return None
    columns: dict[str, list[Any]] = {
        "segment_index": [index for index, segment in enumerate(segments) for _ in range(len(segment))],
        "position": [place for segment in segments for place in range(len(segment))],
        "turn": [turn for segment in segments for turn in segment.turn_ids.tolist()],
        "token_id": [token for segment in segments for token in segment.token_ids.tolist()],
        "is_sampled": [bit for segment in segments for bit in segment.loss_mask.tolist()],
        "behavior_logprob": [number for segment in segments for number in plain(segment.behavior_logprobs)],
    }
    return {
        "source": "episode",
        "text": texts.of_all(columns["token_id"]),
        "has_texts": texts.is_known,
        **columns,
    }


def tokens_of(tokens: StepTokens, trajectory: str) -> NDArray[np.int64] | None:
    """Where in a step the tokens of a trajectory are."""
    names = [str(known) for known in tokens.rows.trajectory_ids]
    if trajectory not in names:
        return None
    rows = tokens.batch.trajectory_of_row == names.index(trajectory)
    return np.flatnonzero(np.repeat(rows, tokens.batch.row_lengths))


def plain(values: NDArray[Any]) -> list[Any]:
    """What JSON can hold: shortest decimals of float32, and null for what is not finite."""
    if values.dtype != np.float32:
        return values.tolist()
    # Most tokens were given and not sampled: their numbers are 0, and what is 0 needs no decimals.
    numbers: list[float | None] = [0.0] * len(values)
    places = np.flatnonzero(values)
    told = zip(places.tolist(), values[places].astype(str), np.isfinite(values[places]).tolist(), strict=True)
    for place, text, is_finite in told:
        numbers[place] = float(text) if is_finite else None
    return numbers


def describe_episode(
    run: RunFiles, record: Mapping[str, Any] | None, *, step: int, is_eval: bool, texts: TokenTexts, name: str = ""
) -> dict[str, Any]:
    """`record` is the episode as it was written down; where it is None, `name` is looked for in the learning record."""
    learnt = None if is_eval else _open_step(run, step)
    trajectory = str(record["id"]) if record is not None else name
    tokens = trained_token_columns(learnt, run.arrays(step), trajectory, texts) if learnt is not None else None
    if record is None and tokens is None:
        raise RunError(f"step {step} has no episode '{name}', neither as text nor in its learning record.")
    if tokens is None and record is not None:
        tokens = sampled_token_columns(record, texts)
    told = _tell_record(record) if record is not None else _tell_tokens(trajectory, tokens or {})
    return {
        **told,
        "step": step,
        "is_eval": is_eval,
        "return": sum(turn["reward"] or 0.0 for turn in told["turns"]),
        "worlds": run.worlds(),
        "tokens": tokens,
        "siblings": _siblings(learnt, trajectory) if learnt is not None else [],
    }


def _open_step(run: RunFiles, step: int) -> StepTokens | None:
    try:
        return run.tokens(step)
    except RunError:
        return None


def _tell_record(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in record.items() if key != "segments"}, "is_text_kept": True}


def _tell_tokens(trajectory: str, tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Turns as far as tokens tell them: what was given before a reply, the reply, its reward."""
    turns: list[dict[str, Any]] = []
    given: list[str] = []
    for place, turn in enumerate(tokens["turn"]):
        text = tokens["text"][place]
        if turn < 0:
            given.append(text)
            continue
        if not turns or turns[-1]["index"] != turn:
            turns.append(
                {
                    "index": turn,
                    "observation": "".join(given),
                    "response_text": "",
                    "actions": [],
                    "reward": tokens["raw_reward"][place],
                    "penalty": 0.0,
                    "shaping": None,
                    "judged": None,
                    "policy_version": tokens["policy_version"][place],
                    "is_valid": True,
                    "is_effective": True,
                    "metrics": {},
                    "info": {},
                }
            )
            given = []
        turns[-1]["response_text"] += text
    tag, split, seed = trajectory.split("/", 1)[1].rsplit("/", 1)[0].rsplit("/", 2)
    return {
        "id": trajectory,
        "task": {"tag": tag, "seed": seed, "split": split},
        "stop_reason": None,
        "is_success": None,
        "final_observation": "",
        "failure": "",
        "turns": turns,
        "is_text_kept": False,
    }


def _siblings(learnt: StepTokens, trajectory: str) -> list[dict[str, Any]]:
    """The other plays of the same task in this update, with what each earned."""
    group = trajectory.rsplit("/", 1)[0]
    rows_of = learnt.batch.trajectory_of_row
    turn_ends = learnt.rows.num_turns.cumsum()
    siblings = []
    for number, known in enumerate(learnt.rows.trajectory_ids):
        if known.group != group:
            continue
        rows = (rows_of == number).nonzero()[0]
        turns = [place for row in rows for place in range(turn_ends[row] - learnt.rows.num_turns[row], turn_ends[row])]
        raw = learnt.turns.raw_rewards[turns]
        siblings.append({"id": str(known), "turns": len(set(turns)), "return": float(raw.sum())})
    return siblings


_EPISODE_KINDS = {
    "id": str,
    "task": dict,
    "stop_reason": str,
    "final_observation": str,
    "failure": str,
    "segments": str,
}
_NUMBER = (int, float)
_TURN_KINDS: dict[str, type | tuple[type, ...]] = {
    "index": int, "segment_index": int, "observation": str, "response_text": str, "actions": list, "reward": _NUMBER,
    "penalty": _NUMBER, "judged": _NUMBER, "shaping": _NUMBER, "metrics": dict, "info": dict,
}  # fmt: skip
_STEP_FILE = re.compile(r"step-(\d{6,})\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class EpisodeFile:
    """The trajectories of one step."""

    step: int
    is_eval: bool
    path: Path

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Each line with where it begins; a file that is gone has none."""
        try:
            data = self.path.read_bytes()
        except OSError:
            return
        start = 0
        for line in data.split(b"\n"):
            if line:
                yield start, line
            start += len(line) + 1


def list_episode_files(trajectories: Path) -> list[EpisodeFile]:
    """Of training and of evaluations, by step."""
    return sorted(
        EpisodeFile(int(found[1]), folder != trajectories, file)
        for folder in (trajectories, trajectories / "eval")
        if folder.is_dir()
        for file in folder.iterdir()
        if (found := _STEP_FILE.fullmatch(file.name))
    )


def read_episode(line: bytes) -> dict[str, Any] | None:
    """What a line holds, as plain data; None where it is no trajectory."""
    try:
        record = parse_finite_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and _is_episode(record) else None


def _is_episode(record: dict[str, Any]) -> bool:
    """Whether all that is shown of it is of the type that it is written as; earlier versions left some out."""
    turns = record.get("turns")
    return (
        isinstance(turns, list)
        and _has_kinds(record, _EPISODE_KINDS)
        and all(isinstance(turn, dict) and _has_kinds(turn, _TURN_KINDS) for turn in turns)
    )


def _has_kinds(values: dict[str, Any], kinds: Mapping[str, type | tuple[type, ...]]) -> bool:
    return all(values.get(name) is None or isinstance(values[name], kind) for name, kind in kinds.items())


def find_episode(trajectories: Path, name: str) -> tuple[EpisodeFile, dict[str, Any]]:
    """By `ID` or `STEP:ID`; the newest one where several have that name, and training before evaluation."""
    step, _, rest = name.partition(":") if re.match(r"\d+:", name) else ("", "", name)
    files = [file for file in list_episode_files(trajectories) if not step or file.step == int(step)]
    known: list[str] = []
    for file in sorted(files, key=lambda file: (file.is_eval, -file.step)):
        for _, line in file.lines():
            if (record := read_episode(line)) is None:
                continue
            if record.get("id") == rest:
                return file, record
            known.append(str(record.get("id")))
    if not known:
        raise RunError(
            f"{trajectories} has no episodes{f' of step {step}' if step else ''}: expected at least one. They are "
            "written after every step, unless report.trajectories_per_step is 0."
        )
    close = get_close_matches(rest, known, n=1)
    hint = f"Did you mean '{close[0]}'?" if close else f"One that there is: '{known[0]}'."
    raise RunError(f"there is no episode '{rest}' in {trajectories}. {hint}")


_MAX_PLAYS = 16
"""Of one task: more are not told apart by eye."""


def describe_plays(run: RunFiles, name: str, task: str, texts: TokenTexts) -> dict[str, Any]:
    """`name` is the folder of the evaluation, or nothing for the newest; `task` is `tag/split/seed`."""
    folder = _find(run, name)
    file = _episodes_of(run, folder)
    plays = []
    for _, line in file.lines():
        # Most lines are of other tasks; reading them would take longest.
        if len(plays) < _MAX_PLAYS and task.rsplit("/", 1)[-1].encode() in line:
            record = read_episode(line)
            if record is not None and _task_of(record) == task:
                plays.append(describe_episode(run, record, step=file.step, is_eval=True, texts=texts))
    if not plays:
        raise RunError(
            f"the episodes of '{task}' in {folder} were not kept: there is none in {file.path}. `turnwise eval "
            f"{run.path}` keeps all."
        )
    return {"eval": folder.name, "plays": plays}


def _find(run: RunFiles, name: str) -> Path:
    folders = {folder.name: folder for folder in find_evals(run.directory.evals)}
    if not folders:
        raise RunError(f"run {run.path} has no saved evaluation. Make one: turnwise eval {run.path}")
    if name and name not in folders:
        raise RunError(f"run {run.path} has no evaluation '{name}'. {did_you_mean(name, folders)}")
    return folders[name] if name else list(folders.values())[-1]


def _episodes_of(run: RunFiles, folder: Path) -> EpisodeFile:
    step = (read_json(folder / RESULT) or {}).get("step")
    step = step if isinstance(step, int) else 0
    if (folder / TRAJECTORIES).is_file():
        return EpisodeFile(step, True, folder / TRAJECTORIES)
    return EpisodeFile(step, True, run.directory.trajectories / "eval" / f"{step_name(step)}.jsonl")


def _task_of(record: dict[str, Any]) -> str:
    task = record.get("task")
    return "/".join(str(task.get(key)) for key in ("tag", "split", "seed")) if isinstance(task, dict) else ""


_TOKENIZER = "tokenizer.json"


class TokenTexts:
    """The texts of single tokens. Without a tokenizer a token is shown by its number."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    @classmethod
    def open(cls, run: RunFiles) -> TokenTexts:
        return cls(next((found for file in _places(run) if (found := _load(file)) is not None), None))

    @property
    def is_known(self) -> bool:
        return self._tokenizer is not None

    def of(self, token_id: int) -> str:
        if token_id not in self._known:
            self._known[token_id] = self._decode(token_id)
        return self._known[token_id]

    def of_all(self, token_ids: Iterable[int]) -> list[str]:
        return [self.of(token_id) for token_id in token_ids]

    def _decode(self, token_id: int) -> str:
        if self._tokenizer is None:
            return f"#{token_id}"
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text or self._tokenizer.id_to_token(token_id) or f"#{token_id}"


def _places(run: RunFiles) -> Iterable[Path]:
    """The run's own, those of its checkpoints, and that of a model which was given as a folder."""
    yield run.directory.tokenizer
    for step in reversed(run.directory.checkpoint_steps()):
        yield run.directory.step_checkpoint(step) / "policy" / _TOKENIZER
    yield Path(str(setting(run.settings, "model.path", ""))) / _TOKENIZER


def _load(file: Path) -> Tokenizer | None:
    if not file.is_file():
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001 - the package raises bare exceptions; without it a token has its number
        return None
