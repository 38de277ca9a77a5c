"""Single-turn environments: `prompts`, scored by `reward.judge`, and `dataset`, scored by a function of the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field, model_validator

from turnwise.config.component import import_row_reward
from turnwise.config.settings import Settings, WholeSettings
from turnwise.envs.adapters.external import reward_value
from turnwise.envs.base import BaseEnv, check_split
from turnwise.envs.prompts.sources import (
    EVAL_SHARE,
    PromptParser,
    PromptRow,
    PromptSet,
    hold_out_prompts,
    is_dataset,
    letter_prompts,
    load_prompts,
    read_dataset,
    split_prompts,
)
from turnwise.envs.rows import parse_rows
from turnwise.infra.seeds import random_seed

__all__ = ["Dataset", "Prompts"]


SPLITS = ("train", "eval")


class PromptsParams(Settings):
    """The settings of Prompts."""

    path: str | None = None
    """A file of prompts: a JSON list, JSON lines, CSV, or text with one prompt per line; null: the built-in ones."""
    eval_path: str | None = None
    """Another file for evaluation; null: a share of `path` is held out."""
    prompt_field: str = Field(default="prompt", min_length=1)
    """The key of the prompt where rows are objects."""
    response_field: str = Field(default="response", min_length=1)
    """The key of a reference response, for a warm start; rows may lack it."""
    eval_share: float = Field(default=EVAL_SHARE, gt=0, lt=1)
    """Share of the prompts that is held out for evaluation, chosen by a hash of each prompt."""

    @model_validator(mode="after")
    def _files_fit(self) -> PromptsParams:
        if self.eval_path is not None and self.path is None:
            raise ValueError("eval_path is given and path is not; expected both, or path alone.")
        return self

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.path is None:
            return self.idle("prompt_field", "response_field", why=f"while {path}.path is null")
        return {} if self.eval_path is None else self.idle("eval_share", why=f"while {path}.eval_path is set")


class Prompts(BaseEnv):
    """One prompt and one reply. The oracle says the reference response, where every row has one."""

    name = "prompts"
    rewards = "from reward.judge"
    data = "built in, or a file of prompts"
    Params: ClassVar[type[Settings]] = PromptsParams
    is_judged = True
    state_fields = ("_row",)

    params: PromptsParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._prompts = self._load()
        self.has_oracle = self._prompts.has_responses
        self._row = PromptRow("")

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, SPLITS, self.name)
        self._row = self._prompts.pick(split, random_seed() if seed is None else seed)
        self._phase = "playing"
        return self._row.prompt

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        if not action.strip():
            return self._row.prompt, 0.0, False, _info(is_valid=False)
        self._phase = "over"
        return "", 0.0, True, _info(is_valid=True)

    def render(self) -> str:
        return self._row.prompt

    @property
    def description(self) -> str:
        """How many prompts there are in each split, and how many were dropped."""
        return self._prompts.describe()

    @property
    def instructions(self) -> str:
        return "Answer the request."

    def oracle(self) -> str:
        self._require_playing()
        return self._row.response or super().oracle()

    def num_tasks(self, split: str = "train") -> int:
        check_split(split, SPLITS, self.name)
        return len(self._prompts[split])

    def _load(self) -> PromptSet:
        params = self.params
        if params.path is None:
            return letter_prompts(params.eval_share)
        parser = PromptParser(params.prompt_field, params.response_field)
        return load_prompts(params.path, params.eval_path, parser=parser, eval_share=params.eval_share)


def _info(*, is_valid: bool) -> dict[str, object]:
    return {"success": False, "action_is_valid": is_valid, "action_is_effective": is_valid}


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
        return text, score, True, info | {"success": reward_value(score) > self.params.success_above}

    def raw_task(self, seed: int, split: str = "train") -> Mapping[str, object]:
        return self._prompts.pick(split, seed).content or super().raw_task(seed, split)

    def _grade(self, reply: str) -> Any:
        if self._score is None:
            return float(reply.strip() == self._row.response)
        return self._score(reply, self._row.content)

    def _load(self) -> PromptSet:
        params = self.params
        if params.path is None or not is_dataset(params.path):
            return super()._load()
        parser = PromptParser(params.prompt_field, params.response_field)
        rows = _read_once(params.path, params.subset, params.train_split, parser)
        if params.eval_split is None:
            return split_prompts(rows, eval_share=params.eval_share, source=params.path)
        held_out = _read_once(params.path, params.subset, params.eval_split, parser)
        return hold_out_prompts(rows, held_out, source=params.path)


@lru_cache(maxsize=8)
def _read_once(path: str, subset: str | None, split: str, parser: PromptParser) -> tuple[PromptRow, ...]:
    """Read a split of a dataset; it does not change while the process lives."""
    rows = read_dataset(path, subset=subset, split=split, setting="env.path")
    return parse_rows(rows, parser, path, parser.format())
