"""A taskset of verifiers with one question and one answer, two rewards and a metric."""

from collections.abc import Iterator

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, task: SumData, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(task.answer))

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        if trace.last_reply == "fault":
            raise RuntimeError("a fault of the rubric")
        return float(len(trace.last_reply) < 4)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumConfig(vf.TasksetConfig):
    highest: int = 5


class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> Iterator[SumTask]:
        for a in range(self.config.highest):
            for b in range(self.config.highest):
                data = SumData(prompt=f"What is {a} + {b}?", system_prompt="Say a number.", answer=a + b)
                yield SumTask(data, self.config.task)


__all__ = ["Sums"]
