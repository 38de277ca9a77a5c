"""Mathematics with several attempts: problems from files or made from seeds, graded as mathematics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from turnwise.config.settings import Settings, WholeSettings
from turnwise.envs.base import BaseEnv, check_split
from turnwise.envs.metamathqa.grading import final_answer, is_same_answer, is_same_by_math_verify, require_math_verify
from turnwise.envs.metamathqa.problems import (
    OPERATIONS,
    Operation,
    Problem,
    ProblemParser,
    draw_story,
    is_held_out,
    load_problems,
    tell,
)
from turnwise.envs.rows import Splits
from turnwise.errors import TaskError
from turnwise.infra.seeds import make_rng, random_seed

__all__ = ["MetaMathQA"]


SPLITS = ("train", "eval")
_MAX_DRAWS = 10_000
_OF_BUILT_IN_PROBLEMS = ("operations", "num_events", "max_number", "backward_rate", "held_out")

GRADERS: dict[str, Callable[[str, str], bool]] = {"exact": is_same_answer, "math_verify": is_same_by_math_verify}


class MetaMathQAParams(Settings):
    """The settings of MetaMathQA."""

    path: str | None = None
    """A file of problems (JSON, JSON lines, .gz, Parquet); null: built-in word problems without end."""
    eval_path: str | None = None
    """Another file for evaluation, such as GSM8K's test set; null: a share of `path` is held out."""
    question_field: str | None = None
    """The key of the question in a row; null: query, question or problem, whichever is there."""
    answer_field: str | None = None
    """The key of the answer in a row; null: answer, response or solution, whichever is there."""
    eval_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the problems that is held out for evaluation, chosen by a hash of what they were made from."""
    max_attempts: PositiveInt = 3
    """The episode ends after this many wrong answers."""
    decay: float = Field(default=0.5, ge=0, le=1)
    """The first attempt is worth 1; each further one this much of the one before."""
    should_repeat_question: bool = False
    """Ask again in full after a wrong answer, for context windows that hide earlier turns."""
    grader: Literal["exact", "math_verify"] = "exact"
    """Compare answers exactly, or also symbolically with the package math-verify."""
    operations: Annotated[tuple[Operation, ...], Field(strict=False, min_length=1)] = OPERATIONS
    """What happens in built-in problems."""
    num_events: int = Field(default=1, ge=1, le=8)
    """How many things happen in a built-in problem."""
    max_number: int = Field(default=20, ge=2, le=10_000)
    """No number of a built-in problem is larger, the answer included."""
    backward_rate: float = Field(default=0.5, ge=0, le=1)
    """How often a built-in problem tells the end and asks for a number on the way."""
    held_out: Literal["numbers", "wording"] = "numbers"
    """What training never meets of a built-in evaluation problem: its numbers, or only the same numbers so worded."""

    @model_validator(mode="after")
    def _files_fit(self) -> MetaMathQAParams:
        if self.eval_path is not None and self.path is None:
            raise ValueError("eval_path is given and path is not; expected both, or path alone.")
        return self

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        idle = {}
        if self.path is None:
            idle |= self.idle("question_field", "answer_field", why=f"while {path}.path is null")
        else:
            idle |= self.idle(*_OF_BUILT_IN_PROBLEMS, why=f"while {path}.path is set")
        if self.eval_path is not None:
            idle |= self.idle("eval_share", why=f"while {path}.eval_path is set")
        if self.max_attempts == 1:
            idle |= self.idle("decay", "should_repeat_question", why=f"while {path}.max_attempts is 1")
        return idle


class MetaMathQA(BaseEnv):
    """Mathematics with several attempts. Success is a right answer, whichever attempt it took."""

    name = "metamathqa"
    rewards = "1 for the answer, less for each attempt"
    data = "built in, or a file of problems"
    Params: ClassVar[type[Settings]] = MetaMathQAParams
    has_oracle = True
    state_fields = ("_problem", "_num_wrong", "_text")

    params: MetaMathQAParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        if self.params.grader == "math_verify":
            require_math_verify()
        self._problems = _load(self.params)
        self._problem = Problem("", "", "")
        self._num_wrong = 0
        self._text = ""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, SPLITS, self.name)
        seed = random_seed() if seed is None else seed
        self._problem = self._choose(seed, split)
        self._num_wrong = 0
        self._phase = "playing"
        self._text = self._problem.question
        return self._text

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        if not any(character.isalnum() for character in final_answer(action)):
            return self._text, 0.0, False, _info(success=False, is_valid=False)
        is_right = GRADERS[self.params.grader](action, self._problem.answer)
        reward = self.params.decay**self._num_wrong if is_right else 0.0
        self._num_wrong += not is_right
        is_over = is_right or self._num_wrong == self.params.max_attempts
        self._phase = "over" if is_over else "playing"
        self._text = self._judge(is_right=is_right, is_over=is_over)
        return self._text, reward, is_over, _info(success=is_right, is_valid=True)

    def render(self) -> str:
        return self._text

    def admissible_actions(self) -> list[str] | None:
        """The answers that built-in problems may have; those of a file may be anything."""
        return [str(number) for number in range(self.params.max_number + 1)] if self._problems is None else None

    @property
    def example(self) -> str:
        return "42"

    @property
    def instructions(self) -> str:
        return "Solve the problem. Give the final answer only. After a wrong answer you may try again, for less."

    def oracle(self) -> str:
        self._require_playing()
        return self._problem.answer

    def num_tasks(self, split: str = "train") -> int | None:
        check_split(split, SPLITS, self.name)
        if self._problems is None:
            return None
        return len(self._problems[split])

    def _judge(self, *, is_right: bool, is_over: bool) -> str:
        if is_over:
            return "Right." if is_right else "Wrong."
        again = f"\n{self._problem.question}" if self.params.should_repeat_question else ""
        return f"Wrong. Try again.{again}"

    def _choose(self, seed: int, split: str) -> Problem:
        if self._problems is None:
            return _make_problem(self.params, seed, split)
        return self._problems.pick(split, seed)


def _load(params: MetaMathQAParams) -> Splits[Problem] | None:
    """Load the problems of the files; None if problems are generated from seeds."""
    if params.path is None:
        return None
    parser = ProblemParser(params.question_field, params.answer_field)
    return load_problems(params.path, params.eval_path, parser, params.eval_share)


def _make_problem(params: MetaMathQAParams, seed: int, split: str) -> Problem:
    """Draw until a problem belongs to the split."""
    rng = make_rng("story", seed)
    for _ in range(_MAX_DRAWS):
        story = draw_story(
            rng, operations=params.operations, num_events=params.num_events, max_number=params.max_number
        )
        if story is None:
            continue
        question, answer = tell(story, rng, is_backward=rng.random() < params.backward_rate)
        # By their numbers, the forward and backward versions of a story stay together.
        origin = repr((story.start, story.events)) if params.held_out == "numbers" else question
        if is_held_out(origin, params.eval_share) == (split == "eval"):
            return Problem(question, answer, origin)
    raise TaskError(
        f"metamathqa: no word problem for the split '{split}' was found with env.max_number {params.max_number}, "
        f"env.num_events {params.num_events} and env.operations {', '.join(params.operations)}. "
        "Raise env.max_number, lower env.num_events or allow more operations."
    )


def _info(*, success: bool, is_valid: bool) -> dict[str, object]:
    return {"success": success, "action_is_valid": is_valid, "action_is_effective": is_valid}
