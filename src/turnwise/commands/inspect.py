"""`turnwise view`, `show`, `status` and `report`: a run read from its directory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

from turnwise.commands import Option, Port, RunPath, Target, command
from turnwise.errors import RunError


@command("show", help="Show an episode of a run turn by turn, with the numbers of every trained token")
def show_episode(
    run: RunPath, episode: Annotated[str, Target("EPISODE", "id of the episode, also as STEP:ID")], json: bool = False
) -> int:
    from rich.console import Console

    from turnwise.report.document import Document, show
    from turnwise.report.trajectories import decode_trajectory
    from turnwise.view.episodes import TokenTexts, describe_episode, find_episode
    from turnwise.view.run_files import RunFiles
    from turnwise.view.status import print_episode

    files = RunFiles(run)
    file, record = find_episode(files.directory.trajectories, episode)
    texts = TokenTexts.open(files)
    if json:
        data = describe_episode(files, record, step=file.step, is_eval=file.is_eval, texts=texts)
        return show(Document(data=data), json=True)
    try:
        trajectory = decode_trajectory(record)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file.path} is damaged: expected a trajectory ({type(error).__name__}: {error}).") from error
    tokens = []
    with suppress(RunError):  # the step or the trajectory is not in the token log
        tokens = [] if file.is_eval else files.tokens(file.step).of(str(trajectory.id))
    print_episode(Console(), trajectory, tokens, texts)
    return 0


@command("status", help="Show the status of a run: progress, workers, blocked waits, failed episodes and findings")
def status(run: RunPath, json: bool = False) -> int:
    from turnwise.report.document import show
    from turnwise.view.run_files import RunFiles
    from turnwise.view.status import describe_status, to_document

    return show(to_document(describe_status(RunFiles(run))), json=json)


@command(
    "view",
    help="Open a page that shows runs live: curves, episodes, every token with its numbers",
    epilog="The page is for this machine only; its address contains a random token. Press Ctrl-C to stop.",
)
def view(
    runs: Annotated[Sequence[Path], Target("RUN", "run directories, or folders of them (default: runs)")] = (),
    port: Port = 0,
    at: Annotated[str | None, Option("PLACE", "place on the page, as printed by compare: #/…")] = None,
) -> int:
    from turnwise.report.document import Document, show
    from turnwise.run.policy_process import PolicyProcess
    from turnwise.view.server import RunCollection, ViewServer

    if not runs and not Path("runs").is_dir():
        raise RunError("RUN is required: there is no folder 'runs' here.")
    if at and not at.startswith("#/"):
        raise RunError(f"--at: '{at}' given; expected a place on the page, such as '#/episodes?run=NAME'.")
    voice = PolicyProcess()
    server = ViewServer(RunCollection(list(runs) or [Path("runs")], voice=voice), port=port)
    address = f"{server.address}{at or ''}"
    hint = "Updates live from the run directory. Press Ctrl-C to stop."
    show(Document(notes=[f"Dashboard running at {address}", hint]))
    with suppress(KeyboardInterrupt), closing(voice):
        server.run()
    return 0


@command("report", help="Write one HTML file that shows a run")
def report(
    run: RunPath,
    out: Annotated[Path | None, Option("FILE", "file to write (default: report.html in the run)")] = None,
    episodes: Annotated[int, Option(help="approximate number of episodes")] = 40,
) -> int:
    from turnwise.infra.atomic_files import atomic_write
    from turnwise.report.document import Document, show
    from turnwise.view.report_file import write_report
    from turnwise.view.run_files import RunFiles
    from turnwise.view.server import RunCollection

    if episodes < 0:
        raise RunError(f"--episodes must be at least 0, got {episodes}.")
    shelf = RunCollection([RunFiles(run).path])
    file = out or run / "report.html"
    text = write_report(shelf, shelf.runs()[0].name, num_episodes=episodes)
    atomic_write(file, text)
    size = f"{len(text.encode()) / 1e6:.1f} MB"
    return show(Document(notes=[f"written: {file} ({size}); open it in any browser, no server is needed"]))
