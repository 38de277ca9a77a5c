"""`turnwise export` and `turnwise export-model`: experiences and policy of a run as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from turnwise.commands import Option, RunPath, Target, command
from turnwise.errors import ConfigError


@command("export", help="Write the experiences of a run to a Parquet or JSON lines file")
def export(
    run: Annotated[Path, Target("RUN", "run with buffer.type sqlite")],
    out: Annotated[
        Path | None, Option("FILE", "file ending in .parquet or .jsonl (default: experience.parquet in the run)")
    ] = None,
) -> int:
    from turnwise.experience.codec import write_experiences
    from turnwise.experience.store import SqliteBuffer
    from turnwise.report.document import Document, show
    from turnwise.report.run_dir import RunDirectory

    directory = RunDirectory.open(run)
    if not directory.experience.is_file():
        raise ConfigError(f"{directory.path} has no experience.db; runs with buffer.type=sqlite write it.")
    file = out or directory.path / "experience.parquet"
    count = write_experiences(SqliteBuffer(directory.experience).read_groups(), file)
    return show(Document(notes=[f"written: {file} ({count} experiences)"]))


@command(
    "export-model",
    help="Write the policy of a run as a Hugging Face folder with a model card",
    epilog="--push uses the account of `hf auth login`; a repository that it creates is private",
)
def export_model(
    run: RunPath,
    dir: Annotated[Path, Target("DIR", "new folder")],
    step: Annotated[int | None, Option(help="step of the checkpoint (default: the last)")] = None,
    push: Annotated[str | None, Option("NAME", "also upload it to the hub as NAME, such as owner/model")] = None,
) -> int:
    from turnwise.report.document import Document, show
    from turnwise.run import export_model

    folder = export_model.export_model(run, dir, step=step, push=push)
    pushed = f", and uploaded as {push}" if push else ""
    return show(Document(notes=[f"written: {folder}{pushed}"]))
