"""Random kills of a run on a cluster, one after the other, and a table of what became of the runs.

    python -m benchmarks.ray_kills --kills 20 --seed 0

Each kind of part takes its turn: an explorer, a rank of the learner, the buffer, a whole node, a server of an explorer
(where vLLM is installed), and the command itself, on a cluster of its own and on one that it is told of. When it
happens is drawn by the seed: after which update, and how long after; a command also while it starts. A killed command
is resumed at once. A run has survived where it ends, every group was learnt from once, in the update of its own
rollout, and no process of a killed command is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from tests.contracts.vllm_servers import PYTHON as VLLM_PYTHON
from tests.ray import watched
from tests.ray.watched import Cluster, Watched, ray
from tests.small_run import SMALL_LAKE

from turnwise.config.load import load_settings
from turnwise.report.run_dir import RunDirectory

STEPS = 30
WORDS = (f"learn.steps={STEPS}", "report.checkpoint_every=7", "eval.episodes=0")
RANKS = "learn.parallel={type: fsdp, ranks: 2}"
ON_VLLM = (
    "engine.type=vllm",
    "engine.start=true",
    f"engine.python={VLLM_PYTHON}",
    "engine.start_timeout_s=600",
    # vLLM's kernels for CPUs take heads of width 32.
    "model.tiny.hidden_size=64",
    "model.tiny.num_heads=2",
)
COMMANDS = ("command", "command on a named cluster")
LONGEST_DELAY_S = 0.5
LONGEST_START_S = 20.0
"""Within which a command is killed that has made no update yet."""
LONGEST_FAREWELL_S = 60.0
"""Until the processes of a killed command must be gone."""
LONGEST_TRIAL_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What happened to one run."""

    kind: str
    step: int
    delay_s: float
    outcome: str

    @property
    def is_survived(self) -> bool:
        return self.outcome == "survived"


@contextmanager
def cluster() -> Iterator[Any]:
    opened = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield opened
    finally:
        ray.shutdown()
        opened.shutdown()


def kill_node(nodes: Any, node: Any) -> None:
    nodes.add_node(num_cpus=3)
    nodes.remove_node(node, allow_graceful=False)


