"""An episode in the terminal: a person, a rule, a trained policy or any model plays, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from turnwise.config.load import env_params, parse_params
from turnwise.envs.base import BaseEnv, make_env
from turnwise.envs.safe_calls import closing_env
from turnwise.errors import ConfigError, RunError
from turnwise.infra.seeds import derive_seed
from turnwise.infra.threads import run_async
from turnwise.loop.evaluate import evaluate_once
from turnwise.loop.policies import Found, explained, find_policy, open_policy
from turnwise.models.resolve import describe_set_up
from turnwise.report.console import phase, print_notice, print_trajectory
from turnwise.report.run_dir import settings_file_of
from turnwise.rollout.scripted_policies import Rule, oracle_policy, random_rule, run_policy
from turnwise.types import Task

_MAX_STEPS = 200
_SECTIONS = ("context.", "rollout.", "engine.", "model.")
"""What may be set for a model beside its environment."""


def play_in_terminal(
    console: Console, env_name: str, *, agent: str, seed: int, split: str, words: Sequence[str]
) -> None:
    """One episode; `agent` is human, oracle, random, a run, a model or the URL of an endpoint.

    `words` are settings, `key=value` each: those of the environment stand alone (`size=3`), others under their path
    (`context.max_response_tokens=64`).
    """
    of_run = [word for word in words if word.startswith(_SECTIONS)]
    params = parse_params([word for word in words if word not in of_run])
    if agent in ("human", "oracle", "random"):
        if of_run:
            raise ConfigError(f"'{of_run[0]}' is about how a model is talked to; '{agent}' is none.")
        with closing_env(make_env(env_name, **params)) as env:
            _play_directly(console, env, agent, seed, split)
        return
    ordered = [*of_run, "eval.episodes=1", f"eval.first_seed={seed}"]
    _play_policy(console, _find(agent, env_name, params, ordered), split)


def _find(agent: str, env_name: str, params: Mapping[str, object], overrides: Sequence[str]) -> Found:
    """A run in its own setting; a model in the environment's, with everything explained to it."""
    if settings_file_of(Path(agent).expanduser()) is None:
        try:
            return find_policy(agent, overrides, recipe=explained(env_name, params, called="play"))
        except RunError as error:
            raise ConfigError(
                f"--agent: '{agent}' given; expected human, oracle, random, the directory of a run, the URL of an "
                "endpoint, or a model: a folder, a GGUF file, 'smollm2' or 'owner/model'."
            ) from error
    found = find_policy(agent, overrides)
    env = found.settings.env
    if env.type != env_name:
        raise ConfigError(f"run {agent} plays '{env.type}', not '{env_name}'.")
    if params:
        raise ConfigError(f"run {agent} brings its own settings: {env_params(env, 'eval')}; give none here.")
    return found


def _play_policy(console: Console, found: Found, split: str) -> None:
    with phase(console, "setting up the model" if found.model else describe_set_up(found.settings.model.path)):
        parts = open_policy(found, split=split)
    (trajectory,) = run_async(evaluate_once(parts)).trajectories
    if found.model is None and trajectory.segments and found.settings.engine.tells_tokens:
        console.rule("prompt, as the model sees it")
        first = trajectory.segments[0]
        prompt = first.token_ids[: int(first.loss_mask.argmax())]
        console.print(parts.tokenizer.decode(prompt.tolist()), markup=False, highlight=False)
    print_trajectory(console, trajectory)
    if any(not turn.is_valid for turn in trajectory.turns):
        asked = found.settings.context.answer.type
        print_notice(
            console,
            f"replies were not understood: expected the format '{asked}' (context.answer.type) with an action of this "
            "environment in it. Such a reply does nothing.",
        )


def _play_directly(console: Console, env: BaseEnv, agent: str, seed: int, split: str) -> None:
    rules: dict[str, Rule] = {"oracle": oracle_policy, "random": random_rule(seed), "human": partial(_ask, console)}
    shown = _Shown(console, rules[agent], is_told=agent != "human")
    task = Task(tag=env.label(), seed=seed, split=split)
    total, last = 0.0, None
    try:
        for move in run_policy(env, shown, task, max_actions=_MAX_STEPS, dynamics_seed=derive_seed(seed)):
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
