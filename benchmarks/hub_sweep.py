"""Does all of reasoning-gym and textarena keep the contract of an environment? Every world, each with its own time.

    python -m benchmarks.hub_sweep                       # all without a line in benchmarks/results/hub_sweep.jsonl
    python -m benchmarks.hub_sweep textarena:Chess-v0    # these, again
    python -m benchmarks.hub_sweep --page                # write the tables of docs/results/third_party_envs.md

A world is a process: one that hangs, fails or dies costs its own line, and the next begins. A sweep that was stopped
goes on where it stood; `--python` checks the worlds under another Python, as `rollout.isolation.python` does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from benchmarks.hub_tables import PAGE, write_page

RESULTS = Path(__file__).parent / "results" / "hub_sweep.jsonl"
LIMIT_S = 180.0
"""For one world; most are done in two seconds."""
NUM_EPISODES = 2
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "textarena:CharacterConclave-v0": {"opponent_moves": ["[a word or two]", "[1]", "[2]"]},
    "textarena:DontSayIt-v0": {"opponent_moves": ["[a word or two]", "[yes]"]},
    "textarena:SecretMafia-v0": {"opponent_moves": ["[1]", "[2]", "[3]"]},
    "textarena:Taboo-v0": {"opponent_moves": ["[a word or two]", "[yes]"]},
    "textarena:TruthAndDeception-v0": {"opponent_moves": ["[Fact 1]", "[Fact 2]"]},
}
"""What a world needs that its defaults do not have."""
Record = dict[str, object]


def sweep(names: Iterable[str], results: Path, ask: Callable[[str], Record]) -> None:
    """One line for each world, written as soon as it is known."""
    results.parent.mkdir(exist_ok=True)
    for name in names:
        started = time.perf_counter()
        record: Record = {"name": name, **ask(name), "seconds": round(time.perf_counter() - started, 1)}
        with results.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
        print(f"{name}: {record['verdict']}  {record['detail']}"[:200], flush=True)


def read_records(results: Path) -> dict[str, Record]:
    """The newest line of each world; a line that was cut short by a kill counts nothing."""
    records: dict[str, Record] = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.is_file() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        records[record["name"]] = record
    return records


def ask_process(name: str, limit_s: float = LIMIT_S, python: str | None = None) -> Record:
    """Check one world in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.hub_sweep", "--one", name, *(["--python", python] if python else [])]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"verdict": "time", "detail": f"not done within {limit_s:g} s"}
    said = done.stdout.strip().splitlines()
    if done.returncode or not said:
        why = done.stderr.strip().splitlines()
        return {"verdict": "died", "detail": f"exit {done.returncode}: {why[-1] if why else 'it said nothing'}"}
    return json.loads(said[-1])


def noted(record: Record, note: str) -> Record:
    """A world that was asked with more than an installation has says so."""
    if not note:
        return record
    if record["verdict"] != "passes":
        return {**record, "detail": f"with {note}: {record['detail']}"}
    return {**record, "with": ", ".join(filter(None, (note, str(record.get("with", "")))))}


def check_one(name: str, python: str | None = None) -> Record:
    """Called in the process of a world: what the checks of `turnwise check` found."""
    from turnwise.envs.base import make_env  # noqa: PLC0415
    from turnwise.envs.check import check_env  # noqa: PLC0415
    from turnwise.envs.isolation import check_in_process  # noqa: PLC0415
    from turnwise.errors import TurnwiseError  # noqa: PLC0415

    settings = dict(SETTINGS.get(name, {}))
    try:
        if python is None:
            report = check_env(lambda: make_env(name, **settings), num_episodes=NUM_EPISODES)
        else:
            report = check_in_process(python, name, settings, num_episodes=NUM_EPISODES)
    except TurnwiseError as error:
        return {"verdict": "refused", "detail": str(error)}
    if report.ok:
        detail = next(check.detail for check in report.checks if check.name == "speed")
        return {"verdict": "passes", "detail": detail, "with": _help(settings, python)}
    return {"verdict": "fails", "detail": "; ".join(f"{check.name}: {check.detail}" for check in report.failures)}


def _help(settings: Mapping[str, object], python: str | None) -> str:
    """What a world passes with and not without, in the words of a config; empty: nothing."""
    told = [f"`env.{key}: {json.dumps(value)}`" for key, value in settings.items()]
    if python is not None:
        said = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout
        told.append(f"{said.strip().rpartition('.')[0]} in `rollout.isolation.python`")
    return ", ".join(told)


def every_world() -> list[str]:
    from reasoning_gym.factory import DATASETS  # noqa: PLC0415
    from textarena.envs.registration import ENV_REGISTRY  # noqa: PLC0415

    families = [f"reasoning_gym:{family}" for family in sorted(DATASETS)]
    return families + [f"textarena:{game}" for game in sorted(ENV_REGISTRY) if game.endswith("-v0")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these worlds, whether seen before or not")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for each world")
    parser.add_argument("--python", help="check under this Python instead, such as VENV/bin/python")
    parser.add_argument("--note", default="", help="what these worlds have here that an installation has not")
    parser.add_argument("--page", action="store_true", help="run nothing; write the tables of the page")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print("\n" + json.dumps(check_one(options.one, options.python)))
        return
    if not options.page:
        # Looked up as it goes: whatever another sweep has seen meanwhile is not asked again.
        names = options.names or (name for name in every_world() if name not in read_records(RESULTS))
        sweep(names, RESULTS, lambda name: noted(ask_process(name, options.limit_s, options.python), options.note))
    PAGE.write_text(write_page(read_records(RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    main()
