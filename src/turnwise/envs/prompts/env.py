"""Prompts: one request, one reply, and the episode is over; a judge says what the reply was worth.

In come seeds and a reply; out comes the prompt of the seed, and an end without a reward. It refuses to know what a good
reply is: that is the business of `reward.judge`.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from pydantic import Field, model_validator

from turnwise.config.settings import Settings, WholeSettings
from turnwise.envs.base import BaseEnv, check_split
from turnwise.envs.prompts.files import Fields, load_prompts, load_two_files
from turnwise.envs.prompts.letters import EVAL_SHARE, letter_prompts
from turnwise.envs.prompts.rows import PromptRow, PromptSet
from turnwise.infra.seeds import draw_seed

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

    params: PromptsParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._prompts = self._load()
        self.has_oracle = self._prompts.has_responses
        self._row = PromptRow("")

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, SPLITS, self.name)
        rows = self._rows(split)
        self._row = rows[(draw_seed() if seed is None else seed) % len(rows)]
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
        return len(self._rows(split))

    def snapshot(self) -> object:
        return self._row, self._phase

    def restore(self, state: object) -> None:
        self._row, self._phase = cast("tuple[PromptRow, Any]", state)

    def _rows(self, split: str) -> tuple[PromptRow, ...]:
        return self._prompts.train if split == "train" else self._prompts.eval

    def _load(self) -> PromptSet:
        params = self.params
        if params.path is None:
            return letter_prompts(params.eval_share)
        fields = Fields(prompt=params.prompt_field, response=params.response_field)
        if params.eval_path is None:
            return load_prompts(params.path, fields=fields, eval_share=params.eval_share)
        return load_two_files(params.path, params.eval_path, fields)


def _info(*, is_valid: bool) -> dict[str, object]:
    return {"success": False, "action_is_valid": is_valid, "action_is_effective": is_valid}
