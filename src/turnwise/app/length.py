"""How long a run is, where its settings say so in epochs.

In: settings. Out: the same settings with the number of tasks and updates that follow from `tasks.epochs`, so that all
who read them later find plain numbers. It refuses to know how an environment counts its tasks.
"""

from __future__ import annotations

from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError
from turnwise.rollout.worlds import main_world


def settle_length(settings: TurnwiseSettings) -> TurnwiseSettings:
    """The settings as they run. `tasks.epochs` wins over `learn.steps`: a recipe always has some."""
    tasks, learn, groups = settings.tasks, settings.learn, settings.rollout.groups
    if tasks.epochs is None:
        return settings
    num_tasks = tasks.num_tasks or main_world(settings).count_tasks("train")
    if num_tasks is None:
        raise ConfigError(
            f"tasks.epochs: {tasks.epochs} given; env.type '{settings.env.type}' has no end of training tasks here, so "
            "there are no epochs. Set tasks.num_tasks to how many of them to go through, or leave tasks.epochs away "
            "and set learn.steps."
        )
    steps = -(-num_tasks * tasks.epochs // groups)
    changes = {
        "tasks": tasks.model_copy(update={"num_tasks": num_tasks}),
        "learn": learn.model_copy(update={"steps": steps}),
    }
    return settings.model_copy(update=changes)
