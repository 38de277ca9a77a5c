"""What a config names for its rollouts, found and looked at before anything is played.

In: settings. Out: the class of the workflow, the rows to recite, or a ConfigError that names the config path. It knows
nothing of models and plays nothing.
"""

from __future__ import annotations

import inspect

from turnwise.config.component import WORKFLOWS
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.schema_learn import FilePtx
from turnwise.envs.prompts.sources import Fields, read_prompts
from turnwise.envs.safe_calls import closing_env
from turnwise.errors import ConfigError
from turnwise.rollout.workflow import Workflow
from turnwise.rollout.worlds import World, main_world


def find_workflow(settings: TurnwiseSettings) -> type[Workflow]:
    """The class behind `rollout.workflow`, with arguments that it takes."""
    name = settings.rollout.workflow
    chosen = WORKFLOWS.get_target(name)
    if not (isinstance(chosen, type) and issubclass(chosen, Workflow)):
        raise ConfigError(
            f"rollout.workflow: '{name}' is {chosen!r}; expected a class that extends turnwise.Workflow, or one of its "
            "kinds: StepWiseRewardWorkflow, RewardPropagationWorkflow."
        )
    if inspect.isabstract(chosen):
        missing = " and ".join(sorted(chosen.__abstractmethods__))
        raise ConfigError(f"rollout.workflow: '{name}' has no {missing}; write what its base class leaves open.")
    chosen.check_args(settings.rollout.workflow_args)
    chosen.check_settings(settings)
    return chosen


def require_oracle(settings: TurnwiseSettings, *, asked_by: str) -> None:
    """The main environment must have one where demonstrations are asked for."""
    if not has_oracle(main_world(settings)):
        raise ConfigError(f"{asked_by} is 'oracle' and '{settings.env.type}' has no oracle. Set {asked_by} to 'none'.")


def has_oracle(world: World) -> bool:
    with closing_env(world.make("train")) as env:
        return env.has_oracle


def read_pairs(ptx: FilePtx) -> list[tuple[str, str]]:
    """The prompts and responses of the file that `learn.ptx` names."""
    fields = Fields(prompt=ptx.prompt_field, response=ptx.response_field, section="learn.ptx")
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(read_prompts(ptx.path, fields), start=1):
        if row.response is None:
            raise ConfigError(
                f"learn.ptx.path: row {number} of '{ptx.path}' has no text under '{ptx.response_field}'; every row "
                "must have a response. Set learn.ptx.response_field to the key that holds it."
            )
        pairs.append((row.prompt, row.response))
    return pairs
