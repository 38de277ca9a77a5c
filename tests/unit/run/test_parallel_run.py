"""A run whose learner is several processes: the same steps as with one, and on from its checkpoints."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import pytest

from tests.small_run import SMALL_LAKE, without_plots
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError
from turnwise.loop.build import samples_in_place
from turnwise.run.api import resume, train


def test_an_engine_cannot_sample_from_what_lies_in_other_processes() -> None:
    lake = {"env": {"type": "frozen_lake"}, "credit": {"type": "grpo"}}
    assert samples_in_place(load_settings(lake))
    assert not samples_in_place(load_settings(lake, ["learn.parallel={type: ddp, ranks: 1}"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("learn.parallel.ranks=2", r"learn\.parallel\.type: missing beside 'ranks'"),
        ("learn.parallel={type: none, ranks: 2}", r"2 given and learn\.parallel\.type is 'none'"),
        ("learn.parallel={type: fsdp, ranks: 0}", r"learn\.parallel\.ranks"),
        ("learn.parallel={type: ddp, cpu_offload: true}", r"learn\.parallel\.cpu_offload"),
    ],
)
def test_ranks_that_cannot_be_are_refused(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings({"env": {"type": "frozen_lake"}}, [words])


@pytest.mark.slow
def test_a_run_with_ranks_is_that_of_one_process_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    ranks = ["learn.parallel={type: fsdp, ranks: 2}", "learn.device=cpu", "report.checkpoint_every=1"]
    one = train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "one")
    many = train("frozenlake", [*SMALL_LAKE, *ranks], run_dir=tmp_path / "many")
    assert (many.path / "ranks" / "rank-1.log").is_file()
    assert multiprocessing.active_children() == []
    # As if it had been killed in its second step, and went on where there is one device less.
    shutil.rmtree(many.path / "checkpoints" / "step-000002")
    config = many.path / "config.yaml"
    config.write_text(config.read_text().replace("ranks: 2", "ranks: 1"))
    resume(many.path)
    assert many.settings.learn.parallel.ranks == 1
    rows, wanted = many.metrics(), one.metrics()
    assert [row["step"] for row in rows] == [row["step"] for row in wanted] == [0, 1, 2]
    for row, expected in zip(rows, wanted, strict=True):
        compared = {name: number for name, number in expected.items() if name.startswith(("learn/", "eval/"))}
        assert {name: row[name] for name in compared} == pytest.approx(compared, abs=1e-4)
