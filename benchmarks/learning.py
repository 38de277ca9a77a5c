"""`make results`: trains recipes over several seeds; writes their tables and curves to docs/results/, a page each.

A run that is already there and finished is not made again, so an interrupted comparison goes on where it stopped.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.presets import MARK, ROOT, train_once
from turnwise.infra.atomic_files import atomic_write
from turnwise.report.plots import HELD_OUT, SAMPLED, plot_comparison
from turnwise.report.run_dir import Summary
from turnwise.run.api import Run

PAGES: dict[str, dict[str, list[str]]] = {
    "environments": {name: [name] for name in ("sokoban", "countdown", "alfworld", "webshop")},
    "step_wise": {
        f"{recipe}, {credit}": [f"{recipe}_step_wise", f"credit.type={credit}"]
        for recipe in ("frozenlake", "sokoban")
        for credit in ("multi_step_grpo", "step_return")
    },
    "smollm2": {name: [name] for name in ("smollm2_bandit", "smollm2_countdown")},
}
"""The rows of each page, with the words that `turnwise train` is given for them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", choices=PAGES, default="environments")
    parser.add_argument("--rows", nargs="+", help="only these rows of the page")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time, each on one thread")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "learning")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    rows = {name: words for name, words in PAGES[options.page].items() if name in (options.rows or PAGES[options.page])}
    wanted = [(name, seed) for seed in range(options.seeds) for name in rows]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda job: train_once(job[0], job[1], options.runs, rows[job[0]]), wanted))
    runs = {name: [Run(options.runs / f"{name}-{seed}") for seed in range(options.seeds)] for name in rows}
    write_page(runs, options.page, options.out)


def write_page(runs: dict[str, list[Run]], name: str, out: Path) -> None:
    """The table and the curves; what stands above the mark in the page is left as it is."""
    curves = {row: [run.metrics() for run in some] for row, some in runs.items()}
    # A pretrained model is slow to evaluate, so its runs do that before and after alone.
    shown = HELD_OUT if all(run.settings.eval.every for some in runs.values() for run in some) else SAMPLED
    plot_comparison(curves, {}, out / f"{name}.png", shown)
    page = out / f"{name}.md"
    above = page.read_text().split(MARK)[0] if page.exists() else f"# {name}\n\n"
    atomic_write(page, (above + MARK + "\n\n" + describe(runs, f"{name}.png", shown.label)).encode())


def describe(runs: dict[str, list[Run]], figure_name: str, figure_label: str) -> str:
    """Success by seed, then where the seconds of a run go, then what other players reach on the same episodes."""
    success = [
        "| recipe | episodes | before, by seed | after training, by seed, with 95 % intervals | gain, by seed |",
        "|---|---|---|---|---|",
    ]
    seconds = [
        "| recipe | steps | environment steps | set-up, warm start, first evaluation | rollout | update | whole run |",
        "|---|---|---|---|---|---|---|",
    ]
    others = ["| recipe | on the same episodes |", "|---|---|"]
    for name, some in runs.items():
        summaries = [run.summary for run in some]
        before = [s.success_before or 0.0 for s in summaries]
        after = [s.success_after or 0.0 for s in summaries]
        gains = [a - b for a, b in zip(after, before, strict=True)]
        success.append(
            f"| `{name}` | {summaries[0].eval_episodes} | {_list(before)} | {', '.join(map(_after, summaries))} "
            f"| {_list(gains, '+.3f')} |"
        )
        env_steps = median(sum(row.get("rollout/env_steps", 0) for row in run.metrics()) for run in some)
        rollout = median(s.time_split["rollout"] + s.time_split["env"] for s in summaries)
        seconds.append(
            f"| `{name}` | {summaries[0].steps} | {env_steps:,.0f} | {median(s.setup_s for s in summaries):.0f} s "
            f"| {rollout:.0f} s | {median(s.time_split['learn'] for s in summaries):.0f} s "
            f"| {median(s.wall_s for s in summaries):.0f} s |"
        )
        shown = {other: rate for other, rate in summaries[0].baselines.items() if other != "warm_start"}
        others.append(f"| `{name}` | {', '.join(f'{other} {rate:.3f}' for other, rate in shown.items())} |")
    figure = [f"![{figure_label.capitalize()} while training, one line per seed]({figure_name})"]
    return "\n\n".join("\n".join(part) for part in (success, figure, others, seconds)) + "\n"


def _after(summary: Summary) -> str:
    low, high = summary.success_after_interval or (0.0, 1.0)
    return f"**{summary.success_after:.3f}** ({low:.2f} to {high:.2f})"


def _list(numbers: list[float], form: str = ".3f") -> str:
    return ", ".join(format(number, form) for number in numbers)


if __name__ == "__main__":
    main()
