"""`turnwise play` and `turnwise envs`: environments in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from turnwise.commands import EnvName, Option, command

_MAX_ACTIONS = 6
"""Actions of an environment that `envs` lists."""


@command(
    "play",
    help="Play an episode of an environment in the terminal",
    epilog="""
environment settings: key=value; with a model also context.key=value, for example
  turnwise play sokoban rows=6 columns=6 --agent smollm2 context.max_response_tokens=64
""",
)
def play(
    env: EnvName,
    seed: Annotated[int, Option(help="seed of the task")] = 0,
    split: Annotated[str, Option("S", "split of the task")] = "eval",
    agent: Annotated[
        str, Option("WHO", "'human', 'oracle', 'random', a run, a model or the URL of an endpoint", complete="files")
    ] = "human",
    overrides: Sequence[str] = (),
) -> int:
    from rich.console import Console

    from turnwise.run.play import play_in_terminal

    play_in_terminal(Console(), env, agent=agent, seed=seed, split=split, words=overrides)
    return 0


@command("envs", help="List the environments with their actions and settings")
def envs(json: bool = False) -> int:
    from turnwise.config.component import ENVS
    from turnwise.report.document import Document, Table, show

    rows = [_describe(name) for name in sorted(ENVS)]
    if json:
        return show(Document(data=rows), json=True)
    # Settings and texts have pages of their own; a terminal is narrow.
    short = [{key: text for key, text in row.items() if key not in ("settings", "about")} for row in rows]
    adapters = ", ".join(f"{prefix}:NAME" for prefix in ENVS.adapters)
    note = f"Environments of other packages: {adapters}. Your own: package.module:Class."
    return show(Document(tables=[Table.from_rows(short)], notes=[note]))


def _describe(name: str) -> dict[str, str]:
    from turnwise.envs.base import make_env
    from turnwise.envs.safe_calls import closing_env

    with closing_env(make_env(name)) as env:
        env.reset(seed=0)
        actions = env.action_names
    shown = "any text" if actions is None else ", ".join(actions[:_MAX_ACTIONS])
    return {
        "env": name,
        "about": env.instructions,
        "actions": shown + (", ..." if actions is not None and len(actions) > _MAX_ACTIONS else ""),
        "rewards": env.rewards,
        "splits": ", ".join(env.splits),
        "oracle": "yes" if env.has_oracle else "no",
        "data": env.data,
        "settings": ", ".join(env.Params.model_fields),
    }
