"""An environment of verifiers in which the world answers every guess, without an end of tasks."""

import itertools
import random
from collections.abc import Iterator

import verifiers.v1 as vf


class GuessData(vf.TaskData):
    number: int


class GuessTask(vf.Task[GuessData, vf.State, vf.TaskConfig]):
    pass


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(max_turns=4)


class Guess(vf.Env[GuessConfig]):
    async def run(self, task: GuessTask, agents: vf.Agents) -> None:
        has_won = False
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                has_won = segment.last_reply == str(task.data.number)
                if has_won:
                    break
                words = random.choice(["No.", "Not that."])
                segment = await interaction.turn(f"{words} Guess again.")
        interaction.trace.record_reward("won", float(has_won), 1.0)


class Numbers(vf.Taskset[GuessTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[GuessTask]:
        for place in itertools.count():
            data = GuessData(prompt=f"Number {place}: guess a number from 1 to 3.", number=place % 3 + 1)
            yield GuessTask(data, self.config.task)


__all__ = ["Guess", "Numbers"]
