"""`make bench-against REV=COMMIT`: speed of this commit against an earlier one, by section of the default recipe.

    python -m benchmarks.against b70f3b1 --steps 8 --pairs 4 --threads 1,2

Both commits are unpacked into a temporary folder and run under this Python, in turn: A B, B A, A B. Each pair gives one
ratio per section, this commit over REV, of seconds per unit of work (sampled token, environment step, trained token,
evaluated episode), so that two commits whose replies differ can be compared. The table has the median over pairs, the
smallest and the largest. `work` is the ratio of the units themselves: where it is far from 1, the two did not do the
same. REV=HEAD measures the noise of the machine.

Instructions are steadier than seconds. They are counted by `perf stat` where the processor allows it; `--valgrind`
counts them anywhere, but runs about 20 times slower.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
UNITS: Mapping[str, str] = {
    "start and end": "command",
    "set-up": "run",
    "rollout": "sampled token",
    "environment": "environment step",
    "update": "trained token",
    "evaluation": "episode",
    "other": "step",
    "CPU time": "command",
}
"""What each section is divided by. `set-up` holds warm start, baselines and the first evaluation, `other` the rest of a
step with weight sync, `start and end` imports and plots."""
SUMS: Mapping[str, tuple[str, ...]] = {
    "all steps": ("rollout", "environment", "update", "other"),
    "total": tuple(name for name in UNITS if name != "CPU time"),
}
"""Sums of sections, at equal work: had both sides sampled and trained equally many tokens."""
_SET_HERE = ("OMP_", "GOMP_", "KMP_", "MKL_", "PYTHON", "TURNWISE_")
_RUN = "import sys; from turnwise.cli import main; sys.exit(main(sys.argv[1:]))"
# No evaluation between steps: it would be counted as `other`.
_OVERRIDES = ("eval.every=0",)


class MeasureError(Exception):
    """A run of one side failed."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two commits, unpacked."""

    name: str
    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "src"


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: seconds and units of work by section."""

    seconds: Mapping[str, float]
    units: Mapping[str, float]

    def per_unit(self, section: str) -> float | None:
        units = self.units[section]
        return self.seconds[section] / units if units > 0 else None


@dataclass(frozen=True, slots=True)
class Row:
    """One section: median seconds of both sides, and the ratios of the pairs: of seconds per unit, and of units."""

    threads: int
    section: str
    rev_s: float
    head_s: float
    ratios: Sequence[float]
    work: Sequence[float]


def read_run(folder: Path, process_s: float, cpu_s: float) -> Measured:
    """What a run directory says about its time, of this version or an old one."""
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    split, wall_s, setup_s = summary["time_split"], summary["wall_s"], summary["setup_s"]
    seconds = {
        "start and end": process_s - wall_s,
        "set-up": setup_s,
        "rollout": split["rollout"],
        "environment": split["env"],
        "update": split["learn"],
        "evaluation": wall_s - setup_s - sum(split.values()),
        "other": split["other"] + split["sync"],
        "CPU time": cpu_s,
    }
    units = dict.fromkeys(UNITS, 1.0) | {
        "rollout": float(summary["tokens_sampled"]),
        "environment": sum(json.loads(line).get("rollout/env_steps", 0.0) for line in lines),
        "update": float(summary["tokens_trained"]),
        "evaluation": float(summary["eval_episodes"]),
        "other": float(summary["steps"]),
    }
    return Measured(seconds, units)


def compare(threads: int, pairs: Sequence[tuple[Measured, Measured]]) -> list[Row]:
    """Rows of a table from pairs of runs (REV, this commit)."""
    rows = [_row(threads, name, pairs) for name in UNITS]
    for name, sections in SUMS.items():
        rows.append(_row(threads, name, [_at_equal_work(name, sections, *pair) for pair in pairs]))
    return rows


def _at_equal_work(name: str, sections: Sequence[str], rev: Measured, head: Measured) -> tuple[Measured, Measured]:
    """The sum of both sides, had each done the mean of what the two did."""
    means = {section: (rev.units[section] + head.units[section]) / 2 for section in sections}

    def sum_of(side: Measured) -> Measured:
        return Measured({name: sum((side.per_unit(part) or 0.0) * means[part] for part in sections)}, {name: 1.0})

    return sum_of(rev), sum_of(head)


def _row(threads: int, name: str, pairs: Sequence[tuple[Measured, Measured]]) -> Row:
    return Row(
        threads=threads,
        section=name,
        rev_s=statistics.median(rev.seconds[name] for rev, _ in pairs),
        head_s=statistics.median(head.seconds[name] for _, head in pairs),
        ratios=_ratios((head.per_unit(name), rev.per_unit(name)) for rev, head in pairs),
        work=_ratios((head.units[name], rev.units[name]) for rev, head in pairs),
    )


def _ratios(pairs: Iterable[tuple[float | None, float | None]]) -> list[float]:
    return [above / below for above, below in pairs if above is not None and below is not None and below > 0]


def format_table(rows: Sequence[Row], rev: str) -> str:
    """The rows as Markdown."""
    lines = [
        f"| threads | section | {rev}, s | this commit, s | ratio per unit of work | smallest - largest | work | per |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        spread = f"{min(row.ratios):.2f} - {max(row.ratios):.2f}" if row.ratios else "-"
        ratio, work = (f"{statistics.median(found):.2f}" if found else "-" for found in (row.ratios, row.work))
        seconds, unit = f"{row.rev_s:.2f} | {row.head_s:.2f}", UNITS.get(row.section, "equal work")
        lines.append(f"| {row.threads} | {row.section} | {seconds} | {ratio} | {spread} | {work} | {unit} |")
    return "\n".join(lines)


def find_commit(rev: str, root: Path = ROOT) -> str:
    """The full hash of a commit."""
    done = _git(root, "rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}") if rev else None
    if done is None or done.returncode:
        raise ValueError(
            f"`REV` must be a commit of this repository, got {rev!r}. Choose one from `git log --oneline`; "
            "a shallow clone lacks old ones (`git fetch --unshallow`)."
        )
    return done.stdout.strip()


def check_is_committed(root: Path = ROOT) -> None:
    changed = _git(root, "status", "--porcelain", "--", "src").stdout.splitlines()
    if changed:
        raise ValueError(
            f"`src` must be as committed, got {len(changed)} changed files ({changed[0][3:]}, ...). Commit or stash "
            "them, or give --allow-dirty (make: ARGS=--allow-dirty) to measure the files as they are."
        )


def unpack(commit: str, folder: Path, root: Path = ROOT) -> None:
    """All files of a commit."""
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    done = _git(root, "archive", "--format=tar", f"--output={archive}", commit)
    if done.returncode:
        raise MeasureError(f"{commit} cannot be unpacked: {done.stderr.strip()}")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


def _git(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=False)


def _train(side: Side, steps: int, threads: int, before: Sequence[str] = ()) -> tuple[Path, float, float]:
    """Directory, seconds and CPU seconds of a run of the default recipe; `before` is what counts its instructions."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(_SET_HERE)}
    cache = side.folder / "cache"
    environ = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(side.source), "TURNWISE_CACHE": str(cache)}
    folder = Path(tempfile.mkdtemp(dir=side.folder)) / "run"
    args = ["train", "frozenlake", "--run-dir", str(folder), f"learn.steps={steps}", *_OVERRIDES]
    started_s, used_s = time.perf_counter(), _children_s()
    done = subprocess.run(
        [*before, sys.executable, "-c", _RUN, *args],
        env={**bare, **environ},
        cwd=side.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    taken = time.perf_counter() - started_s, _children_s() - used_s
    if done.returncode:
        raise MeasureError(
            f"the run of {side.name} failed:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        )
    return folder, *taken


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def warm_up(side: Side) -> dict[str, object]:
    """Compile the code and make the model, and see that it is this side's code that runs. Returns its settings."""
    environ = {**os.environ, "PYTHONPATH": str(side.source)}
    ask = [sys.executable, "-c", "import turnwise; print(turnwise.__file__)"]
    found = subprocess.run(ask, env=environ, cwd=side.folder, capture_output=True, text=True, check=False).stdout
    if not Path(found.strip() or "/").is_relative_to(side.source):
        raise MeasureError(f"{sys.executable} imports turnwise from {found.strip()!r} instead of {side.source}.")
    folder, *_ = _train(side, steps=1, threads=1)
    return _flatten(yaml.safe_load((folder / "config.yaml").read_text("utf-8")))


def _flatten(values: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(values, dict):
        return {prefix: values}
    return {
        path: leaf
        for key, value in values.items()
        for path, leaf in _flatten(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def changed_settings(rev: Mapping[str, object], head: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Settings that both know and that differ: the two runs are then not the same work."""
    return {key: (rev[key], head[key]) for key in rev if key in head and rev[key] != head[key]}


def measure(
    rev: Side, head: Side, steps: int, num_pairs: int, threads: Sequence[int]
) -> tuple[list[Row], list[dict[str, object]]]:
    """Rows of the table, and every single run."""
    rows: list[Row] = []
    runs: list[dict[str, object]] = []
    for count in threads:
        pairs = []
        for number in range(num_pairs):
            found: dict[str, Measured] = {}
            for side in (rev, head) if number % 2 == 0 else (head, rev):
                found[side.name] = one = read_run(*_train(side, steps, count))
                runs.append({"threads": count, "pair": number + 1, "side": side.name, **asdict(one)})
                total = len(threads) * num_pairs * 2
                wall_s = sum(one.seconds[name] for name in SUMS["total"])
                print(f"run {len(runs)}/{total}: {side.name}, {count} threads: {wall_s:.1f} s", flush=True)
            pairs.append((found[rev.name], found[head.name]))
        rows += compare(count, pairs)
    return rows, runs


COUNTERS: Mapping[str, str] = {
    "perf": "perf stat -x, -e instructions:u -o {log} --",
    "valgrind": "valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null --log-file={log}",
}
"""Programs that count the instructions of another one and write them into a log."""


def find_counter(use_valgrind: bool, log: Path) -> str | None:
    """The counter that works on this machine."""
    for name in ("perf", "valgrind") if use_valgrind else ("perf",):
        if shutil.which(name):
            subprocess.run([*_filled(name, log), "true"], capture_output=True, check=False)
            if log.exists() and parse_instructions(log.read_text("utf-8")) is not None:
                return name
    return None


def _filled(counter: str, log: Path) -> list[str]:
    return [word.format(log=log) for word in COUNTERS[counter].split()]


def parse_instructions(text: str) -> int | None:
    """From what `perf stat -x,` or cachegrind writes; a machine with two kinds of cores has a line for each."""
    counted = re.findall(r"^(\d+),[^,]*,[^,]*instructions|I\s+refs:\s+([\d,]+)", text, flags=re.MULTILINE)
    return sum(int("".join(found).replace(",", "")) for found in counted) if counted else None


def compare_instructions(rev: Side, head: Side, use_valgrind: bool) -> dict[str, object]:
    """Ratio of the instructions of a command with one step, and of each of two steps more; with one thread."""
    log = rev.folder / "instructions.txt"
    counter = find_counter(use_valgrind, log)
    if counter is None:
        return {"counted_by": None, "why": "perf counts no instructions here; --valgrind counts them, where installed"}
    counts: list[int] = []
    for side, steps in ((rev, 1), (rev, 3), (head, 1), (head, 3)):
        _train(side, steps, threads=1, before=_filled(counter, log))
        counts.append(parse_instructions(log.read_text("utf-8")) or 0)
        print(f"instructions of {side.name}, {steps} steps: {counts[-1] / 1e9:.2f} billion", flush=True)
    return {"counted_by": counter, "counts": counts, **instruction_ratios(*counts)}


def instruction_ratios(rev_one: int, rev_three: int, head_one: int, head_three: int) -> dict[str, float | None]:
    """From counts of commands with one step and with three."""
    command, steps = _ratios([(head_one, rev_one)]), _ratios([(head_three - head_one, rev_three - rev_one)])
    return {name: round(found[0], 3) if found else None for name, found in (("command", command), ("step", steps))}


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.against", description="speed of this commit against an old one")
    parser.add_argument("rev", metavar="REV", help="commit to compare with; HEAD measures the noise of the machine")
    parser.add_argument("--steps", type=_positive, default=8, help="steps of each run (default 8)")
    parser.add_argument("--pairs", type=_positive, default=4, help="pairs of runs (default 4)")
    parser.add_argument("--threads", type=_counts, default=[1, 2], metavar="N,M", help="OMP threads (default 1,2)")
    parser.add_argument("--valgrind", action="store_true", help="count instructions with valgrind where perf cannot")
    parser.add_argument("--allow-dirty", action="store_true", help="measure src as it is, committed or not")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default benchmarks/results/against_REV.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        commit, here = find_commit(options.rev), find_commit("HEAD")
        if not options.allow_dirty:
            check_is_committed()
    except ValueError as error:
        parser.error(str(error))
    try:
        with tempfile.TemporaryDirectory(prefix="bench-against-") as folder:
            result = _compare_commits(options, commit, here, Path(folder))
    except MeasureError as error:
        print(f"benchmarks.against: {error}", file=sys.stderr)
        return 1
    out: Path = options.json or RESULTS / f"against_{commit[:7]}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(f"written: {out}")
    return 0


def _compare_commits(options: argparse.Namespace, commit: str, here: str, folder: Path) -> dict[str, object]:
    rev, head = Side(commit[:7], folder / "rev"), Side("this commit", folder / "head")
    unpack(commit, rev.folder)
    unpack(here, head.folder)
    if options.allow_dirty:
        shutil.rmtree(head.source)
        shutil.copytree(ROOT / "src", head.source, ignore=shutil.ignore_patterns("__pycache__"))
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    print(f"{rev.name} against {here[:7]}, {options.steps} steps; load {load:.1f} on {cores} cores", flush=True)
    changed = changed_settings(warm_up(rev), warm_up(head))
    for key, (old, new) in changed.items():
        print(f"note: {key} is {old!r} in {rev.name} and {new!r} in this commit", flush=True)
    rows, runs = measure(rev, head, options.steps, options.pairs, options.threads)
    print(format_table(rows, rev.name), flush=True)
    instructions = compare_instructions(rev, head, options.valgrind)
    print(f"instructions: {instructions}", flush=True)
    facts = {"python": platform.python_version(), "torch": version("torch"), "cores": cores, "load_at_start": load}
    given = {"rev": commit, "head": here, "is_dirty": options.allow_dirty, "steps": options.steps}
    found = {"changed_settings": changed, "instructions": instructions, "rows": [asdict(row) for row in rows]}
    return {"benchmark": "against", **facts, **given, **found, "runs": runs}


if __name__ == "__main__":
    sys.exit(main())
