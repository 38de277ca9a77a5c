"""An episode in the terminal: a person, a rule or a trained policy plays, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from turnwise.app.run import load_policy, run_async
from turnwise.config.load import env_params
from turnwise.envs.base import BaseEnv
from turnwise.envs.boundary import reset_env, step_env
from turnwise.envs.make import make_env
from turnwise.errors import ConfigError
from turnwise.floor.seeds import derive_seed
from turnwise.loop.evaluate import evaluate_policy
from turnwise.report.console import print_trajectory
from turnwise.rollout.rules import random_rule

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
    print_trajectory(console, run_async(evaluate_policy(parts)).trajectories[0])


def _play_directly(console: Console, env: BaseEnv, agent: str, seed: int, split: str) -> None:
    text = reset_env(env, seed=seed, split=split, dynamics_seed=derive_seed(seed))
    rule = random_rule(seed)
    for line in (env.instructions, env.legend, f"Actions: {', '.join(env.action_names or ('any text',))}."):
        console.print(line, markup=False, highlight=False)
    total, is_success = 0.0, False
    for number in range(1, _MAX_STEPS + 1):
        console.rule(f"turn {number}")
        console.print(text, markup=False, highlight=False)
        action = {"oracle": env.oracle, "random": lambda: rule(env)}.get(agent, lambda: _ask(console))()
        if agent != "human":
            console.print(f"> {action}", markup=False, style="cyan")
        if action is None:
            return
        result = step_env(env, action)
        total, is_success = total + result.reward, bool(result.info.get("success"))
        text = result.text
        if not result.info.get("action_is_valid", True):
            console.print(f"'{action}' is not an action here.", markup=False, style="yellow")
        if result.done:
            break
    console.rule()
    console.print(text, markup=False, highlight=False)
    console.print(f"{'success' if is_success else 'no success'}, return {total:g}", style="bold")


def _ask(console: Console) -> str | None:
    """The person's action; None at the end of input."""
    try:
        return console.input("your action (end with Ctrl-D): ")
    except EOFError:
        return None
