"""A recorded step comes out the same, and says so where the record was changed."""

from __future__ import annotations

import json

import pytest

from tests.small_run import SMALL_LAKE, without_plots
from turnwise.errors import ConfigError, RunError
from turnwise.run.api import Run, train
from turnwise.run.replay import replay

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("replayed_run")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        settings = [*SMALL_LAKE, "learn.steps=3", "report.checkpoint_every=2", "buffer.type=sqlite"]
        return train("frozenlake", settings, run_dir=tmp_path_factory.mktemp("replay") / "run")


@pytest.mark.parametrize(("step", "from_step"), [(1, 0), (2, 0), (3, 2)])
def test_a_step_comes_out_the_same(run: Run, step: int, from_step: int) -> None:
    result = replay(run.path, step)
    assert result.from_step == from_step
    names = ("tokens", "rewards", "advantages", "loss", "grad_norm", "weights")
    assert dict(result.parts) == dict.fromkeys(names, True)


def test_nothing_in_the_run_is_touched(run: Run) -> None:
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    replay(run.path, 1)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_what_differs_is_named(run: Run) -> None:
    file = run.path / "metrics.jsonl"
    sound = file.read_text()
    rows = [json.loads(line) for line in sound.splitlines()]
    changed = [row | {"learn/grad_norm": 0.5} if row["step"] == 1 else row for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in changed))
    try:
        result = replay(run.path, 1)
    finally:
        file.write_text(sound)
    assert not result.identical
    assert [name for name, same in result.parts.items() if same is False] == ["grad_norm"]


def test_another_credit_rule_is_shown_beside_the_one_that_was(run: Run) -> None:
    other = replay(run.path, 2, ["credit.type=reinforce_pp"]).other
    assert other["recorded"]["advantage/max"] != other["replayed"]["advantage/max"]


def test_what_cannot_be_replayed_is_refused(run: Run) -> None:
    with pytest.raises(RunError, match="the run has steps 1 to 3"):
        replay(run.path, 9)
    with pytest.raises(ConfigError, match="cannot differ in a replay"):
        replay(run.path, 1, ["model.tiny.hidden_size=32"])
