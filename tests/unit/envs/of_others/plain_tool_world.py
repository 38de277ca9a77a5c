"""A taskset of verifiers with tools that keep nothing, one of them with a chance of its own."""

import random
from collections.abc import Iterator

import verifiers.v1 as vf


class SumTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = None

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    @vf.tool
    def draw(self) -> str:
        """Draw a number."""
        return str(random.randrange(1_000_000))


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [SumTools(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, task: SumData, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(task.answer))


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> Iterator[SumTask]:
        for a in range(2):
            yield SumTask(SumData(prompt=f"What is {a} + 40?", answer=a + 40), self.config.task)


__all__ = ["Sums"]

if __name__ == "__main__":
    SumTools.run()
