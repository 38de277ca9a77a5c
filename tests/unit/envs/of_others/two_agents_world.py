"""An environment of verifiers for two agents, which is refused."""

from collections.abc import Iterator

import verifiers.v1 as vf


class PairConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig()


class Pair(vf.Env[PairConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await agents.first.run(task)


class Nothing(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self) -> Iterator[vf.Task]:
        return iter(())


__all__ = ["Nothing", "Pair"]
