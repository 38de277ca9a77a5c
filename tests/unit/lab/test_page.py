"""The page is made anew; what people wrote around it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwise.errors import ConfigError
from turnwise.lab.estimator_benchmark import (
    COLUMNS,
    CreditStudy,
    WorldReport,
    check_page,
    make_rules,
    study_world,
    to_rows,
    to_table,
    write_page,
)

STUDY = CreditStudy(world="corridor", batches=2, episodes=16)


@pytest.fixture(scope="module")
def report() -> WorldReport:
    rules = make_rules()
    return study_world(STUDY.worlds[0], STUDY, {name: rules[name] for name in ("gae", "multi_step_grpo")})


def test_what_people_wrote_survives_another_run(tmp_path: Path, report: WorldReport) -> None:
    page = write_page([report], STUDY, ["gae.lam=0.9"], tmp_path)
    first = page.read_text()
    assert f"turnwise lab credit --world corridor --episodes 16 --batches 2 gae.lam=0.9 --out {tmp_path}\n" in first
    assert all(f"| `{rule}` |" in first or f"| *{rule}* |" in first for rule in report.scores)
    assert all(f"*{name}*: {text}." in first for name, text in COLUMNS.items())
    assert (tmp_path / "credit_lab.png").read_bytes().startswith(b"\x89PNG")
    page.write_text(f"by hand, above\n{first}\nby hand, below\n".replace("| `gae` |", "| `old` |"))
    check_page(tmp_path)
    again = write_page([report], STUDY, ["gae.lam=0.9"], tmp_path).read_text()
    assert again == f"by hand, above\n{first}\nby hand, below\n"


def test_a_page_of_someone_else_is_left_alone(tmp_path: Path, report: WorldReport) -> None:
    (tmp_path / "credit_lab.md").write_text("# Mine\n")
    for attempt in (lambda: check_page(tmp_path), lambda: write_page([report], STUDY, [], tmp_path)):
        with pytest.raises(ConfigError, match="has no marks around what was measured"):
            attempt()
    assert (tmp_path / "credit_lab.md").read_text() == "# Mine\n"
    assert not (tmp_path / "credit_lab.png").exists()


def test_the_page_names_the_critic(tmp_path: Path, report: WorldReport) -> None:
    pages = [
        write_page([report], CreditStudy(critic=critic), [], tmp_path / critic).read_text()
        for critic in ("exact", "noisy")
    ]
    assert "one with the exact values." in pages[0]
    assert "1 times the typical true advantage in size." in pages[1]


def test_tables_show_every_number_and_a_dash_for_none(report: WorldReport) -> None:
    rows = to_rows([report])
    assert [row["rule"] for row in rows] == list(report.scores)
    table = to_table(report)
    for row, (_, *shown) in zip(rows, table.rows, strict=True):
        assert len(shown) == len(COLUMNS) == len(table.columns) - 1
        assert float(shown[0]) == pytest.approx(row["cosine"], abs=1e-3)
        parts = [row[name] for name in ("bias", "offset", "noise")]
        assert shown[-3:] == [f"{part:.2f}" if part is not None else "-" for part in parts]
    assert {row["bias"] is None for row in rows} == {True, False}  # so few episodes tell nothing of the last rewards
