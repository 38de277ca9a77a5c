"""A taskset of verifiers with tools that keep a state, which the reward reads."""

from collections.abc import Iterator

import verifiers.v1 as vf


class ShelfState(vf.State):
    taken: list[str] = []  # noqa: RUF012 - pydantic copies it


class ShelfTools(vf.Toolset[vf.ToolsetConfig, ShelfState]):
    TOOL_PREFIX = None

    @vf.tool
    def look(self) -> str:
        """Look at the shelf."""
        return "There are a lamp and a book."

    @vf.tool
    def take(self, thing: str) -> str:
        """Take a thing from the shelf."""
        self.state.taken.append(thing)
        return f"You have {', '.join(self.state.taken)}."


class ShelfData(vf.TaskData):
    wanted: str


class ShelfTask(vf.Task[ShelfData, ShelfState, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [ShelfTools(vf.ToolsetConfig())]

    @vf.reward
    async def has_it(self, task: ShelfData, trace: vf.Trace) -> float:
        return float(task.wanted in trace.state.taken)


class Shelf(vf.Taskset[ShelfTask, vf.TasksetConfig]):
    def load(self) -> Iterator[ShelfTask]:
        for wanted in ("lamp", "book"):
            yield ShelfTask(ShelfData(prompt=f"Take the {wanted}.", wanted=wanted), self.config.task)


__all__ = ["Shelf"]

if __name__ == "__main__":
    ShelfTools.run()
