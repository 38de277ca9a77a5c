"""`turnwise eval` from the words of the command line to what is shown: one setting, or all of a suite."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, did_you_mean
from turnwise.infra.atomic_files import write_whole
from turnwise.loop.evaluate import names_a_rule
from turnwise.loop.policies import explained, is_endpoint, names_a_model, run_of
from turnwise.report.console import print_notice
from turnwise.run.evaluation import (
    EvalReport,
    Evaluated,
    evaluate_policy,
    evaluate_rule,
    show_report,
    show_suite,
    to_markdown,
)

SUITES = {
    "mission": ("frozenlake", "bandit", "sokoban", "countdown", "metamathqa", "webshop", "alfworld"),
}
"""Recipes by the name of their suite; `mission` has one for every shipped environment with rewards of its own."""


def find_suite(name: str) -> tuple[str, ...]:
    if name not in SUITES:
        raise ConfigError(f"--suite: there is no suite '{name}'. {did_you_mean(name, SUITES)}")
    return SUITES[name]


_GENEROUS_TURNS = 100
"""Of a rule in an environment without a recipe."""


def run_eval(options: argparse.Namespace, overrides: list[str], console: Console) -> int:
    if options.target is not None and "=" in options.target and not is_endpoint(options.target):
        # Without a target, the first word may be a setting.
        overrides, options.target = [options.target, *overrides], None
    _refuse_what_does_not_fit(options)
    words = _with_counts(options, [_own_key(word) for word in overrides])
    # Progress on the console would stand in front of the JSON.
    told = Console(quiet=True) if options.json else console
    if options.suite:
        reports = _evaluate_suite(options, words, told)
    else:
        reports = [_evaluate(options, words, told, recipe=options.recipe, name=None)]
    if options.markdown:
        write_whole(Path(options.markdown), to_markdown(reports))
    if options.json:
        console.print_json(json.dumps([report.to_dict() for report in reports]))
    elif options.suite:
        show_suite(console, reports)
    else:
        show_report(console, reports[0])
    return 0


def _evaluate_suite(options: argparse.Namespace, words: Sequence[str], told: Console) -> list[EvalReport]:
    """Settings that a rule cannot play are told and left out: not every world can be played at random."""
    recipes = find_suite(options.suite)
    rule = options.target or "oracle"
    if ":" not in rule and any(_is_rule(rule, options, words, recipe) for recipe in recipes):
        can_play = [names_a_rule(_setting_of(None, recipe, words), rule, options.split) for recipe in recipes]
        for recipe in [recipe for recipe, can in zip(recipes, can_play, strict=True) if not can]:
            print_notice(told, f"{recipe}: its environment cannot be played by '{rule}' and is left out.")
        recipes = tuple(recipe for recipe, can in zip(recipes, can_play, strict=True) if can)
    return [_evaluate(options, words, told, recipe=recipe, name=recipe) for recipe in recipes]


def _refuse_what_does_not_fit(options: argparse.Namespace) -> None:
    for name in ("episodes", "samples"):
        if (number := getattr(options, name)) is not None and number < 1:
            raise ConfigError(f"--{name}: {number} given; expected at least 1.")
    given = [f"--{name}" for name in ("env", "recipe", "suite") if getattr(options, name)]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} given; expected one of them.")
    if options.target is None and not options.suite:
        raise ConfigError("who is to play? Give TARGET: a run, a model, the URL of an endpoint, oracle or random.")


def _own_key(word: str) -> str:
    """`--temperature` is that of the evaluation, and not a key of other systems that is called so."""
    return f"eval.{word}" if word.partition("=")[0].strip() == "temperature" else word


def _with_counts(options: argparse.Namespace, overrides: list[str]) -> list[str]:
    counts = [] if options.episodes is None else [f"eval.episodes={options.episodes}"]
    if options.samples is None:
        return [*overrides, *counts]
    has_heat = any(word.partition("=")[0].strip() == "eval.temperature" for word in overrides)
    # Drawn as in training, unless somebody says how; greedy plays would all be the same.
    drawn = [] if has_heat or options.samples == 1 else ["eval.temperature=${oc.select:rollout.temperature,1.0}"]
    return [*overrides, *counts, *drawn, f"eval.samples={options.samples}"]


def _evaluate(
    options: argparse.Namespace, words: Sequence[str], told: Console, *, recipe: str | None, name: str | None
) -> EvalReport:
    """In one setting; `name` is that of a suite's setting."""
    # A suite that nobody is named for measures the yardstick.
    target = options.target or "oracle"
    if _is_rule(target, options, words, recipe):
        evaluated = evaluate_rule(target, _setting_of(options.env, recipe, words), options.split)
    else:
        evaluated = _evaluate_policy(target, options, words, told, recipe)
    return evaluated.save(None if options.out is None else Path(options.out) / (name or ""))


def _evaluate_policy(
    target: str, options: argparse.Namespace, words: Sequence[str], told: Console, recipe: str | None
) -> Evaluated:
    if options.env and not is_endpoint(target):
        raise ConfigError(
            "--env goes with oracle, random, other rules and endpoints; a run or model plays in the setting of its "
            "recipe."
        )
    chosen: str | Mapping[str, object] | None = recipe
    if options.env:
        chosen = explained(options.env, {}, called=options.env)
    elif options.suite and is_endpoint(target):
        env = load_settings(recipe or "frozenlake").env.type
        chosen = explained(env, {}, called=env)
    return evaluate_policy(target, words, told, recipe=chosen, split=options.split)


def _is_rule(target: str, options: argparse.Namespace, words: Sequence[str], recipe: str | None) -> bool:
    """`oracle`, `random`, or what an environment calls a rule of its own; a path or a model of the name comes first."""
    if target in ("oracle", "random"):
        return True
    if is_endpoint(target) or Path(target).expanduser().exists() or run_of(target) is not None:
        return False
    if names_a_model(target):
        return False
    if ":" in target:
        return True
    return "/" not in target and names_a_rule(_setting_of(options.env, recipe, words), target, options.split)


def _setting_of(env: str | None, recipe: str | None, words: Sequence[str]) -> TurnwiseSettings:
    """A recipe's setting, or an environment in its own default setting with a generous budget."""
    if env:
        return load_settings(
            {"recipe": env, "env": {"type": env}, "rollout": {"max_turns": _GENEROUS_TURNS}}, list(words)
        )
    return load_settings(recipe or "frozenlake", list(words))
