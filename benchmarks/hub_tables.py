"""What `hub_sweep` has found, as docs/results/third_party_envs.md: counts, and by name whatever does not pass."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "results" / "third_party_envs.md"
PACKAGES = {"reasoning_gym": "reasoning-gym", "textarena": "textarena"}
"""The prefix of a world, and the name of its package."""
REASONS = (
    (r"SyntaxError: invalid syntax", "its file is no Python, in no version"),
    (r"SyntaxError", "its files need Python 3.12: name one in `rollout.isolation.python`"),
    (r"Resource .* not found|nltk", "needs word lists that nltk downloads"),
    (r"[Aa][Pp][Ii][ _]?[Kk][Ee][Yy]", "asks a paid service, whose key must be set"),
    (r"BabyAiText", "needs BabyAI-Text, which is in no package index, and with it `pip install gym gym-minigrid`"),
    (r"No module named '(\w+)'|'(\w+)' package", "needs the package {0}, which textarena does not bring"),
    (r"No such file|FileNotFoundError", "files are missing in the package"),
    (r"at least one dataset", "is made of other families, which turnwise mixes itself: `mix`"),
)
"""What an error says, and what that means; the first that fits. Others are told as they are."""
_HEAD = """# All of reasoning-gym and textarena

Every family of reasoning-gym and every `-v0` game of textarena, against the contract of an environment (`turnwise
check`), two episodes for each check, each world in a process with a time limit of its own:

```
python -m benchmarks.hub_sweep
```

It goes on after a failure, and where it stood when it was stopped. What it found stands in
`benchmarks/results/hub_sweep.jsonl`, and here:

<!-- written by python -m benchmarks.hub_sweep --page -->
"""
_TAIL = """
Games that give a complaint in the place of a reward (`Countdown`, `Cryptarithm`, `Slitherlink`, `ThreeCardMonte`) have
it counted as an invalid move worth 0.

"nltk's word lists" are what `python -m nltk.downloader words averaged_perceptron_tagger_eng` fetches. They could not be
had where this was seen: a list of the same kind from the package english-words stood in, 850 short words of it for the
basic ones, and a tagger that calls every word a noun.
"""
Record = Mapping[str, object]


def write_page(records: Mapping[str, Record]) -> str:
    parts = [_HEAD, _counts(records)]
    for prefix, package in PACKAGES.items():
        own = {name: record for name, record in records.items() if name.startswith(f"{prefix}:")}
        parts.append(_section(package, own))
    return "".join(parts) + _TAIL


def _counts(records: Mapping[str, Record]) -> str:
    rows = [
        "\n| package | worlds | pass as they are | pass with what the list says | do not |\n|---|---|---|---|---|\n"
    ]
    for prefix, package in PACKAGES.items():
        own = [record for name, record in records.items() if name.startswith(f"{prefix}:")]
        passed = [record for record in own if record["verdict"] == "passes"]
        helped = sum(bool(record.get("with")) for record in passed)
        cells = (f"{package} {version(package)}", len(own), len(passed) - helped, helped, len(own) - len(passed))
        rows.append(f"| {' | '.join(map(str, cells))} |\n")
    return "".join(rows)


def _section(package: str, records: Mapping[str, Record]) -> str:
    passed = [name for name, record in records.items() if record["verdict"] == "passes" and not record.get("with")]
    told: dict[str, list[str]] = {}
    for name, record in records.items():
        if name not in passed:
            told.setdefault(explain(record), []).append(name)
    rows = "".join(f"| {_listed(names)} | {reason} |\n" for reason, names in sorted(told.items()))
    table = f"\n| | |\n|---|---|\n{rows}" if rows else ""
    return f"\n## {package}\n{table}\nAs they are: {_listed(passed)}.\n{_tell_slow(records)}"


def _tell_slow(records: Mapping[str, Record]) -> str:
    """Worlds that pass and hold up others: `check_env` says so behind the rates of their calls."""
    rates = {name: str(record["detail"]).partition(": all others wait")[::2] for name, record in records.items()}
    slow = [f"{_listed([name])} ({rate})" for name, (rate, is_slow) in sorted(rates.items()) if is_slow]
    if not slow:
        return ""
    return (
        f"\nThese compute for more than a second at a time here, and are best played in processes of their own "
        f"(`rollout.isolation.type=process`): {', '.join(slow)}.\n"
    )


def explain(record: Record) -> str:
    """Why a world does not pass as it is, in a few words."""
    if record["verdict"] == "passes":
        return f"pass with {record['with']}"
    detail = str(record["detail"])
    if record["verdict"] == "time":
        return f"{detail}, on a busy machine"
    for pattern, reason in REASONS:
        if found := re.search(pattern, detail):
            return reason.format(*(group for group in found.groups() if group))
    return re.sub(r"\s+", " ", detail).replace("|", "\\|")[:200]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name.partition(':')[2].removesuffix('-v0')}`" for name in sorted(names))
