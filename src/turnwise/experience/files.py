"""Experiences as a file for others: Parquet or JSON lines, one row per experience, and back, exactly.

Columns are the fields of `Experience` and `Segment` under their own names, with the parts of the ids beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.config.settings import require_package
from turnwise.errors import StoreError
from turnwise.infra.atomic_files import whole_file
from turnwise.infra.parsing import parse_json
from turnwise.types import Experience, ExperienceId, Segment, TrajectoryId

_IDS = {"rollout": "int64", "task_id": "string", "sibling": "int32", "segment_index": "int32"}
_FACTS = {"policy_version": "int64", "is_last": "bool", "is_truncated": "bool", "greedy_return": "float64"}
_PER_TOKEN = {"token_ids": "int32", "loss_mask": "bool", "behavior_logprobs": "float32", "turn_ids": "int32"}
_PER_TURN = {
    "turn_indices": "int32",
    "raw_rewards": "float32",
    "turn_rewards": "float32",
    "turn_states": "uint64",
    "turn_steps": "int32",
}
_ARROW = {"bool": "bool_"}
"""Types that pyarrow calls by another name."""
_ENDINGS = (".parquet", ".jsonl")


def write_experiences(groups: Iterable[Sequence[Experience]], path: Path) -> int:
    """All experiences of all groups, group by group, so that no more than one is in memory; returns how many."""
    is_parquet = _ending(path) == ".parquet"
    write = _write_parquet if is_parquet else _write_jsonl
    with whole_file(path, error=StoreError) as unfinished:
        return write(groups, unfinished)


def read_experiences(path: Path) -> list[Experience]:
    """Everything in a file that `write_experiences` wrote, or another program in the same columns."""
    is_parquet = _ending(path) == ".parquet"
    if not path.is_file():
        raise StoreError(f"{path} does not exist; expected a file that 'turnwise export' wrote.")
    rows = enumerate(_parquet_rows(path) if is_parquet else _jsonl_rows(path), start=1)
    experiences = []
    for number, row in rows:
        try:
            experiences.append(_from_row(row))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"column {error} is missing" if isinstance(error, KeyError) else str(error)
            raise StoreError(f"{path}, row {number} is no experience: {what}.") from error
    return experiences


def _ending(path: Path) -> str:
    if path.suffix not in _ENDINGS:
        raise StoreError(f"{path}: expected a file that ends in {' or '.join(_ENDINGS)}.")
    return path.suffix


def _to_row(experience: Experience) -> dict[str, Any]:
    trajectory = experience.id.trajectory
    return {
        "rollout": trajectory.rollout,
        "task_id": trajectory.task_id,
        "sibling": trajectory.sibling,
        "segment_index": experience.id.segment_index,
        **{name: getattr(experience, name) for name in _FACTS},
        **{name: getattr(experience.segment, name).tolist() for name in _PER_TOKEN},
        **{name: getattr(experience, name).tolist() for name in _PER_TURN},
    }


def _from_row(row: dict[str, Any]) -> Experience:
    trajectory = TrajectoryId(int(row["rollout"]), str(row["task_id"]), int(row["sibling"]))
    per_turn: dict[str, Any] = {name: np.array(row[name], dtype=dtype) for name, dtype in _PER_TURN.items()}
    return Experience(
        id=ExperienceId(trajectory, int(row["segment_index"])),
        segment=Segment(**{name: np.array(row[name], dtype=dtype) for name, dtype in _PER_TOKEN.items()}),
        **per_turn,
        policy_version=int(row["policy_version"]),
        is_last=bool(row["is_last"]),
        is_truncated=bool(row["is_truncated"]),
        greedy_return=None if row["greedy_return"] is None else float(row["greedy_return"]),
    )


def _write_jsonl(groups: Iterable[Sequence[Experience]], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for group in groups:
            file.writelines(json.dumps(_to_row(experience)) + "\n" for experience in group)
            count += len(group)
    return count


def _jsonl_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = parse_json(line)
            except ValueError as error:
                raise StoreError(f"{path}, line {number} is not JSON: {error}.") from error
            if not isinstance(row, dict):
                raise StoreError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}.")
            yield row


def _write_parquet(groups: Iterable[Sequence[Experience]], path: Path) -> int:
    pyarrow, parquet = _require("pyarrow"), _require("pyarrow.parquet")
    single = {name: getattr(pyarrow, _ARROW.get(dtype, dtype))() for name, dtype in (_IDS | _FACTS).items()}
    lists = {
        name: pyarrow.list_(getattr(pyarrow, _ARROW.get(dtype, dtype))())
        for name, dtype in (_PER_TOKEN | _PER_TURN).items()
    }
    schema = pyarrow.schema(list((single | lists).items()))
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for group in groups:
            writer.write_table(pyarrow.Table.from_pylist([_to_row(e) for e in group], schema=schema))
            count += len(group)
    return count


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    pyarrow, parquet = _require("pyarrow"), _require("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise StoreError(f"{path} cannot be read as Parquet: {error}.") from error


def _require(module: str) -> Any:
    return require_package(module, extra="data", asked_by="a file that ends in .parquet (.jsonl needs nothing)")
