"""An episode in the terminal: a person, a rule or a trained policy plays, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rich.console import Console

from turnwise.app.run import load_policy, run_async
from turnwise.config.load import env_params
from turnwise.envs.base import BaseEnv
from turnwise.envs.make import make_env
from turnwise.errors import ConfigError
from turnwise.floor.seeds import derive_seed
from turnwise.loop.evaluate import evaluate_once
from turnwise.report.console import print_trajectory
from turnwise.rollout.rules import Rule, oracle_rule, play_rule, random_rule
from turnwise.types import Task

_MAX_STEPS = 200


def play_in_terminal(
    console: Console, env_name: str, *, agent: str, seed: int, split: str, params: Mapping[str, object]
) -> None:
    """One episode; `agent` is human, oracle, random or a run directory."""
    if agent in ("human", "oracle", "random"):
        _play_directly(console, make_env(env_name, **params), agent, seed, split)
        return
    if not (Path(agent) / "config.yaml").is_file():
        raise ConfigError(f"--agent: '{agent}' given; expected human, oracle, random or the directory of a run.")
    _play_policy(console, agent, seed, split, env_name, params)


def _play_policy(
    console: Console, run: str, seed: int, split: str, env_name: str, params: Mapping[str, object]
) -> None:
    parts = load_policy(run, 1, split=split, first_seed=seed)
    if parts.settings.env.type != env_name:
        raise ConfigError(f"run {run} plays '{parts.settings.env.type}', not '{env_name}'.")
    if params:
        raise ConfigError(
            f"run {run} brings its own settings: {env_params(parts.settings.env, split)}; give none here."
        )
    print_trajectory(console, run_async(evaluate_once(parts)).trajectories[0])


def _play_directly(console: Console, env: BaseEnv, agent: str, seed: int, split: str) -> None:
    rules: dict[str, Rule] = {"oracle": oracle_rule, "random": random_rule(seed), "human": partial(_ask, console)}
    shown = _Shown(console, rules[agent], is_told=agent != "human")
    task = Task(tag=env.label(), seed=seed, split=split)
    total, last = 0.0, None
    try:
        for move in play_rule(env, shown, task, max_actions=_MAX_STEPS, dynamics_seed=derive_seed(seed)):
            total, last = total + move.result.reward, move.result
            if not last.is_valid:
                console.print(f"'{move.action}' is not an action here.", markup=False, style="yellow")
    except EOFError:
        return
    assert last is not None
    console.rule()
    console.print(last.text, markup=False, highlight=False)
    console.print(f"{'success' if last.is_success else 'no success'}, return {total:g}", style="bold")


class _Shown:
    """A rule whose turns can be followed in the terminal."""

    def __init__(self, console: Console, rule: Rule, *, is_told: bool) -> None:
        self._console = console
        self._rule = rule
        self._is_told = is_told
        """Whether the action is told; a person knows what they typed."""
        self._num_turns = 0

    def __call__(self, env: BaseEnv, observation: str) -> str:
        if self._num_turns == 0:
            names = ", ".join(env.action_names or ("any text",))
            for line in (env.instructions, env.legend, f"Actions: {names}."):
                self._console.print(line, markup=False, highlight=False)
        self._num_turns += 1
        self._console.rule(f"turn {self._num_turns}")
        self._console.print(observation, markup=False, highlight=False)
        action = self._rule(env, observation)
        if self._is_told:
            self._console.print(f"> {action}", markup=False, style="cyan")
        return action


def _ask(console: Console, _env: BaseEnv, _observation: str) -> str:
    """The person's action; raises EOFError at the end of input."""
    return console.input("your action (end with Ctrl-D): ")
