"""`turnwise eval` and `turnwise compare`: how well a policy plays, and whether the difference of two is significant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from turnwise.commands import OVERRIDES_HELP, Option, Target, command
from turnwise.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.config.schema import TurnwiseSettings
    from turnwise.run.evaluation import EvalReport, Evaluated

SUITES = {
    "mission": ("frozenlake", "bandit", "sokoban", "countdown", "metamathqa", "webshop", "alfworld"),
}
"""Recipes by the name of their suite; `mission` has one for every shipped environment with rewards of its own."""
_MAX_TURNS = 100
"""Of a scripted policy in an environment without a recipe."""

Policy = Annotated[
    str | None,
    Target(
        "TARGET",
        "a run directory or a checkpoint in it, a model (a folder, a GGUF file, 'smollm2', a hub name), the URL of an "
        "OpenAI-compatible endpoint, 'oracle', 'random', another scripted policy of the environment, or your own as "
        "package.module:function",
        complete="files",
    ),
]
Env = Annotated[str | None, Option("ENV", "environment, for scripted policies and endpoints", complete="envs")]
Recipe = Annotated[
    str | None,
    Option(
        "RECIPE",
        "recipe with whose settings a model, an endpoint or a scripted policy plays (default: frozenlake)",
        complete="recipes",
    ),
]
Suite = Annotated[
    str | None,
    Option("NAME", "evaluate with every recipe of a suite; mission: all shipped environments", complete="suites"),
]
Samples = Annotated[
    int | None,
    Option(
        "K",
        "episodes per task, sampled at eval.temperature, or at rollout.temperature if that is 0 (default: 1, greedy)",
    ),
]
Out = Annotated[Path | None, Option("DIR", "directory for results and episodes (default: in the run, or in runs/)")]
Markdown = Annotated[Path | None, Option("FILE", "also write the report to this file as Markdown")]


@command(
    "eval",
    help="Evaluate a run, model, endpoint or scripted policy ('oracle', 'random') on held-out episodes",
    epilog=OVERRIDES_HELP,
)
def evaluate(
    target: Policy = None,
    env: Env = None,
    recipe: Recipe = None,
    suite: Suite = None,
    episodes: Annotated[int | None, Option(help="number of tasks (default: eval.episodes of the recipe)")] = None,
    samples: Samples = None,
    split: Annotated[str, Option("S", "split of the tasks")] = "eval",
    out: Out = None,
    markdown: Markdown = None,
    json: bool = False,
    overrides: Sequence[str] = (),
) -> int:
    from rich.console import Console

    from turnwise.infra.atomic_files import atomic_write
    from turnwise.loop.policies import is_endpoint
    from turnwise.report.document import show, to_markdown
    from turnwise.run.evaluation import make_page, to_document, to_suite_document

    if target is not None and "=" in target and not is_endpoint(target):
        # Without a target, the first argument may be a setting.
        overrides, target = [target, *overrides], None
    given = {"--env": env, "--recipe": recipe, "--suite": suite}
    if len(named := [name for name, value in given.items() if value]) > 1:
        raise ConfigError(f"{' and '.join(named)} given; expected one of them.")
    if target is None and not suite:
        raise ConfigError("TARGET is required: a run directory, a model, an endpoint URL, 'oracle' or 'random'.")
    setting = _Setting(
        # A suite without a target evaluates the expert policies.
        target=target or "oracle",
        env=env,
        recipe=recipe,
        is_suite=suite is not None,
        split=split,
        out=out,
        overrides=_add_counts([_own_key(word) for word in overrides], episodes, samples),
    )
    progress = Console(quiet=json)
    reports = _evaluate_suite(setting, find_suite(suite), progress) if suite else [_evaluate(setting, progress)]
    if markdown:
        atomic_write(markdown, to_markdown(make_page(reports)))
    document = to_suite_document(reports) if suite else to_document(reports[0])
    saved = [f"saved: {report.folder}" for report in reports if report.folder is not None]
    data = [report.to_dict() for report in reports]
    return show(replace(document, notes=[*document.notes, *saved], data=data), json=json)


def find_suite(name: str) -> tuple[str, ...]:
    if name not in SUITES:
        raise ConfigError(f"--suite: there is no suite '{name}'. {did_you_mean(name, SUITES)}")
    return SUITES[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """Who plays, and with which settings."""

    target: str
    env: str | None
    recipe: str | None
    is_suite: bool
    split: str
    out: Path | None
    overrides: Sequence[str]

    def load(self) -> TurnwiseSettings:
        """Settings of the recipe, or of an environment without one."""
        from turnwise.config.load import load_settings

        if self.env is None:
            return load_settings(self.recipe or "frozenlake", list(self.overrides))
        alone = {"recipe": self.env, "env": {"type": self.env}, "rollout": {"max_turns": _MAX_TURNS}}
        return load_settings(alone, list(self.overrides))


def _own_key(override: str) -> str:
    """`--temperature` is that of the evaluation, and not a key of other systems with that name."""
    return f"eval.{override}" if override.partition("=")[0].strip() == "temperature" else override


def _add_counts(overrides: list[str], episodes: int | None, samples: int | None) -> list[str]:
    for name, number in (("episodes", episodes), ("samples", samples)):
        if number is not None and number < 1:
            raise ConfigError(f"--{name} must be at least 1, got {number}.")
    counts = [] if episodes is None else [f"eval.episodes={episodes}"]
    if samples is None:
        return [*overrides, *counts]
    has_temperature = any(word.partition("=")[0].strip() == "eval.temperature" for word in overrides)
    # Sampled as in training by default: greedy episodes of a task would all be the same.
    is_greedy = has_temperature or samples == 1
    sampled = [] if is_greedy else ["eval.temperature=${oc.select:rollout.temperature,1.0}"]
    return [*overrides, *counts, *sampled, f"eval.samples={samples}"]


def _evaluate_suite(setting: _Setting, recipes: Sequence[str], progress: Console) -> list[EvalReport]:
    """Evaluate with every recipe; those that a scripted policy cannot play are reported and left out."""
    from turnwise.loop.evaluate import has_scripted_policy
    from turnwise.report.console import print_notice

    out = setting.out
    settings = [replace(setting, recipe=name, out=None if out is None else out / name) for name in recipes]
    if ":" not in setting.target and any(map(_is_scripted, settings)):
        can_play = [has_scripted_policy(one.load(), one.target, one.split) for one in settings]
        for one in [one for one, can in zip(settings, can_play, strict=True) if not can]:
            print_notice(progress, f"{one.recipe}: its environment cannot be played by '{one.target}' and is left out.")
        settings = [one for one, can in zip(settings, can_play, strict=True) if can]
    return [_evaluate(one, progress) for one in settings]


def _evaluate(setting: _Setting, progress: Console) -> EvalReport:
    from turnwise.run.evaluation import evaluate_rule

    if _is_scripted(setting):
        evaluated = evaluate_rule(setting.target, setting.load(), setting.split)
    else:
        evaluated = _evaluate_policy(setting, progress)
    return evaluated.save(setting.out)


def _evaluate_policy(setting: _Setting, progress: Console) -> Evaluated:
    from turnwise.loop.policies import explained, is_endpoint
    from turnwise.run.evaluation import evaluate_policy

    if setting.env and not is_endpoint(setting.target):
        raise ConfigError(
            "--env goes with oracle, random, other scripted policies and endpoints; a run or model plays with the "
            "settings of its recipe."
        )
    recipe: str | Mapping[str, object] | None = setting.recipe
    if setting.env or (setting.is_suite and is_endpoint(setting.target)):
        env = setting.env or replace(setting, overrides=()).load().env.type
        recipe = explained(env, {}, called=env)
    return evaluate_policy(setting.target, setting.overrides, progress, recipe=recipe, split=setting.split)


def _is_scripted(setting: _Setting) -> bool:
    """`oracle`, `random`, or a scripted policy of the environment; a path or a model of the name comes first."""
    from turnwise.loop.evaluate import has_scripted_policy
    from turnwise.loop.policies import find_run, is_endpoint, is_model_reference

    target = setting.target
    if target in ("oracle", "random"):
        return True
    if is_endpoint(target) or Path(target).expanduser().exists() or find_run(target) is not None:
        return False
    if is_model_reference(target):
        return False
    if ":" in target:
        return True
    return "/" not in target and has_scripted_policy(setting.load(), target, setting.split)


@command(
    "compare",
    help="Compare evaluations task by task: the first with each of the others",
    epilog="several seeds of one side are joined by commas, or are the runs in one folder, for example\n"
    "  turnwise compare runs/grpo-1,runs/grpo-2 runs/ppo-1,runs/ppo-2",
)
def compare(
    sides: Annotated[
        list[str], Target("SIDE", "a run, a folder or file that 'turnwise eval' wrote, or several", complete="files")
    ],
    markdown: Markdown = None,
    json: bool = False,
) -> int:
    from turnwise.infra.atomic_files import atomic_write
    from turnwise.report import comparison
    from turnwise.report.document import Document, show, to_markdown

    if len(sides) < 2:
        raise ConfigError(f"'{sides[0]}' given alone; expected at least two sides to compare.")
    first, *others = map(comparison.read_side, sides)
    found = [comparison.compare(first, other) for other in others]
    if markdown:
        atomic_write(markdown, to_markdown(Document("Comparison", parts=[comparison.to_page(one) for one in found])))
    written = [f"written: {markdown}"] if markdown else []
    document = Document(
        parts=[comparison.to_document(one) for one in found], notes=written, data=[one.to_dict() for one in found]
    )
    return show(document, json=json)