def kill_server(path: Path) -> None:
    """The server of this run alone: its log lies in the directory of the run."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_server = "vllm.entrypoints.openai.api_server" in process.cmdline()
            if is_server and path in Path(f"/proc/{process.pid}/fd/1").resolve().parents:
                process.kill()
                return
    raise AssertionError("no server was running")


KINDS: dict[str, tuple[tuple[str, ...], Callable[[Watched, Any, Any, random.Random], None]]] = {
    "explorer": (
        ("cluster.explorers=2",),
        lambda run, _nodes, _node, dice: run.kill(f"explorer-{dice.choice([1, 2])}"),
    ),
    "learner rank": ((RANKS,), lambda run, _nodes, _node, dice: run.kill(f"rank-{dice.choice([0, 1])}")),
    "buffer": (("cluster.explorers=2",), lambda run, _nodes, _node, _dice: run.kill("buffer")),
    "node": (("cluster.explorers=2",), lambda _run, nodes, node, _dice: kill_node(nodes, node)),
    "vLLM server": (ON_VLLM, lambda run, _nodes, _node, _dice: kill_server(run.directory.path)),
}
"""What the run is told besides, and how the part is killed."""


def draw(kind: str, dice: random.Random) -> Kill:
    """When it will happen."""
    step, delay_s = dice.randrange(0, STEPS - 8), dice.uniform(0.0, LONGEST_DELAY_S)
    if kind in COMMANDS and dice.random() < 0.3:
        step, delay_s = 0, dice.uniform(0.0, LONGEST_START_S)
    return Kill(kind=kind, step=step, delay_s=delay_s, outcome="")


def try_apart(planned: Kill) -> Kill:
    """In a process of its own: a run that hangs does not disturb the next one."""
    words = [planned.kind, str(planned.step), str(planned.delay_s)]
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.ray_kills", "--one", *words],
        capture_output=True,
        text=True,
        timeout=LONGEST_TRIAL_S,
        # Ray starts workers with a niceness of 15, with which a busy machine starves them.
        env={**os.environ, "RAY_worker_niceness": "0"},
    )
    lines = [line for line in told.stdout.splitlines() if line.startswith("{")]
    outcome = json.loads(lines[-1])["outcome"] if lines else f"lost: it ended with {told.returncode}: {told.stderr}"
    return replace(planned, outcome=outcome)


def try_here(planned: Kill) -> Kill:
    words, hit = KINDS[planned.kind]
    dice = random.Random(planned.delay_s)
    with cluster() as nodes, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        node = nodes.add_node(num_cpus=3)
        run = Watched(Path(folder) / "run", nodes.address, [*WORDS, *words])
        try:
            run.wait_until(lambda: "explorer-1" in run.actors, "explorers")
            if planned.step:
                run.wait_for_step(planned.step)
            time.sleep(planned.delay_s)
            hit(run, nodes, node, dice)
            run.finish()
            outcome = what_is_wrong(run.directory) or "survived"
        except AssertionError as error:
            outcome = f"lost: {error}"
    return replace(planned, outcome=outcome)


def what_is_wrong(run: RunDirectory) -> str:
    """Empty where every group of every rollout was learnt from once, in its own update."""
    steps, num_groups = read_steps(run), load_settings(run.config).rollout.groups
    if steps != list(range(1, STEPS + 1)):
        return f"lost: updates {steps}"
    with sqlite3.connect(run.experience) as db:
        uses = db.execute("SELECT groups.rollout, uses.step FROM uses JOIN groups USING (number)").fetchall()
    if any(rollout != step for rollout, step in uses) or len(uses) != STEPS * num_groups:
        return f"lost: {len(uses)} uses, expected {STEPS * num_groups}"
    return ""


def read_steps(run: RunDirectory) -> list[int]:
    return [int(row["step"]) for row in run.read_metrics()]


# --- the command itself -----------------------------------------------------------------------------------------------


def try_command(planned: Kill) -> Kill:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = RunDirectory(Path(folder) / "run")
        try:
            if planned.kind == COMMANDS[0]:
                outcome = kill_command(planned, run)
            else:
                with cluster() as nodes:
                    nodes.add_node(num_cpus=3)
                    outcome = kill_command(planned, run, f"cluster.address={nodes.address}")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            outcome = f"lost: {error}"
    return replace(planned, outcome=outcome)


def kill_command(planned: Kill, run: RunDirectory, *words: str) -> str:
    """Kill it and go on with it at once, while what it has left behind may still be there."""
    process = start_command(run, words)
    try:
        ends_s = time.monotonic() + watched.DEADLINE_S
        while planned.step and read_steps(run)[-1:] < [planned.step]:
            assert process.poll() is None, f"it ended too soon: {read_log(run)}"
            assert time.monotonic() < ends_s, f"no step {planned.step}: {read_log(run)}"
            time.sleep(0.02)
        time.sleep(planned.delay_s)
        family = find_family(process.pid, run.path)
        assert family or not planned.step, "a command without any process of its own is no run on a cluster"
        process.kill()
        process.wait()
        process = start_command(run, words)
        code = process.wait(watched.DEADLINE_S)
        assert code == 0, f"exit {code}: {read_log(run)}"
    finally:
        process.kill()
        process.wait()
    _, left = psutil.wait_procs(family, timeout=LONGEST_FAREWELL_S)
    return f"lost: {left} are still there" if left else what_is_wrong(run) or "survived"


def start_command(run: RunDirectory, words: Sequence[str]) -> subprocess.Popen[bytes]:
    new = ["frozenlake", *SMALL_LAKE, "cluster.type=ray", "learn.num_threads=1", *WORDS, "cluster.explorers=2", *words]
    told = ["--resume", str(run.path)] if run.config.exists() else [*new, "--run-dir", str(run.path)]
    with run.path.with_suffix(".log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "turnwise", "train", *told], stdout=log, stderr=log)


def read_log(run: RunDirectory) -> str:
    return run.path.with_suffix(".log").read_text(errors="replace")[-2000:]


def find_family(pid: int, path: Path) -> list[psutil.Process]:
    """The processes that a command has started, and those elsewhere that have a file of its run open."""
    found = {child.pid: child for child in psutil.Process(pid).children(recursive=True)}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != pid and any(path in Path(file.path).parents for file in process.open_files()):
                found[process.pid] = process
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*KINDS, *COMMANDS], nargs="+")
    parser.add_argument("--one", nargs=3, metavar=("KIND", "STEP", "DELAY_S"), help="a single kill, in this process")
    given = parser.parse_args()
    if given.one:
        # Servers of vLLM take minutes to start on a busy machine.
        watched.DEADLINE_S = LONGEST_TRIAL_S
        kind, step, delay_s = given.one
        planned = Kill(kind=kind, step=int(step), delay_s=float(delay_s), outcome="")
        tried = try_command(planned) if kind in COMMANDS else try_here(planned)
        print(json.dumps(asdict(tried)), flush=True)
        # What a hung run has left behind must not hold up the end of the process.
        os._exit(0)
    dice = random.Random(given.seed)
    kinds = given.only or [kind for kind in (*KINDS, *COMMANDS) if kind != "vLLM server" or VLLM_PYTHON]
    kills: list[Kill] = []
    for number in range(given.kills):
        kills.append(try_apart(draw(kinds[number % len(kinds)], dice)))
        print(kills[-1], flush=True)
    print("\n| killed | tried | survived |\n|---|---|---|")
    for kind in kinds:
        of_kind = [each for each in kills if each.kind == kind]
        print(f"| {kind} | {len(of_kind)} | {sum(each.is_survived for each in of_kind)} |")


if __name__ == "__main__":
    main()
