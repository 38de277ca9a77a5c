"""Rows of a dataset as tasks: one prompt, one reply, and a reward function that sees the row.

In come seeds and a reply; out come the prompt of the seed, then the score and the end. Rows are read and split as for
`prompts`, from the same files or from the package `datasets`. It refuses to know what a right reply is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import model_validator

from turnwise.config.component import import_row_reward
from turnwise.config.settings import Settings, WholeSettings
from turnwise.envs.adapters.foreign import worth_of
from turnwise.envs.prompts.env import Prompts, PromptsParams
from turnwise.envs.prompts.files import Fields, as_prompts
from turnwise.envs.prompts.hub import is_dataset, read_dataset
from turnwise.envs.prompts.rows import PromptRow, PromptSet, hold_out, split_rows

_MATCH = "match"
_HUB_ONLY = ("subset", "train_split", "eval_split")


class DatasetParams(PromptsParams):
    """The settings of Dataset."""

    path: str | None = None
    """A file of rows as for `prompts`, a folder that `datasets` can load, or `hf:NAME` on the hub; null: built in."""
    subset: str | None = None
    """Which configuration of the dataset, such as `main`; null: its only one."""
    train_split: str = "train"
    """The dataset's split that training plays."""
    eval_split: str | None = None
    """The dataset's split that evaluation plays; null: a share of `train_split` is held out."""
    reward: str = _MATCH
    """`match`: 1 where the reply is the row's response, else 0; or `package.module:function`, which takes the reply and
    the row and returns a number."""
    success_above: float = 0.0
    """An episode that earned more than this counts as a success."""

    @model_validator(mode="after")
    def _eval_rows_have_one_source(self) -> DatasetParams:
        if self.path is not None and self.eval_path is not None and is_dataset(self.path):
            raise ValueError("eval_path goes with files; of a dataset, eval_split names the rows for evaluation.")
        return self

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        idle = super().idle_settings(path, run)
        if self.path is None or not is_dataset(self.path):
            return idle | self.idle(*_HUB_ONLY, why=f"while {path}.path names no dataset")
        if self.eval_split is not None:
            return idle | self.idle("eval_share", why=f"while {path}.eval_split is set")
        return idle


class Dataset(Prompts):
    """One row and one reply."""

    name = "dataset"
    rewards = "from a function of the reply and the row"
    data = "built in, a file, a folder, or a dataset of the hub"
    Params: ClassVar[type[Settings]] = DatasetParams
    is_judged = False

    params: DatasetParams  # type: ignore[assignment]  # narrower than that of Prompts

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        is_match = self.params.reward == _MATCH
        # Only what the rows call right is known to be right for a function of the user's.
        self.has_oracle = self.has_oracle and is_match
        self._score: Callable[[str, Mapping[str, object]], Any] | None = (
            None if is_match else import_row_reward(self.params.reward)
        )

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, object]]:
        text, _, is_over, info = super().step(action)
        if not is_over:
            return text, 0.0, False, info
        score = self._grade(action)
        return text, score, True, info | {"success": worth_of(score) > self.params.success_above}

    def raw_task(self, seed: int, split: str = "train") -> Mapping[str, object]:
        rows = self._rows(split)
        return rows[seed % len(rows)].content or super().raw_task(seed, split)

    def _grade(self, reply: str) -> Any:
        if self._score is None:
            return float(reply.strip() == self._row.response)
        return self._score(reply, self._row.content)

    def _load(self) -> PromptSet:
        params = self.params
        if params.path is None or not is_dataset(params.path):
            return super()._load()
        fields = Fields(prompt=params.prompt_field, response=params.response_field)
        rows = _read_once(params.path, params.subset, params.train_split, fields)
        if params.eval_split is not None:
            return hold_out(rows, _read_once(params.path, params.subset, params.eval_split, fields), source=params.path)
        return split_rows(rows, eval_share=params.eval_share, source=params.path)


@lru_cache(maxsize=8)
def _read_once(path: str, subset: str | None, split: str, fields: Fields) -> tuple[PromptRow, ...]:
    """A dataset does not change while a process lives, so it is read once."""
    rows = read_dataset(path, subset=subset, split=split, setting="env.path")
    return tuple(as_prompts(rows, fields, path, "env.path"))
