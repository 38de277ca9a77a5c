"""`turnwise show`, `status`, `view` and `report`: what a run is and was, from its directory alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from rich.console import Console

from turnwise.errors import RunError
from turnwise.infra.atomic_files import write_whole
from turnwise.report.token_log_reader import RecordedToken
from turnwise.report.trajectories import decode_trajectory
from turnwise.run.policy_process import PolicyVoice
from turnwise.view.episodes import TokenTexts, describe_episode, find_episode
from turnwise.view.report_file import write_report
from turnwise.view.run_files import RunFiles
from turnwise.view.server import Shelf, ViewServer
from turnwise.view.status import describe_status, print_episode, print_status


def show(options: argparse.Namespace, console: Console) -> int:
    """One episode, with what was learnt from its tokens where that is on record."""
    run = RunFiles(Path(options.run))
    file, record = find_episode(run.directory.trajectories, options.episode)
    texts = TokenTexts.open(run)
    if options.json:
        _print_json(console, describe_episode(run, record, step=file.step, is_eval=file.is_eval, texts=texts))
        return 0
    try:
        trajectory = decode_trajectory(record)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file.path} is damaged: expected a trajectory ({type(error).__name__}: {error}).") from error
    learnt = [] if file.is_eval else _learnt(run, file.step, str(trajectory.id))
    print_episode(console, trajectory, learnt, texts)
    return 0


def status(options: argparse.Namespace, console: Console) -> int:
    """How a run stands."""
    found = describe_status(RunFiles(Path(options.run)))
    if options.json:
        _print_json(console, found)
    else:
        print_status(console, found)
    return 0


def view(options: argparse.Namespace, console: Console) -> int:
    """The page, until it is interrupted."""
    if not options.runs and not Path("runs").is_dir():
        raise RunError("no RUN given, and there is no folder 'runs' here: expected the directory of a run.")
    at = options.at or ""
    if at and not at.startswith("#/"):
        raise RunError(f"--at: '{at}' given; expected a place on the page, such as '#/episodes?run=NAME'.")
    voice = PolicyVoice()
    server = ViewServer(Shelf([Path(run) for run in options.runs or ["runs"]], voice=voice), port=options.port)
    console.print(f"the page is at {server.address}{at}", markup=False, highlight=False, soft_wrap=True)
    console.print("it shows what is on disk, also while a run goes on; Ctrl-C ends it", style="dim")
    with suppress(KeyboardInterrupt), closing(voice):
        server.run()
    return 0


def report(options: argparse.Namespace, console: Console) -> int:
    """One HTML file that shows a run to whoever gets it."""
    if options.episodes < 0:
        raise RunError(f"--episodes: {options.episodes} given; expected 0 or more.")
    run = Path(options.run)
    shelf = Shelf([RunFiles(run).path])
    out = Path(options.out) if options.out else run / "report.html"
    text = write_report(shelf, shelf.runs()[0].name, num_episodes=options.episodes)
    write_whole(out, text)
    size = f"{len(text.encode()) / 1e6:.1f} MB"
    console.print(f"written: {out} ({size}); it opens in any browser, without a server", markup=False, soft_wrap=True)
    return 0


def _learnt(run: RunFiles, step: int, trajectory: str) -> list[RecordedToken]:
    """Nothing where the step or the trajectory is not on record."""
    try:
        return run.tokens(step).of(trajectory)
    except RunError:
        return []


def _print_json(console: Console, found: Mapping[str, object]) -> None:
    console.print_json(json.dumps(found, allow_nan=False))


LOOKS: dict[str, Callable[[argparse.Namespace, Console], int]] = {
    "show": show,
    "status": status,
    "view": view,
    "report": report,
}
