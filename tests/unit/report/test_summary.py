from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from turnwise.errors import RunError
from turnwise.report.run_dir import Summary

PUBLIC_KEYS = (
    "recipe env seed steps wall_s setup_s success_before success_after return_before return_after eval_episodes "
    "baselines tokens_sampled tokens_trained time_split policy_version warm_start findings stopped failures "
    "envs rewards success_before_interval success_after_interval baseline_intervals"
)


def test_the_keys_are_the_public_ones(make_summary) -> None:
    assert " ".join(json.loads(make_summary().to_json())) == PUBLIC_KEYS


FOUND = {"step": 30, "kind": "low_entropy", "message": "entropy is 0.01"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"warm_start": None},
        {"success_before": None, "return_before": None},
        {"findings": [FOUND], "stopped": {**FOUND, "returned_to_step": 20}},
    ],
)
def test_round_trip(tmp_path: Path, make_summary, changes) -> None:
    (tmp_path / "summary.json").write_text(make_summary(**changes).to_json())
    assert Summary.read(tmp_path / "summary.json") == make_summary(**changes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"success_after": math.nan}, "success_after"),
        ({"wall_s": math.inf}, "wall_s"),
        ({"baselines": {"random": math.nan}}, "baselines.random"),
        ({"warm_start": {"steps": -math.inf}}, "warm_start.steps"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(make_summary, changes, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be finite"):
        make_summary(**changes)


def test_a_summary_from_before_there_were_findings_is_read(tmp_path: Path, make_summary) -> None:
    values = json.loads(make_summary().to_json())
    del values["findings"], values["stopped"], values["failures"]
    (tmp_path / "summary.json").write_text(json.dumps(values))
    assert Summary.read(tmp_path / "summary.json") == make_summary(findings=[], stopped=None, failures={})


def test_the_time_split_must_be_complete(make_summary) -> None:
    with pytest.raises(ValueError, match="time_split must have"):
        make_summary(time_split={"rollout": 1.0})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda values: values.pop("seed"), "lacks seed"),
        (lambda values: values.update(seed="seven"), "seed must be a number"),
        (lambda values: values.update(time_split=3), "damaged"),
        (lambda values: values.update(findings=3), "damaged"),
        (lambda values: values.update(findings=[{"step": 3}]), "findings must have step, kind and message"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, make_summary, damage, message: str) -> None:
    values = json.loads(make_summary().to_json())
    damage(values)
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(values))
    with pytest.raises(RunError, match=message) as caught:
        Summary.read(path)
    assert str(path) in str(caught.value)


def test_text_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"recipe": ')
    with pytest.raises(RunError, match="expected a JSON object"):
        Summary.read(tmp_path / "summary.json")


def test_keys_of_a_newer_version_are_left_alone(tmp_path: Path, make_summary) -> None:
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(json.loads(make_summary().to_json()) | {"new": 1}))
    assert Summary.read(path) == make_summary()
